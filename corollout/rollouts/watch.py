"""What is kept of the logits of main trajectories while they are generated.

All of them are a tensor [row, step, V], too much for a large vocabulary. An estimator says what it reads: nothing but
the tokens, the greedy tokens, or notes that it takes of the logits chunk by chunk. A few logits are kept in any case:
scoring then need not compute them again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.policies.protocol import Choice, Head
from corollout.types import Cells, Sequences

Reads = Literal["tokens", "greedy", "logits"]
Look = Callable[[Cells], Any]
Rows = Int64[Tensor, " row"]
Ended = Bool[Tensor, " row"]

# Logits that are shown to an estimator at once, and that are kept for scoring.
_SHOWN = 1 << 22
_KEPT = 1 << 25


@dataclass(frozen=True)
class Origin:
    """Where main trajectories come from."""

    examples: Rows
    samples: Rows
    keys: Rows


class Watch(ABC):
    """Sees the logits of every step."""

    @abstractmethod
    def see(self, rows: Rows, t: int, choice: Choice, index: Rows | None, ended: Ended | None) -> None:
        """Step t of some rows; ``index`` says which logits belong to each row, ``ended`` which rows do not matter."""

    @abstractmethod
    def finish(self, head: Head, sequences: Sequences) -> dict[str, Any]:
        """What trajectories say about their logits."""

    def by_prefix(self) -> Float[Tensor, "prefix vocab"] | None:
        """The logits of all prefixes, step by step, if they were kept."""
        return None


class TreeWatch(Watch):
    """Logits of the decisions that lead to tokens: there are few, and all are kept."""

    def __init__(self, origin: Origin, max_length: int):
        self._shape = (len(origin.keys), max_length)
        self._logits: Tensor | None = None

    def see(self, rows: Rows, t: int, choice: Choice, index: Rows | None, ended: Ended | None) -> None:
        if self._logits is None:
            self._logits = choice.logits.new_zeros(*self._shape, choice.logits.shape[1])
        self._logits[rows, t] = choice.logits if ended is None else torch.where(ended[:, None], 0.0, choice.logits)

    def finish(self, head: Head, sequences: Sequences) -> dict[str, Any]:
        rows, steps = sequences.tokens.shape
        if self._logits is None:
            logits = torch.zeros(rows, steps, 0, device=sequences.tokens.device)
            return {"logits": logits, "log_probs": logits.sum((1, 2))}
        logits = self._logits[:, :steps]
        mask = torch.arange(steps, device=logits.device) < sequences.lengths[:, None]
        log_probs = torch.where(mask, head.log_probs(logits, sequences.tokens), 0.0)
        return {"logits": logits, "log_probs": log_probs.sum(1), "token_log_probs": log_probs}


class SoftmaxWatch(Watch):
    """Logits of all tokens of the vocabulary."""

    def __init__(self, origin: Origin, max_length: int, reads: Reads | Look):
        device = origin.keys.device
        self._origin, self._reads = origin, reads
        self._log_probs: Tensor | None = None
        self._greedy = torch.zeros(len(origin.keys), max_length, dtype=torch.int64, device=device)
        # Rows, step, tokens, logits, index, ended
        self._steps: list[tuple[Rows, int, Rows, Tensor, Rows, Ended | None]] = []
        self._waiting = 0  # logits that have not been shown
        self._notes: list[Any] = []
        self._kept: list[Tensor] | None = []
        self._size = 0

    def see(self, rows: Rows, t: int, choice: Choice, index: Rows | None, ended: Ended | None) -> None:
        tokens, logits, _ = choice
        normaliser = logits.logsumexp(1)
        if index is None:
            index = torch.arange(len(rows), device=rows.device)
        else:
            normaliser = normaliser[index]
        if self._log_probs is None:
            self._log_probs = logits.new_zeros(self._greedy.shape)
        log_probs = logits[index, tokens] - normaliser
        self._log_probs[rows, t] = log_probs if ended is None else torch.where(ended, 0.0, log_probs)
        if self._reads == "greedy":
            best = logits.argmax(1)[index]
            self._greedy[rows, t] = best if ended is None else torch.where(ended, 0, best)
        self._size += logits.numel()
        if self._kept is not None:
            # Some of the logits of rows that have ended are of no prefix at all.
            self._kept = [*self._kept, logits] if self._size <= _KEPT and ended is None else None
        if self._reads == "logits" or callable(self._reads):
            self._steps.append((rows, t, tokens, logits, index, ended))
            self._waiting += logits.numel()
            if self._waiting > _SHOWN:
                self._show()

    def _show(self) -> None:
        if not callable(self._reads) or self._waiting == 0:
            return
        parts, some_ended, first = [], [], 0
        for at, t, chosen, logits, place, ended in self._steps:
            parts.append(torch.stack([at, torch.full_like(at, t), chosen, place + first]))
            some_ended.append(torch.zeros_like(at, dtype=torch.bool) if ended is None else ended)
            first += len(logits)
        cells = torch.cat(parts, 1)
        if any(ended is not None for *_, ended in self._steps):
            cells = cells[:, ~torch.cat(some_ended)]
        row, step, token, index = cells
        examples, samples, keys = (part[row] for part in vars(self._origin).values())
        logits = torch.cat([logits for _, _, _, logits, _, _ in self._steps])
        cells = Cells(
            rows=row,
            steps=step,
            tokens=token,
            examples=examples,
            samples=samples,
            keys=keys,
            logits=logits,
            index=index,
            batch=self._origin.examples,
        )
        self._notes.append(self._reads(cells))
        self._steps, self._waiting = [], 0

    def finish(self, head: Head, sequences: Sequences) -> dict[str, Any]:
        rows, steps = sequences.tokens.shape
        if self._log_probs is None:
            nothing = torch.zeros(rows, steps, 0, device=sequences.tokens.device)
            return {"logits": nothing, "log_probs": nothing.sum((1, 2))}
        log_probs = self._log_probs[:, :steps]
        kept: dict[str, Any] = {
            "log_probs": log_probs.sum(1),
            "token_log_probs": log_probs,
            "logits": log_probs.new_zeros(rows, steps, 0),
        }
        if callable(self._reads):
            self._show()
            kept["notes"] = tuple(self._notes)
        elif self._reads == "greedy":
            kept["greedy"] = self._greedy[:, :steps]
        elif self._reads == "logits":
            kept["logits"] = self._dense(rows, steps)
        return kept

    def _dense(self, rows: int, steps: int) -> Float[Tensor, "row step vocab"]:
        first = self._steps[0][3]
        dense = first.new_zeros(rows, steps, first.shape[1])
        for at, t, _, logits, index, ended in self._steps:
            seen = logits[index]
            dense[at, t] = seen if ended is None else torch.where(ended[:, None], 0.0, seen)
        return dense

    def by_prefix(self) -> Float[Tensor, "prefix vocab"] | None:
        return torch.cat(self._kept) if self._kept else None
