"""The settings of the commands that are not about one feature; none of them imports PyTorch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from corollout.config import argument, from_table, merge, option, read_toml, required, switch
from corollout.errors import InputError
from corollout.reports.axis import Axis
from corollout.tasks.spec import TaskSpec, find_task
from corollout.training.settings import (
    DATA_HELP,
    DEVICE_HELP,
    WEIGHTS_HELP,
    FinetuneSettings,
    MachineSettings,
    PretrainSettings,
)

AUTO = "auto"
ACCEPT_CHANGES = "With --resume: continue although the data, the tree or the reward has changed since the run began."


@dataclass(frozen=True)
class CheckSettings:
    """The settings of ``data check``."""

    paths: tuple[Path, ...] = argument("Files of Karel tasks, folders of captions, or the data of another known task.")
    skip_bad: bool = switch("Count bad lines instead of stopping at the first one.")


@dataclass(frozen=True)
class Comparing:
    """The settings of ``compare``."""

    runs: tuple[Path, ...] = argument("Run directories; or one folder with a report, which is shown again.")
    out: Path | None = option(None, "Folder for the report; new or empty. [default: comparison, or that of the report]")
    by: Axis = option("seconds", "Axis of the training curves.")
    labels: tuple[str, ...] = option(
        (), "A name for each run; runs with the same name are seeds of one method. [default: by estimator]"
    )


@dataclass(frozen=True)
class Evaluating:
    """The settings of ``evaluate``."""

    run: Path = argument("Run directory.")
    split: str = option("test", "Examples to evaluate on: train, val or test.")
    beam: int = option(10, "Size of the beam; 0 for greedy decoding only.", least=0)
    weights: str = option("best", WEIGHTS_HELP)
    data: Path | None = option(None, DATA_HELP)
    device: str | None = option(None, DEVICE_HELP)
    json: bool = switch("Print the numbers as JSON.")


@dataclass(frozen=True)
class ExportSettings:
    """The settings of ``export``."""

    run: Path = argument("Run directory.")
    out: Path = required("Folder to write; new or empty.")
    weights: str = option("best", WEIGHTS_HELP)


def measured_threads() -> MachineSettings:
    """The machine settings of the command line: one run at a time may have all cores, if it gains by them."""
    return MachineSettings(threads=None)


# What may be given besides for a run that is resumed: its threads, and how long it is.
_FREE = {"machine": {"threads"}, "pretrain": {"epochs", "patience"}, "finetune": {"budget", "patience"}}


def resumed_settings(flags: Mapping[str, Any], kind: str, cls: type) -> list[Mapping[str, Any]] | None:
    """The settings of a run that is resumed, in its section ``kind``; None if none is resumed.

    Flags that would change its settings are an error, except for its threads and those that make it longer.
    """
    if not flags.get("resume"):
        if flags.get("accept_changes"):
            raise InputError("--accept-changes is for runs that are resumed: leave it out, or add --resume")
        return None
    if flags.get("machine", {}).get("threads") == AUTO:
        raise InputError("a resumed run keeps its number of threads: leave --threads out, or give a number")
    others = [name for name in flags if name not in ("out", "resume", "run", "accept_changes", *_FREE)]
    others += [name for section, free in _FREE.items() for name in flags.get(section, {}) if name not in free]
    if others:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(others))
        free = " and ".join(f"--{name}" for name in sorted(_FREE[kind]))
        raise InputError(f"a resumed run keeps its settings, but for its length ({free}): leave out {names}")
    from corollout.training.runs import CONFIG, Run  # imports PyTorch

    run = Run.open(flags["out"])
    if run.config.get("kind") != kind:
        if flags.get(kind):
            raise InputError(
                f"{flags['out']} is not a run of `corollout {kind}`: resume it with the command that made it"
            )
        return []
    from_table(cls, run.section(kind), str(run.directory / CONFIG))
    return [{kind: run.section(kind)}]


def settings_layers(cls: type, scale: Mapping[str, Any], flags: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a scale and the file ``--config`` say about the sections of a settings class."""
    sections = [(name, type) for name, type in get_type_hints(cls).items() if dataclasses.is_dataclass(type)]
    names = [name for name, _ in sections]
    layers: list[Mapping[str, Any]] = [{name: scale[name] for name in names if name in scale}]
    if "config" in flags:
        file = read_toml(Path(flags["config"]))
        if "kind" in file:  # the settings of a run, which has other sections as well
            file = {name: file[name] for name in names if name in file}
        layers.append(file)
        given = {name: flags[name] for name in names if name in flags}
        # Flags have been checked, so an error is one of the file, and names it.
        from_table(dataclasses.make_dataclass("Sections", sections), merge(*layers, given), flags["config"])
    return layers


@dataclass(frozen=True)
class Finetuning:
    """The settings of ``finetune``."""

    out: Path = required("Directory of the new run.")
    run: Path | None = argument("Directory of the run to start from; not needed with --resume.", None)
    data: Path | None = option(None, "Folder of other data than the run's.")
    config: Path | None = option(None, "TOML file with settings; flags win over it.", metavar="<file>")
    resume: bool = switch("Continue the run in --out.")
    accept_changes: bool = switch(ACCEPT_CHANGES)
    finetune: FinetuneSettings = field(default_factory=FinetuneSettings)
    machine: MachineSettings = field(default_factory=measured_threads)

    @classmethod
    def scale_of(cls, path: tuple[str, ...]) -> str:
        """Whose scale sets the default of an option."""
        return "the scale of RUN" if path[0] == "finetune" else ""

    @classmethod
    def layers(cls, flags: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Settings between the defaults and the flags."""
        if (resumed := resumed_settings(flags, "finetune", FinetuneSettings)) is not None:
            return resumed
        if "run" not in flags:
            raise InputError("name the run to start from: corollout finetune RUN --out DIR")
        from corollout.training.runs import Run  # imports PyTorch

        parent = Run.open(flags["run"])
        return settings_layers(cls, find_task(parent.task).scale(parent.config.get("scale", "small")), flags)


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
    scaled: ClassVar[Mapping[str, set[str]]]  # by section, the options that some scale sets

    @classmethod
    def scale_of(cls, path: tuple[str, ...]) -> str:
        """Whose scale sets the default of an option."""
        section, name = path[0], path[-1]
        return "the scale" if len(path) > 1 and name in cls.scaled.get(section, ()) else ""

    @classmethod
    def layers(cls, flags: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Settings between the defaults and the flags."""
        if (resumed := resumed_settings(flags, "pretrain", PretrainSettings)) is not None:
            return resumed
        if "scale" in flags and cls.spec.scales is None:
            raise InputError(f"the task {cls.spec.name} has no scales: leave out --scale")
        return settings_layers(cls, cls.spec.scale(flags.get("scale", "small")), flags)


def pretrain_settings(spec: TaskSpec) -> type:
    """The settings class of ``pretrain`` for a task."""
    machine = ("machine", MachineSettings, field(default_factory=measured_threads))
    sections = [("model", spec.model), ("pretrain", PretrainSettings), machine]
    scaled: dict[str, set[str]] = {}
    for scale in map(spec.scale, spec.scale_names()):
        for name, section in scale.items():
            scaled.setdefault(name, set()).update(section)
    namespace = {"spec": spec, "scaled": scaled}
    return dataclasses.make_dataclass(
        "TaskPretraining", sections, bases=(Pretraining,), namespace=namespace, frozen=True, kw_only=True
    )
