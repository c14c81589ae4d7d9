"""The reward of a model on a fixed part of the development set, with greedy decoding and with samples."""

import random
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.language_models.problem import Scorer

DECODINGS = ("greedy", "sampled")
_SEED = 20_260


def fixed_subset(examples: Sequence[Any], count: int) -> list[Any]:
    """So many examples, always the same ones."""
    return random.Random(_SEED).sample(list(examples), min(count, len(examples)))


@torch.no_grad()
def decode(
    model: Any, tokenizer: Any, prompts: Sequence[str], max_completion_length: int, sampled: bool, batch_size: int = 128
) -> list[str]:
    """A completion of each prompt; samples are the same every time for the same model."""
    texts: list[str] = []
    sampling: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "temperature": 1.0} if sampled else {}
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        for start in range(0, len(prompts), batch_size):
            batch = tokenizer(list(prompts[start : start + batch_size]), padding=True, return_tensors="pt")
            output = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=max_completion_length,
                do_sample=sampled,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                **sampling,
            )
            completions = output if model.config.is_encoder_decoder else output[:, batch["input_ids"].shape[1] :]
            texts += tokenizer.batch_decode(completions, skip_special_tokens=True)
    return texts


def evaluate(model: Any, tokenizer: Any, scorer: Scorer, max_completion_length: int) -> dict[str, dict[str, float]]:
    """``{"greedy": {"reward": …, …}, "sampled": {…}}``: means of all scores over the scorer's examples."""
    was_training = model.training
    model.eval()
    means: dict[str, dict[str, float]] = {}
    for decoding in DECODINGS:
        texts = decode(model, tokenizer, scorer.prompts, max_completion_length, decoding == "sampled")
        scores = scorer.scores(texts, range(len(texts)))
        means[decoding] = {
            name: sum(getattr(score, name) for score in scores) / len(scores) for name in scorer.measures
        }
    model.train(was_training)
    return means
