"""How do an update's time and memory grow with the batch, the length of sequences and the vocabulary?

From a base (16 contexts, 16 tokens, V = 5,000, 128 units), one size grows at a time. Every point is a fresh process on
one thread (``fresh_updates.py``). The exponent b of c · size^b is fitted to the upper half of the sizes, where
constant parts weigh little: 1 means that twice the size costs twice as much. Points that would need more than 20
seconds or 8 GB, judged by the one before, are left out.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.progress import Progress

from benchmarks.fresh_updates import FreshProcesses, Point, Update
from benchmarks.harness import Result, Target, Timing, figure
from benchmarks.speed_worker import SEED
from corollout.reports.figures import figure_style, log_ticks, png, series_style

METHODS = ("reinforce", "rloo-8", "arsm:budget=200", "set-8")
AXES = {"contexts": "contexts in a batch", "length": "tokens in a sequence", "vocab": "tokens in the vocabulary"}
MOST_SECONDS, MOST_BYTES = 20.0, 8e9
MOST_GROWTH = 1.15


class Sizes(NamedTuple):
    base: dict[str, int]
    grown: dict[str, tuple[int, ...]]
    repetitions: int


FULL = Sizes(
    {"contexts": 16, "length": 16, "vocab": 5_000, "hidden": 128},
    {
        "contexts": (8, 16, 32, 64, 128, 256),
        "length": (8, 16, 32, 64, 128),
        "vocab": (53, 500, 5_000, 20_000, 50_257, 100_000, 150_000),
    },
    repetitions=5,
)
QUICK = Sizes(
    {"contexts": 2, "length": 3, "vocab": 60, "hidden": 8},
    {"contexts": (2, 4), "length": (3, 6), "vocab": (60, 120)},
    repetitions=2,
)
Line = dict[int, Update]  # by size


def is_too_large(line: Line, size: int) -> bool:
    """Whether a point would take too much, if everything grew in proportion from the one before."""
    if not line:
        return False
    last = max(line)
    before, ratio = line[last], size / last
    return min(before.seconds) * ratio > MOST_SECONDS or before.peak * ratio > MOST_BYTES


def measure_line(
    processes: FreshProcesses, method: str, axis: str, sizes: Sizes, progress: Progress, task: Any
) -> Line:
    line: Line = {}
    for size in sizes.grown[axis]:
        if not is_too_large(line, size):
            update = processes.measure(Point(method, **{**sizes.base, axis: size}), sizes.repetitions)
            if update is not None:
                line[size] = update
        progress.advance(task)
    return line


def exponent(line: Line, quantity: str) -> float:
    """The b of c · size^b, by least squares on logarithms of the upper half, two points at least."""
    sizes = sorted(line)
    upper = sizes[min(len(sizes) // 2, len(sizes) - 2) :]
    if len(upper) < 2:
        return math.nan
    values = [max(amount(line[size], quantity), 1e-9) for size in upper]
    return float(np.polyfit(np.log(upper), np.log(values), 1)[0])


def amount(update: Update, quantity: str) -> float:
    return Timing("", 1, update.seconds).median if quantity == "seconds" else update.peak


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    lines: dict[tuple[str, str], Line] = {}
    task = progress.add_task("growth", total=len(METHODS) * sum(map(len, sizes.grown.values())))
    with FreshProcesses(quick) as processes:
        for axis in AXES:
            for method in METHODS:
                lines[method, axis] = measure_line(processes, method, axis, sizes, progress, task)
    progress.remove_task(task)
    exponents = {
        quantity: {axis: {method: exponent(lines[method, axis], quantity) for method in METHODS} for axis in AXES}
        for quantity in ("seconds", "peak")
    }
    return {
        "benchmark": "growth",
        "quick": quick,
        "settings": {**sizes._asdict(), "methods": METHODS, "threads": 1, "dtype": "float32"},
        "seeds": {"weights and noise": SEED},
        "timings": [
            {"axis": axis, "size": size, "peak": update.peak, **Timing(method, 1, update.seconds).record()}
            for (method, axis), line in lines.items()
            for size, update in line.items()
        ],
        "measurements": {"exponents": exponents},
        "targets": [
            Target(
                f"the {what} of an update grows with no power above {MOST_GROWTH:g} of any size",
                max(value for by_method in exponents[quantity].values() for value in by_method.values()),
                MOST_GROWTH,
                at_least=False,
                judged=not quick,
            ).record()
            for quantity, what in (("seconds", "time"), ("peak", "peak memory"))
        ],
        "table": [table_row(method, axis, line, exponents) for (method, axis), line in lines.items()],
    }


def table_row(method: str, axis: str, line: Line, exponents: dict[str, Any]) -> dict[str, str]:
    smallest, largest = (line[edge] for edge in (min(line), max(line)))
    return {
        "method": method,
        "size": f"{axis} {min(line):,}–{max(line):,}",
        "ms": f"{figure(amount(smallest, 'seconds') * 1e3)}–{figure(amount(largest, 'seconds') * 1e3)}",
        "exponent": f"{exponents['seconds'][axis][method]:.2f}",
        "peak, MB": f"{figure(smallest.peak / 1e6)}–{figure(largest.peak / 1e6)}",
        "its exponent": f"{exponents['peak'][axis][method]:.2f}",
    }


def draw_figure(result: Result, directory: Path) -> Path:
    """The figure: a panel for each size, time as solid lines and memory as dashed ones."""
    with figure_style():
        drawn = Figure(figsize=(11, 3.6), layout="constrained")
        panels = drawn.subplots(1, len(AXES))
        memories = [panel.twinx() for panel in panels]
        for panel, memory, (axis, label) in zip(panels, memories, AXES.items(), strict=True):
            for number, method in enumerate(METHODS):
                points = [one for one in result["timings"] if (one["name"], one["axis"]) == (method, axis)]
                sizes, (colour, marker) = [point["size"] for point in points], series_style(number)
                milliseconds = [point["median"] * 1e3 for point in points]
                panel.plot(sizes, milliseconds, color=colour, marker=marker, markersize=4, label=method)
                memory.plot(sizes, [point["peak"] / 1e6 for point in points], "--", color=colour, linewidth=1)
            panel.set(xscale="log", yscale="log", xlabel=label, title=label.split(" ")[-1])
            memory.set(yscale="log")
            memory.grid(visible=False)
            memory.spines["right"].set_visible(True)
            low, high = panel.get_xlim()
            log_ticks(panel.xaxis, (1.0,) if high > 500 * low else (1.0, 2.0, 5.0))
            log_ticks(panel.yaxis)
            log_ticks(memory.yaxis)
        panels[0].set_ylabel("ms an update (solid)")
        memories[-1].set_ylabel("MB at its peak (dashed)")
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(METHODS))
        path = directory / "growth.png"
        path.write_bytes(png(drawn))
    return path
