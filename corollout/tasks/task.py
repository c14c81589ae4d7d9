"""What every task has in common, so that training, experiments and reports need not know which one it is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from corollout.data import Columns
from corollout.rewards import Reward
from corollout.rollouts import Engine

Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Metric:
    """The number by which a task judges policies: the mean of what each example gets. It is shown times 100."""

    key: str  # in records
    name: str  # for people
    unit: str  # behind a value: " %", or nothing
    examples: str  # what is counted
    meaning: str  # what it measures, to stand after its name and a colon
    shares: bool  # each example gets 0 or 1

    def words(self, value: float) -> str:
        return f"{self.name} {100 * value:.1f}{self.unit}"


@runtime_checkable
class Evaluation(Protocol):
    """What a policy achieves on a split."""

    @property
    def scores(self) -> np.ndarray:
        """The measure of each example, whose mean is the value."""
        ...

    def numbers(self) -> dict[str, float]:
        """All measures by name, the task's own with the ends of its interval."""
        ...

    def rows(self) -> list[list[str]]:
        """Name, value and interval of each measure, as people read them."""
        ...


@runtime_checkable
class Split(Protocol):
    """Examples of a task."""

    def __len__(self) -> int: ...

    @property
    def columns(self) -> Columns: ...

    def first(self, count: int) -> "Split":
        """The first examples only."""
        ...


class Task(ABC):
    """Data, engine, reward and evaluation from the settings of a run."""

    name: str
    metric: Metric
    rewards: tuple[str, ...]  # their names, the usual one first
    device: str

    @cached_property
    def train(self) -> Any:
        return self.split("train")

    @cached_property
    def val(self) -> Any:
        return self.split("val")

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """The words that a model may say, in the order of their tokens."""

    @property
    @abstractmethod
    def mle_data(self) -> Columns:
        """What maximum likelihood learns from: contexts with targets."""

    @abstractmethod
    def split(self, name: str) -> Any:
        """The examples of a split."""

    @abstractmethod
    def engine(self, seed: int = 0) -> Engine:
        """A new model with its engine."""

    @abstractmethod
    def reward(self, kind: str, split: Any = None) -> Reward:
        """The reward of sequences for the examples of a split, by default for those to train on."""

    @abstractmethod
    def evaluate(self, engine: Engine, split: Any, beam: int = 0) -> Any:
        """What the engine's policy achieves on a split: an ``Evaluation``."""


@dataclass(frozen=True)
class TaskSpec:
    """How a task is made: the class of its model's settings, the settings of a scale, and the task itself."""

    model: type
    scale: Callable[[str], dict[str, Any]]
    open: Callable[[Path, Any, str, Callable[[str], None]], Task]
    metric: Metric


@dataclass(frozen=True)
class Share:
    """A share of examples, with Wilson's 95 % interval."""

    hits: int
    count: int

    @property
    def value(self) -> float:
        return self.hits / self.count

    @property
    def interval(self) -> tuple[float, float]:
        n, p = self.count, self.value
        middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(scores: np.ndarray) -> tuple[float, float] | None:
    """The 95 % interval of a mean, by the normal approximation."""
    if len(scores) < 2:
        return None
    mean, half = float(scores.mean()), Z * float(scores.std(ddof=1)) / math.sqrt(len(scores))
    return mean - half, mean + half
