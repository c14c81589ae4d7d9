"""Sequences for every example of a data set, by any way of decoding."""

from typing import NamedTuple

import torch

from corollout.data import Columns
from corollout.noise import Noise
from corollout.policies import evaluation_mode
from corollout.rollouts import Engine
from corollout.types import Sampler


class Decoded(NamedTuple):
    """A sequence without its end token, and the logarithm of its probability, which the end token is part of."""

    tokens: list[int]
    log_probability: float


def decode(
    engine: Engine, columns: Columns, sampler: Sampler, *, seed: int = 0, batch_size: int = 256, device: str = "cpu"
) -> list[list[list[int]]]:
    """Each example's sequences, best first; nothing but its context is used."""
    found = decode_scored(engine, columns, sampler, seed=seed, batch_size=batch_size, device=device)
    return [[one.tokens for one in sequences] for sequences in found]


@torch.no_grad()
def decode_scored(
    engine: Engine, columns: Columns, sampler: Sampler, *, seed: int = 0, batch_size: int = 256, device: str = "cpu"
) -> list[list[Decoded]]:
    """The same with their log-probabilities."""
    sequences: list[list[Decoded]] = []
    for index in torch.arange(len(columns)).split(batch_size):
        batch = columns.batch(index, device)
        with evaluation_mode(engine.policy):
            memory = engine.policy.encode(batch.context)
        found = engine.sample(memory, batch.examples, sampler, Noise(seed)).trajectories
        groups: list[list[Decoded]] = [[] for _ in index]
        rows = zip(found.contexts.tolist(), found.lists(), found.log_probs.tolist(), strict=True)
        for context, tokens, log_probability in rows:
            groups[context].append(Decoded(tokens, log_probability))
        sequences += groups
    return sequences
