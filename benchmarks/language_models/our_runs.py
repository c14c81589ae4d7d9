"""Fine-tuning by our trainer, with the same arguments as TRL's and an estimator."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.language_models.settings import METHODS, RunSettings
from benchmarks.language_models.trl_runs import prompts_table, shared_arguments


def make_our_trainer(
    settings: RunSettings,
    folder: Path,
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    reward: Callable[..., list[float]],
    callbacks: Sequence[Any],
) -> Any:
    from corollout.hf import PolicyGradientConfig, PolicyGradientTrainer

    arguments = shared_arguments(settings, folder)
    return PolicyGradientTrainer(
        model=model,
        reward_funcs=reward,
        args=PolicyGradientConfig(estimator=METHODS[settings.method].estimator, **arguments),
        train_dataset=prompts_table(prompts),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def generated_tokens(trainer: Any, fallback: int) -> int:
    """Tokens that were generated, branches included but no prefix twice, if the trainer counts them."""
    return int(getattr(trainer, "generated_tokens", fallback))
