"""The estimator lab on a run: at which of its weights, on which of its examples, with which of its rewards."""

import os
import re
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from corollout.errors import InputError
from corollout.events import Callback, Event, ignore
from corollout.folders import FolderLock, is_empty
from corollout.lab.lab import Lab, default_estimators, run_lab
from corollout.lab.settings import DEFAULT, LabSettings
from corollout.noise import Noise
from corollout.processes import processes
from corollout.tasks.task import DataFile
from corollout.training.run_weights import load_weights, open_weights
from corollout.training.runs import Run, kind_of, training_settings

POINTS = "points"  # subfolder of the measurements
EXAMPLES = 32


@dataclass(frozen=True)
class Point:
    """A lab at some weights of a run."""

    label: str
    weights: str  # as in the settings
    update: int | None  # after which they were saved, if known
    lab: Lab

    @property
    def name(self) -> str:
        return self.label if self.update is None else f"{self.label}, update {self.update:,}"


@dataclass(frozen=True)
class RunLab:
    """Labs at one or several points of a run."""

    task: str
    reward: str
    settings: LabSettings
    points: list[Point]
    data_files: list[DataFile]

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return os.path.basename(os.path.realpath(self.settings.run))

    @property
    def subject(self) -> dict[str, str]:
        """What is measured, for the report."""
        return {"run": self.name, "task": self.task}


def lab_of_run(settings: LabSettings, on_event: Callback = ignore) -> RunLab:
    """Measure estimators at one or several weights of a run, on its first training examples.

    Measurements are kept in ``settings.folder``. Called again with the same settings, this continues where it stopped.
    """
    with writing_to(settings.folder):
        run = Run.open(settings.run)
        return _measure_points(settings, run, on_event)


@contextmanager
def writing_to(folder: Path) -> Generator[None, None, None]:
    """Inside, the first process of the job writes to the folder of a lab."""
    group = processes()
    with ExitStack() as locks:
        with group.agreed():
            if group.is_first:
                require_lab_folder(folder)
                locks.enter_context(FolderLock(folder))
        yield


def require_lab_folder(folder: Path) -> None:
    """Raise an error unless a folder is new, empty, or that of an earlier lab."""
    elsewhere = "choose another folder with --out"
    if not is_empty(folder, elsewhere) and not (folder / POINTS).is_dir():
        raise InputError(f"{folder} is not empty and holds no earlier lab: {elsewhere}")


def _measure_points(settings: LabSettings, run: Run, on_event: Callback) -> RunLab:
    labels = point_labels(settings.weights)
    names = split_names(settings.estimators)
    machine = {"device": settings.device, "threads": settings.threads}
    machine = {name: value for name, value in machine.items() if value is not None}
    task, engine, _ = open_weights(run, settings.weights[0], machine, settings.data)
    for weights in settings.weights[1:]:  # missing weights are reported before any work
        load_weights(run, weights, engine)
    finetuning = training_settings(run.config) if kind_of(run.config) == "finetune" else {}
    reward_name = settings.reward or finetuning.get("reward") or task.rewards[0]
    weights = () if settings.reward else finetuning.get("reward_weights", ())
    reward = task.weighted_reward(reward_name, weights)
    examples = min(settings.examples or finetuning.get("batch_size") or EXAMPLES, len(task.train))
    batch = task.train.columns.batch(range(examples), task.device)
    others = task.train.columns.epoch(examples, Noise(settings.seed), task.device)
    others = list(islice(others, settings.batches))
    defaults = default_estimators(engine, batch)
    estimators = [each for name in names for each in (defaults if name == DEFAULT else [name])]
    points = []
    for weights, label in zip(settings.weights, labels, strict=True):

        def forward(event: Event, label: str = label) -> None:
            part = event.record["part"]
            on_event(Event(event.kind, {**event.record, "part": f"{label}: {part}" if len(labels) > 1 else part}))

        update = load_weights(run, weights, engine)
        lab = run_lab(
            engine,
            batch,
            reward,
            list(dict.fromkeys(estimators)),
            batches=others,
            estimates=settings.estimates,
            reference=settings.reference,
            reference_estimates=settings.reference_estimates,
            timing_rounds=settings.rounds,
            seed=settings.seed,
            folder=settings.folder / POINTS / folder_name(label),
            on_event=forward,
        )
        points.append(Point(label, weights, update, lab))
    return RunLab(run.task, reward_name, settings, points, task.data_files())


def folder_name(label: str) -> str:
    """The name of the folder with the measurements of a point."""
    return re.sub(r"[^\w.=-]+", "-", label).strip("-")


def split_names(texts: Sequence[str]) -> list[str]:
    """Names of estimators, separated by commas or spaces; commas also separate the options of an estimator."""
    names: list[str] = []
    for part in filter(None, re.split(r"[,\s]+", ",".join(texts))):
        # A part that sets an option without naming an estimator belongs to the name before.
        if "=" in part and ":" not in part and names:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not names or len(set(names)) < len(names):
        raise InputError(f"--estimators needs different names, not {', '.join(names) or 'none'}")
    return names


def point_labels(weights: Sequence[str]) -> list[str]:
    """Short labels of weights: the last part of a path, where that is unique."""
    if not weights or len(set(weights)) < len(weights):
        raise InputError(f"--weights needs different weights, not {', '.join(weights) or 'none'}")
    paths = [Path(os.path.realpath(each)) for each in weights]
    # A run directory by its name, a file with the directory that it is in.
    short = [f"{path.parent.name}/{path.stem}" if path.suffix == ".safetensors" else path.name for path in paths]
    return [each if short.count(label) > 1 else label for each, label in zip(weights, short, strict=True)]
