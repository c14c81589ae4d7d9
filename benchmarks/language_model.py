"""What does an update of a language model cost, beside TRL's RLOOTrainer? SmolLM2-135M's shape, in single precision.

Every measurement is a fresh process (``language_model_updates.py``), and contestants take turns. The figure shows how
seconds and peak memory grow with the length of prompts, the completions of a prompt and the vocabulary. Weights are
random unless the environment variable COROLLOUT_BENCHMARK_MODEL names a folder with a model; growth with the vocabulary
always has random weights.
"""

import os
import statistics
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.progress import Progress

from benchmarks.harness import Result, Target, Timing, figure
from benchmarks.language_model_updates import SEED, SMOLLM2_VOCAB, TRL_RLOO, Point, Update, measure_freshly
from corollout.errors import InputError
from corollout.reports.figures import figure_style, log_ticks, png, series_style

INSTALL = "this benchmark needs TRL and its companions: pip install --constraint constraints.txt 'corollout[hf,bench]'"
MODEL_VARIABLE = "COROLLOUT_BENCHMARK_MODEL"
AXES = {
    "prompt_length": "tokens in a prompt",
    "completions": "completions of a prompt",
    "vocab": "tokens in the vocabulary",
}
GIGABYTE = 1e9


class Case(NamedTuple):
    """A size at which contestants are compared, and what ours may cost at most, as a share of TRL's RLOO."""

    name: str
    base: Point  # TRL's
    ours: str  # our estimator
    most_seconds: float
    most_memory: float | None


class Sizes(NamedTuple):
    base: Point
    cases: tuple[Case, ...]
    grown: dict[str, tuple[int, ...]]
    rounds: int
    repetitions: int


BASE = Point(TRL_RLOO)
LONG = BASE._replace(prompt_length=256, completions=8)
FULL = Sizes(
    BASE,
    (
        Case("RLOO, prompts of 38 tokens, 4 completions", BASE, "rloo-4", 0.6, 0.6),
        Case("RLOO, prompts of 256 tokens, 8 completions", LONG, "rloo-8", 0.3, None),
        Case("ARSM with 64 branches, prompts of 38 tokens", BASE, "arsm:budget=64", 1.2, None),
    ),
    {"prompt_length": (16, 64, 256), "completions": (2, 4, 8, 16), "vocab": (5_000, SMOLLM2_VOCAB, 150_000)},
    rounds=3,
    repetitions=2,
)
TINY = Point(TRL_RLOO, 2, 5, 2, 3, vocab=50, layers=2, hidden=64)
QUICK = Sizes(
    TINY,
    (Case("RLOO", TINY, "rloo-2", 0.6, 0.6), Case("ARSM", TINY, "arsm:budget=4", 1.2, None)),
    {"prompt_length": (4, 6), "completions": (2, 3), "vocab": (50, 60)},
    rounds=1,
    repetitions=1,
)
Measure = Callable[[Point, int], Update]


class Measured(NamedTuple):
    """All rounds of a contestant."""

    point: Point
    seconds: list[float]
    peak: int
    mean_length: float


def compare(case: Case, sizes: Sizes, measure: Measure, advance: Callable[[], None]) -> tuple[Measured, Measured]:
    """TRL and ours in turns, in fresh processes."""
    points = (case.base, case.base._replace(method=case.ours))
    updates: tuple[list[Update], list[Update]] = ([], [])
    for turn in range(sizes.rounds):
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            updates[index].append(measure(points[index], sizes.repetitions))
            advance()
    trl, ours = (joined(point, own) for point, own in zip(points, updates, strict=True))
    return trl, ours


def joined(point: Point, updates: Sequence[Update]) -> Measured:
    seconds = [one for update in updates for one in update.seconds]
    lengths = statistics.mean(update.mean_length for update in updates)
    return Measured(point, seconds, max(update.peak for update in updates), lengths)


def methods_of_growth(completions: int) -> tuple[str, ...]:
    return TRL_RLOO, f"rloo-{completions}", "arsm:budget=64"


def points_of_growth(sizes: Sizes) -> list[tuple[str, Point]]:
    """Every point with the axis along which it lies."""
    points: list[tuple[str, Point]] = []
    for axis, values in sizes.grown.items():
        for value in values:
            point = sizes.base._replace(**{axis: value})
            if axis == "vocab":
                point = point._replace(folder="")
            points += [(axis, point._replace(method=method)) for method in methods_of_growth(point.completions)]
    return points


def require_trl() -> None:
    if find_spec("trl") is None:
        raise InputError(INSTALL)


