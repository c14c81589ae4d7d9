"""Decode a whole data set, in batches."""

import torch

from corollout.data import Columns
from corollout.divided_work import batches, divided
from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.types import Decoded, Sampler


def decode(
    engine: Engine, columns: Columns, sampler: Sampler, *, seed: int = 0, batch_size: int = 256, device: str = "cpu"
) -> list[list[list[int]]]:
    """The sequences of each example, best first; the policy sees the context only.

    The processes of a job divide the batches; all of them make this call, and get all sequences.
    """
    decoded = decode_scored(engine, columns, sampler, seed=seed, batch_size=batch_size, device=device)
    return [[one.tokens for one in sequences] for sequences in decoded]


def decode_scored(
    engine: Engine, columns: Columns, sampler: Sampler, *, seed: int = 0, batch_size: int = 256, device: str = "cpu"
) -> list[list[Decoded]]:
    """:func:`decode` with log-probabilities."""
    parts = batches(len(columns), batch_size)

    def decode_part(number: int) -> list[list[Decoded]]:
        index = torch.tensor(parts[number])
        batch = columns.batch(index, device)
        drawn = engine.decode(batch.context, batch.examples, sampler, Noise(seed), "tokens").trajectories
        groups: list[list[Decoded]] = [[] for _ in index]
        for context, sequence in zip(drawn.contexts.tolist(), drawn.decoded(), strict=True):
            groups[context].append(sequence)
        return groups

    decoded = divided(len(parts), decode_part)
    return [[Decoded(*one) for one in group] for part in decoded for group in part]
