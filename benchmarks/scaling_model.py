"""What limits an update on 1 to 1,024 GPUs? The model of ``update_model.py``, with waiting times by simulation.

Two questions. How long do processes wait for the last of them (``imbalance.py``), by the number of processes and the
contexts that each of them has? And how do the seconds of an update of language models of 1.5 B and 8 B parameters
divide into generating, scoring, communicating, the optimizer's step and waiting? The batch has always 1,024 contexts.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter
from rich.progress import Progress

from benchmarks.harness import Result, Target, Timing, figure
from benchmarks.imbalance import DIVISIONS, PASSES, SEED, Counts, simulate
from benchmarks.rollout_counts import read_recordings
from benchmarks.update_model import SHAPES, WORKS, Machine, Update, update
from corollout.division import divide_by_cost
from corollout.reports.figures import COLOURS, figure_style, png, series_style

TYPICAL = 8  # contexts of a process
GROWING = 32  # contexts of a GPU, if the batch grows with their number
MOST_SHARE = 0.01
# Which recording stands for an estimator of a language model.
STANDS_FOR = {"rloo-8": "Karel small, rloo-8", "arsm:budget=8192": "Karel small, arsm"}
PARTS = {
    ("steps",): "generate: whatever each step costs",
    ("tokens",): "generate: tokens",
    ("score", "optimizer"): "score, backward, optimizer",
    ("communicate",): "communicate",
    ("wait",): "wait for the last GPU",
}


class Sizes(NamedTuple):
    ranks: tuple[int, ...]
    per_rank: tuple[int, ...]
    shown: tuple[int, ...]  # numbers of processes in the table
    contexts: int  # divided in each simulation, at least
    repetitions: int


FULL = Sizes(tuple(2**n for n in range(11)), (1, 2, 8, 32), (1, 8, 64, 256, 1024), contexts=40_000, repetitions=20)
QUICK = Sizes((1, 2, 8), (1, 8), (1, 2, 8), contexts=200, repetitions=2)


def waiting_shares(counts: Counts, sizes: Sizes, progress: Progress, task: Any) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    for ranks in sizes.ranks:
        for per_rank in sizes.per_rank:
            batches = max(10, sizes.contexts // (ranks * per_rank))
            shares = {name: simulate(counts, ranks, per_rank, min(batches, 500), name).waiting for name in DIVISIONS}
            points.append({"recording": counts.recording.label, "ranks": ranks, "per_rank": per_rank, **shares})
            progress.advance(task)
    return points


def updates_of(counts: dict[str, Counts], sizes: Sizes, progress: Progress, task: Any) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    for shape in SHAPES:
        for work in WORKS:
            for gpus in sizes.ranks:
                grown = replace(work, contexts=GROWING * gpus)
                for batch, case in ((work, "even"), (work, "by expected cost"), (grown, f"{GROWING} a GPU")):
                    division = case if case in DIVISIONS else "even"
                    batches = max(5, sizes.contexts // batch.contexts // 2)
                    seconds = update(shape, batch, counts[STANDS_FOR[work.name]], gpus, division, min(batches, 40))
                    if seconds is not None:
                        known = {"model": shape.name, "estimator": work.name, "gpus": gpus, "case": case}
                        numbers = {**seconds._asdict(), "total": seconds.total, "contexts": batch.contexts}
                        points.append({**known, **numbers})
                progress.advance(task)
    return points


def time_division(contexts: int, ranks: int, repetitions: int) -> Timing:
    """How long every process takes to divide a batch by cost."""
    costs = np.random.default_rng(SEED).exponential(size=contexts).tolist()
    seconds: list[float] = []
    for _ in range(repetitions):
        start = time.perf_counter()
        divide_by_cost(costs, ranks)
        seconds.append(time.perf_counter() - start)
    return Timing(f"dividing {contexts:,} contexts among {ranks:,} processes by cost", 1, seconds)


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    counts = {recording.label: Counts(recording) for recording in read_recordings()}
    points = len(counts) * len(sizes.ranks) * len(sizes.per_rank) + len(SHAPES) * len(WORKS) * len(sizes.ranks)
    task = progress.add_task("scaling_model", total=points)
    waiting = [point for one in counts.values() for point in waiting_shares(one, sizes, progress, task)]
    updates = updates_of(counts, sizes, progress, task)
    progress.remove_task(task)
    timing = time_division(TYPICAL * max(sizes.ranks), max(sizes.ranks), sizes.repetitions)
    fastest = min(point["total"] for point in updates)
    return {
        "benchmark": "scaling_model",
        "quick": quick,
        "settings": {
            **sizes._asdict(),
            "machine": vars(Machine()),
            "models": [vars(shape) for shape in SHAPES],
            "work": [vars(work) for work in WORKS],
            "prices of the simulation": PASSES._asdict(),
        },
        "seeds": {"batches": SEED},
        "timings": [timing.record()],
        "measurements": {
            "recordings": [
                {
                    "recording": label,
                    "examples": len(one.recording.visits[0].branches),
                    "mean length": one.mean_length,
                    "branches of a context": one.mean_branches,
                    "variation of costs": one.variation(),
                    "correlation with the visit before": one.correlation,
                    "mean rewards": one.recording.mean_rewards,
                }
                for label, one in counts.items()
            ],
            "waiting": waiting,
            "updates": updates,
        },
        "targets": [
            Target(
                f"{timing.name} takes at most {MOST_SHARE:.0%} of the shortest update",
                timing.median / fastest,
                MOST_SHARE,
                at_least=False,
                judged=not quick,
            ).record()
        ],
        "table": [*waiting_rows(waiting, sizes), *update_rows(updates, sizes)],
    }


def waiting_rows(points: list[dict[str, Any]], sizes: Sizes) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for label in dict.fromkeys(point["recording"] for point in points):
        for per_rank in sizes.per_rank:
            for division in DIVISIONS:
                values = {
                    point["ranks"]: f"{point[division]:.1%}"
                    for point in points
                    if (point["recording"], point["per_rank"]) == (label, per_rank)
                }
                rows.append(row_of(f"waiting: {label}, {per_rank} each, {division}", values, sizes))
    return rows


def update_rows(points: list[dict[str, Any]], sizes: Sizes) -> list[dict[str, str]]:
    """Seconds, their parts, and how many times as many contexts a second there are as with the fewest GPUs."""
    rows: list[dict[str, str]] = []
    for shape in SHAPES:
        for work in WORKS:
            for case in dict.fromkeys(point["case"] for point in points):
                chosen = select(points, shape.name, work.name, case)
                what = f"{shape.name}, {work.name}, {case}"
                rows.append(row_of(f"{what}: seconds", {n: figure(one["total"]) for n, one in chosen.items()}, sizes))
                rows += [
                    row_of(f"… {part}", {n: f"{one[part] / one['total']:.1%}" for n, one in chosen.items()}, sizes)
                    for part in Update._fields
                ]
                if chosen:
                    fewest = min(chosen)
                    rates = {n: one["contexts"] / one["total"] / n for n, one in chosen.items()}
                    used = {n: f"{rate / rates[fewest]:.0%}" for n, rate in rates.items()}
                    rows.append(row_of(f"… contexts a second and GPU, of those with {fewest}", used, sizes))
    return rows


def select(points: list[dict[str, Any]], model: str, estimator: str, case: str) -> dict[int, dict[str, Any]]:
    """The updates of one case by their number of GPUs."""
    known = (model, estimator, case)
    return {one["gpus"]: one for one in points if (one["model"], one["estimator"], one["case"]) == known}


def row_of(what: str, values: dict[int, str], sizes: Sizes) -> dict[str, str]:
    return {"": what, **{f"{n:,}": values.get(n, "–") for n in sizes.shown}}


def draw_figure(result: Result, directory: Path) -> list[Path]:
    """Two figures: waiting against the number of processes, and where the seconds of an update go."""
    paths = {"scaling_waiting.png": draw_waiting(result), "scaling_update.png": draw_updates(result)}
    for name, drawn in paths.items():
        (directory / name).write_bytes(png(drawn))
    return [directory / name for name in paths]


def draw_waiting(result: Result) -> Figure:
    points = result["measurements"]["waiting"]
    labels = list(dict.fromkeys(point["recording"] for point in points))
    per_ranks = sorted({point["per_rank"] for point in points})
    with figure_style():
        drawn = Figure(figsize=(11, 3.6), layout="constrained")
        panels = drawn.subplots(1, len(labels), sharey=True, squeeze=False)[0]
        for panel, label in zip(panels, labels, strict=True):
            for number, per_rank in enumerate(per_ranks):
                chosen = [one for one in points if (one["recording"], one["per_rank"]) == (label, per_rank)]
                ranks, (colour, marker) = [one["ranks"] for one in chosen], series_style(number)
                even = [one["even"] for one in chosen]
                name = f"{per_rank} context{'s' if per_rank > 1 else ''} each"
                panel.plot(ranks, even, color=colour, marker=marker, markersize=3.5, label=name)
                panel.plot(ranks, [one["by expected cost"] for one in chosen], "--", color=colour, linewidth=1)
                panel.plot(ranks, [one["by known cost"] for one in chosen], ":", color=colour, linewidth=1)
            panel.set(title=label.replace(", ", "\n"), xlabel="processes")
            axis_of_counts(panel, ranks_shown([one["ranks"] for one in points]))
        panels[0].set(ylabel="share of time spent waiting", ylim=(0, 0.8))
        panels[0].yaxis.set_major_formatter(PercentFormatter(1))
        handles, names = panels[0].get_legend_handles_labels()
        for style, name in (("-", "divided evenly"), ("--", "by expected cost"), (":", "by known cost")):
            handles += panels[0].plot([], [], style, color="#555555", linewidth=1)
            names.append(name)
        drawn.legend(handles, names, loc="outside lower center", ncols=len(handles))
    return drawn


def draw_updates(result: Result) -> Figure:
    points = result["measurements"]["updates"]
    with figure_style():
        drawn = Figure(figsize=(11, 4.1), layout="constrained")
        panels = drawn.subplots(1, len(SHAPES) * len(WORKS), sharey=True)
        cases = [(shape.name, work.name) for shape in SHAPES for work in WORKS]
        every = ranks_shown([point["gpus"] for point in points])
        for panel, (model, estimator) in zip(panels, cases, strict=True):
            chosen = select(points, model, estimator, "even")
            gpus = np.array(sorted(chosen))
            bottom = np.zeros(len(gpus))
            for number, (parts, label) in enumerate(PARTS.items()):
                share = np.array([sum(chosen[n][part] for part in parts) / chosen[n]["total"] for n in gpus])
                panel.bar(
                    np.log2(gpus),
                    share,
                    0.8,
                    bottom,
                    color=COLOURS[number],
                    label=label,
                    edgecolor="white",
                    linewidth=0.5,
                )
                bottom += share
            for n in gpus:
                seconds = figure(chosen[n]["total"])
                panel.text(np.log2(n), 1.02, seconds, rotation=90, ha="center", va="bottom", fontsize=7.5)
            panel.set(xlabel="GPUs", ylim=(0, 1))
            panel.set_title(f"{model}, {estimator}", pad=32)
            panel.xaxis.set_major_locator(FixedLocator([float(np.log2(n)) for n in every]))
            panel.set_xticklabels([f"{n:,}" for n in every])
            panel.set_xlim(-0.6, float(np.log2(max(every))) + 0.6)
            panel.grid(visible=False, axis="x")
        panels[0].set(ylabel="share of an update (above: seconds)")
        panels[0].yaxis.set_major_formatter(PercentFormatter(1))
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS))
    return drawn


def ranks_shown(counts: list[int]) -> list[int]:
    """Every other number of processes, so that labels have room."""
    distinct = sorted(set(counts))
    return distinct[::2] if len(distinct) > 6 else distinct


def axis_of_counts(panel: Any, ticks: list[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator([float(tick) for tick in ticks]))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xticklabels([f"{tick:,}" for tick in ticks])
