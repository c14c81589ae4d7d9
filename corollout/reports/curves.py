"""Training curves: the seeds of a method on one axis, their mean and range, and the paper's figure of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from corollout.errors import InputError
from corollout.reports.figures import COLOURS, MARKERS, STYLE, log_ticks
from corollout.tasks.registry import find_task
from corollout.training.runs import Run

Axis = Literal["seconds", "tokens", "updates"]
AXES: tuple[Axis, ...] = ("seconds", "tokens", "updates")
_KEYS = {"seconds": "seconds", "tokens": "tokens", "updates": "update"}
_POINTS = 120  # of a curve that has a value for each update
_MOST_EVALUATIONS = 200
_WINDOW = 0.05  # of the axis, over which such a curve is averaged
_FAR = 4  # times as long as the shortest curve: from there on the axis is logarithmic
_BEFORE = 10  # the shortest curve is drawn from this part of it, on such an axis


@dataclass(frozen=True)
class Group:
    """The runs of one method, one for each seed."""

    label: str
    runs: list[Path]


@dataclass(frozen=True)
class Panel:
    """A quantity, where runs record it, and how it is drawn."""

    key: str
    kind: Literal["update", "evaluation"]
    title: str
    scale: Literal["plain", "log", "percent"] = "plain"


_UPDATE_PANELS = (
    Panel("gradient_variance", "update", "Gradient variance (log₁₀)", "log"),
    Panel("rollouts_per_step", "update", "Rollouts per step"),
)


def _panels(task: str) -> tuple[list[Panel], list[Panel]]:
    """The panels of fine-tuning, and those of maximum likelihood."""
    measure = find_task(task).metric
    unit = f" ({measure.unit.strip()})" if measure.unit else ""
    train = Panel(f"train_{measure.key}", "evaluation", f"Training {measure.name}{unit}", "percent")
    val = Panel(measure.key, "evaluation", f"Validation {measure.name}{unit}", "percent")
    return [*_UPDATE_PANELS, train, val], [Panel("loss", "update", "Loss (nats a token)"), val]


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest over seeds, along an axis."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Curves:
    """One method's band for each panel that it has anything for, and its evaluation before the first update."""

    label: str
    bands: dict[str, Band]
    start: dict[str, float]
    task: str

    def table(self) -> dict[str, Any]:
        """The curves for a JSON file, in five digits."""

        def short(values: list[float]) -> list[float]:
            return [float(f"{value:.5g}") for value in values]

        bands = {key: {name: short(v) for name, v in asdict(band).items()} for key, band in self.bands.items()}
        return {"label": self.label, "bands": bands, "start": self.start, "task": self.task}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Curves":
        bands = {key: Band(**band) for key, band in table["bands"].items()}
        return cls(table["label"], bands, dict(table["start"]), table["task"])


def read_curves(group: Group, x: Axis) -> Curves:
    """A method's curves against seconds, tokens or updates, from its run directories."""
    runs = [Run.open(directory) for directory in group.runs]
    records = [run.records() for run in runs]
    task = runs[0].config["task"]
    tuning, teaching = _panels(task)
    bands, start = {}, {}
    for panel in dict.fromkeys((*tuning, *teaching)):
        series = [_series(run, panel, x) for run in records]
        if series and all(len(places) for places, _ in series):
            bands[panel.key] = _update_band(series, panel) if panel.kind == "update" else evaluation_band(series)
        first = [r[panel.key] for run in records for r in run if _is_start(r) and r.get(panel.key) is not None]
        if first:
            start[panel.key] = float(np.mean(first))
    if not bands:
        raise InputError(
            f"the runs of {group.label} have nothing to draw: {', '.join(map(str, group.runs)) or 'there are none'}"
        )
    return Curves(group.label, bands, start, task)


def _is_start(record: Mapping[str, Any]) -> bool:
    return record["kind"] == "evaluation" and record["update"] == 0


