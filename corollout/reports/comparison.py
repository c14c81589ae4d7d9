"""Methods side by side: how well each one does, what it gains over its start, and what that cost."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corollout.config import toml_text
from corollout.errors import InputError
from corollout.estimators import make_estimator
from corollout.reports.axis import Axis
from corollout.reports.curves import DETAILS, training_curves
from corollout.reports.manifest import manifest
from corollout.reports.report import Report, Section, Table, settings_section
from corollout.reports.run_results import (
    SPLITS,
    MeanDifference,
    MethodRuns,
    RunResult,
    SplitScore,
    paired_difference,
    pooled_interval,
    read_run,
    starting_point,
)
from corollout.reports.samples import sample_sections
from corollout.reports.tables import NOTHING, count_text, interval_text, number, score_text, setting_text, signed, times
from corollout.reports.verdict import Verdict, decide
from corollout.tasks.task import Metric
from corollout.training.runs import FIT, Run, flat_settings, is_of_command, training_settings

KIND = "comparison"
MLE = "MLE"
INTERVAL = "95\u00a0% interval"


@dataclass(frozen=True)
class MeanScore:
    """The task's metric on one split, over seeds."""

    values: list[float]
    mean: float
    spread: float | None  # standard deviation over seeds
    interval: tuple[float, float] | None  # of all seeds together
    count: int | None  # of examples
    top: list[float]  # for k = 1, 2, … of a beam, mean over seeds

    @classmethod
    def of(cls, splits: Sequence[SplitScore], metric: Metric) -> "MeanScore":
        values = [one.value for one in splits]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        top = [float(np.mean(shares)) for shares in zip(*(one.top for one in splits), strict=False)]
        return cls(values, float(np.mean(values)), spread, pooled_interval(splits, metric), splits[0].count, top)

    def cells(self, metric: Metric) -> list[str]:
        spread = "" if self.spread is None else f" ± {score_text(self.spread, metric, 0)}"
        return [score_text(self.mean, metric) + spread, interval_text(self.interval, metric)]


@dataclass(frozen=True)
class MethodSummary:
    """The runs of one method, summed up; counts are means over seeds."""

    label: str
    kind: str
    runs: list[str]
    seeds: list[int]
    learning_rates: list[float]
    scores: dict[str, MeanScore]  # by split
    gains: dict[str, MeanDifference]  # by split, over the starting point
    updates: float
    tokens: float
    seconds: float
    rollouts: float | None  # per step, all updates
    first_rollouts: float | None  # the first tenth of the updates
    last_rollouts: float | None  # the last tenth
    variance: float | None  # the running variance of the gradient, all updates
    at_equal_tokens: float | None
    at_equal_seconds: float | None

    @property
    def rate(self) -> str:
        return ", ".join(f"{rate:g}" for rate in self.learning_rates) or NOTHING


