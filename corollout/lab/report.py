"""The report of an estimator lab: tables, figures, all numbers, and a page."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from corollout.lab.advice import percent_text, range_text, short_number
from corollout.lab.figures import COST_NAMES, cost_data, variance_data
from corollout.lab.lab import Lab
from corollout.lab.on_run import Point
from corollout.lab.summary import COSTS, Interval, Row
from corollout.reports.manifest import manifest
from corollout.reports.report import Facts, Figure, Paragraph, Report, Section, Table
from corollout.reports.tables import NOTHING, number
from corollout.tasks.task import DataFile

_COST_NOTE = (
    "Left of the line an estimator is better than the base at equal cost. Bars are 95 % intervals: blue circles lie "
    "below the base, orange squares above it, grey diamonds are not distinguishable from it. † and a hollow marker: "
    "biased."
)
_VARIANCE_NOTE = (
    "Along a diagonal, variance × tokens is constant: averaging several cheap estimates moves along it. Each diagonal "
    "further down needs a quarter of the tokens for the same variance."
)


@runtime_checkable
class LabResult(Protocol):
    """Labs of a run, or of a language model."""

    @property
    def name(self) -> str: ...
    @property
    def subject(self) -> dict[str, str]: ...
    @property
    def reward(self) -> str: ...
    @property
    def settings(self) -> Any: ...  # has a seed, and the folder for the report
    @property
    def points(self) -> list[Point]: ...
    @property
    def data_files(self) -> list[DataFile]: ...


def write_lab(result: LabResult) -> Path:
    """Write the report; return the path of its page."""
    several = len(result.points) > 1
    data = cost_data([(point.label, point.lab) for point in result.points])
    costs = Figure("figure", "corollout.lab.figures:cost_figure", data, _COST_NOTE, wide=True)
    sections = [Section("All points", [costs])] if several else []
    numbers = []
    for index, point in enumerate(result.points, start=1):
        name = f"figure-variance-{index}" if several else "figure-variance"
        blocks = [
            Paragraph(point.lab.advice),
            *([] if several else [costs]),
            Figure(name, "corollout.lab.figures:variance_figure", variance_data(point.lab), _VARIANCE_NOTE),
            Facts(_policy_facts(point.lab)),
            *lab_tables(point.lab),
            _product_table(point.lab),
        ]
        sections.append(Section(f"At {point.name}", blocks))
        # Single estimates are with the measurements.
        content = {name: value for name, value in point.lab.to_json().items() if name != "measurements"}
        numbers.append({"label": point.label, "weights": point.weights, "update": point.update, **content})
    lab, subject = result.points[0].lab, result.subject
    shown: dict[str, Any] = {**subject}
    for name, value in asdict(result.settings).items():
        if name not in (*subject, "out") and value not in (None, ()):
            shown[name.replace("_", " ")] = ", ".join(map(str, value)) if isinstance(value, tuple) else value
    shown |= {"reward": result.reward, "examples": lab.facts.contexts}
    sections.append(Section("Settings", [Facts(shown)]))
    names = ", ".join(point.name for point in result.points)
    lead = (
        f"{len(lab.rows)} gradient estimators on the same {lab.facts.contexts} examples at fixed weights ({names}): "
        f"variance, bias against {lab.settings['reference_estimates']} estimates by {lab.settings['reference']}, and "
        f"variance × cost."
    )
    files: dict[str, Any] = {"data_files": [asdict(one) for one in result.data_files]} if result.data_files else {}
    title, facts = f"Estimator lab: {result.name}", manifest(seed=result.settings.seed, **files)
    report = Report("lab", title, lead, sections, facts, {**subject, "reward": result.reward, "points": numbers})
    return report.write(result.settings.folder)


def lab_tables(lab: Lab) -> list[Table]:
    """The estimates, their cost, and variance × cost relative to the base."""
    gradients = Table(
        "Gradient estimates",
        ["estimator", "variance", "squared\u00a0bias %\u00a0of\u00a0‖g‖²", "cosine"],
        [[_name(row), _text(row.variance), _bias_text(row.bias), _text(row.cosine)] for row in lab.rows],
        [
            f"Variance: trace of the covariance of {lab.settings['estimates']} independent estimates. Squared bias: of "
            f"their mean, in per cent of the squared norm of the true gradient, {number(lab.squared_norm.value)}; † if "
            "its interval lies above zero, or if the estimator is biased by design. Cosine: between an estimate and "
            "the true gradient. 95 % intervals in brackets."
        ],
    )
    note = (
        "Tokens generated, sequences that the reward was evaluated on, seconds including the backward pass (median of "
        "rounds in which all estimators take turns)."
    )
    tables = [gradients, _cost_table(lab, "Cost of an estimate", "costs", note)]
    note = "Below 1 an estimator is better than the base at equal cost."
    tables.append(_cost_table(lab, f"Variance × cost over that of {lab.base}", "ratio", note))
    if lab.batch_variance is not None:
        title = f"The same with new contexts at each update, over that of {lab.base}"
        note = (
            "Training has other contexts at each update. The true gradient varies by "
            f"{number(lab.batch_variance.between)} between {len(lab.batch_variance.distances) + 1} batches of this "
            "size, which no estimator makes smaller; it is added to all variances here."
        )
        tables.append(_cost_table(lab, title, "training_ratio", note))
    return tables


def _product_table(lab: Lab) -> Table:
    note = (
        "The variance that is left when one token, one reward call or one second is spent; and rollouts for each token "
        "of the main trajectories."
    )
    table = _cost_table(lab, "Variance × cost", "variance_cost", note)
    rows = [[*cells, number(row.rollouts_per_step)] for cells, row in zip(table.rows, lab.rows, strict=True)]
    return replace(table, header=[*table.header, "rollouts per\u00a0step"], rows=rows)


def _cost_table(lab: Lab, title: str, field: str, note: str) -> Table:
    """A column for each cost; ``field`` is that of the rows."""
    times = "" if field == "costs" else "×\u00a0"
    rows = [[_name(row), *(_text(getattr(row, field)[cost]) for cost in COSTS)] for row in lab.rows]
    return Table(title, ["estimator", *(f"{times}{COST_NAMES[cost]}" for cost in COSTS)], rows, [note])


def _policy_facts(lab: Lab) -> dict[str, str]:
    facts, error = lab.facts, lab.reference_error
    return {
        "contexts": f"{facts.contexts:,}",
        "nats per token": f"{facts.nats_per_token:.3f}",
        "tokens per sequence": f"{facts.mean_length:.1f}",
        "mean reward": f"{facts.mean_reward:.3f}",
        "probability of 8 sequences": percent_text(facts.top_mass),
        "contexts with equal rewards": percent_text(facts.equal_rewards),
        "squared norm of the gradient": _text(lab.squared_norm),
        "squared error of the reference": NOTHING if error is None else f"{percent_text(error)} of that",
    }


def _name(row: Row) -> str:
    return row.estimator if row.is_unbiased else f"{row.estimator} †"


def _text(interval: Interval | None) -> str:
    if interval is None:
        return NOTHING
    value = short_number(interval.value)
    return value if interval.low == interval.high else f"{value} ({range_text(interval)})"


def _bias_text(bias: Interval | None) -> str:
    """In per cent, with as many decimals as the interval justifies."""
    if bias is None:
        return NOTHING
    half = 50 * (bias.high - bias.low)
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 6) if half > 0 else 2
    ends = (bias.value, bias.low, bias.high)
    value, low, high = (f"{100 * end:.{decimals}f}".replace("-", "−") for end in ends)
    return f"{value} ({low}…{high})"
