"""The estimator lab on runs: at which of a run's weights, on which of its examples, with which reward."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.lab import ESTIMATES, REFERENCE, REFERENCE_ESTIMATES, ROUNDS, Lab, default_estimators, run_lab
from corollout.noise import Noise
from corollout.training.runs import Run
from corollout.training.start import load_weights, open_weights

POINTS = "points"  # the folder of what was measured, in the lab's own
EXAMPLES = 32
BATCHES = 16  # others, for the spread of gradients between batches
DEFAULT = "default"  # in a list of estimators, stands for those that are measured if none is named


@dataclass(frozen=True)
class LabSettings:
    """What is measured; None: as the run itself has it."""

    estimators: tuple[str, ...] = (DEFAULT,)
    at: tuple[str, ...] = ("best",)
    examples: int | None = None
    estimates: int = ESTIMATES
    reference: str = REFERENCE
    reference_estimates: int = REFERENCE_ESTIMATES
    rounds: int = ROUNDS
    batches: int = BATCHES
    reward: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Point:
    """A lab at some weights of a run."""

    label: str
    weights: str  # as they were asked for
    update: int | None  # after which they were taken, if that is known
    lab: Lab


@dataclass(frozen=True)
class RunLab:
    """A lab at one point or several of a run."""

    run: Path
    task: str
    reward: str
    settings: LabSettings
    points: list[Point]


def lab_of_run(
    directory: Path,
    settings: LabSettings,
    out: Path,
    machine: dict[str, Any],
    on_progress: Callable[[str, str, int, int], None] = lambda point, part, done, total: None,
) -> RunLab:
    """Metric estimators at all points, on the first training examples of a run.

    What is measured is kept in the folder ``out``, and called again with the same settings this goes on where it was
    stopped. ``on_progress`` is told the label of the point, the part, how many of its estimates are done, of how many.
    """
    run = Run.open(directory)
    tuning = run.config.get("finetune", {})
    names = labels(settings.at)
    task, engine, _ = open_weights(run, settings.at[0], machine)
    for at in settings.at[1:]:  # what is missing is found before any work
        load_weights(run, at, engine)
    reward_name = settings.reward or tuning.get("reward") or task.rewards[0]
    reward = task.reward(reward_name)
    examples = min(settings.examples or tuning.get("batch_size") or EXAMPLES, len(task.train))
    batch = task.train.columns.batch(range(examples), task.device)
    estimators: list[str] = []
    for one in settings.estimators:
        estimators += default_estimators(engine, batch) if one == DEFAULT else [one]
    points = []
    for at, label in zip(settings.at, names, strict=True):
        update = load_weights(run, at, engine)
        others = task.train.columns.epoch(examples, Noise(settings.seed), task.device)
        lab = run_lab(
            engine,
            batch,
            reward,
            list(dict.fromkeys(estimators)),
            batches=list(islice(others, settings.batches)),
            estimates=settings.estimates,
            reference=settings.reference,
            reference_estimates=settings.reference_estimates,
            timing_rounds=settings.rounds,
            seed=settings.seed,
            folder=out / POINTS / _folder(label),
            on_progress=partial(on_progress, label),
        )
        points.append(Point(label, at, update, lab))
    return RunLab(directory, task.name, reward_name, settings, points)


def labels(at: Sequence[str]) -> list[str]:
    """Short names of weights: those of paths are their last parts, where that is enough to tell them apart."""
    if not at or len(set(at)) < len(at):
        raise InputError(f"name different weights to measure at, not {', '.join(at) or 'none'}")
    short = [_short(Path(one).resolve()) for one in at]
    return [one if short.count(label) > 1 else label for one, label in zip(at, short, strict=True)]


def _short(path: Path) -> str:
    """A run's directory by its name, a file with the directory that it is in."""
    return f"{path.parent.name}/{path.stem}" if path.suffix == ".safetensors" else path.name


def _folder(label: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", label).strip("-")