@dataclass(frozen=True)
class Comparison:
    """Methods, and the tokens and seconds that all of them have reached."""

    methods: list[MethodSummary]
    limits: dict[str, float]
    remarks: list[str]
    metric: Metric
    verdict: Verdict

    def score_table(self) -> Table:
        metric, rows = self.metric, []
        tuned = [method for method in self.methods if method.kind == "finetune"]
        # Gains are those on the test data, unless a method was not evaluated on it.
        split = "test" if tuned and all("test" in method.gains for method in tuned) else "val"
        gain = {"val": "validation gain", "test": "test gain"}[split]
        for method in self.methods:
            cells = [method.scores[s].cells(metric) if s in method.scores else [NOTHING] * 2 for s in SPLITS]
            rows.append([method.label, *cells[0], *cells[1], *gain_cells(method.gains.get(split), metric)])
        header = ["method", f"validation{metric.unit}", INTERVAL, f"test{metric.unit}", INTERVAL, gain, INTERVAL]
        return Table(
            metric.name[:1].upper() + metric.name[1:], header, rows, [_score_note(metric)]
        ).without_empty_columns()

    def cost_table(self) -> Table:
        rows = []
        for method in self.methods:
            spent = [number(method.updates), count_text(method.tokens), number(method.seconds), number(method.rollouts)]
            equal = [score_text(value, self.metric) for value in (method.at_equal_tokens, method.at_equal_seconds)]
            rows.append([method.label, method.rate, *spent, *equal])
        header = ["method", "learning rate", "updates", "tokens", "seconds", "rollouts per\u00a0step"]
        header += ["at\u00a0equal tokens", "at\u00a0equal seconds"]
        return Table("Cost", header, rows, [self._cost_note(), *self.remarks]).without_empty_columns()

    def _cost_note(self) -> str:
        counts = [len(method.seeds) for method in self.methods]
        usual = max(set(counts), key=counts.count)
        others = [f"{len(m.seeds)} for {m.label}" for m in self.methods if len(m.seeds) != usual]
        note = "One seed" if usual == 1 else f"Means over {usual} seeds"
        note += f", but {'; '.join(others)}." if others else "."
        note += " Tokens: generated in fine-tuning, trained on in maximum likelihood."
        if not self.limits:
            return note
        return (
            f"{note} At equal tokens, at equal seconds: the best validation {self.metric.name}{times(self.metric)}, up "
            f"to {self.limits['tokens']:,.0f} tokens or {self.limits['seconds']:,.0f} seconds of training, which all "
            f"fine-tuning runs have reached."
        )

    def numbers(self, root: Path) -> dict[str, Any]:
        """All numbers, for a JSON file; run directories relative to a folder."""
        numbers = asdict(self)
        for method in numbers["methods"]:
            method["runs"] = [os.path.relpath(run, root) for run in method["runs"]]
        return numbers

    def winner(self) -> str:
        """A sentence or two about the method with the highest score, and those that are tied with it."""
        verdict, metric, split = self.verdict, self.metric, self.verdict.split
        best = next(method for method in self.methods if method.label == verdict.best)
        score = best.scores[split]
        interval = "" if score.interval is None else f" (95 % interval {interval_text(score.interval, metric)})"
        has = "has the highest" if len(self.methods) > 1 else "reaches a"
        count = "the" if score.count is None else f"{score.count:,}"
        data = {"test": "test", "val": "validation"}[split]
        value = f"{score_text(score.mean, metric)}{metric.unit}"
        of = "," if len(self.methods) > 1 else " of"
        sentence = f"On {count} {data} {metric.examples} {best.label} {has} {metric.name}{of} {value}{interval}"
        if len(self.methods) == 1:
            return f"{sentence}{self._over_its_start(best, split)}."
        parts = [f"{sentence}."]
        if verdict.tied:
            are = "are tied with it" if len(verdict.tied) > 1 else "is tied with it"
            parts.append(f"{listed(verdict.tied)} {are}: the difference is within the noise.")
        elif not verdict.unknown:
            others = "all others" if len(self.methods) > 2 else "the other"
            parts.append(f"It is above {others} beyond the noise.")
        if verdict.unknown:
            others = listed(verdict.unknown)
            parts.append(f"Whether it is above {others} beyond the noise is not known: no intervals were recorded.")
        return " ".join(parts)

    def _over_its_start(self, method: MethodSummary, split: str) -> str:
        """What one method has gained."""
        gain, metric = method.gains.get(split), self.metric
        if gain is None:
            return ""
        change = signed(metric.scale * gain.value, metric.digits)
        if gain.interval is None:
            return f", {change} over its start"
        interval = "…".join(signed(metric.scale * end, metric.digits) for end in gain.interval)
        tied = ": tied with it, the difference is within the noise" if gain.interval[0] <= 0 <= gain.interval[1] else ""
        return f", {change} ({interval}) over its start{tied}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: A, B and C."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _score_note(metric: Metric) -> str:
    intervals = f"intervals of a mean over {metric.examples}, averaged over seeds first"
    if metric.is_share:
        intervals = f"Wilson intervals for the {metric.examples} of all seeds together"
    return (
        f"{metric.name} of the best weights, chosen on the validation data: {metric.meaning}, ± the standard deviation "
        f"over seeds; 95 % {intervals}. Gain: the difference to the weights that fine-tuning started from, on the same "
        f"{metric.examples}, averaged over seeds before the interval is taken over {metric.examples}."
    )


def gain_cells(gain: MeanDifference | None, metric: Metric) -> list[str]:
    if gain is None:
        return [NOTHING, NOTHING]
    ends = [signed(metric.scale * end, metric.digits) for end in gain.interval or ()]
    return [signed(metric.scale * gain.value, metric.digits + 1), "…".join(ends) or NOTHING]


