"""Training curves: the seeds of a method on one axis, their mean and range, and the figure of all methods."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from corollout.errors import InputError
from corollout.reports import html
from corollout.reports.axis import Axis
from corollout.reports.figures import figure_style, log_ticks, series_style, svg
from corollout.reports.run_results import MethodRuns
from corollout.reports.tables import number
from corollout.reports.typed import build
from corollout.tasks.task import Metric
from corollout.text import shortened
from corollout.training.run_metric import metric_of
from corollout.training.runs import Run

Series = list[tuple[np.ndarray, np.ndarray]]  # of each seed: positions on the axis, and values
_POINTS = 120  # of a curve that has a value for each update
_MOST_EVALUATIONS = 200
_WINDOW = 0.05  # of the axis: the width of the moving average over updates
_FAR = 4  # the axis is logarithmic if the longest curve is this many times as long as the shortest
_BEFORE = 10  # and then begins at this fraction of the shortest
_LISTED = 8  # values of a curve in the table below it
_SEEDS_NOTE = "Mean over seeds, with the range from the lowest to the highest."


@dataclass(frozen=True)
class Panel:
    """A quantity, which records of a run have it, and how it is drawn."""

    key: str
    kind: Literal["update", "evaluation"]
    title: str
    scale: Literal["plain", "log", "percent"] = "plain"
    entry: str = ""  # of a record, if it is not called as the key

    @property
    def factor(self) -> int:
        """By what values are multiplied before they are shown."""
        return 100 if self.scale == "percent" else 1


_VARIANCE = Panel("gradient_variance", "update", "Gradient variance (log₁₀)", "log")
_UPDATE_PANELS = (_VARIANCE, Panel("rollouts_per_step", "update", "Rollouts per step"))
# What tells whether a training goes well, beside the panels of the paper's figure.
DETAILS = (
    Panel("sampled_reward", "update", "Mean reward of samples", entry="reward"),
    Panel("entropy", "update", "Entropy (nats per token)"),
    Panel("mean_length", "update", "Length (tokens)"),
    Panel("gradient_norm", "update", "Gradient norm"),
    Panel("kl", "update", "Divergence from the reference (nats)"),
)


def _metric_panels(metric: Metric) -> tuple[list[Panel], list[Panel]]:
    """The panels of fine-tuning, and those of maximum likelihood."""
    unit, scale = f" ({metric.unit.strip()})" if metric.unit else "", "percent" if metric.scale == 100 else "plain"
    train = Panel(f"train_{metric.key}", "evaluation", f"Training {metric.name}{unit}", scale)
    val = Panel(metric.key, "evaluation", f"Validation {metric.name}{unit}", scale)
    return [*_UPDATE_PANELS, train, val], [Panel("loss", "update", "Loss (nats per token)"), val]


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest over seeds, along an axis."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]

    def __post_init__(self) -> None:
        if not len(self.x) == len(self.mean) == len(self.low) == len(self.high) > 0:
            raise InputError("a curve needs as many means, lowest and highest values as positions, and at least one")

    def scaled(self, divisor: float, factor: float | int) -> "Band":
        """With positions divided and values multiplied."""
        values = ([factor * value for value in part] for part in (self.mean, self.low, self.high))
        return Band([x / divisor for x in self.x], *values)

    def inside(self, first: float, last: float) -> "Band":
        """The part between two positions, or the last point if there is none."""
        kept = [i for i, x in enumerate(self.x) if first <= x <= last] or [len(self.x) - 1]
        return Band(*([part[i] for i in kept] for part in (self.x, self.mean, self.low, self.high)))


@dataclass(frozen=True)
class MethodCurves:
    """A band for each quantity that a method has recorded, and its evaluation before the first update."""

    label: str
    bands: dict[str, Band]
    start: dict[str, float]


@dataclass(frozen=True)
class Curves:
    """The curves of all methods as a block of a report."""

    kind: ClassVar[str] = "curves"
    name: str  # of the PNG file
    x: Axis
    panels: list[Panel]
    methods: list[MethodCurves]
    note: str = _SEEDS_NOTE

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Curves":
        """What was written to JSON; an ``InputError`` if it is something else."""
        panels, methods = content.get("panels"), content.get("methods")
        if not isinstance(panels, list) or not isinstance(methods, list):
            raise InputError("curves need panels and methods")
        built = {"panels": [build(Panel, one) for one in panels], "methods": [_method(one) for one in methods]}
        curves = build(cls, {**content, **built})
        if not panels or any(not any(one.key in method.bands for method in curves.methods) for one in curves.panels):
            raise InputError("curves need panels, each with a curve of some method")
        return curves

    def drawing(self) -> Figure:
        """All panels in one figure under one legend."""
        rows, columns = (len(self.panels) + 1) // 2, min(2, len(self.panels))
        with figure_style():
            spaced = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04)
            figure = Figure(figsize=(4.6 * columns, 2.75 * rows + 0.45), layout=spaced)
            grid = figure.subplots(rows, columns, squeeze=False)
            for index, panel in enumerate(self.panels):
                _draw_panel(grid.flat[index], panel, self.methods, self.x, below=index >= len(self.panels) - columns)
            for axes in grid.flat[len(self.panels) :]:
                axes.set_visible(False)
            labelled = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid.flat]
            handles = {label: handle for pairs in labelled for handle, label in pairs}
            in_a_row = -(-len(handles) // -(-len(handles) // (3 * columns))) if handles else 1
            shape: Any = {"ncols": in_a_row, "handlelength": 2.2, "columnspacing": 1.6}
            figure.legend(list(handles.values()), list(handles), loc="outside upper center", **shape)
        return figure

    def html(self, prefix: str = "") -> str:
        """A legend and the panels, side by side where there is room."""
        series = [(one.label, *series_style(index)) for index, one in enumerate(self.methods)]
        legend = html.legend(series, "start" if any(one.start for one in self.methods) else "")
        drawn = []
        for index, panel in enumerate(self.panels):
            with figure_style():
                figure = Figure(figsize=(4.6, 2.7), layout="constrained")
                axes = figure.subplots()
                _draw_panel(axes, panel, self.methods, self.x, below=True)
                axes.set_title("", loc="left")  # the page has it above the drawing
            drawing = svg(figure, self._in_words(panel), f"{prefix}{index}-")
            drawn.append(html.plot(panel.title, drawing, self._data(panel, axes), *self._values(panel)))
        return legend + html.panels(drawn) + html.note(self.note)

    def _of_panel(self, panel: Panel) -> list[tuple[int, MethodCurves, Band]]:
        """The methods that have a curve: index among all, method, and the curve in the units of the figure."""
        bands = [(index, one, one.bands[panel.key]) for index, one in enumerate(self.methods) if panel.key in one.bands]
        divisor, _ = _unit(self.x, max(band.x[-1] for _, _, band in bands))
        return [(index, one, band.scaled(divisor, panel.factor)) for index, one, band in bands]

    def _in_words(self, panel: Panel) -> str:
        """What the curves of a panel show, for those who do not see them."""
        ends = [f"{one.label} from {band.mean[0]:.3g} to {band.mean[-1]:.3g}" for _, one, band in self._of_panel(panel)]
        return f"{panel.title} against {self.x}: {'; '.join(ends)}"

    def _data(self, panel: Panel, axes: Axes) -> dict[str, Any]:
        """What the page's script needs to show values."""
        bands = self._of_panel(panel)
        _, unit = _unit(self.x, max(one.bands[panel.key].x[-1] for _, one, _ in bands))
        box, ends = axes.get_position(), axes.get_xlim()
        series = [
            {
                "label": shortened(one.label, 60),
                "colour": series_style(index)[0],
                **_rounded(asdict(band.inside(*ends))),
            }
            for index, one, band in bands
        ]
        place = {"box": [box.x0, 1 - box.y1, box.width, box.height], "x": list(ends)}
        return {**_rounded(place), "log": axes.get_xscale() == "log", "unit": unit, "series": series}

    def _values(self, panel: Panel) -> tuple[list[str], list[list[str]]]:
        """A table of some values of each curve."""
        bands = self._of_panel(panel)
        _, unit = _unit(self.x, max(one.bands[panel.key].x[-1] for _, one, _ in bands))
        rows = []
        for _, one, band in bands:
            for index in sorted({round(i * (len(band.x) - 1) / (_LISTED - 1)) for i in range(_LISTED)}):
                rows.append([one.label, number(band.x[index]), f"{band.mean[index]:.4g}"])
        return ["method", unit, panel.title], rows


