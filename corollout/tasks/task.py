"""What a task is: data, a policy, a reward and an evaluation; and the tasks by name.

A task outside the package subclasses :class:`Task`, implements ``split``, ``engine`` and ``reward``, and has a
:class:`TaskSpec`; docs/extending.md has a complete example.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from corollout.config import NONE, from_table
from corollout.data import Columns, Split, check_device
from corollout.divided_work import batches, divided
from corollout.errors import CorolloutError, InputError
from corollout.events import Callback, ignore
from corollout.files import digest_of
from corollout.rewards import Reward, WeightedRewards
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode_scored
from corollout.tasks.spec import SCALES, DataCheck, Metric, NoSettings, TaskSpec, find_task, task_names
from corollout.tasks.views import ExampleView, output_rewards
from corollout.text import quoted
from corollout.types import Sampler

__all__ = [
    "SCALES",
    "DataCheck",
    "DataFile",
    "Evaluation",
    "Metric",
    "NoSettings",
    "RewardEvaluation",
    "Share",
    "Task",
    "TaskSpec",
    "find_task",
    "mean_interval",
    "open_task",
    "reward_names",
    "task_names",
]

Z = 1.959964  # of a 95 % interval
SPLITS = ("train", "val", "test")  # that every task has


_MEANING = "the mean reward of the greedy sequences"
MEAN_REWARD = Metric("mean_reward", "reward", "", "examples", _MEANING, is_share=False, scale=1.0, digits=3)


@dataclass(frozen=True)
class DataFile:
    """A file of a task's data."""

    split: str
    file: str  # its name
    examples: int
    digest: str  # BLAKE2b of its content, 20 bytes


@runtime_checkable
class Evaluation(Protocol):
    """How good a policy is on a split."""

    @property
    def scores(self) -> np.ndarray:
        """The score of each example, whose mean is the task's metric."""
        ...

    def numbers(self) -> dict[str, float]:
        """All measures by key; for the task's metric also the ends of its interval, KEY_low and KEY_high."""
        ...

    def rows(self) -> list[list[str]]:
        """A table for people: name, value and interval of each measure."""
        ...


