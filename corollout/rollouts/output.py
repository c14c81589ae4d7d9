"""What the rollout engine writes while it generates: sequences, and whether their logits were valid."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from corollout.policies.protocol import check_valid
from corollout.rollouts.stops import Stops, stopped
from corollout.types import Sequences

Rows = Int64[Tensor, " row"]
Ended = Bool[Tensor, " row"]


class Checks:
    """Whether all logits were distributions: asked once at the end, so that no step waits for the answer."""

    def __init__(self, by_row: bool) -> None:
        self._by_row = by_row  # or by output
        self._steps: list[tuple[int, Bool[Tensor, " output"], Rows | None, Rows]] = []

    def add(
        self, t: int, valid: Bool[Tensor, " output"], index: Rows | None, rows: Rows, ended: Ended | None = None
    ) -> None:
        """The logits of step t; those of rows that have ended do not matter."""
        if ended is not None:
            valid, index = (valid if index is None or self._by_row else valid[index]) | ended, None
        self._steps.append((t, valid, index, rows))

    def report(self, examples: Callable[[Rows], Rows]) -> None:
        """Refuse logits that are not a distribution; ``examples`` are those of some rows."""
        if not self._steps or bool(torch.cat([valid for _, valid, _, _ in self._steps]).all()):
            return
        for t, valid, index, rows in self._steps:
            of_rows = valid if index is None or self._by_row else valid[index]
            check_valid(of_rows, t, lambda rows=rows: examples(rows))


class Output:
    """Sequences being generated. They end with any of the tokens ``ends``, the first of which is what they are padded
    with.
    """

    def __init__(
        self, rows: int, max_length: int, ends: tuple[int, ...], device: torch.device, stops: Stops | None = None
    ):
        self.ends, self._stops = ends, stops
        self.tokens = torch.full((rows, max_length), ends[0], device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)
        self.stopped = None if stops is None else torch.zeros_like(self.finished)

    def write(self, rows: Rows, t: int, tokens: Rows, ended: Ended | None = None) -> Ended:
        """Write token t of some rows, but of those that had ended before; return which rows have ended now."""
        ends = is_end(tokens, self.ends)
        if ended is None:
            self.tokens[rows, t], self.lengths[rows] = tokens, t + 1
            ends = ends | self._stopped(rows, t, ~ends)
            self.finished[rows] = ends
            return ends
        self.tokens[rows, t] = torch.where(ended, self.ends[0], tokens)
        ends = ends | ended
        ends = ends | self._stopped(rows, t, ~ends)
        self.lengths[rows] = torch.where(ended, self.lengths[rows], t + 1)
        self.finished[rows] = ends
        return ends

    def _stopped(self, rows: Rows, t: int, asked: Ended) -> Ended:
        """Which of the rows that are asked for stop with token t."""
        if self._stops is None or self.stopped is None:
            return torch.zeros_like(asked)
        stops = stopped(self._stops, self.tokens[rows, : t + 1], asked)
        self.stopped[rows] |= stops
        return stops

    def sequences(self) -> Sequences:
        return Sequences(self.tokens[:, : longest(self.lengths)], self.lengths, self.finished, stopped=self.stopped)


def is_end(tokens: Int64[Tensor, "*any"], ends: tuple[int, ...]) -> Bool[Tensor, "*any"]:
    """Which tokens end a sequence."""
    found = tokens == ends[0]
    for end in ends[1:]:
        found = found | (tokens == end)
    return found


def longest(lengths: Rows) -> int:
    return int(lengths.max()) if len(lengths) else 1
