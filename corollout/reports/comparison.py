"""Methods side by side: how well each one does, what it gains over its start, and what that cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corollout.config import toml_text
from corollout.errors import InputError
from corollout.reports.curves import Group
from corollout.reports.run_results import (
    SPLITS,
    Difference,
    Outcome,
    RunOutcome,
    paired_difference,
    pooled_interval,
    read_run,
    starting_point,
)
from corollout.reports.tables import (
    NOTHING,
    TextTable,
    number,
    percent,
    percent_range,
    signed_percent,
    without_empty_columns,
)
from corollout.tasks.task import Metric
from corollout.training.runs import Run

MLE = "MLE"
INTERVAL = "95\u00a0% interval"
_SPELLINGS = {"disarm": "DisARM", "rl-beam": "RL_beam"}


def result_note(measure: Metric) -> str:
    intervals = (
        f"by Wilson for the {measure.examples} of all seeds together"
        if measure.shares
        else f"of a mean over {measure.examples}, which are averaged over seeds first"
    )
    return (
        f"{measure.name} of the best weights, which are chosen on the validation data: {measure.meaning}, ± the "
        f"standard deviation over seeds; 95 % intervals {intervals}. Gain: difference to the weights that fine-tuning "
        f"started from, on the same {measure.examples}, averaged over seeds before the interval is taken over them."
    )


@dataclass(frozen=True)
class Score:
    """The task's measure on one split over seeds."""

    values: list[float]
    mean: float
    spread: float | None  # standard deviation over seeds
    interval: tuple[float, float] | None  # of all seeds together
    count: int | None  # of examples
    top: list[float]  # for k = 1, 2, … of a beam, mean over seeds

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], measure: Metric) -> "Score":
        values = [one.value for one in outcomes]
        depth = min(len(one.top) for one in outcomes)
        return cls(
            values,
            float(np.mean(values)),
            float(np.std(values, ddof=1)) if len(values) > 1 else None,
            pooled_interval(outcomes, measure),
            outcomes[0].count,
            [float(np.mean([one.top[k] for one in outcomes])) for k in range(depth)],
        )

    def words(self) -> str:
        return percent(self.mean) + ("" if self.spread is None else f" ± {percent(self.spread, 1)}")


@dataclass(frozen=True)
class Method:
    """The runs of one method, summed up; counts are means over seeds."""

    label: str
    kind: str
    runs: list[str]
    seeds: list[int]
    learning_rates: list[float]
    scores: dict[str, Score]  # by split
    gains: dict[str, Difference]  # by split, over the starting point
    updates: float
    tokens: float
    seconds: float
    rollouts: float | None  # for each step, all updates
    first_rollouts: float | None  # the first tenth of the updates
    last_rollouts: float | None  # the last tenth
    variance: float | None  # the running variance of the gradient, all updates
    at_equal_tokens: float | None
    at_equal_seconds: float | None

    @property
    def rate(self) -> str:
        return ", ".join(f"{rate:g}" for rate in self.learning_rates)

    def result_cells(self, gain_split: str) -> list[str]:
        """Each split with its interval, then the gain on one of them."""
        cells = [self.label]
        for split in SPLITS:
            score = self.scores.get(split)
            cells += [NOTHING, NOTHING] if score is None else [score.words(), percent_range(score.interval)]
        return [*cells, *gain_cells(self.gains.get(gain_split))]

    def cost_cells(self) -> list[str]:
        return [
            self.label,
            self.rate,
            number(self.updates),
            count_words(self.tokens),
            number(self.seconds),
            number(self.rollouts),
            percent(self.at_equal_tokens),
            percent(self.at_equal_seconds),
        ]