def _rounded(content: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [float(f"{value:.5g}") for value in values] for name, values in content.items()}


def _method(content: Any) -> MethodCurves:
    bands = content.get("bands") if isinstance(content, dict) else None
    if not isinstance(bands, dict):
        raise InputError("the curves of a method need bands")
    return build(MethodCurves, {**content, "bands": {key: build(Band, band) for key, band in bands.items()}})


def training_curves(
    groups: Sequence[MethodRuns], x: Axis, name: str = "figure", details: Sequence[Panel] = ()
) -> Curves:
    """The paper's first figure: variance, rollouts, and the scores on training and validation data.

    For maximum likelihood alone, its loss and its validation score. ``details`` are panels to add. A panel without a
    value other than 0 is left out.
    """
    methods = [read_curves(group, x, details) for group in groups]
    tuning, teaching = _metric_panels(metric_of(Run.open(groups[0].runs[0])))
    known = {key for one in methods for key, band in one.bands.items() if any(band.low) or any(band.high)}
    panels = tuning if any(panel.key in known for panel in _UPDATE_PANELS) else teaching
    if details:  # what was achieved first, then how
        panels = [*reversed([one for one in panels if one.kind == "evaluation"]), *details, *panels]
    panels = [panel for panel in dict.fromkeys(panels) if panel.key in known]
    return Curves(name, x, panels, methods, _SEEDS_NOTE if any(len(group.runs) > 1 for group in groups) else "")


