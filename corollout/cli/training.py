"""``corollout pretrain`` and ``corollout finetune``: create a run, or resume one, and train it to its end."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from corollout.allocator import keep_pages
from corollout.cli.progress import show_events
from corollout.cli.settings import Finetuning
from corollout.cli.terminal import Terminal
from corollout.compilation import announced
from corollout.config import from_table
from corollout.errors import DiskFullError, InputError, Interrupted
from corollout.events import Event
from corollout.launch import has_others
from corollout.restarts import beginning, has_begun
from corollout.tasks.spec import find_task
from corollout.training.extension import EXTENDABLE, require_resumable
from corollout.training.runs import CONFIG, Run
from corollout.training.settings import FinetuneSettings, PretrainSettings
from corollout.training.start import create_finetuning, create_pretraining, resume_run


def print_notes(event: Event) -> None:
    """Show what is decided before a run exists."""
    if event.kind in ("note", "warning"):
        Terminal(stderr=True).print(event.record["text"], soft_wrap=True)


def train(
    directory: Path,
    command: str,
    accept_changes: bool = False,
    threads: int | None = None,
    longer: PretrainSettings | FinetuneSettings | None = None,
) -> None:
    """Train a run to its end, from its newest checkpoint if it has one; ``command`` resumes it.

    ``threads`` is another number than the run's. ``longer`` says how long the run is to be, if its kind is the same.
    """
    keep_pages()
    run = Run.open(directory)
    require_resumable(run)
    metric = find_task(run.task).metric
    title, unit, config = "pre-training", "epochs", str(directory / CONFIG)
    settings: PretrainSettings | FinetuneSettings
    if run.config["kind"] == "finetune":
        settings = from_table(FinetuneSettings, run.section("finetune"), config)
        title, unit = settings.estimator, settings.unit
    else:
        settings = from_table(PretrainSettings, run.section("pretrain"), config)
    extension = {}
    if type(longer) is type(settings):
        extension = {name: getattr(longer, name) for name in EXTENDABLE[run.config["kind"]]}
        settings = replace(settings, **extension)
    total = settings.budget if isinstance(settings, FinetuneSettings) else settings.epochs
    again = f"{command} --resume --out {shlex.quote(str(directory))}"
    if has_others():
        again += ", in one process or under torchrun as before"
    try:
        with show_events(None, title, total, unit, metric) as on_event:
            summary = resume_run(directory, on_event, accept_changes, threads, extension)
    except (Interrupted, KeyboardInterrupt) as error:
        stopped = str(error) if isinstance(error, Interrupted) else "Stopped"
        raise Interrupted(f"{stopped}. Continue with: {again}") from None
    except DiskFullError as error:
        raise InputError(f"{error}, and continue with: {again}") from error
    best = metric.text(summary[f"best_{metric.key}"])
    updates = f"after {summary['best_update']:,} of {summary['updates']:,} updates"
    text = f"Best on the validation data: {best}, {updates}. Weights: {directory / 'best.safetensors'}"
    Terminal().print(text, soft_wrap=True)


def pretrain(settings: Any, task: str) -> None:
    """Train a model for a task by maximum likelihood."""
    s, again = settings, f"corollout pretrain {task}"
    if s.resume or has_begun(s.out, CONFIG):
        train(s.out, again, s.accept_changes, s.machine.threads, s.pretrain)
        return
    scale = s.scale or "small"
    with announced(print_notes), beginning(s.out, CONFIG):
        create_pretraining(s.out, task, s.data, s.model, s.pretrain, s.machine, scale, s.tree, print_notes)
    train(s.out, again)


def finetune(settings: Finetuning) -> None:
    """Fine-tune the best weights of a run on its task's reward, with any estimator."""
    s = settings
    if s.resume or has_begun(s.out, CONFIG):
        train(s.out, "corollout finetune", s.accept_changes, s.machine.threads, s.finetune)
        return
    assert s.run is not None
    with announced(print_notes), beginning(s.out, CONFIG):
        create_finetuning(s.out, s.run, s.finetune, s.machine, s.data, print_notes)
    train(s.out, "corollout finetune")