@dataclass(frozen=True)
class Comparison:
    """Methods, and up to which tokens and seconds all of them have come."""

    methods: list[Method]
    limits: dict[str, float]
    remarks: list[str]
    metric: Metric

    @property
    def gain_split(self) -> str:
        """Where gains are told: on the test, of which the choice of weights knows nothing, if every method has it."""
        tuned = [method for method in self.methods if method.kind == "finetune"]
        return "test" if tuned and all("test" in method.gains for method in tuned) else "val"

    def tables(self) -> list[TextTable]:
        split = self.gain_split
        gain = {"val": "validation gain", "test": "test gain"}[split]
        unit = self.metric.unit
        header = ["method", f"validation{unit}", INTERVAL, f"test{unit}", INTERVAL, gain, INTERVAL]
        cells = [m.result_cells(split) for m in self.methods]
        result = TextTable(self.metric.name, header, cells, [result_note(self.metric)])
        header = [
            "method",
            "learning rate",
            "updates",
            "tokens",
            "seconds",
            "rollouts a\u00a0step",
            "at\u00a0equal tokens",
            "at\u00a0equal seconds",
        ]
        cost = TextTable("Cost", header, [m.cost_cells() for m in self.methods], [self._cost_note(), *self.remarks])
        return [without_empty_columns(result), without_empty_columns(cost)]

    def _cost_note(self) -> str:
        counts = [len(method.seeds) for method in self.methods]
        usual = max(set(counts), key=counts.count)
        others = [f"{len(m.seeds)} for {m.label}" for m in self.methods if len(m.seeds) != usual]
        note = "One seed" if usual == 1 else f"Means over {usual} seeds"
        note += f", but {'; '.join(others)}." if others else "."
        note += " Tokens: generated for fine-tuning, learnt from for maximum likelihood."
        if not self.limits:
            return note
        return (
            f"{note} At equal tokens, at equal seconds: the best {self.metric.name} on the validation data, times "
            f"100, up to {self.limits['tokens']:,.0f} tokens or {self.limits['seconds']:,.0f} seconds of training, "
            f"which all fine-tunings have reached."
        )

    def table(self) -> dict[str, Any]:
        """All numbers, for a JSON file."""
        return asdict(self)


def gain_cells(gain: Difference | None) -> list[str]:
    if gain is None:
        return [NOTHING, NOTHING]
    return [signed_percent(gain.value), percent_range(gain.interval, signed=True)]


def count_words(count: float | int) -> str:
    """A large count in millions or thousands."""
    if count >= 1e6:
        return f"{count / 1e6:.3g} M" if count < 1e9 else f"{count / 1e6:,.0f} M"
    return f"{count / 1e3:.3g} k" if count >= 1e4 else f"{count:,.0f}"


def group_runs(directories: Sequence[Path], labels: Sequence[str] | None = None) -> list[Group]:
    """Runs by method: those that differ in nothing but seed and start are seeds of one; or those with equal labels."""
    if not directories:
        raise InputError("name one run directory or more")
    seen: dict[Path, Path] = {}
    for directory in directories:
        if directory.resolve() in seen:
            raise InputError(f"{directory} was named twice: every run counts once")
        seen[directory.resolve()] = directory
    if labels is not None:
        if len(labels) != len(directories):
            raise InputError(f"there are {len(directories)} runs and {len(labels)} labels: give one for each run")
        return [
            Group(label, [d for d, own in zip(directories, labels, strict=True) if own == label])
            for label in dict.fromkeys(labels)
        ]
    found: dict[str, Group] = {}
    settings: dict[str, dict[str, Any]] = {}
    for directory in directories:
        config = Run.open(directory).config
        key = toml_text(_without_seed(config))
        found.setdefault(key, Group(_name(config), [])).runs.append(directory)
        settings[key] = _without_seed(config)
    groups = list(found.items())
    if len({group.label for _, group in groups}) == len(groups):
        return [group for _, group in groups]
    return [Group(_distinct(key, group.label, found, settings), group.runs) for key, group in groups]


def _without_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = config.get("kind")
    own = {name: value for name, value in config.get(kind, {}).items() if name != "seed"} if kind else {}
    return {"kind": str(kind), "model": config.get("model", {}), "own": own}


def _name(config: Mapping[str, Any]) -> str:
    estimator = config.get("finetune", {}).get("estimator")
    return MLE if estimator is None else method_label(estimator)


def method_label(estimator: str) -> str:
    """An estimator's name as the literature writes it."""
    name, _, options = estimator.strip().partition(":")
    plain = name.lower().replace("_", "-")
    known = next((own for own in _SPELLINGS if plain.startswith(own)), None)
    label = plain.upper() if known is None else _SPELLINGS[known] + plain.removeprefix(known)
    return f"{label} ({options})" if options else label