def run(quick: bool, progress: Progress, measure: Measure = measure_freshly) -> Result:
    require_trl()
    sizes = QUICK if quick else FULL
    folder = "" if quick else os.environ.get(MODEL_VARIABLE, "")
    if folder:
        cases = tuple(case._replace(base=case.base._replace(folder=folder)) for case in sizes.cases)
        sizes = sizes._replace(base=sizes.base._replace(folder=folder), cases=cases)
    growth = points_of_growth(sizes)
    task = progress.add_task("language_model", total=2 * sizes.rounds * len(sizes.cases) + len(growth))
    compared = {case: compare(case, sizes, measure, lambda: progress.advance(task)) for case in sizes.cases}
    grown: list[tuple[str, Measured]] = []
    for axis, point in growth:
        grown.append((axis, joined(point, [measure(point, 1)])))
        progress.advance(task)
    progress.remove_task(task)
    return {
        "benchmark": "language_model",
        "quick": quick,
        "settings": {**sizes.base._asdict(), "folder": Path(folder).name or "random weights", "dtype": "float32"},
        "seeds": {"weights, prompts and samples": SEED},
        "timings": [
            *(record(one, case=case.name) for case, pair in compared.items() for one in pair),
            *(record(one, axis=axis) for axis, one in grown),
        ],
        "measurements": {case.name: ratios(*pair) for case, pair in compared.items()},
        "targets": [one.record() for case, pair in compared.items() for one in targets(case, *pair, judged=not quick)],
        "table": [row for case, pair in compared.items() for row in rows(case, *pair)],
    }


def record(one: Measured, **where: str) -> dict[str, Any]:
    timing = Timing(one.point.method, 0, one.seconds)
    quartiles = timing.quartiles if len(one.seconds) > 1 else (timing.median, timing.median)
    return {
        **where,
        **one.point._replace(folder="")._asdict(),
        "seconds": one.seconds,
        "median": timing.median,
        "quartiles": list(quartiles),
        "peak": one.peak,
        "mean_length": one.mean_length,
    }


def ratios(trl: Measured, ours: Measured) -> dict[str, float]:
    return {
        "seconds": statistics.median(ours.seconds) / statistics.median(trl.seconds),
        "peak": ours.peak / trl.peak,
    }


def targets(case: Case, trl: Measured, ours: Measured, judged: bool) -> list[Target]:
    ratio = ratios(trl, ours)
    bounds = [("seconds", case.most_seconds), *([("peak", case.most_memory)] if case.most_memory else [])]
    words = {"seconds": "seconds of an update", "peak": "peak memory"}
    return [
        Target(f"{case.name}: at most {bound:g} × TRL's {words[name]}", ratio[name], bound, False, judged)
        for name, bound in bounds
    ]


def rows(case: Case, trl: Measured, ours: Measured) -> list[dict[str, str]]:
    return [
        {
            "update": case.name,
            "trainer": one.point.method,
            "seconds": figure(statistics.median(one.seconds)),
            "peak, GB": figure(one.peak / GIGABYTE),
            "completion": f"{one.mean_length:.1f}",
        }
        for one in (trl, ours)
    ]


def draw_figure(result: Result, directory: Path) -> Path:
    """The figure: a panel for each size, seconds above and peak memory below."""
    labels = {TRL_RLOO: TRL_RLOO, "rloo": "RLOO", "arsm": "ARSM, 64 branches"}
    with figure_style():
        drawn = Figure(figsize=(11, 5.4), layout="constrained")
        grid = drawn.subplots(2, len(AXES), sharex="col", sharey="row")
        for column, (axis, label) in enumerate(AXES.items()):
            for number, (start, name) in enumerate(labels.items()):
                points = [
                    one for one in result["timings"] if one.get("axis") == axis and one["method"].startswith(start)
                ]
                colour, marker = series_style(number)
                for line, key, divisor in ((0, "median", 1.0), (1, "peak", GIGABYTE)):
                    values = [one[key] / divisor for one in points]
                    sizes = [one[axis] for one in points]
                    grid[line, column].plot(sizes, values, color=colour, marker=marker, markersize=4, label=name)
            for panel in grid[:, column]:
                panel.set(xscale="log", yscale="log")
                log_ticks(panel.xaxis)
                log_ticks(panel.yaxis)
            grid[1, column].set_xlabel(label)
        grid[0, 0].set_ylabel("seconds an update")
        grid[1, 0].set_ylabel("GB at its peak")
        drawn.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(labels))
        path = directory / "language_model.png"
        path.write_bytes(png(drawn))
    return path
