"""Fine-tuning by TRL's RLOOTrainer and GRPOTrainer.

Everything that costs time without changing the method is off: logging, checkpoints, gradient checkpointing, reduced
precision (slow on a CPU), the KL term and with it the reference model. The rest is as TRL has it by default.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.language_models.settings import METHODS, RunSettings
from corollout.errors import InputError

INSTALL = "TRL is not installed: pip install --constraint constraints.txt 'corollout[hf,bench]'"


def shared_arguments(settings: RunSettings, folder: Path) -> dict[str, Any]:
    """Arguments that TRL's configuration and ours have in common."""
    return {
        "output_dir": str(folder),
        "seed": settings.seed,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": settings.max_grad_norm,
        "per_device_train_batch_size": settings.rows,
        "gradient_accumulation_steps": 1,
        "num_generations": settings.completions,
        "max_completion_length": settings.max_completion_length,
        "temperature": 1.0,
        "beta": 0.0,
        "max_steps": settings.most_updates,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def prompts_table(prompts: Sequence[str]) -> Any:
    """A ``datasets`` table with the prompts and, for the reward, the index of each example."""
    Dataset: Any = import_module("datasets").Dataset

    return Dataset.from_dict({"prompt": list(prompts), "example": list(range(len(prompts)))})


def make_trl_trainer(
    settings: RunSettings,
    folder: Path,
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    reward: Callable[..., list[float]],
    callbacks: Sequence[Any],
) -> Any:
    try:
        trl = import_module("trl")
    except ImportError as error:
        raise InputError(INSTALL) from error
    makers = {"rloo": (trl.RLOOTrainer, trl.RLOOConfig), "grpo": (trl.GRPOTrainer, trl.GRPOConfig)}
    make_trainer, make_config = makers[METHODS[settings.method].estimator]
    return make_trainer(
        model=model,
        reward_funcs=reward,
        args=make_config(**shared_arguments(settings, folder)),
        train_dataset=prompts_table(prompts),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
