"""A batch that several processes share: which contexts each of them has, and how numbers about all of them meet.

A process samples, completes and scores its own contexts only. An example's noise depends on its id, so that it makes no
difference to a sequence in which process it is drawn.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from corollout.processes import Processes

Places = Int64[Tensor, " _"]


def divide_evenly(count: int, parts: int) -> list[list[int]]:
    """0 … ``count`` − 1 as consecutive parts whose sizes differ by one at most, larger ones first.

    >>> divide_evenly(5, 2)
    [[0, 1, 2], [3, 4]]
    """
    size, larger = divmod(count, parts)
    starts = [part * size + min(part, larger) for part in range(parts + 1)]
    return [list(range(first, stop)) for first, stop in pairwise(starts)]


def divide_by_cost(costs: Sequence[float | int], parts: int) -> list[list[int]]:
    """0 … ``len(costs)`` − 1 in parts of about equal cost: the costliest first, each to the part with least so far.

    The costliest part is at most 4/3 of what the best division has (Graham 1969). A cost of NaN is not known, and
    counts as the mean of those that are.

    >>> divide_by_cost([1, 1, 4, 2], 2)
    [[2], [0, 1, 3]]
    """
    known = [cost for cost in costs if not math.isnan(cost)]
    mean = math.fsum(known) / len(known) if known else 1.0
    expected = [mean if math.isnan(cost) else cost for cost in costs]
    loads = [(0.0, 0, part) for part in range(parts)]  # cost, number of members, part
    members: list[list[int]] = [[] for _ in range(parts)]
    for number in sorted(range(len(expected)), key=lambda number: (-expected[number], number)):
        load, size, part = heapq.heappop(loads)
        members[part].append(number)
        heapq.heappush(loads, (load + expected[number], size + 1, part))
    return [sorted(part) for part in members]


class Gathered(NamedTuple):
    """Numbers of all processes, in the order of the batch, and the places of this process's own among them."""

    values: Shaped[Tensor, "row ..."]
    own: Int64[Tensor, " own"]


@dataclass(frozen=True, eq=False)
class Division:
    """A batch, and which contexts of it each process has."""

    examples: Int64[Tensor, " context"]  # ids of all contexts of the batch
    shares: tuple[Places, ...]  # for each process, the places of its contexts in the batch, in ascending order
    processes: Processes

    @classmethod
    def of(
        cls, examples: Int64[Tensor, " context"], shares: Sequence[Sequence[int]], processes: Processes
    ) -> "Division":
        return cls(examples, tuple(torch.tensor(share, dtype=torch.int64) for share in shares), processes)

    def __len__(self) -> int:
        """How many contexts the batch has."""
        return len(self.examples)

    @property
    def places(self) -> Places:
        """The places of this process's contexts in the batch."""
        return self.shares[self.processes.rank]

    @property
    def is_empty(self) -> bool:
        """Whether this process has no context of the batch. It then takes part with a stand-in, whose rows it drops."""
        return len(self.places) == 0

    def repeated(self, count: int) -> Int64[Tensor, " main"]:
        """The examples of all main trajectories of the batch, if each context has so many."""
        return self.examples.repeat_interleave(count)

    def gather(self, values: Shaped[Tensor, "row ..."], contexts: Int64[Tensor, " row"]) -> Gathered:
        """The rows of all processes; ``contexts`` says to which of this process's contexts each row belongs.

        Rows of a context stay in their order. All processes call it together, also those that have no row.
        """
        return self._gather(values, contexts)[0]

    def gather_runs(
        self,
        values: Shaped[Tensor, " value"],
        counts: Int64[Tensor, " row"],
        contexts: Int64[Tensor, " row"],
    ) -> Gathered:
        """Values of all processes that come in runs: so many for each row, one row after the other."""
        rows, order = self._gather(counts, contexts)
        whole = torch.cat(self.processes.gather(values))
        ends = rows.values.cumsum(0)
        if order is not None:
            arrival = torch.empty_like(ends)
            arrival[order] = rows.values
            arrival = (arrival.cumsum(0) - arrival)[order]  # where each row's run begins as it arrived
            shift = arrival - (ends - rows.values)
            whole = whole[torch.arange(len(whole), device=ends.device) + shift.repeat_interleave(rows.values)]
        starts = (ends - rows.values)[rows.own] - (counts.cumsum(0) - counts)
        return Gathered(whole, torch.arange(len(values), device=ends.device) + starts.repeat_interleave(counts))

    def total(self, values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """The sum over all processes, in the order of their ranks."""
        return torch.stack(self.processes.gather(values[None])).sum(0)[0]

    def _gather(self, values: Tensor, contexts: Tensor) -> tuple[Gathered, Tensor | None]:
        """Also in which order rows were put, if they did not arrive in that of the batch."""
        width, device = math.prod(values.shape[1:]), values.device
        place = self.places.to(device)[contexts]
        # One message: the places, and the numbers by their bits.
        columns = values.reshape(len(values), width)
        bits = columns.double().view(torch.int64) if values.is_floating_point() else columns.long()
        parts = self.processes.gather(torch.cat([place[:, None], bits], 1))
        table, before = torch.cat(parts), sum(map(len, parts[: self.processes.rank]))
        own, order = torch.arange(before, before + len(values), device=device), None
        arrived = table[:, 0]
        if bool((arrived.diff() < 0).any()):
            order = arrived.argsort(stable=True)
            table = table[order]
            own = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=device))[own]
        bits = table[:, 1:].contiguous()
        numbers = bits.view(torch.float64) if values.is_floating_point() else bits
        return Gathered(numbers.to(values.dtype).reshape(-1, *values.shape[1:]), own), order
