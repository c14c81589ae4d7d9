"""Figures, in one style."""

import io
import re
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only, no window
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from PIL import Image

# Colour-blind safe (Okabe, Ito; the last two Tol), one for each series in order.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "<", "p", ">", "h")
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "text.parse_math": False,  # labels are text of users: a $ is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "corollout",
}


@contextmanager
def figure_style() -> Generator[None, None, None]:
    """The style, for everything that makes or draws a figure."""
    with matplotlib.rc_context(rc=_STYLE), warnings.catch_warnings():
        # A page is shown in the fonts of its reader; in a PNG file such characters are boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # labels that are too long for the figure
        yield


def svg(figure: Figure, label: str, prefix: str = "") -> str:
    """The figure as an SVG element for a page, with a text for those who do not see it.

    ``prefix`` keeps its ids apart from those of other figures.
    """
    buffer = io.StringIO()
    with figure_style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r'((?:\bid="|url\(#|href="#))', rf"\g<1>{prefix}", text[text.index("<svg") :])
    ids: Counter[str] = Counter()

    def unique(match: re.Match[str]) -> str:  # equal images, as of scales of colours, have equal ids
        ids[match[1]] += 1
        return match[0] if ids[match[1]] == 1 else f'id="{match[1]}-{ids[match[1]]}"'

    text = re.sub(r'\bid="([^"]+)"', unique, text)
    return f'<svg role="img" aria-label="{escape(label)}"{text.removeprefix("<svg")}'


def png(figure: Figure) -> bytes:
    """The figure as a PNG file, in 128 colours to keep it small."""
    drawn, small = io.BytesIO(), io.BytesIO()
    with figure_style():
        figure.savefig(drawn, format="png", dpi=130)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def series_style(index: int) -> tuple[str, str]:
    """Colour and marker of a series, by its position among all."""
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]


def log_ticks(axis: Axis, digits: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Ticks of a logarithmic axis at some digits of every decade, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=digits, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:g}"))
    axis.set_minor_locator(NullLocator())
