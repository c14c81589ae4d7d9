"""Tasks by name, and what is known of them without importing PyTorch: settings, commands, scales.

The command line lists tasks and their options from here; the rest of a task is imported when it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from corollout.config import import_object, read_toml
from corollout.errors import InputError
from corollout.text import quoted

SCALES = ("tiny", "small", "paper")  # the usual ones, each a TOML file of settings


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


def own_metric(key: str) -> Metric:
    """The metric of a run without a task, which is known by its key only."""
    meaning = "as the run's own evaluation measures it"
    return Metric(key, key.replace("_", " "), "", "examples", meaning, is_share=False, scale=1.0, digits=3)


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
    task: type | str  # a subclass of corollout.tasks.task.Task, or its import path
    model: type = NoSettings  # a settings dataclass
    scales: Path | None = None  # a folder of TOML files
    # Name on the command line → a command or a function of one settings dataclass; or the module with such COMMANDS.
    commands: Mapping[str, Any] | str = ""
    data_help: str = ""  # how to get the data, for messages; empty if the task needs none
    export: str = ""  # "module:function", called as function(task, engine, out, source)
    # "module:function" for `corollout data check`, called as function(path, skip_bad) -> DataCheck | None; None if the
    # path holds no data of this task.
    check: str = ""

    @property
    def task_class(self) -> Any:
        """The subclass of ``Task``."""
        return import_object(self.task) if isinstance(self.task, str) else self.task

    @property
    def metric(self) -> Metric:
        return self.task_class.metric

    @property
    def rewards(self) -> tuple[str, ...]:
        return self.task_class.rewards

    def scale_names(self) -> list[str]:
        """The scales, the usual ones first."""
        known = set() if self.scales is None else {file.stem for file in self.scales.glob("*.toml")}
        return [*(scale for scale in SCALES if scale in known), *sorted(known.difference(SCALES))]

    def scale(self, name: str) -> dict[str, Any]:
        """The settings of a scale, in the sections data, model, pretrain and finetune."""
        if self.scales is None:
            return {}
        path = self.scales / f"{name}.toml"
        if not path.is_file():
            raise InputError(f"unknown scale {name!r}: choose one of {', '.join(self.scale_names())}")
        return read_toml(path)


TASKS: dict[str, str] = {
    "karel": "corollout.tasks.karel.spec:KAREL",
    "captions": "corollout.tasks.captioning.spec:CAPTIONS",
}
GROUP = "corollout.tasks"  # entry points of other packages


def task_names() -> list[str]:
    """The tasks of this package and of all installed packages that have an entry point."""
    return [*TASKS, *sorted(set(entry_points(group=GROUP).names) - TASKS.keys())]


def is_task_path(name: object) -> bool:
    """Whether a name is that of a known task, or written as an import path."""
    return isinstance(name, str) and ("." in name or ":" in name or name in task_names())


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
        raise InputError(
            f"{quoted(name)} is not a task: name a corollout.tasks.task.TaskSpec, as in TASK = TaskSpec(…)"
        )
    return spec
