"""What runs achieved and what it cost, read from their directories."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corollout.config import from_table
from corollout.errors import InputError
from corollout.files import check_entries, read_json
from corollout.tasks.task import Metric, Share, Z, mean_interval
from corollout.training.run_metric import metric_of
from corollout.training.runs import (
    CONFIG,
    KINDS,
    METRICS,
    Run,
    flat_settings,
    is_of_command,
    kind_of,
    training_settings,
    wrong_kind,
)
from corollout.training.settings import FinetuneSettings, PretrainSettings

SPLITS = ("val", "test")


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method, one for each seed."""

    label: str
    runs: list[Path]


@dataclass(frozen=True)
class SplitScore:
    """The task's metric on one split and, where recorded, the number of examples and the score of each."""

    value: float
    count: int | None = None
    scores: np.ndarray | None = None  # of each example
    top: tuple[float, ...] = ()  # for k = 1, 2, … of a beam
    interval: tuple[float, float] | None = None  # as it was recorded, if the scores of single examples were not


@dataclass(frozen=True)
class RunResult:
    """A run: its settings, what it recorded, and how its best weights score on each split."""

    directory: Path
    config: dict[str, Any]
    kind: str  # "pretrain" or "finetune"
    settings: dict[str, Any]  # of the training
    metric: Metric
    updates: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    splits: dict[str, SplitScore]
    totals: dict[str, Any]  # at least updates, tokens and seconds
    finished: bool

    @property
    def data_folder(self) -> str:
        data = self.config.get("data")
        return str(data.get("folder") if isinstance(data, dict) else data)

    def mean(self, key: str, first: int | None = None, last: int | None = None) -> float | None:
        """Mean of what updates recorded, from the first to before the last."""
        values = [r[key] for r in self.updates if r.get(key) is not None][first:last]
        return float(np.mean(values)) if values else None

    def best_until(self, axis: str, limit: float | int) -> float | None:
        """The best validation score up to a limit, at which it is interpolated."""
        if not self.evaluations:
            return None
        positions, values = ([r[key] for r in self.evaluations] for key in (axis, self.metric.key))
        before = [value for position, value in zip(positions, values, strict=True) if position <= limit]
        return max([*before, float(np.interp(limit, positions, values))])


def read_run(directory: Path) -> RunResult:
    """Read a run, finished or not; it must have been evaluated at least once."""
    run = Run.open(directory)
    records, summary = run.measurements(), run.summary
    kind, settings = kind_of(run.config), training_settings(run.config)
    if kind is None and not any(name in run.config for name in KINDS):  # made in Python, without ``fit``
        kind = "pretrain" if any("loss" in record for record in records) else "finetune"
        settings = {name: value for name, value in flat_settings(run.config).items() if isinstance(value, int | float)}
    elif kind not in KINDS or not settings:
        raise InputError(f"{directory} is not a training run: {wrong_kind(kind)}")
    if is_of_command(run.config):  # else its settings may be anything
        cls = {"pretrain": PretrainSettings, "finetune": FinetuneSettings}[kind]
        from_table(cls, settings, str(directory / CONFIG))
        for section in ("data", "model", "start", "machine"):
            run.section(section)
    metric = metric_of(run)
    evaluations = [r for r in records if r["kind"] == "evaluation" and r.get(metric.key) is not None]
    updates = [r for r in records if r["kind"] == "update"]
    splits = read_splits(directory, metric)
    if "val" not in splits:
        if not evaluations:
            raise InputError(f"{directory} has no complete evaluation in metrics.jsonl: resume it, or leave it out")
        splits["val"] = _of_record(max(evaluations, key=lambda r: r[metric.key]), metric)
    last = max([*evaluations[-1:], *updates[-1:]], key=lambda r: r["update"], default={})
    totals = summary or {**last, "updates": last.get("update")}
    check_entries(totals, directory / "summary.json", **dict.fromkeys(("updates", "tokens", "seconds"), (int, float)))
    if summary and updates and updates[-1]["update"] < totals["updates"]:
        raise InputError(
            f"{directory / METRICS} ends after update {updates[-1]['update']} of {totals['updates']}: its last lines "
            f"are lost; restore the file, or leave the run out"
        )
    return RunResult(directory, run.config, kind, settings, metric, updates, evaluations, splits, totals, bool(summary))