def read_curves(group: MethodRuns, x: Axis, details: Sequence[Panel] = ()) -> MethodCurves:
    """A method's curves against seconds, tokens or updates, from its run directories."""
    runs = [Run.open(directory) for directory in group.runs]
    records = [run.measurements() for run in runs]
    tuning, teaching = _metric_panels(metric_of(runs[0]))
    bands, start = {}, {}
    for panel in dict.fromkeys((*tuning, *teaching, *details)):
        series = [_series(run, panel, x) for run in records]
        if all(len(positions) for positions, _ in series):
            bands[panel.key] = _update_band(series, panel) if panel.kind == "update" else evaluation_band(series)
        before = [r for run in records for r in run if r["kind"] == "evaluation" and r["update"] == 0]
        if first := [r[panel.key] for r in before if r.get(panel.key) is not None]:
            start[panel.key] = float(np.mean(first))
    if not bands:
        raise InputError(f"the runs of {group.label} have recorded nothing: {', '.join(map(str, group.runs))}")
    return MethodCurves(group.label, bands, start)


def _series(records: Sequence[Mapping[str, Any]], panel: Panel, x: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the axis and values. What was not finite is null in the file and is skipped."""
    key, entry = "update" if x == "updates" else x, panel.entry or panel.key
    pairs = [
        (record[key], record[entry])
        for record in records
        if record["kind"] == panel.kind and record.get(entry) is not None and record.get(key) is not None
        # The running variance is 0 by definition after the first update, and has no logarithm.
        if panel.scale != "log" or record[entry] > 0
    ]
    positions, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    return positions, values


def _update_band(series: Series, panel: Panel) -> Band:
    """Many noisy values: each seed is averaged over a moving window before seeds are averaged."""
    first, last = _common(series)
    grid = np.linspace(first, last, _POINTS) if last > first else np.array([first])
    smooth = np.stack([moving_average(*one, grid, _WINDOW * (last - first)) for one in series])
    return _band(grid, np.log10(smooth) if panel.scale == "log" else smooth)


def evaluation_band(series: Series) -> Band:
    """Few values, at the same points of the schedule for each seed: a curve goes through all of them."""
    if len({len(positions) for positions, _ in series}) == 1 and len(series[0][0]) <= _MOST_EVALUATIONS:
        positions, values = (np.stack(part) for part in zip(*series, strict=True))
        return _band(positions.mean(0), values)
    first, last = _common(series)
    grid = np.unique(np.concatenate([positions for positions, _ in series]))
    grid = grid[(grid >= first) & (grid <= last)]
    if len(grid) > _MOST_EVALUATIONS:
        grid = np.linspace(first, last, _MOST_EVALUATIONS)
    return _band(grid, np.stack([np.interp(grid, *one) for one in series]))


def _common(series: Series) -> tuple[float, float]:
    """The part of the axis that all seeds have."""
    first = float(max(positions[0] for positions, _ in series))
    return first, max(first, float(min(positions[-1] for positions, _ in series)))


def _band(grid: np.ndarray, values: np.ndarray) -> Band:
    return Band(grid.tolist(), values.mean(0).tolist(), values.min(0).tolist(), values.max(0).tolist())


def moving_average(positions: np.ndarray, values: np.ndarray, grid: np.ndarray, width: float) -> np.ndarray:
    """Mean of the values within half a width of each grid point, interpolated where there is none."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    left = np.searchsorted(positions, grid - width / 2, "left")
    right = np.searchsorted(positions, grid + width / 2, "right")
    count = right - left
    return np.where(count > 0, (sums[right] - sums[left]) / np.maximum(count, 1), np.interp(grid, positions, values))


def _draw_panel(axes: Axes, panel: Panel, curves: Sequence[MethodCurves], x: Axis, below: bool) -> None:
    ends = [one.bands[panel.key].x[-1] for one in curves if panel.key in one.bands]
    divisor, unit = _unit(x, max(ends))
    factor = panel.factor
    shortest = min((end for end in ends if end > 0), default=0.0)  # a run without updates has no length
    is_far = max(ends) > _FAR * shortest > 0
    for index, one in enumerate(curves):
        if (band := one.bands.get(panel.key)) is None:
            continue
        drawn = np.array(band.x) >= (shortest / _BEFORE if is_far else 0)
        if not drawn.any():  # a run without updates, on an axis that has no zero
            continue
        values = np.array([band.x, band.mean, band.low, band.high])[:, drawn]
        values *= np.array([1 / divisor, factor, factor, factor])[:, None]
        # A few markers, at other positions for each method, tell lines apart without their colour.
        count = int(drawn.sum())
        every = max(1, count // 6) if count > 12 else 1
        plot_band(axes, index, one.label, values, (index * every // len(curves) % count, every))
    starts = [one.start[panel.key] for one in curves if panel.key in one.start]
    if starts and panel.kind == "evaluation":
        axes.axhline(factor * float(np.mean(starts)), color="#666666", linewidth=1.1, linestyle=":", label="start")
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


def plot_band(axes: Axes, index: int, label: str, band: np.ndarray, every: int | tuple[int, int]) -> None:
    """A line of x and mean inside the area between low and high, in the style of the method with this index."""
    x, mean, low, high = band
    shown = shortened(label, 60)
    shown = f" {shown}" if shown.startswith("_") else shown  # legends leave out what begins with an underscore
    colour, marker = series_style(index)
    axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
    edge: Any = {"markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.5, "markevery": every}
    axes.plot(x, mean, color=colour, label=shown, linewidth=1.5, marker=marker, **edge)


def _unit(x: Axis, end: float) -> tuple[float, str]:
    """By what the axis is divided, and its label."""
    if x == "seconds":
        if end > 3 * 3600:
            return 3600.0, "hours of training"
        return (60.0, "minutes of training") if end > 300 else (1.0, "seconds of training")
    if x == "tokens":
        return (1e6, "million tokens generated") if end > 2e6 else (1e3, "thousand tokens generated")
    return 1.0, "updates"
