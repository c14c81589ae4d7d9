"""How many rollouts methods make: at which steps along training, and for which sequences at its end, in figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from corollout.reports.curves import plot_band
from corollout.reports.figures import COLOURS, figure_style, log_ticks
from corollout.reports.report import rounded
from corollout.reports.run_results import MethodRuns
from corollout.reports.tables import NOTHING, signed
from corollout.tasks.task import Z
from corollout.training.runs import Run

# From a tint that is still visible on white to the darkest: empty cells stay white.
_DENSITY = LinearSegmentedColormap.from_list("density", ["#dbe9f6", "#6baed6", "#0072B2", "#06304f"])
_PARTS = 60  # of the training, along the axis of a map
_MOST = 99  # percentile at which axes and colours end


@dataclass(frozen=True)
class Correlation:
    """Pearson's r, with its 95 % interval and p by Fisher's z: atanh r is nearly normal, with variance 1 / (n − 3)."""

    r: float
    interval: tuple[float, float]
    p: float  # two-sided, for no correlation

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray) -> "Correlation | None":
        """None where it is not defined: for fewer than four pairs, or if one of the two is constant."""
        if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
            return None
        r = float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))
        if abs(r) > 1 - 1e-12:
            return cls(r, (r, r), 0.0)
        root, z = math.sqrt(len(x) - 3), math.atanh(r)
        interval = (math.tanh(z - Z / root), math.tanh(z + Z / root))
        return cls(r, interval, math.erfc(abs(z) * root / math.sqrt(2)))

    def text(self) -> str:
        return f"r = {signed(self.r, 3)}, p {'' if self.p < 1e-4 else '= '}{p_text(self.p)}"


def correlation_cells(x: np.ndarray, y: np.ndarray) -> list[str]:
    """r, its interval and p."""
    if (one := Correlation.of(x, y)) is None:
        return [NOTHING] * 3
    return [signed(one.r, 3), "…".join(signed(end, 3) for end in one.interval), p_text(one.p)]


def p_text(p: float) -> str:
    """A p-value, or its bound if it is very small."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of values; equal values share the mean of their ranks."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[index]


def read_step_map(group: MethodRuns, key: str = "rollouts_by_step") -> dict[str, Any] | None:
    """A method's map from its runs; None if they have not recorded rollouts by step, or by depth."""
    runs = [
        [(record["update"], record[key]) for record in Run.open(run).measurements() if record.get(key)]
        for run in group.runs
    ]
    return step_map(group.label, [run for run in runs if run])


