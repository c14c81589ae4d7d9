"""A toy task with a large vocabulary: generate a sequence similar to a target.

Tokens have fixed random vectors. The reward of a sequence is the mean over positions of (1 + cosine) / 2 between the
token and the target's: about ½ for random tokens, 1 for the target itself, and 0 for positions after an early end. So
even an untrained policy gets a signal from its first sequence on, however large the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from corollout.data import Columns
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.types import Sampler

START = END = 0


@dataclass(frozen=True)
class LikenessTask:
    """Contexts, each a number with a target, and a policy with random weights."""

    engine: Engine
    policy: "LikenessPolicy"
    data: Columns
    reward: Reward

    def mean_reward(self, samples: int, noise: Noise) -> float:
        """The mean reward of independent samples, ``samples`` for each context."""
        batch = self.data.batch(range(len(self.data)), self.policy.vectors.device)
        drawn = self.engine.decode(batch.context, batch.examples, Sampler("sample", samples), noise).trajectories
        return float(self.reward(drawn.lists(), drawn.examples.tolist(), {}).values.mean())


def likeness_task(
    vocab: int, contexts: int = 8, length: int = 8, dimensions: int = 8, hidden: int = 32, seed: int = 0
) -> LikenessTask:
    """The task with vectors, targets and weights drawn by the seed."""
    if vocab < 2 or min(contexts, length, dimensions, hidden) < 1:
        raise InputError(f"cannot make a task with {vocab} tokens, {contexts} contexts and targets of length {length}")
    torch.manual_seed(seed)
    vectors = nn.functional.normalize(torch.randn(vocab, dimensions), dim=1)
    targets = torch.randint(1, vocab, (contexts, length))  # any token but END
    policy = LikenessPolicy(vectors, contexts, hidden)
    engine = Engine(policy, bos=START, eos=END, max_length=length)
    reward = Reward(Likeness(vectors.numpy(), targets.numpy()), name="likeness")
    return LikenessTask(engine, policy, Columns(context=torch.arange(contexts)), reward)


class LikenessPolicy(nn.Module):
    """A GRU that sees its context at every step.

    It reads the vector of the previous token, and the logit of a token is the product of its vector with a query: what
    is learned of a token holds for similar ones.
    """

    vectors: Tensor

    def __init__(self, vectors: Float[Tensor, "vocab dimension"], contexts: int, hidden: int):
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.context = nn.Embedding(contexts, hidden)
        self.cell = nn.GRUCell(vectors.shape[1] + hidden, hidden)
        self.query = nn.Linear(hidden, vectors.shape[1])

    def encode(self, context: Int64[Tensor, " row"]) -> Float[Tensor, "row hidden"]:
        return self.context(context)

    def start(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        return memory, memory

    def step(
        self, state: tuple[Tensor, Tensor], tokens: Int64[Tensor, " row"]
    ) -> tuple[Float[Tensor, "row vocab"], tuple[Tensor, Tensor]]:
        memory, hidden = state
        hidden = self._advance(memory, hidden, tokens)
        return self._logits(hidden), (memory, hidden)

    def score(self, memory: Tensor, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]:
        hidden = [memory]
        for column in tokens.unbind(1):
            hidden.append(self._advance(memory, hidden[-1], column))
        return self._logits(torch.stack(hidden[1:], 1))

    def _advance(self, memory: Tensor, hidden: Tensor, tokens: Tensor) -> Tensor:
        return self.cell(torch.cat([self.vectors[tokens], memory], 1), hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.query(hidden) @ self.vectors.t()


class Likeness:
    """The reward: the similarity of sequences to the targets of their examples."""

    def __init__(self, vectors: Float[np.ndarray, "vocab dimension"], targets: Int64[np.ndarray, "context position"]):
        self.vectors, self.targets = vectors, targets

    def __call__(self, sequences: Sequence[Sequence[int]], examples: Sequence[int]) -> list[float]:
        lengths = np.array([len(sequence) for sequence in sequences])
        said = np.fromiter(chain.from_iterable(sequences), np.int64, lengths.sum())
        row = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(said)) - np.repeat(lengths.cumsum() - lengths, lengths)
        expected = self.targets[np.array(examples)[row], position]
        near = (1 + (self.vectors[said] * self.vectors[expected]).sum(1)) / 2
        return (np.bincount(row, near, len(lengths)) / self.targets.shape[1]).tolist()
