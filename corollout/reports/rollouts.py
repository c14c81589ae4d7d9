"""How many rollouts methods make: at which steps along training, and for which sentences late in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corollout.reports.curves import Group
from corollout.reports.tables import NOTHING
from corollout.tasks.task import Z
from corollout.training.runs import Run

_PARTS = 60  # of the training, along the axis of a map


@dataclass(frozen=True)
class Correlation:
    """Pearson's r, with its 95 % interval and p by Fisher's z: atanh r is nearly normal, with variance 1 / (n − 3)."""

    count: int
    r: float
    interval: tuple[float, float]
    p: float  # two-sided, for no correlation

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray) -> "Correlation | None":
        """None where it is not defined: for fewer than four pairs, or if one of the two is constant."""
        if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
            return None
        r = float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))
        if abs(r) > 1 - 1e-12:
            return cls(len(x), r, (r, r), 0.0)
        root, z = math.sqrt(len(x) - 3), math.atanh(r)
        interval = (math.tanh(z - Z / root), math.tanh(z + Z / root))
        return cls(len(x), r, interval, math.erfc(abs(z) * root / math.sqrt(2)))

    def words(self) -> str:
        return f"r = {signed(self.r)}, p {p_words(self.p, equals=True)}"

    def cells(self) -> list[str]:
        return [signed(self.r), f"{signed(self.interval[0])}…{signed(self.interval[1])}", p_words(self.p)]


def ranks(values: np.ndarray) -> np.ndarray:
    """Places in the order of values; equal ones share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[place]


def correlation_cells(found: Correlation | None) -> list[str]:
    """r, its interval and p."""
    return [NOTHING] * 3 if found is None else found.cells()


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def p_words(p: float, equals: bool = False) -> str:
    """A p-value; what is very small is said to be so."""
    if p < 1e-4:
        return "< 0.0001"
    return f"{'= ' if equals else ''}{p:.2g}"


@dataclass(frozen=True)
class Sentences:
    """Main sentences of a method at its best weights: what each one scores, and how many rollouts it got."""

    label: str
    scores: np.ndarray
    lengths: np.ndarray  # in tokens, the end included
    rollouts: np.ndarray  # in all

    @classmethod
    def of(cls, label: str, measured: Mapping[str, Any]) -> "Sentences":
        """From what the study of rollouts has kept."""
        return cls(label, *(np.array(measured[key], dtype=float) for key in ("scores", "lengths", "rollouts")))

    @property
    def per_token(self) -> np.ndarray:
        return self.rollouts / self.lengths


@dataclass(frozen=True)
class StepMap:
    """Rollouts at each step along a method's training, NaN where no sentence is so long.

    Means over updates, and over seeds, of what an update has for the sentences that reach the step.
    """

    label: str
    updates: int
    values: np.ndarray  # step, part of the training
    early: np.ndarray  # step: the first tenth of the updates
    late: np.ndarray  # the last tenth

    def table(self) -> dict[str, Any]:
        """The map for a JSON file, in four digits."""
        arrays = {name: _short(getattr(self, name)) for name in ("values", "early", "late")}
        return {"label": self.label, "updates": self.updates, **arrays}


def _short(values: np.ndarray) -> list[Any]:
    if values.ndim > 1:
        return [_short(row) for row in values]
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in values.tolist()]


def read_step_map(group: Group, key: str = "rollouts_by_step") -> StepMap | None:
    """A method's map from its runs; None if they have not recorded the rollouts of each step, or of each depth."""
    runs = [
        [(record["update"], record[key]) for record in Run.open(run).records("update") if record.get(key)]
        for run in group.runs
    ]
    return step_map(group.label, [run for run in runs if run])


def step_map(label: str, runs: Sequence[Sequence[tuple[int, list[float]]]]) -> StepMap | None:
    """The map of some runs, given for each of them its updates with their rollouts at each step."""
    if not runs:
        return None
    last = max(update for run in runs for update, _ in run)
    longest = max(len(values) for run in runs for _, values in run)
    whole, early, late = _Means(longest, min(_PARTS, last)), _Means(longest, 1), _Means(longest, 1)
    for run in runs:
        tenth = max(1, len(run) // 10)
        for place, (update, values) in enumerate(run):
            whole.add((update - 1) * whole.parts // last, values)
            if place < tenth:
                early.add(0, values)
            if place >= len(run) - tenth:
                late.add(0, values)
    return StepMap(label, last, whole.values(), early.values()[:, 0], late.values()[:, 0])


class _Means:
    """Means of lists of different lengths, entry by entry, for each part of the training."""

    def __init__(self, longest: int, parts: int):
        self.parts = parts
        self._total, self._count = np.zeros((longest, parts)), np.zeros((longest, parts))

    def add(self, part: int, values: Sequence[float]) -> None:
        self._total[: len(values), part] += values
        self._count[: len(values), part] += 1

    def values(self) -> np.ndarray:
        return np.where(self._count > 0, self._total / np.maximum(self._count, 1), np.nan)
