"""The data types that the parts of the package exchange: named tensors and nothing else."""

from dataclasses import dataclass, field, fields
from operator import add
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from corollout.division import Division


@dataclass(frozen=True)
class Sampler:
    """How main trajectories are drawn: ``count`` for each context, by ``mode``.

    A "set" is drawn without replacement: its sequences are distinct, and fewer than ``count`` if there are no more.
    """

    mode: Literal["sample", "greedy", "beam", "set"] = "sample"
    count: int = 1


@dataclass(frozen=True)
class Sequences:
    """Token sequences, including the end token; positions beyond ``lengths`` are padding."""

    tokens: Int64[Tensor, "row step"]
    lengths: Int64[Tensor, " row"]
    finished: Bool[Tensor, " row"]  # ends with the end token, or stops before; not at the maximal length
    stopped: Bool[Tensor, " row"] | None = field(default=None, kw_only=True)  # finished, but without an end token

    @property
    def mask(self) -> Bool[Tensor, "row step"]:
        """True where a row has a token."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    def lists(self) -> list[list[int]]:
        """Lists of token ids without the end token, as reward functions take them."""
        has_end = self.finished if self.stopped is None else self.finished & ~self.stopped
        counts = (self.lengths - has_end.long()).tolist()
        return [row[:n] for row, n in zip(self.tokens.tolist(), counts, strict=True)]


class Decoded(NamedTuple):
    """A sequence without its end token, and its log-probability, that of the end token included."""

    tokens: list[int]
    log_probability: float
    finished: bool = True  # False if it was cut at the maximal length


@dataclass(frozen=True)
class Decisions:
    """Tokens that are chosen by binary decisions: at depth i, bit 1 has the probability σ(logit i)."""

    bits: Bool[Tensor, "row step depth"]
    valid: Bool[Tensor, "row step depth"]  # a token has as many decisions as its path has inner nodes
    other: Int64[Tensor, "row step depth"]  # where the opposite bit leads, written as ``Branches.token``

    def scores(self, logits: Float[Tensor, "row step depth"]) -> Float[Tensor, "row step depth"]:
        """d log p(token) / d logits."""
        return torch.where(self.valid, self.bits.to(logits.dtype) - logits.sigmoid(), 0.0)

    def log_probs(self, logits: Float[Tensor, "row step depth"]) -> Float[Tensor, "row step"]:
        """log p(token)."""
        return torch.where(self.valid, logsigmoid(torch.where(self.bits, logits, -logits)), 0.0).sum(2)

    def select(self, rows: slice) -> "Decisions":
        """Those of some rows."""
        return Decisions(self.bits[rows], self.valid[rows], self.other[rows])


@dataclass(frozen=True)
class Trajectories(Sequences):
    """Main trajectories: their origin, and the logits from which their tokens were drawn."""

    contexts: Int64[Tensor, " row"]  # index into the batch of contexts
    examples: Int64[Tensor, " row"]  # id of the example in the data set
    samples: Int64[Tensor, " row"]  # index of the draw within its context
    keys: Int64[Tensor, " row"]  # noise key
    log_probs: Float[Tensor, " row"]
    # In float32 or float64, zero beyond a row's length. If they were not kept, vocab = 0.
    logits: Float[Tensor, "row step vocab"]
    # If tokens are paths in a tree, their decisions; logits are then those of the decisions, not of the tokens.
    decisions: Decisions | None = None
    token_log_probs: Float[Tensor, "row step"] | None = None  # zero beyond a row's length; a search keeps none
    # What greedy decoding would have chosen instead of each token, and what an estimator has noted of the logits while
    # they were there, if that was asked for.
    greedy: Int64[Tensor, "row step"] | None = None
    notes: tuple[Any, ...] | None = None
    # How the batch is divided, if other processes have contexts of it that an estimator compares with these.
    division: Division | None = None

    def rows_of(self, first: int, stop: int) -> slice:
        """The rows of some consecutive contexts: rows are ordered by those."""
        bounds = torch.searchsorted(self.contexts, torch.tensor([first, stop], device=self.contexts.device)).tolist()
        return slice(*bounds)

    def of_rows(self, rows: slice, first: int) -> "Trajectories":
        """Those of some rows; contexts are counted from the given one."""
        parts: dict[str, Any] = {
            n: value[rows] if isinstance(value, Tensor) else None for n, value in vars(self).items()
        }
        parts["contexts"] = parts["contexts"] - first
        if self.decisions is not None:
            parts["decisions"] = self.decisions.select(rows)
        return Trajectories(**parts)

    def decoded(self) -> list[Decoded]:
        """Each row as a sequence to look at."""
        rows = zip(self.lists(), self.log_probs.tolist(), self.finished.tolist(), strict=True)
        return [Decoded(*row) for row in rows]

    @property
    def batch(self) -> Int64[Tensor, " main"]:
        """The examples of all main trajectories of the batch, where each context has equally many."""
        if self.division is None:
            return self.examples
        return self.division.repeated(len(self.examples) // max(len(self.division.places), 1))

    @property
    def head(self) -> Literal["softmax", "tree"]:
        """The output head of the policy."""
        return "softmax" if self.decisions is None else "tree"


@dataclass(frozen=True)
class Cells:
    """Some tokens of main trajectories, with the logits from which they were drawn."""

    rows: Int64[Tensor, " cell"]
    steps: Int64[Tensor, " cell"]
    tokens: Int64[Tensor, " cell"]
    examples: Int64[Tensor, " cell"]
    samples: Int64[Tensor, " cell"]
    keys: Int64[Tensor, " cell"]
    logits: Float[Tensor, "prefix vocab"]
    index: Int64[Tensor, " cell"]  # which logits; cells with the same prefix share them
    batch: Int64[Tensor, " main"]  # the examples of all main trajectories of the batch

    @classmethod
    def of(cls, trajectories: Trajectories, rows: Int64[Tensor, " cell"], steps: Int64[Tensor, " cell"]) -> "Cells":
        """Cells of trajectories whose logits were kept."""
        t = trajectories
        logits, index = t.logits.flatten(0, 1), rows * t.logits.shape[1] + steps  # no copy of them
        parts = (t.examples[rows], t.samples[rows], t.keys[rows], logits, index, t.batch)
        return cls(rows, steps, t.tokens[rows, steps], *parts)


@dataclass(frozen=True)
class Branches:
    """Departures from main trajectories: the parent's prefix up to ``step``, then ``token``, then a completion.

    A negative token is an incomplete one: −1 − n stands for a token drawn below inner node n of a tree.
    """

    parent: Int64[Tensor, " branch"]
    step: Int64[Tensor, " branch"]
    token: Int64[Tensor, " branch"]
    copy: Int64[Tensor, " branch"]  # index of the completion; 0 may share its parent's noise
    greedy: Bool[Tensor, " branch"]
    own_noise: Bool[Tensor, " branch"]  # completed with numbers that no other sequence has

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
        own_noise: bool = False,
    ) -> "Branches":
        """Branches that are all completed in the same way."""
        flags = (torch.full_like(parent, flag, dtype=torch.bool) for flag in (greedy, own_noise))
        return cls(parent, step, token, torch.full_like(parent, copy), *flags)

    @classmethod
    def none(cls, device: torch.device) -> "Branches":
        empty = torch.empty(0, dtype=torch.int64, device=device)
        return cls.of(empty, empty, empty)

    @classmethod
    def join(cls, *parts: "Branches") -> "Branches":
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def select(self, index: Tensor) -> "Branches":
        return Branches(*(getattr(self, f.name)[index] for f in fields(self)))


def full_precision(x: Tensor) -> Tensor:
    """Half precision converted to single precision, in which noise and coefficients are computed."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass
class Cost:
    """The cost of an estimate so far."""

    tokens: int = 0  # generated tokens = rows × steps that the policy computed; a shared prefix counts once
    main_tokens: int = 0  # tokens of the main trajectories, shared or not
    rollouts: int = 0  # completed branches, including greedy baselines
    reward_calls: int = 0  # sequences that the reward function scored
    scored_tokens: int = 0  # tokens whose logits were computed with gradient
    saved_tokens: int = 0  # generated or scored tokens that sharing prefixes, or a gradient of zero, made unnecessary

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, vars(self).values(), vars(other).values()))