def group_runs(directories: Sequence[Path], labels: Sequence[str] | None = None) -> list[MethodRuns]:
    """Runs by method: those that differ only in seed and start are seeds of one; or those with equal labels."""
    if not directories:
        raise InputError("name one or more run directories")
    resolved = list(map(os.path.realpath, directories))
    if twice := [directory for i, directory in enumerate(directories) if resolved[i] in resolved[:i]]:
        raise InputError(f"{twice[0]} was given twice")
    if labels is not None:
        if len(labels) != len(directories):
            raise InputError(f"{len(directories)} runs but {len(labels)} labels: give one label for each run")
        pairs = list(zip(directories, labels, strict=True))
        return [MethodRuns(label, [run for run, one in pairs if one == label]) for label in dict.fromkeys(labels)]
    groups: dict[str, MethodRuns] = {}
    settings: dict[str, dict[str, Any]] = {}
    for directory in directories:
        own = _method_settings(Run.open(directory))
        key = toml_text(own)
        name = str(own.get("label", own.get("directory", MLE)))
        label = method_label(str(own["estimator"])) if "estimator" in own else name
        groups.setdefault(key, MethodRuns(label, [])).runs.append(directory)
        settings[key] = own
    named = []
    for key, group in groups.items():  # groups of the same label show the settings in which they differ
        like = [settings[other] for other in groups if groups[other].label == group.label]
        differing = [name for name in settings[key] if len({str(own.get(name)) for own in like}) > 1]
        names = {name: name.removeprefix("learning_").replace("_", " ") for name in differing}
        shown = [f"{names[name]} {setting_text(settings[key][name])}" for name in differing]
        named.append(MethodRuns(", ".join([group.label, *shown]), group.runs))
    return named


def _method_settings(run: Run) -> dict[str, Any]:
    """The settings of a run that its seed does not change."""
    config = run.config
    if is_of_command(config):
        own = {"kind": config["kind"], **training_settings(config), **run.section("model")}
    else:  # made in Python, with settings of the user's
        own = flat_settings({name: value for name, value in config.items() if name not in ("machine", "start")})
        if FIT not in config and not {"estimator", "seed"} <= own.keys():  # then it is known by its directory only
            own["directory"] = Path(os.path.realpath(run.directory)).name
    own.pop("seed", None)
    return own


def method_label(estimator: str) -> str:
    """An estimator's name as the literature writes it."""
    try:
        return make_estimator(estimator).label
    except InputError:  # an estimator of the user's that is not importable here: a report can do without it
        return estimator


def compare(groups: Sequence[MethodRuns], parents: Mapping[Path, Path] | None = None) -> Comparison:
    """Read all runs and compare them; ``parents`` gives the starting runs that have moved, by run directory."""
    runs = [[read_run(directory) for directory in group.runs] for group in groups]
    every = [run for own in runs for run in own]
    if not every:
        raise InputError("there are no runs to compare")
    remarks = _check_tasks(every)
    tuned = [run for run in every if run.kind == "finetune"]
    limits = {axis: float(min(run.totals[axis] for run in tuned)) for axis in ("tokens", "seconds")} if tuned else {}
    methods = [_sum_up(group.label, own, limits, parents or {}) for group, own in zip(groups, runs, strict=True)]
    if unfinished := [run.directory.name for run in every if not run.finished]:
        remarks.append(f"Not finished yet: {', '.join(unfinished)}.")
    metric = every[0].metric
    split = "test" if all("test" in method.scores for method in methods) else "val"
    scores = {group.label: [run.splits[split] for run in own] for group, own in zip(groups, runs, strict=True)}
    return Comparison(methods, limits, remarks, metric, decide(split, scores, metric))


def _check_tasks(runs: Sequence[RunResult]) -> list[str]:
    """Refuse runs that are not comparable; remark on data that may differ."""
    first = runs[0]
    for run in runs[1:]:
        pair = f"cannot compare {first.directory} and {run.directory}: "
        if run.config.get("task") != first.config.get("task"):
            one, other = _task_text(first), _task_text(run)
            raise InputError(f"{pair}one {one}, the other {other}")
        if run.metric.key != first.metric.key:
            raise InputError(f"{pair}they were evaluated by {first.metric.key!r} and {run.metric.key!r}")
        for split in SPLITS:
            counts = [one.splits[split].count for one in (first, run) if split in one.splits]
            if len(counts) == 2 and None not in counts and counts[0] != counts[1]:
                raise InputError(
                    f"{pair}they were evaluated on {counts[0]} and {counts[1]} {run.metric.examples} ({split})"
                )
    folders = sorted({run.data_folder for run in runs})
    names = ", ".join(Path(folder).name for folder in folders)
    return [f"The runs were trained on data from different folders: {names}."] if len(folders) > 1 else []


