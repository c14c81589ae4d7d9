"""``corollout finetune``, and what it shares with ``pretrain``: layers of settings, resuming, and the run itself."""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from corollout.allocator import keep_pages
from corollout.cli.progress import show_events
from corollout.cli.terminal import Terminal
from corollout.compilation import announced
from corollout.config import argument, from_table, merge, option, read_toml, required, switch
from corollout.errors import InputError, Interrupted
from corollout.events import Event
from corollout.tasks.task import find_task
from corollout.training.runs import CONFIG, Run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.start import create_finetuning, resume_run

AUTO = "auto"
ACCEPT_CHANGES = "With --resume: continue although the data, the tree or the reward has changed since the run began."


def measured_threads() -> MachineSettings:
    """The machine settings of the command line: one run at a time may have all cores, if it gains by them."""
    return MachineSettings(threads=None)


def resumes(flags: Mapping[str, Any]) -> bool:
    """Whether a run is resumed; then flags that would change its settings are an error, except for its threads."""
    others = {name for name in flags if name not in ("out", "resume", "run", "accept_changes")}
    if flags.get("resume") and "threads" in flags.get("machine", {}):
        if flags["machine"]["threads"] == AUTO:
            raise InputError("a resumed run keeps its number of threads: leave --threads out, or give a number")
        if set(flags["machine"]) == {"threads"}:
            others.remove("machine")
    if flags.get("resume") and others:
        raise InputError(f"a resumed run keeps its settings: leave out {', '.join(sorted(others))}")
    if flags.get("accept_changes") and not flags.get("resume"):
        raise InputError("--accept-changes is for runs that are resumed: leave it out, or add --resume")
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


def print_notes(event: Event) -> None:
    """Show what is decided before a run exists."""
    if event.kind == "note":
        Terminal(stderr=True).print(event.record["text"], soft_wrap=True)


def train(directory: Path, command: str, accept_changes: bool = False, threads: int | None = None) -> None:
    """Train a run to its end, from its newest checkpoint if it has one; ``command`` resumes it.

    ``threads`` is another number than the run's.
    """
    keep_pages()
    run = Run.open(directory)
    metric = find_task(run.config.get("task")).metric
    title, unit, config = "pre-training", "epochs", str(directory / CONFIG)
    if run.config.get("kind") == "finetune":
        finetuning = from_table(FinetuneSettings, run.section("finetune"), config)
        title, unit, total = finetuning.estimator, finetuning.unit, finetuning.budget
    else:
        total = from_table(PretrainSettings, run.section("pretrain"), config).epochs
    try:
        with show_events(None, title, total, unit, metric) as on_event:
            summary = resume_run(directory, on_event, accept_changes, threads)
    except (Interrupted, KeyboardInterrupt) as error:
        again = f"Continue with: {command} --resume --out {shlex.quote(str(directory))}"
        raise Interrupted(f"{error}. {again}" if isinstance(error, Interrupted) else f"Stopped. {again}") from None
    best = metric.text(summary[f"best_{metric.key}"])
    updates = f"after {summary['best_update']:,} of {summary['updates']:,} updates"
    text = f"Best on the validation data: {best}, {updates}. Weights: {directory / 'best.safetensors'}"
    Terminal().print(text, soft_wrap=True)


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
    s = settings
    if s.resume:
        train(s.out, "corollout finetune", s.accept_changes, s.machine.threads)
        return
    assert s.run is not None
    with announced(print_notes):
        create_finetuning(s.out, s.run, s.finetune, s.machine, s.data, print_notes)
    train(s.out, "corollout finetune")
