"""The distinct prefixes of main trajectories, and the branches that start from them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.prefix_tree import first_alike
from corollout.rollouts.states import States, StepStates
from corollout.types import Branches, Trajectories

OfBranches = Int64[Tensor, " branch"]
Rows = Int64[Tensor, " row"]


@dataclass
class Prefixes:
    """The distinct prefixes of some consecutive rows of main trajectories, with their states."""

    rows: range
    place: Int64[Tensor, "row step"]  # where, among those of step t, the prefix is after which a row's token t comes
    states: States = field(default_factory=StepStates)
    outputs: list[Tensor] = field(default_factory=list)  # of each step, if the policy's head wants to see them again
    tokens: int = 0  # generated: the distinct prefixes

    def add(
        self,
        t: int,
        rows: Rows,
        place: Rows,
        state: Any,
        size: int,
        parents: Int64[Tensor, " place"] | None,
        continued: int | None,
    ) -> None:
        """Step t: where rows find their prefixes, and the state after these; the rest as in :meth:`States.add`."""
        if t == 0:
            self.states = States.like(state)
        self.states.add(state, size, parents, continued)
        self.place[rows - self.rows.start, t] = place

    def places(
        self, branches: Int64[Tensor, " some"], parent: OfBranches, step: Int64[Tensor, " some"] | int, alone: bool
    ) -> tuple[Int64[Tensor, " selected"], Int64[Tensor, " selected"]]:
        """Those of some branches whose parents are here, and the places of the prefixes that they leave at their steps.

        All are, if this is the only chunk.
        """
        row = parent[branches] - self.rows.start
        if not alone:
            inside = ((row >= 0) & (row < len(self.rows))).nonzero().squeeze(1)
            branches, row = branches[inside], row[inside]
            step = step if isinstance(step, int) else step[inside]
        return branches, self.place[row, step]


class Spawned(NamedTuple):
    """Branches that start at a step, in the order of the chunks of their parents, and the states they start from."""

    rows: Int64[Tensor, " fresh"]
    place: Int64[Tensor, " fresh"]
    size: int  # the number of places
    states: list[Any]


class Starts:
    """Where a chunk of branches starts. All that the host has to know of it is asked for once."""

    def __init__(
        self,
        prefixes: list[Prefixes],
        trajectories: Trajectories,
        branches: Branches,
        chunk: Int64[Tensor, " chunk"],
        max_length: int,
        alike: bool,
    ):
        """``chunk`` is in the order of steps; ``alike`` says whether some branches may begin alike."""
        self._prefixes, self._chunk, self._parent = prefixes, chunk, branches.parent
        on_cpu = chunk.device.type == "cpu"
        step = branches.step[chunk].contiguous()
        self.shared = alike and bool(prefixes) and (not on_cpu or _some_alike(prefixes, trajectories, branches, chunk))
        asked = [torch.searchsorted(step, torch.arange(max_length + 1, device=chunk.device))]
        grouped = not on_cpu and len(prefixes) == 1
        if grouped:
            _, place = prefixes[0].places(chunk, branches.parent, step, alone=True)
            asked.append(prefixes[0].states.kept_at(step, place))
        answer = torch.cat(asked).tolist()
        self._bounds = answer[: max_length + 1]  # the branches of step t are chunk[bounds[t] : bounds[t + 1]]
        self._kept = np.array(answer[max_length + 1 :]) if grouped else None
        steps = [t for t in range(max_length) if self._bounds[t] < self._bounds[t + 1]]
        self.first, self.last = steps[0], steps[-1]

    def rows(self, t: int) -> Int64[Tensor, " fresh"]:
        """The branches that start at step t."""
        return self._chunk[self._bounds[t] : self._bounds[t + 1]]

    def spawn(self, t: int) -> Spawned:
        """The states from which branches start at step t; those that start from one prefix share it, if any do."""
        fresh, kept = self.rows(t), None
        rows, places, states, first = [], [], [], 0
        for prefix in self._prefixes:
            selected, place = prefix.places(fresh, self._parent, t, alone=len(self._prefixes) == 1)
            if len(selected) == 0:
                continue
            index = torch.arange(len(place), device=place.device)
            if self.shared and place.device.type == "cpu":
                place, index = place.unique(return_inverse=True)
            elif self.shared:
                index = first_alike(place, torch.zeros_like(place))  # copies cost less than asking how many there are
            if self._kept is not None:
                kept = self._kept[self._bounds[t] : self._bounds[t + 1]]
            states.append(prefix.states.at(t, place, kept))
            rows.append(selected)
            places.append(first + index)
            first += len(place)
        return Spawned(torch.cat(rows), torch.cat(places), first, states)


def _some_alike(
    prefixes: list[Prefixes], trajectories: Trajectories, branches: Branches, chunk: Int64[Tensor, " chunk"]
) -> bool:
    """Whether some branches begin alike: from one prefix with one token."""
    parent, step = branches.parent[chunk], branches.step[chunk]
    place = torch.cat([prefix.place for prefix in prefixes])[parent, step]
    context = trajectories.contexts[parent]
    start = torch.stack([context, step, place, branches.token[chunk]], 1)
    return len(start.unique(dim=0)) < len(start)