def _task_text(run: RunResult) -> str:
    task = run.config.get("task")
    return "was made without a task" if task is None else f"is of the task {task!r}"


def _sum_up(
    label: str, runs: list[RunResult], limits: Mapping[str, float], parents: Mapping[Path, Path]
) -> MethodSummary:
    kinds = sorted({run.kind for run in runs})
    if len(kinds) > 1:
        raise InputError(f"{label} has runs of different kinds ({' and '.join(kinds)}), not seeds of one method")
    tuned = kinds == ["finetune"]
    starts = [starting_point(run, parents.get(run.directory)) if tuned else {} for run in runs]
    scores, gains = {}, {}
    for split in SPLITS:
        if all(split in run.splits for run in runs):
            scores[split] = MeanScore.of([run.splits[split] for run in runs], runs[0].metric)
            pairs = [(s[split], run.splits[split]) for s, run in zip(starts, runs, strict=True) if split in s]
            if len(pairs) == len(runs):
                gains[split] = paired_difference(pairs)

    settings = [run.settings for run in runs]
    tenth = [max(1, len(run.updates) // 10) for run in runs]
    return MethodSummary(
        label=label,
        kind=kinds[0],
        runs=[str(run.directory) for run in runs],
        seeds=[int(own.get("seed", 0)) for own in settings],
        learning_rates=sorted({float(own["learning_rate"]) for own in settings if "learning_rate" in own}),
        scores=scores,
        gains=gains,
        **{total: float(np.mean([run.totals[total] for run in runs])) for total in ("updates", "tokens", "seconds")},
        rollouts=_mean(run.mean("rollouts_per_step") for run in runs),
        first_rollouts=_mean(run.mean("rollouts_per_step", last=n) for run, n in zip(runs, tenth, strict=True)),
        last_rollouts=_mean(run.mean("rollouts_per_step", first=-n) for run, n in zip(runs, tenth, strict=True)),
        variance=_mean(run.mean("gradient_variance", first=1) for run in runs),
        at_equal_tokens=_mean(run.best_until("tokens", limits["tokens"]) for run in runs) if tuned else None,
        at_equal_seconds=_mean(run.best_until("seconds", limits["seconds"]) for run in runs) if tuned else None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean, if every seed has a value."""
    array = np.array(list(values), dtype=float)  # NaN for None
    return None if np.isnan(array).any() else float(array.mean())


def comparison_report(groups: Sequence[MethodRuns], folder: Path, x: Axis = "seconds") -> Report:
    """The report of some runs, with curves against ``x``; paths in it are relative to the folder it is for."""
    comparison = compare(groups)
    kinds = {method.label: method.kind for method in comparison.methods}
    # Curves of maximum likelihood have another axis: they are drawn only if there are no others.
    drawn_kind = "finetune" if "finetune" in kinds.values() else "pretrain"
    drawn = [g for g in groups if kinds[g.label] == drawn_kind and all(Run.open(run).measurements() for run in g.runs)]
    scores, cost = comparison.score_table(), comparison.cost_table()
    runs = [
        [method.label, str(seed), os.path.relpath(run, folder)]
        for method in comparison.methods
        for seed, run in zip(method.seeds, method.runs, strict=True)
    ]
    sections = [
        Section(scores.title, [scores]),
        *([Section(f"Training, against {x}", [training_curves(drawn, x, details=DETAILS)])] if drawn else []),
        *sample_sections(groups),
        Section(cost.title, [cost]),
        settings_section({group.label: Run.open(group.runs[0]).config for group in groups}),
        Section("Runs", [Table("Runs", ["method", "seed", "directory"], runs)], page_only=True),
    ]
    lead = f"{len(runs)} run{'' if len(runs) == 1 else 's'}. {comparison.winner()}"
    title = listed(list(kinds))
    title = title if len(kinds) < 5 else f"Comparison of {len(kinds)} methods"
    return Report(KIND, title, lead, sections, manifest(folder), comparison.numbers(folder))
