"""The few data types that the rooms of the package hand to each other: tensors with names, and nothing else."""

from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class Sampler:
    """How an estimator wants its main trajectories drawn: ``count`` for each context, by ``mode``.

    A "set" is a sample without replacement: all different, and fewer than ``count`` if there are no more.
    """

    mode: Literal["sample", "greedy", "beam", "set"] = "sample"
    count: int = 1


@dataclass(frozen=True)
class Sequences:
    """Token sequences, the end token included; whatever lies beyond ``lengths`` is padding."""

    tokens: Int64[Tensor, "row step"]
    lengths: Int64[Tensor, " row"]
    finished: Bool[Tensor, " row"]  # ended by itself, not cut at the maximal length

    def lists(self) -> list[list[int]]:
        """Plain lists of token ids without the end token, as a reward function reads them."""
        words = (self.lengths - self.finished.long()).tolist()
        return [row[:n] for row, n in zip(self.tokens.tolist(), words, strict=True)]


@dataclass(frozen=True)
class Decisions:
    """Tokens that are chosen by binary decisions: at depth i, bit 1 has the probability σ(logit i)."""

    bits: Bool[Tensor, "row step depth"]
    there: Bool[Tensor, "row step depth"]  # a token has as many decisions as its path is long
    other: Int64[Tensor, "row step depth"]  # where the opposite bit leads, as ``Branches.token`` has it

    def scores(self, logits: Float[Tensor, "row step depth"]) -> Float[Tensor, "row step depth"]:
        """d log p(token) / d logits."""
        return torch.where(self.there, self.bits.to(logits.dtype) - logits.sigmoid(), 0.0)

    def log_probs(self, logits: Float[Tensor, "row step depth"]) -> Float[Tensor, "row step"]:
        """log p(token)."""
        return torch.where(self.there, logsigmoid(torch.where(self.bits, logits, -logits)), 0.0).sum(2)


@dataclass(frozen=True)
class Trajectories(Sequences):
    """Main trajectories: where each comes from, and the logits that its tokens were chosen from."""

    contexts: Int64[Tensor, " row"]  # index into the batch of contexts
    examples: Int64[Tensor, " row"]  # id of the example in its data set
    samples: Int64[Tensor, " row"]  # number of the draw among its context's
    keys: Int64[Tensor, " row"]  # noise key of its steps
    log_probs: Float[Tensor, " row"]
    # In float32 or float64, zero beyond a row's length. A beam keeps no logits: there vocab = 0.
    logits: Float[Tensor, "row step vocab"]
    # If tokens are walks down a tree, their decisions; then there is a logit for each decision, not for each token.
    decisions: Decisions | None = None

    @property
    def mask(self) -> Bool[Tensor, "row step"]:
        """True where a row has a token."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]


@dataclass(frozen=True)
class Branches:
    """Departures from main trajectories: parent's prefix up to ``step``, then ``token``, then a completion.

    A negative token is one that was only begun: −1 − n stands for whatever is drawn below inner node n of a tree.
    """

    parent: Int64[Tensor, " branch"]
    step: Int64[Tensor, " branch"]
    token: Int64[Tensor, " branch"]
    copy: Int64[Tensor, " branch"]  # number of the completion; 0 may share its parent's noise
    greedy: Bool[Tensor, " branch"]

    def __len__(self) -> int:
        return len(self.parent)

    @classmethod
    def of(
        cls,
        parent: Int64[Tensor, " branch"],
        step: Int64[Tensor, " branch"],
        token: Int64[Tensor, " branch"],
        *,
        greedy: bool = False,
        copy: int = 0,
    ) -> "Branches":
        """Branches that are all completed in one way."""
        return cls(
            parent, step, token, torch.full_like(parent, copy), torch.full_like(parent, greedy, dtype=torch.bool)
        )

    @classmethod
    def none(cls, device: torch.device) -> "Branches":
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        return cls.of(nothing, nothing, nothing)

    @classmethod
    def join(cls, *parts: "Branches") -> "Branches":
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def select(self, index: Tensor) -> "Branches":
        return Branches(*(getattr(self, field.name)[index] for field in fields(self)))


def full_precision(x: Tensor) -> Tensor:
    """Half-precision numbers in single precision, in which noise and coefficients are computed."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass
class Cost:
    """What an estimate has cost so far."""

    tokens: int = 0  # tokens generated = rows × steps that the policy computed
    main_tokens: int = 0  # those of the main trajectories
    rollouts: int = 0  # branches completed, greedy baselines included
    reward_calls: int = 0  # sequences that the reward function was evaluated on

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
