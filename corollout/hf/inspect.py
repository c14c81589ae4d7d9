"""Where did it go wrong? Completions of some prompts with the credit of every token, from a fresh gradient estimate:

    from corollout.hf.inspect import inspect_completions
    from corollout.reports.completions import write_completions_page

    samples = inspect_completions(policy, rows, reward_funcs, "arsm:budget=64", max_completion_length=64)
    write_completions_page(Path("page.html"), [samples], {"model": "SmolLM2-135M-Instruct"}, new=True)

``PolicyGradientTrainer.inspect(rows)`` does the same with a trainer's model, rewards and estimator. What a training has
kept in ``samples.jsonl`` is read back by :func:`corollout.reports.sample_records.read_samples_file`, and becomes a page
in the same way.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corollout.arguments import require_count, require_instance
from corollout.data import Batch
from corollout.estimators import Auto, Estimator
from corollout.hf.data import PromptRows, Row, batch_of
from corollout.hf.policies import LanguageModelPolicy
from corollout.hf.rewards import RewardFunction, text_rewards
from corollout.hf.text import Text, messages_of
from corollout.noise import Noise
from corollout.reports.sample_records import samples_of
from corollout.training.estimates import Estimate, as_estimator, estimate
from corollout.training.samples import Renderer, Samples, samples_of_all, take_samples

_AT_A_TIME = 4  # prompts


def inspect_completions(
    policy: LanguageModelPolicy,
    rows: Any,
    reward_funcs: RewardFunction | Sequence[RewardFunction],
    estimator: Estimator | str,
    *,
    max_completion_length: int = 256,
    temperature: float = 1.0,
    stop_strings: Sequence[str] | None = None,
    reward_weights: Sequence[float] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    seed: int = 0,
    batch_size: int = _AT_A_TIME,
) -> Samples:
    """Sample completions of some prompts, estimate the gradient of their expected reward, and take it apart.

    ``rows`` are those of a data set, with a column ``prompt``; ``reward_funcs`` have TRL's signature. Estimates are of
    ``batch_size`` prompts at a time. No weight changes. Of each prompt at most eight completions are kept, and of each
    completion at most 40 branches.
    """
    require_instance("policy", policy, LanguageModelPolicy, "a CausalLMPolicy or a Seq2SeqPolicy")
    require_count("max_completion_length", max_completion_length)
    text = Text(policy.tokenizer, chat_template_kwargs)
    engine = policy.engine(max_completion_length, stop_strings=stop_strings, temperature=temperature)
    reward, made = text_rewards(reward_funcs, text, engine, weights=reward_weights), as_estimator(estimator)
    most = policy.prompt_room(max_completion_length)

    def batch(some: list[Row]) -> Batch:
        return batch_of(some, text, most, policy.device)

    def sample(some: Batch) -> Estimate:
        return estimate(engine, some, reward, made, Noise(seed), micro_batch=len(some))  # no graph, no backward pass

    return inspect_rows(rows, batch, sample, text.renderer(engine.ends), made, batch_size=batch_size)


def inspect_rows(
    rows: Any,
    batch: Callable[[list[Row]], Batch],
    sample: Callable[[Batch], Estimate],
    renderer: Renderer,
    estimator: Estimator,
    update: int = 0,
    batch_size: int = _AT_A_TIME,
) -> Samples:
    """The same, given how batches and estimates are made."""
    require_count("batch_size", batch_size)
    prompts, parts = PromptRows(rows, "rows"), []
    for start in range(0, len(prompts), batch_size):
        made = batch([prompts[number] for number in range(start, min(start + batch_size, len(prompts)))])
        parts.append(text_samples(sample(made), made, update, renderer, estimator, len(made)))
    known = [(part.reward, len(part.contexts)) for part in parts if part.reward is not None]
    reward = math.fsum(mean * count for mean, count in known) / sum(count for _, count in known) if known else None
    contexts = [context for part in parts for context in part.contexts]
    return Samples(update, renderer.separator, contexts, parts[0].estimator, reward)


def text_samples(
    sample: Estimate, batch: Batch, update: int, renderer: Renderer, estimator: Estimator, most: int = _AT_A_TIME
) -> Samples:
    """What is kept of an estimate for a batch of :func:`corollout.hf.data.batch_of`: ``most`` of its prompts.

    If the batch is divided, all processes make this call, and get the same.
    """
    rows = batch.columns["row"]
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("prompt", "completion")))
    shown = Batch(batch.examples, {name: [row.get(name) for row in rows] for name in names}, batch.division)
    used = estimator.current if isinstance(estimator, Auto) else estimator
    prompts = [messages_of(row["prompt"]) for row in rows]
    samples = take_samples(sample, shown, update, renderer, used.label, prompts, most)
    if batch.division is None:
        return samples
    return samples_of(samples_of_all(asdict(samples), sample, batch.division), Path(), update)