def step_map(label: str, runs: Sequence[Sequence[tuple[int, list[float]]]]) -> dict[str, Any] | None:
    """Rollouts at each step along the training of some runs, each a list of updates with their rollouts at each step.

    Means over updates and seeds of an update's mean over the sequences that reach the step: ``values`` by step and
    part of the training, ``early`` and ``late`` by step, for the first and last tenth of the updates. In four digits,
    null where no sequence is that long.
    """
    if not runs:
        return None
    last = max(update for run in runs for update, _ in run)
    longest, parts = max(len(values) for run in runs for _, values in run), min(_PARTS, last)
    total, count = np.zeros((2, longest, parts + 2))  # the last two columns are early and late
    for run in runs:
        tenth = max(1, len(run) // 10)
        for index, (update, values) in enumerate(run):
            is_early, is_late = index < tenth, index >= len(run) - tenth
            columns = [(update - 1) * parts // last, *[parts] * is_early, *[parts + 1] * is_late]
            total[: len(values), columns] += np.array(values)[:, None]
            count[: len(values), columns] += 1
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    columns = {"values": means[:, :parts], "early": means[:, parts], "late": means[:, parts + 1]}
    short = {name: rounded(column.tolist(), digits=4) for name, column in columns.items()}
    return {"label": label, "updates": last, **short}


def density_figure(
    label: str, metric: str, scores: Sequence[float], lengths: Sequence[int], rollouts: Sequence[int]
) -> Figure:
    """How many sequences have which score and how many rollouts per token, with histograms of both at the sides.

    Both have long tails: what is beyond the 99th percentile of one of them counts, but is not drawn.
    """
    x, y = 100 * np.array(scores, dtype=float), np.array(rollouts, dtype=float) / np.array(lengths)
    tenths, correlation = _tenths(x, y), Correlation.of(x, y)
    title = f"{label}: {len(x):,} sequences" + (f", {correlation.text()}" if correlation else "")
    drawn = (x <= np.percentile(x, _MOST)) & (y <= np.percentile(y, _MOST))
    x, y = x[drawn], y[drawn]
    with figure_style():
        figure = Figure(figsize=(5.6, 4.3), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(5, 1), height_ratios=(1, 5))
        axes = figure.add_subplot(grid[1, 0])
        bins = axes.hexbin(x, y, gridsize=(32, 18), mincnt=1, bins="log", cmap=_DENSITY, linewidths=0.2)
        axes.plot(*tenths, color=COLOURS[1], marker="o", markersize=4, linewidth=1.6, markeredgecolor="white",
                  markeredgewidth=0.6, label="mean of each tenth")  # fmt: skip
        axes.legend(loc="upper right", handlelength=1.6)
        axes.set_xlabel(f"{metric} of the main sequence, times 100")
        axes.set_ylabel("rollouts per token")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_axisbelow(True)
        above, beside = figure.add_subplot(grid[0, 0], sharex=axes), figure.add_subplot(grid[1, 1], sharey=axes)
        above.hist(x, bins=40, color=COLOURS[0], alpha=0.75)
        beside.hist(y, bins=40, color=COLOURS[0], alpha=0.75, orientation="horizontal")
        for side in (above, beside):
            side.set_axis_off()
        above.set_title(title)
        bar = figure.colorbar(bins, ax=beside, fraction=0.25, pad=0.08, aspect=30)
        bar.outline.set_visible(False)
        bar.set_label("sequences")
        log_ticks(bar.ax.yaxis)
    return figure


def _tenths(x: np.ndarray, y: np.ndarray) -> tuple[list[float], list[float]]:
    """The mean point of each tenth of the points, in the order of x."""
    parts = [part for part in np.array_split(np.argsort(x, kind="stable"), 10) if len(part)]
    return [float(x[part].mean()) for part in parts], [float(y[part].mean()) for part in parts]


def steps_figure(maps: Sequence[Mapping[str, Any]], axis: str = "step") -> Figure:
    """The maps of all methods, each by :func:`step_map`."""
    columns = min(2, len(maps))
    rows = -(-len(maps) // columns)
    with figure_style():
        figure = Figure(figsize=(4.8 * columns, 3.0 * rows), layout="constrained")
        parts = figure.subfigures(rows, columns, squeeze=False, wspace=0.04, hspace=0.04)
        for part, one in zip(parts.flat, maps, strict=False):
            assert isinstance(part, SubFigure)
            _draw_steps(part, one, axis)
    return figure


def _draw_steps(figure: SubFigure, one: Mapping[str, Any], axis: str) -> None:
    """A map of steps along training; beside it the steps early and late in training."""
    values, early, late = (np.array(one[name], dtype=float) for name in ("values", "early", "late"))
    steps = len(values)
    # The mean of a step that few sequences reach may have any value: the few largest do not set the scale.
    top = float(np.nanpercentile(values, _MOST)) or 1.0
    grid = figure.add_gridspec(1, 2, width_ratios=(3, 1.15))
    axes = figure.add_subplot(grid[0, 0])
    beside = figure.add_subplot(grid[0, 1], sharey=axes)
    axes.grid(False)
    extent = (0, one["updates"], 0.5, steps + 0.5)
    colours: Any = {"cmap": _DENSITY, "vmin": 0, "vmax": top, "interpolation": "none"}
    shown = axes.imshow(np.ma.masked_invalid(values), aspect="auto", origin="lower", extent=extent, **colours)
    axes.set_title(one["label"])
    axes.set_xlabel("updates")
    axes.set_ylabel(axis)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(shown, ax=axes, fraction=0.06, pad=0.02, aspect=25, extend="max", extendfrac=0.03)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4))
    position = np.arange(1, steps + 1)
    beside.barh(position, early, height=0.85, color="#b7d4ea", label="first tenth")
    beside.barh(position, late, height=0.45, color=COLOURS[0], label="last tenth")
    beside.tick_params(left=False, labelleft=False)
    beside.grid(False, axis="y")
    beside.xaxis.set_major_locator(MaxNLocator(3))
    beside.set_xlabel("rollouts")
    beside.legend(loc="lower right", bbox_to_anchor=(1.02, 1.0), fontsize=7.5, handlelength=1.2, borderaxespad=0.2)


def rollouts_figure(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Rollouts per step against updates, on a logarithmic axis: label, index among all methods, x, mean, low, high."""
    with figure_style():
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axes = figure.subplots()
        for one in curves:
            band = np.array([one[name] for name in ("x", "mean", "low", "high")], dtype=float)
            plot_band(axes, one["index"], one["label"], band, max(1, band.shape[1] // 6))
        axes.set_title("Rollouts per step")
        axes.set_xlabel("updates")
        if all(min(one["low"]) > 0 for one in curves):
            axes.set_yscale("log")
            log_ticks(axes.yaxis)
        axes.set_xlim(left=0)
        # In the order of the lines: many references above few.
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", handlelength=2.2)
    return figure
