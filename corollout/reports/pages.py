"""The parts that reports of runs are put together from, as files and on a page."""

import json
import math
from collections.abc import Mapping, Sequence, Set
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from corollout.errors import InputError
from corollout.reports import figures, html
from corollout.reports.curves import Axis, Curves, Panel, colour_of, draw_curves, draw_panels
from corollout.reports.tables import TextTable
from corollout.training.checkpoints import replace_file

STYLE = """
body { padding-top: 3.5rem; }
h1 { letter-spacing: -.01em; }
section { margin-top: 2.6rem; }
section > h2 { margin: 0 0 .7rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
.note { font-size: .88rem; color: var(--soft); max-width: 54rem; margin: .6rem 0 0; }
.wide { border: 1px solid var(--line); border-radius: 8px; }
.wide table { font-size: .92rem; } .wide tbody tr:last-child td { border-bottom: 0; }
.wide tbody tr { background: #fff; } .wide tbody tr:nth-child(even) { background: var(--tint); }
.wide th { background: #fff; min-width: 4rem; }
.wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: inherit;
                                             border-right: 1px solid var(--line); }
.wide th:first-child { background: #fff; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.3rem; list-style: none; margin: 0 0 .8rem; padding: 0;
          font-size: .92rem; }
.legend li { display: flex; align-items: center; gap: .45rem; white-space: nowrap; }
.legend svg, .panels svg { min-width: 0; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.2rem 1.6rem; }
.panels svg { display: block; width: 100%; height: auto; }
.panels.single { max-width: 40rem; }
.panels + .wide { margin-top: 1.2rem; }
@media (max-width: 45rem) {
  body { padding: 1.8rem 1rem 3rem; } h1 { font-size: 1.55rem; } p.lead { font-size: 1.02rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  th, td { padding: .4rem .55rem; } .wide td:first-child { white-space: normal; max-width: 8.5rem;
                                                        overflow-wrap: anywhere; }
}
@media print {
  body { padding: 0; max-width: none; font-size: 11px; }
  .wide { overflow: visible; border: 0; } .wide table { font-size: 9px; } th, td { padding: .2rem .35rem; }
  .panels { grid-template-columns: 1fr 1fr; } section, .panels svg { break-inside: avoid; }
}
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    """A page in the style of reports."""
    return html.page(title, lead, sections, STYLE)


def table_part(table: TextTable) -> str:
    """A table with its notes."""
    return html.table(table.header, table.rows) + "".join(map(note, table.notes))


def curves_part(curves: Sequence[Curves], x: Axis, panels: Sequence[Panel] | None = None) -> str:
    """A legend and the panels of training curves, the task's if none are named, side by side where there is room."""
    start = any(one.start for one in curves)
    entries = [_legend_entry(number, one.label) for number, one in enumerate(curves)]
    if start:
        line = '<line x1="0" x2="30" y1="7" y2="7" stroke="#666666" stroke-width="1.6" stroke-dasharray="2 3"/>'
        entries.append(_entry(line, "MLE start"))
    return f'<ul class="legend">{"".join(entries)}</ul>{figures_part(draw_panels(curves, x, panels), x)}'


def figures_part(drawn: Sequence[Figure], prefix: str) -> str:
    """Figures side by side where there is room, one alone in moderate width; ``prefix`` keeps their ids apart."""
    parts = [figures.svg(figure, f"{prefix}{number}-") for number, figure in enumerate(drawn)]
    return f'<div class="panels{" single" if len(parts) == 1 else ""}">{"".join(parts)}</div>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _legend_entry(number: int, label: str) -> str:
    colour = colour_of(number)
    corners, turn = _SHAPES[figures.MARKERS[number % len(figures.MARKERS)]]
    if corners:
        angles = [math.radians(turn + 360 * i / corners) for i in range(corners)]
        points = " ".join(f"{15 + 5.2 * math.sin(a):.2f},{7 - 5.2 * math.cos(a):.2f}" for a in angles)
        shape = f'<polygon points="{points}" fill="{colour}"/>'
    else:
        shape = f'<circle cx="15" cy="7" r="4.4" fill="{colour}"/>'
    line = f'<line x1="0" x2="30" y1="7" y2="7" stroke="{colour}" stroke-width="2.2"/>'
    return _entry(line + shape, label)


# Corners of each marker, and by how many degrees it is turned from standing on its side.
_SHAPES = {
    "o": (0, 0),
    "s": (4, 45),
    "^": (3, 0),
    "D": (4, 0),
    "v": (3, 180),
    "<": (3, 270),
    "p": (5, 0),
    ">": (3, 90),
    "h": (6, 0),
}


def _entry(drawing: str, label: str) -> str:
    return f'<li><svg width="30" height="14" viewBox="0 0 30 14" aria-hidden="true">{drawing}</svg>{escape(label)}</li>'


def settings_part(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """The settings that all methods share, and a table of those in which they differ."""
    names = list(dict.fromkeys(name for own in settings.values() for name in own))
    shown = {label: {name: _shown(own.get(name)) for name in names} for label, own in settings.items()}
    common = {name: next(iter(shown.values()))[name] for name in names if len({o[name] for o in shown.values()}) == 1}
    others = [name for name in names if name not in common]
    parts = html.facts({name.replace("_", " "): value for name, value in common.items()})
    if others:
        rows = [[name.replace("_", " "), *(own[name] for own in shown.values())] for name in others]
        parts = html.table(["setting", *shown], rows) + parts
    return parts


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)


OF_A_SEED = frozenset({"seed", "run", "update"})


def flat_settings(config: Mapping[str, Any], leave_out: Set[str] = OF_A_SEED) -> dict[str, Any]:
    """A run's settings without their sections, and without what differs from seed to seed."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, leave_out)
        elif name not in leave_out:
            flat[name] = value
    return flat


def write_figures(folder: Path, curves: Sequence[Curves], x: Axis, name: str = "figure") -> None:
    """The figure of training curves."""
    save_figure(folder, name, draw_curves(curves, x))


def save_figure(folder: Path, name: str, figure: Figure) -> None:
    """A figure for print and for the web."""
    save(folder / f"{name}.svg", figures.svg(figure) + "\n")
    path = folder / f"{name}.png"
    try:
        figure.savefig(path, dpi=200)
    except OSError as error:
        raise _cannot_write(path, error) from error


def save(path: Path, content: str | Mapping[str, Any], indent: int | None = 2) -> None:
    """Write text, or a JSON object: the whole file or none."""
    if not isinstance(content, str):
        separators = (",", ":") if indent is None else None
        content = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators) + "\n"
    try:
        replace_file(path, content.encode())
    except OSError as error:
        raise _cannot_write(path, error) from error


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {path}: {error.strerror or error}; choose another folder with --out")