class Task(ABC):
    """Data, policy, reward and evaluation, made from the settings of a run."""

    metric: ClassVar[Metric] = MEAN_REWARD
    rewards: ClassVar[tuple[str, ...]] = ("reward",)  # names of the rewards, the default first

    def __init__(self, folder: Path | None, model: Any, device: str = "cpu", on_event: Callback = ignore):
        self.folder, self.model, self.device, self.on_event = folder, model, device, on_event

    @abstractmethod
    def split(self, name: str) -> Split:
        """The examples of a split: "train", "val" or "test"."""

    @abstractmethod
    def engine(self, seed: int = 0) -> Engine:
        """A new policy, with weights drawn by the seed, in its engine."""

    @abstractmethod
    def reward(self, name: str, split: Split | None = None) -> Reward:
        """A reward for the examples of a split, by default the training split."""

    def weighted_reward(
        self, names: str, weights: Sequence[float] = (), split: Split | None = None
    ) -> Reward | WeightedRewards:
        """The reward of a name, or the weighted sum of those of several names, separated by commas."""
        listed = reward_names(names) or list(self.rewards[:1])
        if len(listed) == 1 and not weights:
            return self.reward(listed[0], split)
        return WeightedRewards({name: self.reward(name, split) for name in listed}, weights or None)

    def data_digest(self) -> str:
        """A digest of the training and validation data, by which a run notices that they have changed."""
        return digest_of(split.columns.digest().encode() for split in (self.train, self.val))

    def data_files(self) -> list[DataFile]:
        """The files of the data and what is in them, for reports and manifests; by default none is named."""
        return []

    def reward_settings(self, name: str) -> dict[str, Any]:
        """What a reward depends on besides the data, as JSON can hold it; a run notices if it changes."""
        return {}

    def named_split(self, name: str) -> Any:
        """The split that somebody asks for by name."""
        try:
            return self.split(name)
        except CorolloutError:
            raise
        except Exception as error:
            if name in SPLITS:
                raise
            raise InputError(f"there is no split {quoted(name)}: choose one of {', '.join(SPLITS)}") from error

    # Subclasses may return a subclass of Split: hence Any.
    @cached_property
    def train(self) -> Any:
        return self.split("train")

    @cached_property
    def val(self) -> Any:
        return self.split("val")

    @property
    def mle_data(self) -> Columns:
        """What pre-training learns from: the columns ``context`` and ``target``."""
        return self.train.columns

    @property
    def tokens(self) -> tuple[str, ...] | None:
        """The vocabulary in the order of token ids, if tokens have names."""
        return None

    def evaluate(self, engine: Engine, split: Split, beam: int = 0) -> Evaluation:
        """Evaluate a policy: by default the reward of each example's greedy sequence, and of the best of a beam.

        Of several processes all make this call; ``decode`` divides the examples among them.
        """
        if len(split) == 0:
            raise InputError("the split has no example to evaluate on")
        reward = self.reward(self.rewards[0], split)

        def scores(sampler: Sampler) -> np.ndarray:
            best = [outputs[0] for outputs in decode_scored(engine, split.columns, sampler, device=self.device)]
            parts = batches(len(best), 256)

            def rewards_of(number: int) -> list[float]:
                rows = parts[number]
                return output_rewards(reward, split.columns, rows, best[rows.start : rows.stop]).tolist()

            values = np.array([value for part in divided(len(parts), rewards_of) for value in part])
            return values[~np.isnan(values)]

        return RewardEvaluation(scores(Sampler("greedy")), scores(Sampler("beam", beam)) if beam else None)

    def view(self, split_name: str, split: Split, index: int) -> ExampleView:
        """How an example, and sequences generated for it, are shown."""
        return ExampleView(split_name, split, index, self.tokens, self.reward(self.rewards[0], split))

    def views_of_files(
        self, paths: Sequence[Path], network: str | None = None
    ) -> tuple[Columns, Sequence[ExampleView]]:
        """Image files as examples, if the task captions images; ``network`` makes their features."""
        raise InputError("image files are for tasks that caption images: this run's task does not")


def reward_names(names: str) -> list[str]:
    """Names of rewards, separated by commas."""
    return [name.strip() for name in names.split(",") if name.strip()]


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


@dataclass(frozen=True)
class RewardEvaluation:
    """Rewards of greedy sequences and, if asked for, of the most probable sequence of each beam."""

    scores: np.ndarray  # of the examples that the reward does not skip
    beam: np.ndarray | None = None

    def numbers(self) -> dict[str, float]:
        low, high = mean_interval(self.scores) or (math.nan, math.nan)
        key = MEAN_REWARD.key
        numbers = {key: float(self.scores.mean()), f"{key}_low": low, f"{key}_high": high}
        return numbers if self.beam is None else {**numbers, f"beam_{key}": float(self.beam.mean())}

    def rows(self) -> list[list[str]]:
        number = MEAN_REWARD.number
        rows = []
        for name, scores in (("reward", self.scores), ("reward, best of beam", self.beam)):
            if scores is not None:
                interval = mean_interval(scores)
                rows.append([name, number(scores.mean()), " – ".join(map(number, interval)) if interval else ""])
        return rows


def open_task(config: dict[str, Any], on_event: Callback = ignore) -> Task:
    """The task of a run's settings."""
    spec = find_task(config.get("task"))
    for section in ("data", "model", "machine"):
        if not isinstance(config.get(section, {}), dict):
            raise InputError(f"the settings of a run need a section {section}, not {quoted(config[section])}")
    model = from_table(spec.model, config.get("model", {}), "section model")
    folder = config.get("data", {}).get("folder")
    if not isinstance(folder, str | None):
        raise InputError(f"the data folder of a run must be a path, not {quoted(folder)}")
    if folder in (None, "", NONE) and spec.data_help:
        raise InputError(f"the task {spec.name} needs data: {spec.data_help}")
    device = config.get("machine", {}).get("device", "cpu")
    check_device(device)
    return spec.task_class(None if folder in (None, "", NONE) else Path(folder), model, device, on_event)
