"""What a task is: data, a policy, a reward and an evaluation; and the tasks by name.

A task outside the package subclasses :class:`Task`, implements ``split``, ``engine`` and ``reward``, and has a
:class:`TaskSpec`; docs/extending.md has a complete example.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from corollout.config import NONE, from_table, import_object, read_toml
from corollout.data import Columns, Split, check_device
from corollout.errors import InputError
from corollout.events import Callback, ignore
from corollout.files import digest_of
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.rollouts.decoding import decode_scored
from corollout.tasks.views import ExampleView, output_rewards
from corollout.text import quoted
from corollout.types import Sampler

SCALES = ("tiny", "small", "paper")  # the usual ones, each a TOML file of settings
Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Metric:
    """The number by which a task compares policies: the mean of a score of each example."""

    key: str  # in records
    name: str  # for people
    unit: str  # after a value: " %", or nothing
    examples: str  # what an example is called, in the plural
    meaning: str  # what it measures, to follow its name and a colon
    is_share: bool  # every score is 0 or 1
    scale: float = 100.0  # values are shown times this
    digits: int = 1  # after the decimal point

    def number(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"

    def text(self, value: float) -> str:
        """A value with its name: "Generalization 17.1 %"."""
        return f"{self.name} {self.number(value)}{self.unit}"


_MEANING = "the mean reward of the greedy sequences"
MEAN_REWARD = Metric("mean_reward", "reward", "", "examples", _MEANING, is_share=False, scale=1.0, digits=3)


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

    def data_digest(self) -> str:
        """A digest of the training and validation data, by which a run notices that they have changed."""
        return digest_of(split.columns.digest().encode() for split in (self.train, self.val))

    def reward_settings(self, name: str) -> dict[str, Any]:
        """What a reward depends on besides the data, as JSON can hold it; a run notices if it changes."""
        return {}

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
        """Evaluate a policy: by default the reward of each example's greedy sequence, and of the best of a beam."""
        if len(split) == 0:
            raise InputError("the split has no example to evaluate on")
        reward = self.reward(self.rewards[0], split)

        def scores(sampler: Sampler) -> np.ndarray:
            best = [outputs[0] for outputs in decode_scored(engine, split.columns, sampler, device=self.device)]
            values = output_rewards(reward, split.columns, range(len(best)), best)
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


@dataclass(frozen=True)
class DataCheck:
    """What a check of a data set found."""

    lines: list[str]  # a summary for people
    failures: int = 0  # examples that are wrong


@dataclass(frozen=True)
class NoSettings:
    """The settings of a model without any."""


@dataclass(frozen=True)
class TaskSpec:
    """A task as the registry knows it."""

    name: str
    task: type[Task]
    model: type = NoSettings  # a settings dataclass
    scales: Path | None = None  # a folder of TOML files
    commands: str = ""  # module with COMMANDS: name on the command line → function of one settings dataclass
    data_help: str = ""  # how to get the data, for messages; empty if the task needs none
    export: str = ""  # "module:function", called as function(task, engine, out, source)
    # "module:function" for `corollout data check`, called as function(path, skip_bad) -> DataCheck | None; None if the
    # path holds no data of this task.
    check: str = ""

    @property
    def metric(self) -> Metric:
        return self.task.metric

    @property
    def rewards(self) -> tuple[str, ...]:
        return self.task.rewards

    def scale(self, name: str) -> dict[str, Any]:
        """The settings of a scale, in the sections data, model, pretrain and finetune."""
        if self.scales is None:
            return {}
        path = self.scales / f"{name}.toml"
        if not path.is_file():
            known = {file.stem for file in self.scales.glob("*.toml")}
            names = [*(scale for scale in SCALES if scale in known), *sorted(known.difference(SCALES))]
            raise InputError(f"unknown scale {name!r}: choose one of {', '.join(names)}")
        return read_toml(path)


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


TASKS: dict[str, str] = {
    "karel": "corollout.tasks.karel.task:KAREL",
    "captions": "corollout.tasks.captioning.task:CAPTIONS",
}
GROUP = "corollout.tasks"  # entry points of other packages


def task_names() -> list[str]:
    """The tasks of this package and of all installed packages that have an entry point."""
    return [*TASKS, *sorted(set(entry_points(group=GROUP).names) - TASKS.keys())]


def find_task(name: object) -> TaskSpec:
    """The task of a name: one of :data:`TASKS`, an entry point of the group "corollout.tasks", or an import path.

    An import path is "package.module", whose TASK it is, or "package.module:NAME".
    """
    if name in TASKS:
        spec = import_object(TASKS[str(name)])
    elif isinstance(name, str) and (installed := entry_points(group=GROUP, name=name)):
        spec = import_object(next(iter(installed)).value, "TASK")
    elif isinstance(name, str) and ("." in name or ":" in name):
        spec = import_object(name, "TASK")
    else:
        raise InputError(
            f"unknown task {quoted(name)}: choose one of {', '.join(task_names())}, "
            "or give the import path of your own, package.module or module:NAME"
        )
    if not isinstance(spec, TaskSpec):
        raise InputError(f"the task {name!r} is a {type(spec).__name__}, not a corollout.tasks.task.TaskSpec")
    return spec


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
    return spec.task(None if folder in (None, "", NONE) else Path(folder), model, device, on_event)
