"""What runs achieved and what it cost, read from their directories."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corollout.errors import InputError
from corollout.tasks.registry import find_task
from corollout.tasks.task import Metric, Share, Z, mean_interval
from corollout.training.runs import Run

SPLITS = ("val", "test")


@dataclass(frozen=True)
class Outcome:
    """The task's measure on one split, and as far as they are known its examples and what each of them got."""

    value: float
    count: int | None = None
    scores: np.ndarray | None = None  # of each example
    top: tuple[float, ...] = ()  # for k = 1, 2, … of a beam


@dataclass(frozen=True)
class RunOutcome:
    """A run: its settings, what it recorded, and how its best weights do on each split."""

    directory: Path
    config: dict[str, Any]
    updates: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    splits: dict[str, Outcome]
    totals: dict[str, Any]  # at least updates, tokens and seconds
    finished: bool

    @property
    def kind(self) -> str:
        return self.config["kind"]

    @property
    def metric(self) -> Metric:
        return find_task(self.config.get("task")).metric

    @property
    def settings(self) -> dict[str, Any]:
        return self.config[self.kind]

    def mean(self, key: str, part: slice = slice(None)) -> float | None:
        """Mean of what updates recorded: all of them, or a part in their order."""
        values = [r[key] for r in self.updates if r.get(key) is not None][part]
        return float(np.mean(values)) if values else None

    def tenth(self, key: str, last: bool = False) -> float | None:
        """The mean over the first, or the last, tenth of the updates."""
        size = max(1, len(self.updates) // 10)
        return self.mean(key, slice(-size, None) if last else slice(size))

    def best_until(self, axis: str, limit: float | int) -> float | None:
        """The best score on the validation data up to a limit, at which it is interpolated."""
        if not self.evaluations:
            return None
        places = [r[axis] for r in self.evaluations]
        values = [r[self.metric.key] for r in self.evaluations]
        before = [value for place, value in zip(places, values, strict=True) if place <= limit]
        return max([*before, float(np.interp(limit, places, values))])


def read_run(directory: Path) -> RunOutcome:
    """Read a run, whether it is finished or not; it must have been evaluated at least once."""
    run = Run.open(directory)
    kind = run.config.get("kind")
    if kind not in ("pretrain", "finetune") or kind not in run.config:
        raise InputError(f"{directory} is no training: its config.toml has the kind {kind!r}")
    measure = find_task(run.config.get("task")).metric
    evaluations = [r for r in run.records("evaluation") if r.get(measure.key) is not None]
    updates = run.records("update")
    splits = _read_splits(directory, measure)
    if "val" not in splits:
        if not evaluations:
            raise InputError(f"{directory} has no evaluation yet: let the run go on, or leave it out")
        splits["val"] = _of_record(max(evaluations, key=lambda r: r[measure.key]), measure)
    finished = run.finished
    return RunOutcome(
        directory, run.config, updates, evaluations, splits, finished or _totals(evaluations, updates), bool(finished)
    )


def _totals(evaluations: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last = max([*evaluations[-1:], *updates[-1:]], key=lambda r: r["update"])
    return {"updates": last["update"], "tokens": last["tokens"], "seconds": last["seconds"]}


def _read_splits(directory: Path, measure: Metric) -> dict[str, Outcome]:
    """From ``result.json``, else from what ``corollout evaluate`` left."""
    found = {}
    result = _read_json(directory / "result.json")
    for split in SPLITS:
        path = directory / f"evaluation-{split}.json"
        numbers = result.get(split) or _read_json(path)
        if not numbers:
            continue
        try:
            found[split] = Outcome(
                float(numbers[measure.key]),
                numbers.get("count"),
                _scores(numbers),
                tuple(numbers[f"top_{k}"] for k in range(1, 1 + sum(key.startswith("top_") for key in numbers))),
            )
        except (KeyError, TypeError, ValueError) as error:
            where = directory / "result.json" if result.get(split) else path
            raise InputError(f"{where} is no result of an evaluation: {type(error).__name__} {error}") from error
    return found


def _scores(numbers: Mapping[str, Any]) -> np.ndarray | None:
    """What each example got: a list of numbers, or a letter 0 or 1 for each."""
    if "solved" in numbers:
        return np.array([float(letter) for letter in numbers["solved"]])
    return np.array(numbers["scores"], dtype=float) if "scores" in numbers else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _of_record(record: Mapping[str, Any], measure: Metric) -> Outcome:
    """An evaluation record has a share and Wilson's interval; the number of examples follows from the interval's width.

    With a = z²/n the squared width is (4 a p (1 − p) + a²) / (1 + a)², a quadratic equation for a.
    """
    value, low, high = (record.get(f"{measure.key}{end}") for end in ("", "_low", "_high"))
    assert value is not None
    if not measure.shares or low is None or high is None or not low < high < 1 + 1e-9:
        return Outcome(value)
    square = (high - low) ** 2
    # a² (1 − w²) + a (4 p (1 − p) − 2 w²) − w² = 0
    quadratic, linear = 1 - square, 4 * value * (1 - value) - 2 * square
    a = (-linear + math.sqrt(linear**2 + 4 * quadratic * square)) / (2 * quadratic)
    return Outcome(value, round(Z**2 / a))


def starting_point(run: RunOutcome, parent: Path | None = None) -> dict[str, Outcome]:
    """What a fine-tuning started from, on each split: the evaluations of its parent, or its own before any update."""
    recorded = run.config.get("start", {}).get("run")
    folder = parent or (None if recorded is None else Path(recorded))
    found = {} if folder is None else _read_splits(folder, run.metric)
    if "val" not in found and run.evaluations and run.evaluations[0]["update"] == 0:
        found["val"] = _of_record(run.evaluations[0], run.metric)
    return found


@dataclass(frozen=True)
class Difference:
    """A mean difference of scores, over examples and seeds, with its 95 % interval."""

    value: float
    interval: tuple[float, float] | None


def paired_difference(pairs: Sequence[tuple[Outcome, Outcome]]) -> Difference:
    """How much better scores are after than before, for (before, after) of each seed.

    An example's differences are averaged over seeds first, and the interval is that of a mean over examples (normal
    approximation): so seeds, which share their examples, do not count as independent ones.
    """
    value = float(np.mean([after.value - before.value for before, after in pairs]))
    rows = [
        after.scores - before.scores
        for before, after in pairs
        if before.scores is not None and after.scores is not None and before.scores.shape == after.scores.shape
    ]
    if len(rows) < len(pairs) or len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        return Difference(value, None)
    return Difference(value, mean_interval(np.mean(rows, axis=0)))


def pooled_interval(outcomes: Sequence[Outcome], measure: Metric) -> tuple[float, float] | None:
    """For shares, Wilson's interval for the hits of all seeds together; else that of a mean over examples."""
    if not measure.shares:
        scores = [one.scores for one in outcomes if one.scores is not None]
        same = len(scores) == len(outcomes) and len({len(row) for row in scores}) == 1
        return mean_interval(np.mean(scores, axis=0)) if same else None
    counts = [one.count for one in outcomes if one.count]
    if not outcomes or len(counts) < len(outcomes):
        return None
    hits = sum(round(one.value * count) for one, count in zip(outcomes, counts, strict=True))
    return Share(hits, sum(counts)).interval