def _distinct(key: str, label: str, groups: Mapping[str, Group], settings: Mapping[str, dict[str, Any]]) -> str:
    """The label, with the settings in which its groups differ if there are several of them."""
    like = [settings[other] for other, group in groups.items() if group.label == label]
    if len(like) == 1:
        return label
    parts = [{**one["own"], **one["model"]} for one in like]
    mine = {**settings[key]["own"], **settings[key]["model"]}
    differing = [name for name in mine if len({str(part.get(name)) for part in parts}) > 1]
    shown = ", ".join(f"{name.removeprefix('learning_').replace('_', ' ')} {_short(mine[name])}" for name in differing)
    return f"{label}, {shown}" if shown else label


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def compare(groups: Sequence[Group], parents: Mapping[Path, Path] | None = None) -> Comparison:
    """Read all runs and compare them. ``parents`` says where a fine-tuning's start is now, if not where it was."""
    runs = [[read_run(directory) for directory in group.runs] for group in groups]
    everything = [run for own in runs for run in own]
    if not everything:
        raise InputError("there is no run to compare")
    remarks = _check_tasks(everything)
    tuned = [run for run in everything if run.kind == "finetune"]
    limits = {axis: float(min(run.totals[axis] for run in tuned)) for axis in ("tokens", "seconds")} if tuned else {}
    methods = [_sum_up(group.label, own, limits, parents or {}) for group, own in zip(groups, runs, strict=True)]
    if unfinished := [str(run.directory) for run in everything if not run.finished]:
        remarks.append(f"Not finished yet: {', '.join(unfinished)}.")
    return Comparison(methods, limits, remarks, everything[0].metric)


def _check_tasks(runs: Sequence[RunOutcome]) -> list[str]:
    """Refuse what cannot be compared; remark on what may be another thing under the same name."""
    first = runs[0]
    for run in runs[1:]:
        if run.config.get("task") != first.config.get("task"):
            raise InputError(
                f"{first.directory} and {run.directory} cannot be compared: their tasks are "
                f"{first.config.get('task')!r} and {run.config.get('task')!r}"
            )
        for split in SPLITS:
            counts = [one.splits[split].count for one in (first, run) if split in one.splits]
            if len(counts) == 2 and None not in counts and counts[0] != counts[1]:
                raise InputError(
                    f"{first.directory} and {run.directory} cannot be compared: they were evaluated on {counts[0]} and "
                    f"on {counts[1]} {run.metric.examples} ({split})"
                )
    folders = sorted({str(run.config.get("data", {}).get("folder")) for run in runs})
    return [f"The runs have their data from different folders: {', '.join(folders)}."] if len(folders) > 1 else []


def _sum_up(label: str, runs: list[RunOutcome], limits: Mapping[str, float], parents: Mapping[Path, Path]) -> Method:
    kinds = sorted({run.kind for run in runs})
    if len(kinds) > 1:
        raise InputError(
            f"{label} has runs of different kinds ({' and '.join(kinds)}): they are no seeds of one method"
        )
    tuned = kinds == ["finetune"]
    starts = [starting_point(run, parents.get(run.directory)) if tuned else {} for run in runs]
    scores, gains = {}, {}
    for split in SPLITS:
        if all(split in run.splits for run in runs):
            scores[split] = Score.of([run.splits[split] for run in runs], runs[0].metric)
            pairs = [
                (start[split], run.splits[split]) for start, run in zip(starts, runs, strict=True) if split in start
            ]
            gain = paired_difference(pairs) if len(pairs) == len(runs) else None
            if gain is not None:
                gains[split] = gain

    def until(axis: str) -> float | None:
        return _mean([run.best_until(axis, limits[axis]) for run in runs]) if tuned else None

    return Method(
        label=label,
        kind=kinds[0],
        runs=[str(run.directory) for run in runs],
        seeds=[int(run.settings.get("seed", 0)) for run in runs],
        learning_rates=sorted({float(run.settings["learning_rate"]) for run in runs}),
        scores=scores,
        gains=gains,
        updates=float(np.mean([run.totals["updates"] for run in runs])),
        tokens=float(np.mean([run.totals["tokens"] for run in runs])),
        seconds=float(np.mean([run.totals["seconds"] for run in runs])),
        rollouts=_mean([run.mean("rollouts_per_step") for run in runs]),
        first_rollouts=_mean([run.tenth("rollouts_per_step") for run in runs]),
        last_rollouts=_mean([run.tenth("rollouts_per_step", last=True) for run in runs]),
        variance=_mean([run.mean("gradient_variance", slice(1, None)) for run in runs]),
        at_equal_tokens=until("tokens"),
        at_equal_seconds=until("seconds"),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, if there is a value for every seed."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
