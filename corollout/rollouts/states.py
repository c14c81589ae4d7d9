"""The states of main trajectories, from which branches start.

Usually there is one state for each step. A state that only grows, like a key-value cache, would be kept once for each
of its prefixes, which takes memory quadratic in the length. If such a state has a method ``rewind(steps)``, that
returns what it was so many steps ago, only the last state of every sequence is kept, and branches start from a slice.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.policies.protocol import concat, select

Places = Int64[Tensor, " row"]


class States(ABC):
    """The states of each step; a place is a row of a step's state."""

    @abstractmethod
    def add(self, state: Any, rows: int, parents: Places | None) -> None:
        """Keep the state of the next step, which has so many rows.

        ``parents`` are their places in the step before; None for all of them in order.
        """

    @abstractmethod
    def at(self, step: int, places: Places) -> Any:
        """The states at some places of a step."""

    @staticmethod
    def like(state: Any) -> "States":
        """Empty, for states of this kind."""
        return GrowingStates() if hasattr(state, "rewind") else StepStates()


class StepStates(States):
    """A state for each step."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def add(self, state: Any, rows: int, parents: Places | None) -> None:
        self.steps.append(state)

    def at(self, step: int, places: Places) -> Any:
        return select(self.steps[step], places)


class GrowingStates(States):
    """The last states only: a place of an earlier step refers to some continuation of it."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}  # by step: the states that nothing continues
        self._parents: list[Places | None] = []
        self._sizes: list[int] = []
        self._where: list[tuple[Places, Places]] = []

    def add(self, state: Any, rows: int, parents: Places | None) -> None:
        step = len(self._sizes)
        if step and parents is None:
            del self.kept[step - 1]
        elif parents is not None:
            self.kept[step - 1] = select(self.kept[step - 1], _others(parents, self._sizes[-1]))
        self.kept[step] = state
        self._parents.append(parents)
        self._sizes.append(rows)
        self._where = []

    def at(self, step: int, places: Places) -> Any:
        self._where = self._where or self._find(places.device)
        last, row = (part[places] for part in self._where[step])
        order, parts = [], []
        for group in last.unique().tolist():
            of_group = (last == group).nonzero().squeeze(1)
            picked = select(self.kept[group], row[of_group])
            parts.append(picked.rewind(group - step) if group > step else picked)
            order.append(of_group)
        joined = concat(parts)
        return joined if len(parts) == 1 else select(joined, torch.cat(order).argsort())

    def _find(self, device: torch.device) -> list[tuple[Places, Places]]:
        """For each step and place: the step of a kept state that continues it, and the row there."""
        step = len(self._sizes) - 1
        row = torch.arange(self._sizes[step], device=device)
        where = [(torch.full_like(row, step), row)]
        for step in range(len(self._sizes) - 1, 0, -1):
            parents = self._parents[step]
            if parents is not None:
                # One of the places that continue each: chosen once, as no order of assignments is guaranteed.
                child = torch.zeros(self._sizes[step - 1], dtype=torch.int64, device=device)
                child[parents] = torch.arange(len(parents), device=device)
                last, row = (part[child] for part in where[-1])
                ended = _others(parents, self._sizes[step - 1])
                last[ended], row[ended] = step - 1, torch.arange(len(ended), device=device)
                where.append((last, row))
            else:
                where.append(where[-1])
        return where[::-1]


def _others(places: Places, size: int) -> Int64[Tensor, " other"]:
    """The places that are not among the given ones, in order."""
    other = torch.ones(size, dtype=torch.bool, device=places.device)
    other[places] = False
    return other.nonzero().squeeze(1)