def _series(records: Sequence[Mapping[str, Any]], panel: Panel, x: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Places on the axis and values. What was not finite is null in the file, and left out here."""
    key = _KEYS[x]
    pairs = [
        (record[key], record[panel.key])
        for record in records
        if record["kind"] == panel.kind and record.get(panel.key) is not None and record.get(key) is not None
        # The running variance is 0 by definition after the first update, and has no logarithm.
        if panel.scale != "log" or record[panel.key] > 0
    ]
    places, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    return places, values


def _update_band(series: list[tuple[np.ndarray, np.ndarray]], panel: Panel) -> Band:
    """Noisy values, many of them: each seed is averaged over a moving window before seeds are."""
    first, last = _common(series)
    grid = np.linspace(first, last, _POINTS) if last > first else np.array([first])
    smooth = np.stack([moving_average(*one, grid, _WINDOW * (last - first)) for one in series])
    return _band(grid, np.log10(smooth) if panel.scale == "log" else smooth)


def evaluation_band(series: list[tuple[np.ndarray, np.ndarray]]) -> Band:
    """Few values, at the same points of the schedule for each seed: a curve goes through all of them."""
    if len({len(places) for places, _ in series}) == 1 and len(series[0][0]) <= _MOST_EVALUATIONS:
        places, values = (np.stack(part) for part in zip(*series, strict=True))
        return _band(places.mean(0), values)
    first, last = _common(series)
    grid = np.unique(np.concatenate([places for places, _ in series]))
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid) > _MOST_EVALUATIONS:
        grid = np.linspace(first, last, _MOST_EVALUATIONS)
    return _band(grid, np.stack([np.interp(grid, *one) for one in series]))


def _common(series: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """The part of the axis that all seeds have."""
    first = float(max(places[0] for places, _ in series))
    return first, max(first, float(min(places[-1] for places, _ in series)))


def _band(grid: np.ndarray, values: np.ndarray) -> Band:
    return Band(grid.tolist(), values.mean(0).tolist(), values.min(0).tolist(), values.max(0).tolist())


def moving_average(places: np.ndarray, values: np.ndarray, grid: np.ndarray, width: float) -> np.ndarray:
    """Mean of the values within half a width of each grid point; between values where there is none so near."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    left = np.searchsorted(places, grid - width / 2, "left")
    right = np.searchsorted(places, grid + width / 2, "right")
    count = right - left
    return np.where(count > 0, (sums[right] - sums[left]) / np.maximum(count, 1), np.interp(grid, places, values))


def training_figure(groups: Sequence[Group], x: Axis = "seconds") -> Figure:
    """The paper's first figure: variance, rollouts, and the scores on training and validation data."""
    return draw_curves([read_curves(group, x) for group in groups], x)


def draw_curves(curves: Sequence[Curves], x: Axis, panels: Sequence[Panel] | None = None) -> Figure:
    """All panels, the task's if none are named, in one figure under one legend."""
    panels = panels_of(curves) if panels is None else panels
    rows = (len(panels) + 1) // 2
    columns = min(2, len(panels))
    with matplotlib.rc_context(rc=STYLE):
        spaced = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04)
        size = (4.6 * columns, 2.75 * rows + 0.45)
        figure = Figure(figsize=size, layout=spaced)
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, panel in enumerate(panels):
            _draw_panel(grid.flat[place], panel, curves, x, below=place >= len(panels) - columns)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        labelled = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid.flat]
        handles = {label: handle for pairs in labelled for handle, label in pairs}
        in_a_row = -(-len(handles) // -(-len(handles) // (3 * columns)))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=in_a_row,
            handlelength=2.2,
            columnspacing=1.6,
        )
    return figure


def draw_panels(curves: Sequence[Curves], x: Axis, panels: Sequence[Panel] | None = None) -> list[Figure]:
    """Each panel as a figure of its own, without a legend: for pages, where they stand beside or below each other."""
    figures = []
    for panel in panels_of(curves) if panels is None else panels:
        with matplotlib.rc_context(rc=STYLE):
            figure = Figure(figsize=(4.6, 2.9), layout="constrained")
            _draw_panel(figure.subplots(), panel, curves, x, below=True)
        figures.append(figure)
    return figures


def panels_of(curves: Sequence[Curves]) -> list[Panel]:
    """The paper's panels; for maximum likelihood alone its loss and its validation."""
    tuning, teaching = _panels(curves[0].task)
    found = [panel for panel in tuning if any(panel.key in one.bands for one in curves)]
    if any(panel.kind == "update" for panel in found):
        return found
    return [panel for panel in teaching if any(panel.key in one.bands for one in curves)]


def _draw_panel(axes: Axes, panel: Panel, curves: Sequence[Curves], x: Axis, below: bool) -> None:
    ends = [one.bands[panel.key].x[-1] for one in curves if panel.key in one.bands]
    divisor, unit = _unit(x, max(ends))
    factor = 100 if panel.scale == "percent" else 1
    shortest = min((end for end in ends if end > 0), default=0.0)  # a run without updates has no length
    is_far = max(ends) > _FAR * shortest > 0
    for number, one in enumerate(curves):
        band = one.bands.get(panel.key)
        if band is None:
            continue
        colour, marker = colour_of(number), MARKERS[number % len(MARKERS)]
        drawn = np.array(band.x) >= (shortest / _BEFORE if is_far else 0)
        if not drawn.any():  # a run without updates, on an axis that has no zero
            continue
        places = np.array(band.x)[drawn] / divisor
        low, mean, high = (factor * np.array(values)[drawn] for values in (band.low, band.mean, band.high))
        axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
        # A few markers, at other places for each method, tell lines apart without their colour.
        every = max(1, len(places) // 6) if len(places) > 12 else 1
        axes.plot(
            places,
            mean,
            color=colour,
            label=one.label,
            linewidth=1.5,
            marker=marker,
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
            markevery=(number * every // max(len(curves), 1) % len(places), every),
        )
    starts = [one.start[panel.key] for one in curves if panel.key in one.start]
    if starts and panel.kind == "evaluation":
        axes.axhline(factor * float(np.mean(starts)), color="#666666", linewidth=1.1, linestyle=":", label="MLE start")
    axes.set_title(panel.title)
    if is_far:
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
        axes.set_xlim(shortest / _BEFORE / divisor, max(ends) / divisor * 1.05)
    else:
        axes.set_xlim(0, max(ends) / divisor * 1.02 or 1)
    if panel.key == "rollouts_per_step":
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.02 * top, top)  # lines of zero rollouts stay visible
    if below:
        axes.set_xlabel(unit)


def colour_of(number: int) -> str:
    """The colour of a method, by its place among the methods."""
    return COLOURS[number % len(COLOURS)]


def _unit(x: Axis, end: float) -> tuple[float, str]:
    """By what the axis is divided, and what it is then called."""
    if x == "seconds":
        if end > 3 * 3600:
            return 3600.0, "hours of training"
        return (60.0, "minutes of training") if end > 300 else (1.0, "seconds of training")
    if x == "tokens":
        return (1e6, "million tokens generated") if end > 2e6 else (1e3, "thousand tokens generated")
    return 1.0, "updates"
