"""The states of main trajectories, from which branches start.

Usually there is one state for each step. A state that only grows, like a key-value cache, would be kept once for each
of its prefixes, which takes memory quadratic in the length. If such a state has a method ``rewind(steps)``, that
returns what it was so many steps ago, only the last state of every sequence is kept, and branches start from a slice.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from corollout.policies.protocol import concat, select

Places = Int64[Tensor, " row"]


class States(ABC):
    """The states of each step; a place is a row of a step's state."""

    @abstractmethod
    def add(self, state: Any, rows: int, parents: Places | None, continued: int | None = None) -> None:
        """Keep the state of the next step, which has so many rows.

        ``parents`` are their places in the step before; None for all of them in order. ``continued`` may say how many
        different ones they are.
        """

    @abstractmethod
    def at(self, step: int, places: Places, kept: np.ndarray | None = None) -> Any:
        """The states at some places of a step; ``kept`` may say what ``kept_at`` says of them."""

    @abstractmethod
    def kept_at(self, steps: Places, places: Places) -> Places:
        """For each place the step of the state that is kept of it: to be known before ``at`` by a host that does not
        want to wait for a device."""

    @staticmethod
    def like(state: Any) -> "States":
        """Empty, for states of this kind."""
        return GrowingStates() if hasattr(state, "rewind") else StepStates()


class StepStates(States):
    """A state for each step."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.sizes: list[int] = []  # rows of each step

    def add(self, state: Any, rows: int, parents: Places | None, continued: int | None = None) -> None:
        self.steps.append(state)
        self.sizes.append(rows)

    def at(self, step: int, places: Places, kept: np.ndarray | None = None) -> Any:
        return select(self.steps[step], places)

    def kept_at(self, steps: Places, places: Places) -> Places:
        return steps


class GrowingStates(States):
    """The last states only: a place of an earlier step refers to some continuation of it."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}  # by step: the states that nothing continues
        self._parents: list[Places | None] = []
        self._sizes: list[int] = []
        self._where: list[tuple[Places, Places]] = []

    def add(self, state: Any, rows: int, parents: Places | None, continued: int | None = None) -> None:
        step = len(self._sizes)
        if step and parents is None:
            del self.kept[step - 1]
        elif parents is not None:
            size = self._sizes[-1]
            ended = _is_other(parents, size)
            others = ended.nonzero() if continued is None else torch.nonzero_static(ended, size=size - continued)
            self.kept[step - 1] = select(self.kept[step - 1], others.squeeze(1))
        self.kept[step] = state
        self._parents.append(parents)
        self._sizes.append(rows)
        self._where = []

    def at(self, step: int, places: Places, kept: np.ndarray | None = None) -> Any:
        last, row = (part[places] for part in self._found(places.device)[step])
        kept = last.cpu().numpy() if kept is None else kept
        order, parts = [], []
        for group in np.unique(kept).tolist():
            of_group = np.flatnonzero(kept == group)
            picked = select(self.kept[group], row[_on(row.device, of_group)])
            parts.append(picked.rewind(group - step) if group > step else picked)
            order.append(of_group)
        joined = concat(parts)
        if len(parts) == 1:
            return joined
        return select(joined, _on(row.device, np.concatenate(order).argsort()))

    def kept_at(self, steps: Places, places: Places) -> Places:
        found = self._found(places.device)
        table = torch.nn.utils.rnn.pad_sequence([last for last, _ in found], batch_first=True)
        return table[steps, places]

    def _found(self, device: torch.device) -> list[tuple[Places, Places]]:
        self._where = self._where or self._find(device)
        return self._where

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
                ended = _is_other(parents, self._sizes[step - 1])
                last, row = torch.where(ended, step - 1, last), torch.where(ended, ended.cumsum(0) - 1, row)
                where.append((last, row))
            else:
                where.append(where[-1])
        return where[::-1]


def _is_other(places: Places, size: int) -> Bool[Tensor, " place"]:
    """Which places are not among the given ones."""
    other = torch.ones(size, dtype=torch.bool, device=places.device)
    other[places] = False
    return other


def _on(device: torch.device, index: np.ndarray) -> Places:
    """A copy on a device, which is not waited for."""
    return torch.from_numpy(index).to(device, non_blocking=True)
