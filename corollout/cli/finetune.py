"""``corollout finetune``, and what it shares with ``pretrain``: layers of settings, resuming, and the run itself."""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from rich.console import Console

from corollout.cli.progress import show_events
from corollout.config import argument, from_table, merge, option, read_toml, required, switch
from corollout.errors import InputError, Interrupted
from corollout.tasks.task import find_task
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning, resume_run


def resumes(flags: Mapping[str, Any]) -> bool:
    """Whether a run is resumed; then flags that would change its settings are an error."""
    if flags.get("resume") and (others := set(flags) - {"out", "resume", "run"}):
        raise InputError(f"a resumed run keeps its settings: leave out {', '.join(sorted(others))}")
    return bool(flags.get("resume"))


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


def train(directory: Path, command: str) -> None:
    """Train a run to its end, from its newest checkpoint if it has one; ``command`` resumes it."""
    config = Run.open(directory).config
    metric = find_task(config.get("task")).metric
    title, unit, total = "pre-training", "epochs", config.get("pretrain", {}).get("epochs")
    if config.get("kind") == "finetune":
        title, unit, total = (config["finetune"].get(name) for name in ("estimator", "unit", "budget"))
    try:
        with show_events(None, title, total, unit, metric) as on_event:
            summary = resume_run(directory, on_event)
    except Interrupted as error:
        raise Interrupted(f"{error}. Continue with: {command} --resume --out {shlex.quote(str(directory))}") from error
    best = metric.text(summary[f"best_{metric.key}"])
    updates = f"after {summary['best_update']:,} of {summary['updates']:,} updates"
    text = f"Best on the validation data: {best}, {updates}. Weights: {directory / 'best.safetensors'}"
    Console().print(text, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Finetuning:
    """The settings of ``finetune``."""

    out: Path = required("Directory of the new run.")
    run: Path | None = argument("Directory of the run to start from; not needed with --resume.", None)
    data: Path | None = option(None, "Folder of other data than the run's.")
    config: Path | None = option(None, "TOML file with settings; flags win over it.", metavar="<file>")
    resume: bool = switch("Continue the run in --out.")
    finetune: FinetuneSettings = field(default_factory=FinetuneSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    @classmethod
    def layers(cls, flags: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Settings between the defaults and the flags."""
        if resumes(flags):
            return []
        if "run" not in flags:
            raise InputError("name the run to start from: corollout finetune RUN --out DIR")
        parent = Run.open(flags["run"]).config
        return settings_layers(cls, find_task(parent.get("task")).scale(parent.get("scale", "small")), flags)


def finetune(settings: Finetuning) -> None:
    """Fine-tune the best weights of a run on its task's reward, with any estimator."""
    if not settings.resume:
        assert settings.run is not None
        create_finetuning(settings.out, settings.run, settings.finetune, settings.machine, settings.data)
    train(settings.out, "corollout finetune")