def read_splits(directory: Path, metric: Metric) -> dict[str, SplitScore]:
    """A run's scores: from ``result.json``, else from what ``corollout evaluate`` wrote."""
    result = directory / "result.json"
    results = check_entries(read_json(result), result) if result.exists() else {}
    splits = {}
    for split in SPLITS:
        path = directory / f"evaluation-{split}.json"
        numbers = results.get(split, read_json(path) if path.exists() else None)
        if numbers is None:
            continue
        try:
            if not isinstance(numbers.get("count"), int | None):
                raise TypeError("count")
            top = tuple(numbers[f"top_{k}"] for k in range(1, 1 + sum(key.startswith("top_") for key in numbers)))
            # The score of each example: a list of numbers, or a character 0 or 1 for each.
            each = list(numbers["solved"]) if "solved" in numbers else numbers.get("scores")
            scores = None if each is None else np.array(each, dtype=float)
            splits[split] = SplitScore(float(numbers[metric.key]), numbers.get("count"), scores, top)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            file = result if split in results else path
            raise InputError(f"{file} is not the result of an evaluation: {type(error).__name__} {error}") from error
    return splits


def _of_record(record: Mapping[str, Any], metric: Metric) -> SplitScore:
    """An evaluation record has a share and Wilson's interval, from whose width the number of examples follows.

    With a = z²/n the squared width is (4 a p (1 − p) + a²) / (1 + a)², a quadratic equation for a.
    """
    value, low, high = (record.get(f"{metric.key}{end}") for end in ("", "_low", "_high"))
    assert value is not None
    if not metric.is_share and low is not None and high is not None:
        return SplitScore(value, interval=(low, high))
    if not metric.is_share or low is None or high is None or not low < high < 1 + 1e-9:
        return SplitScore(value)
    square = (high - low) ** 2
    # a² (1 − w²) + a (4 p (1 − p) − 2 w²) − w² = 0
    quadratic, linear = 1 - square, 4 * value * (1 - value) - 2 * square
    a = (-linear + math.sqrt(linear**2 + 4 * quadratic * square)) / (2 * quadratic)
    return SplitScore(value, round(Z**2 / a))


def starting_point(run: RunResult, parent: Path | None = None) -> dict[str, SplitScore]:
    """The scores a fine-tuning started from: those of its parent, or its own evaluation before the first update."""
    start = run.config.get("start")
    folder = parent or (start.get("run") if isinstance(start, dict) else None)
    splits = read_splits(Path(folder), run.metric) if folder else {}
    if "val" not in splits and run.evaluations and run.evaluations[0]["update"] == 0:
        splits["val"] = _of_record(run.evaluations[0], run.metric)
    return splits


@dataclass(frozen=True)
class MeanDifference:
    """A mean difference of scores, over examples and seeds, with its 95 % interval."""

    value: float
    interval: tuple[float, float] | None


def paired_difference(pairs: Sequence[tuple[SplitScore, SplitScore]]) -> MeanDifference:
    """How much higher scores are after than before, for (before, after) of each seed.

    An example's differences are averaged over seeds first, and the interval is that of a mean over examples (normal
    approximation): seeds share their examples and do not count as independent ones.
    """
    value = float(np.mean([after.value - before.value for before, after in pairs]))
    rows = [
        after.scores - before.scores
        for before, after in pairs
        if before.scores is not None and after.scores is not None and before.scores.shape == after.scores.shape
    ]
    if len(rows) < len(pairs) or len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        return MeanDifference(value, None)
    return MeanDifference(value, mean_interval(np.mean(rows, axis=0)))


def pooled_interval(splits: Sequence[SplitScore], metric: Metric) -> tuple[float, float] | None:
    """For shares, Wilson's interval for the hits of all seeds together; else that of a mean over examples."""
    if not metric.is_share:
        scores = [one.scores for one in splits if one.scores is not None]
        if not scores and len(splits) == 1:
            return splits[0].interval
        same = len(scores) == len(splits) and len({len(row) for row in scores}) == 1
        return mean_interval(np.mean(scores, axis=0)) if same else None
    counts = [one.count for one in splits if one.count]
    if not splits or len(counts) < len(splits):
        return None
    hits = sum(round(one.value * count) for one, count in zip(splits, counts, strict=True))
    return Share(hits, sum(counts)).interval
