"""Completions of prompts by a language model, from nothing but names: ``corollout lm generate`` from Python."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from corollout.errors import InputError
from corollout.events import Callback, Progress, ignore
from corollout.hf.data import batch_of
from corollout.hf.data_files import Row, read_prompts
from corollout.hf.loading import load_model, load_tokenizer, require_vocabulary
from corollout.hf.policies import CausalLMPolicy, LanguageModelPolicy, Seq2SeqPolicy
from corollout.hf.reward_names import import_rewards
from corollout.hf.rewards import text_rewards
from corollout.hf.settings import SETTINGS, GenerateSettings
from corollout.hf.text import Completion, Prompt, Text
from corollout.rewards import WeightedRewards
from corollout.types import Decoded, Sampler

MODEL = "model"  # the folder of the weights in that of a training


@dataclass(frozen=True)
class Generated:
    """A completion of a prompt. ``reward`` is None where no reward applies, or if there are no rewards."""

    number: int  # of the prompt
    rank: int
    prompt: Prompt
    completion: Completion
    tokens: int
    log_probability: float  # by the distribution that it is drawn from
    finished: bool
    reward: float | None
    rewards: dict[str, float | None]


def load_policy(model: str, dtype: str = "auto", use_cpu: bool = False) -> LanguageModelPolicy:
    """The policy of a language model, given by its name, its folder, or the folder of a training."""
    name = model_of(model)
    tokenizer, module = load_tokenizer(name), load_model(name, {"dtype": dtype})
    config: Any = module.config
    module.to("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")
    policy = (Seq2SeqPolicy if config.is_encoder_decoder else CausalLMPolicy)(module, tokenizer)
    require_vocabulary(len(policy.read_out_weight), tokenizer)
    return policy


def model_of(name: str) -> str:
    """The folder of the weights, if the name is the folder of a training."""
    folder = Path(name)
    if not (folder / SETTINGS).is_file():
        return name
    if not (folder / MODEL).is_dir():
        raise InputError(
            f"the training in {name} is not finished: name one of its checkpoints, or finish it with "
            f"corollout lm train --resume --out {name}"
        )
    return str(folder / MODEL)


def sampler_of(settings: GenerateSettings) -> Sampler:
    """How completions are decoded: greedily, unless something else is asked for."""
    if settings.beam and settings.sample:
        raise InputError("--beam and --sample exclude each other: choose one")
    if settings.sample:
        return Sampler("sample", settings.sample)
    if settings.temperature != 1 or settings.top_k is not None or settings.top_p is not None:
        raise InputError("--temperature, --top-k and --top-p are for samples: add --sample with their number")
    return Sampler("beam", settings.beam) if settings.beam else Sampler("greedy")


def prompt_rows(settings: GenerateSettings) -> list[Row]:
    """The rows whose prompts are completed."""
    if settings.prompt and settings.dataset:
        raise InputError("--prompt and --dataset exclude each other: choose one")
    if settings.chat and not settings.prompt:
        raise InputError("--chat is for --prompt: a data set has its own messages")
    if settings.prompt:
        return [{"prompt": [{"role": "user", "content": text}] if settings.chat else text} for text in settings.prompt]
    if settings.dataset is None:
        raise InputError("there is nothing to complete: give --prompt or --dataset")
    rows = read_prompts(settings)
    return [rows[number] for number in range(min(settings.count, len(rows)))]


def generate_completions(settings: GenerateSettings, on_event: Callback = ignore) -> Iterator[Generated]:
    """Completions of all prompts, batch by batch, in their order."""
    sampler, rows, functions = sampler_of(settings), prompt_rows(settings), import_rewards(settings.reward)
    if settings.reward_weights and not functions:
        raise InputError("--reward-weights are for rewards: name them with --reward")
    policy = load_policy(settings.model, settings.dtype, settings.use_cpu)
    text = Text(policy.tokenizer)
    engine = policy.engine(settings.max_completion_length, stop_strings=settings.stop_strings or None)
    reward: WeightedRewards | None = None
    if functions:
        reward = text_rewards(
            functions, text, engine, weights=settings.reward_weights or None,
            workers=settings.reward_workers, timeout=settings.reward_timeout,
        )  # fmt: skip
    numbered = [{"number": number, "row": dict(row)} for number, row in enumerate(rows)]
    most = policy.prompt_room(settings.max_completion_length)
    device = policy.device
    batch_of(numbered, text, most, device)  # whatever is wrong with a prompt is told before any work
    progress = Progress(on_event, "prompts", len(rows))
    try:
        for first in range(0, len(rows), settings.batch_size):
            some = numbered[first : first + settings.batch_size]
            drawn = engine.generate(
                batch_of(some, text, most, device).context, mode=sampler.mode, count=sampler.count,
                seed=settings.seed, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p,
                examples=[one["number"] for one in some],
            )  # fmt: skip
            progress.advance(len(some))
            yield from _scored(some, drawn, text, reward)
    finally:
        if reward is not None:
            reward.close()


def _scored(
    some: list[dict[str, Any]], drawn: list[list[Decoded]], text: Text, reward: WeightedRewards | None
) -> Iterator[Generated]:
    flat = [(one, rank, decoded) for one, each in zip(some, drawn, strict=True) for rank, decoded in enumerate(each)]
    tokens = [decoded.tokens for _, _, decoded in flat]
    completions = text.completions(tokens, [one["row"]["prompt"] for one, _, _ in flat])
    totals, parts = [math.nan] * len(flat), {}
    if reward is not None:
        scores = reward(
            tokens,
            [one["number"] for one, _, _ in flat],
            {"row": [one["row"] for one, _, _ in flat]},
            [decoded.finished for _, _, decoded in flat],
        )
        totals, parts = scores.values.tolist(), {name: values.tolist() for name, values in scores.parts.items()}
    for i, (one, rank, decoded) in enumerate(flat):
        yield Generated(
            one["number"], rank, one["row"]["prompt"], completions[i], len(decoded.tokens), decoded.log_probability,
            decoded.finished, _number(totals[i]), {name: _number(values[i]) for name, values in parts.items()},
        )  # fmt: skip


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
