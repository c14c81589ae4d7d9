"""``corollout pretrain TASK``: maximum likelihood for any task, inside or outside the package."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from corollout.cli.finetune import ACCEPT_CHANGES, measured_threads, print_notes, resumes, settings_layers, train
from corollout.cli.main import LazyGroup, Target
from corollout.compilation import announced
from corollout.config import option, required, switch
from corollout.errors import InputError
from corollout.tasks.task import TaskSpec, find_task, task_names
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining


@dataclass(frozen=True)
class Pretraining:
    """The settings of ``pretrain``, whatever the task; a task adds the sections model, pretrain and machine."""

    out: Path = required("Directory of the run.")
    data: Path | None = option(None, "Folder of the data.")
    scale: str | None = option(None, "Sizes and budgets to start from, such as tiny, small or paper.")
    config: Path | None = option(None, "TOML file with settings; flags win over it.", metavar="<file>")
    tree: Path | None = option(None, "File of `corollout tree build`: the model's head walks down this tree.")
    resume: bool = switch("Continue the run in --out.")
    accept_changes: bool = switch(ACCEPT_CHANGES)

    spec: ClassVar[TaskSpec]

    @classmethod
    def layers(cls, flags: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Settings between the defaults and the flags."""
        if resumes(flags):
            return []
        if "scale" in flags and cls.spec.scales is None:
            raise InputError(f"the task {cls.spec.name} has no scales: leave out --scale")
        return settings_layers(cls, cls.spec.scale(flags.get("scale", "small")), flags)


def pretrain_command(task: str) -> Callable[[Any], None]:
    """The command for a task, which is named as ``find_task`` wants it."""
    spec = find_task(task)
    machine = ("machine", MachineSettings, dataclasses.field(default_factory=measured_threads))
    sections = [("model", spec.model), ("pretrain", PretrainSettings), machine]
    cls = dataclasses.make_dataclass(
        "TaskPretraining", sections, bases=(Pretraining,), namespace={"spec": spec}, frozen=True, kw_only=True
    )

    def pretrain(settings: Any) -> None:
        s, again = settings, f"corollout pretrain {task}"
        if s.resume:
            train(s.out, again, s.accept_changes, s.machine.threads)
            return
        scale = s.scale or "small"
        with announced(print_notes):
            create_pretraining(s.out, task, s.data, s.model, s.pretrain, s.machine, scale, s.tree, print_notes)
        train(s.out, again)

    pretrain.__annotations__["settings"] = cls
    pretrain.__doc__ = (
        f"Train a model for {spec.name} by maximum likelihood, until {spec.metric.name} on the validation data stops "
        f"improving."
    )
    return pretrain


class Tasks(LazyGroup):
    """A command for every task; its help names the known ones, others are named by their import path."""

    def find(self, name: str) -> Target | None:
        return pretrain_command(name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Nothing: the help has the names."""


pretrain = Tasks(
    name="pretrain",
    help="Train a model by maximum likelihood.\n\n"
    f"TASK is one of {', '.join(task_names())}, or the import path of your own task: my_package.my_module (which "
    "defines TASK) or my_package.my_module:NAME. `corollout pretrain TASK --help` lists its options.",
    subcommand_metavar="TASK [OPTIONS]",
    targets=lambda: {name: pretrain_command(name) for name in task_names()},
)
