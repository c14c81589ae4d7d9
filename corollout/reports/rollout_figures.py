"""Figures of rollouts: against the score of a sentence, against the step, and along training."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, FigureBase, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from corollout.reports.curves import Curves, colour_of
from corollout.reports.figures import COLOURS, MARKERS, STYLE
from corollout.reports.rollouts import Correlation, Sentences, StepMap

# From a tint that is still seen on white to the darkest: what is empty stays white.
_DENSITY = LinearSegmentedColormap.from_list("density", ["#dbe9f6", "#6baed6", "#0072B2", "#06304f"])
_TENTHS = 10
_MOST = 99  # percentile at which axes and colours end


def density_figure(sentences: Sentences, measure: str) -> Figure:
    """How many sentences have which score and so many rollouts a token; both alone at the sides.

    Both have long tails: what is beyond the 99th percentile of one of them counts, but is not drawn.
    """
    scores, rollouts = 100 * sentences.scores, sentences.per_token
    tenths, found = _tenths(scores, rollouts), Correlation.of(scores, rollouts)
    drawn = (scores <= np.percentile(scores, _MOST)) & (rollouts <= np.percentile(rollouts, _MOST))
    title = f"{sentences.label}: {len(scores):,} sentences" + (f", {found.words()}" if found else "")
    scores, rollouts = scores[drawn], rollouts[drawn]
    with matplotlib.rc_context(rc=STYLE):
        figure = Figure(figsize=(5.6, 4.3), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(5, 1), height_ratios=(1, 5))
        axes = figure.add_subplot(grid[1, 0])
        bins = axes.hexbin(scores, rollouts, gridsize=(32, 18), mincnt=1, bins="log", cmap=_DENSITY, linewidths=0.2)
        axes.plot(*tenths, color=COLOURS[1], marker="o", markersize=4, linewidth=1.6, markeredgecolor="white",
                  markeredgewidth=0.6, label="mean of each tenth")  # fmt: skip
        axes.legend(loc="upper right", handlelength=1.6)
        axes.set_xlabel(f"{measure} of the main sentence, times 100")
        axes.set_ylabel("rollouts per token")
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.set_axisbelow(True)
        above, beside = figure.add_subplot(grid[0, 0], sharex=axes), figure.add_subplot(grid[1, 1], sharey=axes)
        above.hist(scores, bins=40, color=COLOURS[0], alpha=0.75)
        beside.hist(rollouts, bins=40, color=COLOURS[0], alpha=0.75, orientation="horizontal")
        for side in (above, beside):
            side.set_axis_off()
        above.set_title(title)
        bar = figure.colorbar(bins, ax=beside, fraction=0.25, pad=0.08, aspect=30)
        bar.outline.set_visible(False)
        bar.set_label("sentences")
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(_plain))
        bar.ax.yaxis.set_minor_locator(NullLocator())
    return figure


def _tenths(x: np.ndarray, y: np.ndarray) -> tuple[list[float], list[float]]:
    """The mean point of each tenth of the points, in the order of x."""
    parts = [part for part in np.array_split(np.argsort(x, kind="stable"), _TENTHS) if len(part)]
    return [float(x[part].mean()) for part in parts], [float(y[part].mean()) for part in parts]


def _plain(value: float, _: object) -> str:
    """A tick of a logarithmic axis."""
    return f"{value:g}"


def step_figures(maps: Sequence[StepMap], axis: str = "step") -> list[Figure]:
    """Each method's map as a figure of its own."""
    figures = []
    for one in maps:
        with matplotlib.rc_context(rc=STYLE):
            figure = Figure(figsize=(4.6, 3.0), layout="constrained")
            _draw_steps(figure, one, axis)
        figures.append(figure)
    return figures


def steps_figure(maps: Sequence[StepMap], axis: str = "step") -> Figure:
    """All maps in one figure."""
    columns = min(2, len(maps))
    rows = -(-len(maps) // columns)
    with matplotlib.rc_context(rc=STYLE):
        figure = Figure(figsize=(4.8 * columns, 3.0 * rows), layout="constrained")
        parts = figure.subfigures(rows, columns, squeeze=False, wspace=0.04, hspace=0.04)
        for part, one in zip(parts.flat, maps, strict=False):
            assert isinstance(part, SubFigure)
            _draw_steps(part, one, axis)
    return figure


def _draw_steps(figure: FigureBase, one: StepMap, axis: str) -> None:
    """A map, step upon step, along training; beside it the steps early and late in training."""
    steps = len(one.values)
    # A step that few sentences reach may have any mean: the few largest do not set the scale.
    top = float(np.nanpercentile(one.values, _MOST)) or 1.0
    grid = figure.add_gridspec(1, 2, width_ratios=(3, 1.15))
    axes = figure.add_subplot(grid[0, 0])
    beside = figure.add_subplot(grid[0, 1], sharey=axes)
    axes.grid(False)
    seen = axes.imshow(
        np.ma.masked_invalid(one.values),
        cmap=_DENSITY,
        vmin=0,
        vmax=top,
        aspect="auto",
        interpolation="none",
        origin="lower",
        extent=(0, one.updates, 0.5, steps + 0.5),
    )
    axes.set_title(one.label)
    axes.set_xlabel("updates")
    axes.set_ylabel(axis)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(seen, ax=axes, fraction=0.06, pad=0.02, aspect=25, extend="max", extendfrac=0.03)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(4))
    place = np.arange(1, steps + 1)
    beside.barh(place, one.early, height=0.85, color="#b7d4ea", label="first tenth")
    beside.barh(place, one.late, height=0.45, color=COLOURS[0], label="last tenth")
    beside.tick_params(left=False, labelleft=False)
    beside.grid(False, axis="y")
    beside.xaxis.set_major_locator(MaxNLocator(3))
    beside.set_xlabel("rollouts")
    beside.legend(loc="lower right", bbox_to_anchor=(1.02, 1.0), fontsize=7.5, handlelength=1.2, borderaxespad=0.2)


def fall_figure(curves: Sequence[tuple[int, Curves]]) -> Figure:
    """Rollouts per step against updates, on a logarithmic axis; a method comes with its place among all methods."""
    with matplotlib.rc_context(rc=STYLE):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axes = figure.subplots()
        for number, one in curves:
            band = one.bands["rollouts_per_step"]
            _draw_fall(axes, number, one.label, np.array([band.x, band.mean, band.low, band.high]))
        axes.set_title("Rollouts per step")
        axes.set_xlabel("updates")
        if all(min(one.bands["rollouts_per_step"].low) > 0 for _, one in curves):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(_plain))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlim(left=0)
        # As the lines lie: many references above few.
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", handlelength=2.2)
    return figure


def _draw_fall(axes: Axes, number: int, label: str, band: np.ndarray) -> None:
    x, mean, low, high = band
    colour = colour_of(number)
    axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
    axes.plot(
        x,
        mean,
        color=colour,
        label=label,
        linewidth=1.6,
        marker=MARKERS[number % len(MARKERS)],
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.5,
        markevery=max(1, len(x) // 6),
    )
