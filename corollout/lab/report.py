"""The report of an estimator lab: tables, figures, all numbers, and a page."""

import math
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.lab import KINDS, Interval, Lab, Row, Spread
from corollout.lab.advice import percent_text, range_text, short_number
from corollout.lab.figures import NAMES, cost_figure, variance_figure
from corollout.lab.on_run import POINTS, Point, RunLab
from corollout.reports import figures, html, pages
from corollout.reports.manifest import manifest
from corollout.reports.tables import NOTHING, TextTable, number

RESULTS = "results.json"


def check_folder(folder: Path) -> None:
    """Refuse to write into a folder that holds anything but an earlier lab."""
    try:
        known = not folder.exists() or (folder / POINTS).is_dir() or not any(folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot use {folder}: {error.strerror or error}; choose another folder with --out") from error
    if not known:
        raise InputError(f"{folder} is not empty and holds no earlier lab: choose another folder with --out")


def write_lab(found: RunLab, folder: Path) -> Path:
    """Write everything about a lab; return the place of the page."""
    check_folder(folder)
    pages.make_folder(folder)
    facts = manifest(seed=found.settings.seed)
    several = len(found.points) > 1
    sections: list[tuple[str, str]] = []
    all_points = cost_figure([(point.label, point.lab) for point in found.points])
    pages.save_figure(folder, "figure", all_points)
    if several:
        sections.append(("All points", html.paragraph(_POINTS_NOTE) + _wide(all_points, "all-")))
    texts = [f"# {_title(found)}\n", f"{_lead(found)}\n"]
    for place, point in enumerate(found.points):
        suffix = f"-{place + 1}" if several else ""
        costs, variances = cost_figure([(point.label, point.lab)]), variance_figure(point.lab)
        pages.save_figure(folder, f"figure-variance{suffix}", variances)
        tables = [*lab_tables(point.lab), product_table(point.lab)]
        heading = f"At {name_of(point)}"
        texts += [f"# {heading}\n", f"{point.lab.advice}\n", *(table.markdown() for table in tables)]
        body = [
            html.paragraph(point.lab.advice),
            _wide(costs, f"costs{place}-"),
            pages.note(_FIGURE_NOTE),
            pages.figures_part([variances], f"variances{place}-"),
            pages.note(_VARIANCE_NOTE),
            html.facts(policy_entries(point.lab)),
            *(f"<h3>{escape(table.title)}</h3>{pages.table_part(table)}" for table in tables),
        ]
        sections.append((heading, "".join(body)))
    sections += [
        ("Settings", html.facts(_settings(found))),
        ("How this was made", html.facts(facts)),
    ]
    pages.save(folder / "table.md", "\n".join(texts))
    pages.save(folder / RESULTS, _results(found, facts))
    pages.save(folder / "report.html", pages.page(_title(found), _lead(found), sections))
    return folder / "report.html"


_POINTS_NOTE = (
    "A line of panels for each point, with the same estimators in the same order, which is that of the first point."
)
_FIGURE_NOTE = (
    "Left of the line an estimator is better than the base at equal cost. Bars are 95 % intervals: blue circles lie "
    "below the base, orange squares above it, grey diamonds are not told apart from it. † and a hollow marker: biased."
)
_VARIANCE_NOTE = (
    "Each diagonal is a line of equal variance × tokens: averaging several cheap estimates moves along it. Every line "
    "further down needs a quarter of the tokens for the same variance."
)


def _wide(figure: Any, prefix: str) -> str:
    return f'<div class="wide">{figures.svg(figure, prefix)}</div>'


def name_of(point: Point) -> str:
    """Its label, and after which update its weights were taken."""
    return point.label if point.update is None else f"{point.label}, update {point.update:,}"


def lab_tables(lab: Lab) -> list[TextTable]:
    """What the estimates are like, what they cost, and both together."""
    return [
        TextTable(
            "Gradient estimates",
            ["estimator", "variance", "squared\u00a0bias %\u00a0of\u00a0‖g‖²", "cosine"],
            [[_marked(row), _ends(row.variance), _bias(row), _ends(row.cosine)] for row in lab.rows],
            [_GRADIENT_NOTE.format(norm=number(lab.squared_norm.value), count=lab.settings["estimates"])],
        ),
        TextTable(
            "Cost of an estimate",
            ["estimator", *(NAMES[kind] for kind in KINDS)],
            [[_marked(row), *(_ends(row.costs[kind]) for kind in KINDS)] for row in lab.rows],
            [_COST_NOTE],
        ),
        TextTable(
            f"Variance × cost over that of {lab.base}",
            ["estimator", *(f"×\u00a0{NAMES[kind]}" for kind in KINDS)],
            [[_marked(row), *(_ends(row.relative[kind]) for kind in KINDS)] for row in lab.rows],
            ["Below 1 an estimator is better than the base at equal cost."],
        ),
        *([] if lab.spread is None else [_training_table(lab, lab.spread)]),
    ]


def _training_table(lab: Lab, spread: Spread) -> TextTable:
    return TextTable(
        f"The same with contexts drawn anew, over that of {lab.base}",
        ["estimator", *(f"×\u00a0{NAMES[kind]}" for kind in KINDS)],
        [[_marked(row), *(_ends(row.training[kind]) for kind in KINDS)] for row in lab.rows],
        [_TRAINING_NOTE.format(between=number(spread.between), batches=len(spread.distances) + 1)],
    )


_GRADIENT_NOTE = (
    "Variance: trace of the covariance of {count} independent estimates. Squared bias: of their mean, in per cent of "
    "the squared norm of the true gradient, {norm}; † where its interval lies above zero, or the estimator is biased "
    "by definition. Cosine: of an estimate to the true gradient. In brackets 95 % intervals."
)
_TRAINING_NOTE = (
    "Training has other contexts at each update. The true gradient varies by {between} between {batches} batches of "
    "this size, which no estimator makes smaller; it is added to all variances here."
)
_COST_NOTE = (
    "Tokens generated, sequences that the reward was evaluated on, seconds with the backward pass (median of rounds in "
    "which all estimators take turns)."
)


def product_table(lab: Lab) -> TextTable:
    """Variance × cost itself."""
    return TextTable(
        "Variance × cost",
        ["estimator", *(f"×\u00a0{NAMES[kind]}" for kind in KINDS), "rollouts a\u00a0step"],
        [
            [_marked(row), *(_ends(row.products[kind]) for kind in KINDS), number(row.rollouts_per_step)]
            for row in lab.rows
        ],
        [
            "What is left of the variance when one token, one reward call or one second is spent; and rollouts for "
            "each token of the main trajectories."
        ],
    )


def policy_entries(lab: Lab) -> dict[str, str]:
    """The policy at a point, for people."""
    facts, error = lab.facts, lab.reference_error
    return {
        "contexts": f"{facts.contexts:,}",
        "nats a token": f"{facts.nats_per_token:.3f}",
        "tokens a sequence": f"{facts.mean_length:.1f}",
        "mean reward": f"{facts.mean_reward:.3f}",
        "probability of 8 sequences": percent_text(facts.top_mass),
        "contexts with equal rewards": percent_text(facts.equal_rewards),
        "squared norm of the gradient": _ends(lab.squared_norm),
        "squared error of the reference": NOTHING if error is None else f"{percent_text(error)} of that",
    }


def _marked(row: Row) -> str:
    return row.estimator if row.sound else f"{row.estimator} †"


def _ends(interval: Interval | None) -> str:
    if interval is None:
        return NOTHING
    value = short_number(interval.value)
    return value if interval.low == interval.high else f"{value} ({range_text(interval)})"


def _bias(row: Row) -> str:
    """In per cent, with as many decimals as the interval is worth."""
    if row.bias is None:
        return NOTHING
    half = 50 * (row.bias.high - row.bias.low)
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 6) if half > 0 else 2
    ends = (row.bias.value, row.bias.low, row.bias.high)
    value, low, high = (f"{100 * end:.{decimals}f}".replace("-", "−") for end in ends)
    return f"{value} ({low}…{high})"


def _title(found: RunLab) -> str:
    return f"Estimator lab: {found.run.resolve().name}"


def _lead(found: RunLab) -> str:
    lab = found.points[0].lab
    where = ", ".join(map(name_of, found.points))
    return (
        f"{len(lab.rows)} gradient estimators on the same {lab.facts.contexts} examples at fixed weights ({where}): "
        f"variance, bias against {lab.settings['reference_estimates']} estimates by {lab.settings['reference']}, and "
        f"variance × cost."
    )


def _settings(found: RunLab) -> dict[str, Any]:
    own = asdict(found.settings)
    shown = {name.replace("_", " "): ", ".join(v) if isinstance(v, tuple) else v for name, v in own.items()}
    examples = found.points[0].lab.facts.contexts
    return {"run": found.run, "task": found.task, **shown, "reward": found.reward, "examples": examples}


def _results(found: RunLab, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "lab",
        "run": str(found.run),
        "task": found.task,
        "reward": found.reward,
        "points": [
            {"label": point.label, "weights": point.weights, "update": point.update, **point.lab.to_json()}
            for point in found.points
        ],
        "manifest": facts,
    }
