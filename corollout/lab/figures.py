"""Figures of the estimator lab: variance × cost beside that of the base, and variance against cost."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from corollout.lab import KINDS, Interval, Kind, Lab, Row
from corollout.reports.figures import COLOURS, STYLE, log_ticks

BETTER, WORSE, UNDECIDED = COLOURS[0], COLOURS[1], "#7f7f7f"
NAMES: dict[Kind, str] = {"tokens": "tokens", "calls": "reward calls", "seconds": "seconds"}
_MARKERS = {BETTER: "o", WORSE: "s", UNDECIDED: "D"}
_FAINT = "#57606a"
_ROW = 0.235  # inches of an estimator
# What keeps lines from running through words.
_GROUND: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}


def cost_figure(labs: Sequence[tuple[str, Lab]]) -> Figure:
    """Variance × cost over the base's, with intervals: a panel for each kind of cost, a line of them for each lab.

    The order of estimators is that of the first lab, best per token on top, and those with bias at the bottom.
    """
    by_tokens = sorted(labs[0][1].rows, key=lambda row: (not row.sound, row.products["tokens"].value))
    order = [row.estimator for row in by_tokens]
    height = _ROW * len(order) + 0.55
    with matplotlib.rc_context(rc=STYLE):
        figure = Figure(figsize=(10.4, height * len(labs) + 0.6), layout="constrained")
        grid = figure.subplots(len(labs), len(KINDS), squeeze=False, sharex="col")
        for line, (label, lab) in enumerate(labs):
            rows = {row.estimator: row for row in lab.rows}
            for kind, axes in zip(KINDS, grid[line], strict=True):
                ordered = [rows[name] for name in order if name in rows]
                _draw_costs(axes, ordered, kind, lab.base, named=kind == KINDS[0])
                if line == 0:
                    axes.set_title(f"Variance × {NAMES[kind]}")
                if line == len(labs) - 1:
                    axes.set_xlabel(f"over that of {lab.base}")
            if len(labs) > 1:
                grid[line][0].set_ylabel(label, fontweight="bold")
        for axes in grid.flat:
            _log_ticks(axes.xaxis)
    return figure


def _draw_costs(axes: Axes, rows: Sequence[Row], kind: Kind, base: str, named: bool) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color="#000000", linewidth=1)
    for place, row in enumerate(rows):
        relative = row.relative[kind]
        if relative is None:
            continue
        if relative.value <= 0:  # no variance at all, for which a logarithmic axis has no place
            axes.annotate("◂ 0", (0.02, place), xycoords=("axes fraction", "data"), va="center", color=_FAINT)
            continue
        _draw_interval(axes, relative, place, row, is_base=row.estimator == base)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows] if named else [""] * len(rows))
    axes.tick_params("y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    for place in range(0, len(rows), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="#f6f8fa", zorder=0, linewidth=0)


def _draw_interval(axes: Axes, interval: Interval, place: int, row: Row, is_base: bool) -> None:
    colour = "#000000" if is_base else _colour(interval)
    axes.plot([interval.low, interval.high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
    axes.plot(interval.value, place, color=colour, **_marker(row, "D" if is_base else _MARKERS[colour], colour))


def _marker(row: Row, shape: str, colour: str) -> dict[str, Any]:
    """A marker, hollow for an estimator with bias."""
    face = colour if row.sound else "#ffffff"
    return {
        "marker": shape,
        "markersize": 5.5,
        "markerfacecolor": face,
        "markeredgecolor": colour,
        "markeredgewidth": 1.2,
        "linestyle": "none",
    }


def _colour(interval: Interval) -> str:
    return BETTER if interval.high < 1 else WORSE if interval.low > 1 else UNDECIDED


def _label(row: Row) -> str:
    return row.estimator if row.sound else f"{row.estimator} †"


def variance_figure(lab: Lab, kind: Kind = "tokens") -> Figure:
    """Variance against the cost of an estimate. Along a diagonal variance × cost is the same; lower ones are better."""
    rows = [row for row in lab.rows if row.variance.value > 0 and row.costs[kind].value > 0]
    with matplotlib.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"{NAMES[kind]} of an estimate")
        axes.set_ylabel("variance")
        axes.set_title(f"Variance against {NAMES[kind]}")
        colours = {row.estimator: _own_colour(row, lab, kind) for row in rows}
        for row in rows:
            x, colour = row.costs[kind].value, colours[row.estimator]
            axes.plot([x, x], [row.variance.low, row.variance.high], color=colour, linewidth=1.4)
            axes.plot(x, row.variance.value, color=colour, **_marker(row, "o", colour))
        if rows:
            _spread(axes, rows, kind)
            _diagonals(axes, lab, kind)
        _log_ticks(axes.xaxis)
        _log_ticks(axes.yaxis)
        _name_points(figure, axes, rows, kind, colours)
    return figure


def _own_colour(row: Row, lab: Lab, kind: Kind) -> str:
    relative = row.relative[kind]
    return "#000000" if row.estimator == lab.base else UNDECIDED if relative is None else _colour(relative)


def _spread(axes: Axes, rows: Sequence[Row], kind: Kind) -> None:
    """Room around the points, for their names."""
    x = [row.costs[kind].value for row in rows]
    axes.set_xlim(min(x) / 1.6, max(x) * 2.2)
    axes.set_ylim(
        min(row.variance.low or row.variance.value for row in rows) / 1.6, max(r.variance.high for r in rows) * 1.6
    )


def _diagonals(axes: Axes, lab: Lab, kind: Kind) -> None:
    """Lines of equal variance × cost: the base's, and powers of 4 of it."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    own = next(row.products[kind].value for row in lab.rows if row.estimator == lab.base)
    if own <= 0:
        return
    first = int(np.floor(np.log(low * left / own) / np.log(4)))
    last = int(np.ceil(np.log(high * right / own) / np.log(4)))
    for power in range(first, last + 1):
        product = own * 4.0**power
        is_base = power == 0
        axes.plot(
            [left, right],
            [product / left, product / right],
            color="#000000" if is_base else "#c9ced4",
            linewidth=0.9,
            linestyle="-" if is_base else (0, (4, 3)),
            zorder=1,
            scalex=False,
            scaley=False,
        )
        # Where the line meets the upper or the right edge, a little inside.
        x = max(product / high, left) * 1.06
        y = product / x
        if left < x < right * 0.9 and low * 1.1 < y:
            text = f"{lab.base}'s" if is_base else f"×{4**power}" if power > 0 else f"÷{4**-power}"
            axes.annotate(text, (x, y), fontsize=7, color=_FAINT, va="center", bbox=_GROUND, zorder=1)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def _name_points(figure: Figure, axes: Axes, rows: Sequence[Row], kind: Kind, colours: dict[str, str]) -> None:
    """Names beside the points, each at the first of some places inside where it covers no other name or point."""
    figure.draw_without_rendering()
    inside = np.array(axes.bbox.extents)
    points = [axes.transData.transform((row.costs[kind].value, row.variance.value)) for row in rows]
    taken = [_box(x - 4, y - 4, 8.0, 8.0) for x, y in points]
    for row, (x, y) in zip(rows, points, strict=True):
        text = _label(row)
        width, height = 4.0 * len(text) * figure.dpi / 72, 9 * figure.dpi / 72
        places = [(dx, dy, side) for reach in (7.0, 14.0, 24.0) for dx, dy, side in _around(reach)]
        boxes = [_placed(x, y, place, width, height, figure.dpi / 72) for place in places]
        cover = [sum(_overlap(box, other) for other in taken) + width * height - _overlap(box, inside) for box in boxes]
        best = int(np.argmin(np.round(cover, 3)))
        dx, dy, side = places[best]
        taken.append(boxes[best])
        axes.annotate(
            text,
            (row.costs[kind].value, row.variance.value),
            xytext=(dx, dy),
            textcoords="offset points",
            ha=side,
            va="center",
            fontsize=7.5,
            color=colours[row.estimator],
            bbox=_GROUND,
            zorder=1.5,
        ).set_in_layout(False)  # the points stay where they are


def _around(reach: float) -> list[tuple[float, float, str]]:
    return [
        (reach, 0.0, "left"),
        (reach, reach, "left"),
        (reach, -reach, "left"),
        (-reach, 0.0, "right"),
        (-reach, reach, "right"),
        (-reach, -reach, "right"),
    ]


def _placed(
    x: float, y: float, place: tuple[float, float, str], width: float, height: float, unit: float
) -> np.ndarray:
    dx, dy, side = place
    left = x + dx * unit if side == "left" else x + dx * unit - width
    return _box(left, y + dy * unit - height / 2, width, height)


def _box(left: float, bottom: float, width: float, height: float) -> np.ndarray:
    return np.array([left, bottom, left + width, bottom + height])


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    return float(np.prod(sides.clip(min=0)))


def _log_ticks(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 where there is room."""
    low, high = axis.get_view_interval()
    log_ticks(axis, (1.0,) if np.log10(high / low) > 2.5 else (1.0, 2.0, 5.0))
