"""Figures of the estimator lab: variance × cost relative to the base, and variance against cost.

Each figure is drawn from data that JSON can hold, so that a report can draw it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from corollout.lab.lab import Lab
from corollout.lab.summary import COSTS, CostName, Interval, Row
from corollout.reports.figures import COLOURS, figure_style, log_ticks

COST_NAMES: dict[CostName, str] = {"tokens": "tokens", "calls": "reward calls", "seconds": "seconds"}
_BETTER, _WORSE, _UNDECIDED, _BASE = COLOURS[0], COLOURS[1], "#7f7f7f", "#000000"
_MARKERS = {_BETTER: "o", _WORSE: "s", _UNDECIDED: "D", _BASE: "D"}
_FAINT = "#57606a"
_ROW_HEIGHT = 0.235  # inches
_BACKGROUND: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}  # of text on lines
_OFFSETS = [(side * reach, dy * reach) for reach in (7.0, 14.0, 24.0) for side in (1, -1) for dy in (0, 1, -1)]

Data = Mapping[str, Any]


def cost_data(points: Sequence[tuple[str, Lab]]) -> dict[str, Any]:
    """The arguments of :func:`cost_figure` for labelled labs."""
    labelled = []
    for label, lab in points:
        rows = sorted(lab.rows, key=lambda row: (not row.is_unbiased, row.variance_cost["tokens"].value))
        data = [_data(row, ratio={cost: _values(ratio) for cost, ratio in row.ratio.items()}) for row in rows]
        labelled.append({"label": label, "rows": data})
    return {"base": points[0][1].base, "points": labelled}


def _data(row: Row, **values: Any) -> dict[str, Any]:
    return {"estimator": row.estimator, "is_unbiased": row.is_unbiased, **values}


def _values(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(astuple(interval))


def cost_figure(base: str, points: Sequence[Data]) -> Figure:
    """Variance × cost over that of the base, with intervals: a panel for each cost, a line of panels for each point.

    The order of estimators is that of the first point: best per token at the top, biased ones at the bottom.
    """
    order = [row["estimator"] for row in points[0]["rows"]]
    height = _ROW_HEIGHT * len(order) + 0.55
    with figure_style():
        figure = Figure(figsize=(10.4, height * len(points) + 0.6), layout="constrained")
        grid = figure.subplots(len(points), len(COSTS), squeeze=False, sharex="col")
        for line, point in enumerate(points):
            rows = sorted(point["rows"], key=lambda row: order.index(row["estimator"]))
            for cost, axes in zip(COSTS, grid[line], strict=True):
                _draw_ratios(axes, rows, cost, base)
            grid[line][0].set_yticks(range(len(rows)), map(_label, rows))
            if len(points) > 1:
                grid[line][0].set_ylabel(point["label"], fontweight="bold")
        for cost, first, last in zip(COSTS, grid[0], grid[-1], strict=True):
            first.set_title(f"Variance × {COST_NAMES[cost]}")
            last.set_xlabel(f"over that of {base}")
        for axes in grid.flat:
            _log_ticks(axes.xaxis)
    return figure


def _draw_ratios(axes: Axes, rows: Sequence[Data], cost: CostName, base: str) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color=_BASE, linewidth=1)
    for y, row in enumerate(rows):
        if row["ratio"][cost] is None:
            continue
        ratio = Interval(*row["ratio"][cost])
        if ratio.value <= 0:  # no variance at all, which a logarithmic axis cannot show
            axes.annotate("◂ 0", (0.02, y), xycoords=("axes fraction", "data"), va="center", color=_FAINT)
            continue
        colour = _colour(row, row["ratio"][cost], base)
        axes.plot([ratio.low, ratio.high], [y, y], color=colour, linewidth=1.6, solid_capstyle="butt")
        _draw_point(axes, row, ratio.value, y, _MARKERS[colour], colour)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [""] * len(rows))
    axes.tick_params("y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    for y in range(0, len(rows), 2):
        axes.axhspan(y - 0.5, y + 0.5, color="#f6f8fa", zorder=0, linewidth=0)


def _draw_point(axes: Axes, row: Data, x: float, y: float | int, shape: str, colour: str) -> None:
    """A marker, hollow for a biased estimator."""
    inside = colour if row["is_unbiased"] else "#ffffff"
    axes.plot(x, y, shape, markersize=5.5, markerfacecolor=inside, markeredgecolor=colour, markeredgewidth=1.2)


def _colour(row: Data, ratio: Sequence[float] | None, base: str) -> str:
    if row["estimator"] == base:
        return _BASE
    if ratio is None:
        return _UNDECIDED
    _, low, high = ratio
    return _BETTER if high < 1 else _WORSE if low > 1 else _UNDECIDED


def _label(row: Data) -> str:
    return row["estimator"] if row["is_unbiased"] else f"{row['estimator']} †"


def variance_data(lab: Lab, cost: CostName = "tokens") -> dict[str, Any]:
    """The arguments of :func:`variance_figure`; estimators without variance or cost are left out."""
    return {
        "base": lab.base,
        "cost": cost,
        "product": next(row.variance_cost[cost].value for row in lab.rows if row.estimator == lab.base),
        "rows": [
            _data(row, variance=_values(row.variance), cost=row.costs[cost].value, ratio=_values(row.ratio[cost]))
            for row in lab.rows
            if row.variance.value > 0 and row.costs[cost].value > 0
        ],
    }


def variance_figure(base: str, cost: CostName, product: float, rows: Sequence[Data]) -> Figure:
    """Variance against the cost of an estimate. Along a diagonal variance × cost is the same (``product`` is that of
    the base); lower diagonals are better."""
    with figure_style():
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel=f"{COST_NAMES[cost]} of an estimate", ylabel="variance")
        axes.set_title(f"Variance against {COST_NAMES[cost]}")
        colours = [_colour(row, row["ratio"], base) for row in rows]
        for row, colour in zip(rows, colours, strict=True):
            value, low, high = row["variance"]
            axes.plot([row["cost"]] * 2, [low, high], color=colour, linewidth=1.4)
            _draw_point(axes, row, row["cost"], value, "o", colour)
        if rows:
            # Room around the points, for their labels.
            costs, ends = [row["cost"] for row in rows], [row["variance"] for row in rows]
            axes.set_xlim(min(costs) / 1.6, max(costs) * 2.2)
            axes.set_ylim(min(low or value for value, low, _ in ends) / 1.6, max(high for _, _, high in ends) * 1.6)
        if rows and product > 0:
            _draw_diagonals(axes, base, product)
        _log_ticks(axes.xaxis)
        _log_ticks(axes.yaxis)
        _label_points(figure, axes, rows, colours)
    return figure


def _draw_diagonals(axes: Axes, base: str, product: float) -> None:
    """Lines of equal variance × cost: that of the base, times powers of 4."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    first = int(np.floor(np.log(low * left / product) / np.log(4)))
    last = int(np.ceil(np.log(high * right / product) / np.log(4)))
    for power in range(first, last + 1):
        level = product * 4.0**power
        style: Any = {"color": "#c9ced4", "linestyle": (0, (4, 3))} if power else {"color": _BASE}
        axes.plot([left, right], [level / left, level / right], linewidth=0.9, zorder=1, **style)
        # The label is where the line meets the upper or left edge, a little inside.
        x = max(level / high, left) * 1.06
        y = level / x
        if left < x < right * 0.9 and low * 1.1 < y:
            text = f"{base}'s" if power == 0 else f"×{4**power}" if power > 0 else f"÷{4**-power}"
            axes.annotate(text, (x, y), fontsize=7, color=_FAINT, va="center", bbox=_BACKGROUND, zorder=1)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def _label_points(figure: Figure, axes: Axes, rows: Sequence[Data], colours: Sequence[str]) -> None:
    """Labels beside the points, each at the offset where it covers least of other labels and points."""
    figure.draw_without_rendering()
    unit = figure.dpi / 72
    points = [(row["cost"], row["variance"][0]) for row in rows]
    pixels = [axes.transData.transform(point) for point in points]
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in pixels]
    for row, point, (x, y), colour in zip(rows, points, pixels, colours, strict=True):
        width, height = 4.0 * len(_label(row)) * unit, 9 * unit
        boxes, covered = [], []
        for dx, dy in _OFFSETS:
            box = Bbox.from_bounds(x + dx * unit - (0 if dx > 0 else width), y + dy * unit - height / 2, width, height)
            boxes.append(box)
            covered.append(sum(_overlap(box, other) for other in taken) - _overlap(box, axes.bbox.frozen()))
        best = int(np.argmin(np.round(covered, 3)))
        taken.append(boxes[best])
        axes.annotate(
            _label(row),
            point,
            xytext=_OFFSETS[best],
            textcoords="offset points",
            ha="left" if _OFFSETS[best][0] > 0 else "right",
            va="center",
            fontsize=7.5,
            color=colour,
            bbox=_BACKGROUND,
            zorder=1.5,
        ).set_in_layout(False)  # labels do not move the points


def _overlap(one: Bbox, other: Bbox) -> float:
    common = Bbox.intersection(one, other)
    return 0.0 if common is None else common.width * common.height


def _log_ticks(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 where there is room."""
    low, high = axis.get_view_interval()
    log_ticks(axis, (1.0,) if np.log10(high / low) > 2.5 else (1.0, 2.0, 5.0))
