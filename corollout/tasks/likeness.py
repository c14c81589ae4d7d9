"""A toy task with many tokens: say something like a target. Every token counts, by how near it is to the target's.

Tokens are fixed vectors, drawn at random. The reward of a sequence is the mean over places of (1 + cosine) / 2 of what
is said and what is wanted there: about ½ for random tokens, 1 for the target itself, and nothing for places after an
early end. So a policy that knows nothing gets a signal from its first sequence on, however many tokens there are.
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
    """Contexts that are only numbers, each with a target, and a policy of random weights."""

    engine: Engine
    policy: "LikenessPolicy"
    data: Columns
    reward: Reward

    def mean_reward(self, samples: int, noise: Noise) -> float:
        """Over some sequences of each context, which are drawn independently."""
        batch = self.data.batch(range(len(self.data)), self.policy.vectors.device)
        with torch.no_grad():
            memory = self.policy.encode(batch.context)
        drawn = self.engine.sample(memory, batch.examples, Sampler("sample", samples), noise).trajectories
        return float(self.reward(drawn.lists(), drawn.examples.tolist(), {}).values.mean())


def likeness_task(
    vocab: int, contexts: int = 8, length: int = 8, dimensions: int = 8, hidden: int = 32, seed: int = 0
) -> LikenessTask:
    """Vectors, targets and weights are drawn by the seed."""
    if vocab < 2 or min(contexts, length, dimensions, hidden) < 1:
        raise InputError(f"no task with {vocab} tokens, {contexts} contexts and targets of length {length} can be made")
    torch.manual_seed(seed)
    vectors = nn.functional.normalize(torch.randn(vocab, dimensions), dim=1)
    targets = torch.randint(1, vocab, (contexts, length))  # any token but the end
    policy = LikenessPolicy(vectors, contexts, hidden)
    engine = Engine(policy, bos=START, eos=END, max_length=length)
    reward = Reward(Likeness(vectors.numpy(), targets.numpy()), name="likeness")
    return LikenessTask(engine, policy, Columns(context=torch.arange(contexts)), reward)


class LikenessPolicy(nn.Module):
    """A GRU that sees its context at every step. Tokens go in as their vectors, and a token's logit is the product of
    its vector with what the GRU asks for: what is learned of one token is true of those like it."""

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
        for said in tokens.unbind(1):
            hidden.append(self._advance(memory, hidden[-1], said))
        return self._logits(torch.stack(hidden[1:], 1))

    def _advance(self, memory: Tensor, hidden: Tensor, tokens: Tensor) -> Tensor:
        return self.cell(torch.cat([self.vectors[tokens], memory], 1), hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.query(hidden) @ self.vectors.t()


class Likeness:
    """The reward: how near sequences are to the targets of their examples."""

    def __init__(self, vectors: Float[np.ndarray, "vocab dimension"], targets: Int64[np.ndarray, "context place"]):
        self.vectors, self.targets = vectors, targets

    def __call__(self, sequences: Sequence[Sequence[int]], examples: Sequence[int]) -> list[float]:
        lengths = np.array([len(sequence) for sequence in sequences])
        said = np.fromiter(chain.from_iterable(sequences), np.int64, lengths.sum())
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(said)) - np.repeat(lengths.cumsum() - lengths, lengths)
        wanted = self.targets[np.array(examples)[row], place]
        near = (1 + (self.vectors[said] * self.vectors[wanted]).sum(1)) / 2
        return (np.bincount(row, near, len(lengths)) / self.targets.shape[1]).tolist()
