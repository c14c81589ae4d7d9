"""Figures, in one style."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colour-blind safe (Okabe, Ito; the last one Tol), one for each series in order.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "<", "p", ">")
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "corollout",
}


@dataclass(frozen=True)
class Series:
    """What one method did: training curves against tokens, and its variance at the starting point."""

    name: str
    tokens: Sequence[int]
    reward: Sequence[float]
    rollouts: Sequence[float]
    variance: float
    variance_error: float


def comparison_figure(series: Sequence[Series], start_reward: float) -> Figure:
    """Reward while training, rollouts per step, and gradient variance at the same parameters."""
    with matplotlib.rc_context(rc=STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.1), layout="constrained")
        for colour, one in zip(COLOURS, series, strict=False):
            tokens = [n / 1000 for n in one.tokens]
            left.plot(tokens, _smooth(one.reward), color=colour, label=one.name, linewidth=1.6)
            middle.plot(tokens, _smooth(one.rollouts), color=colour, linewidth=1.6)
        left.axhline(start_reward, color="#888888", linewidth=1, linestyle=":", label="before")
        _label(left, "Reward of sampled sequences", "thousand tokens generated")
        _label(middle, "Rollouts per step", "thousand tokens generated")
        left.legend(loc="lower right", ncols=2, fontsize=8)
        left.set_ylim(bottom=0)
        middle.set_ylim(bottom=0)
        _variances(right, series)
        return figure


def _variances(axes: Axes, series: Sequence[Series]) -> None:
    for place, (colour, one) in enumerate(zip(COLOURS, series, strict=False)):
        axes.errorbar(one.variance, place, xerr=one.variance_error, fmt="o", color=colour, capsize=3)
        axes.annotate(f"{one.variance:.3g}", (one.variance, place), (0, 7), textcoords="offset points", ha="center")
    lowest, highest = min(one.variance for one in series), max(one.variance for one in series)
    if lowest > 0:
        axes.set_xscale("log")
        axes.set_xlim(lowest / 2, highest * 2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_yticks(range(len(series)), [one.name for one in series])
    axes.set_ylim(len(series) - 0.5, -0.6)
    _label(axes, "Gradient variance, same parameters", "trace of the covariance")


def _label(axes: Axes, title: str, x: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)


def _smooth(values: Sequence[float], share: float = 0.05) -> list[float]:
    """A centred moving average over a share of the curve, narrower at its ends."""
    half = max(1, int(len(values) * share / 2))
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def svg(figure: Figure, prefix: str = "") -> str:
    """The figure as an SVG element, to stand inside a page; ``prefix`` keeps its ids apart from those of others."""
    buffer = io.StringIO()
    with matplotlib.rc_context(rc=STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r'((?:\bid="|url\(#|href="#))', rf"\g<1>{prefix}", text) if prefix else text
