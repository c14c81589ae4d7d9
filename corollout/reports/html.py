"""Self-contained HTML pages: nothing loaded from elsewhere, and no scripts but ours."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from corollout.reports.script import SCRIPT, digest
from corollout.text import visible

# Enforces what the first line says, whatever a report that somebody else wrote may hold.
_POLICY = (
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
_STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --tint: #f6f8fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 3.5rem 1.25rem 4rem; color: var(--ink); background: #fff;
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em; margin: 0 0 .5rem; }
section { margin-top: 2.6rem; }
h2 { font-size: 1.2rem; margin: 0 0 .7rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
p { max-width: 46rem; }
p.lead { font-size: 1.1rem; color: var(--soft); margin: 0 0 1.5rem; }
.note { font-size: .88rem; color: var(--soft); max-width: 54rem; margin: .6rem 0 0; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .45rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; min-width: 4rem; font-weight: 600; color: var(--soft); border-bottom-width: 2px;
     vertical-align: bottom; background: #fff; }
th:first-child, td:first-child { text-align: left; font-weight: 600; position: sticky; left: 0; background: inherit;
                                 border-right: 1px solid var(--line); }
th:first-child { background: #fff; }
tbody tr { background: #fff; } tbody tr:nth-child(even) { background: var(--tint); }
tbody tr:last-child td { border-bottom: 0; }
svg { max-width: 100%; height: auto; min-width: 44rem; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.3rem; list-style: none; margin: 0 0 .8rem; padding: 0;
          font-size: .92rem; }
.legend li { display: flex; align-items: center; gap: .45rem; white-space: nowrap; }
.legend svg, .panels svg { min-width: 0; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.2rem 1.6rem; }
.panels svg { display: block; width: 100%; }
figure { margin: 0; min-width: 0; }
figure.large { grid-column: 1 / -1; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 0 1rem;
             font-weight: 600; font-size: .95rem; margin-bottom: .2rem; }
.area { position: relative; border-radius: 4px; touch-action: pan-y; }
:focus-visible { outline: 2px solid #0072B2; outline-offset: 2px; }
.area .cursor { position: absolute; width: 1px; background: #57606a; pointer-events: none; }
.area .tip { position: absolute; top: 6%; max-width: 60%; padding: .35rem .6rem; border-radius: 6px;
             background: rgb(255 255 255 / .96); border: 1px solid var(--line); font-size: .8rem; line-height: 1.45;
             box-shadow: 0 2px 8px rgb(27 31 36 / .12); font-variant-numeric: tabular-nums; pointer-events: none;
             z-index: 2; }
.area .cursor[hidden], .area .tip[hidden] { display: none; }
.tip b, .tip span { display: block; overflow-wrap: anywhere; }
.tip span i { display: inline-block; width: .6rem; height: .6rem; border-radius: 50%; margin-right: .4rem; }
button.zoom { font: inherit; font-weight: 400; font-size: .8rem; color: var(--soft); background: none; cursor: pointer;
              border: 1px solid var(--line); border-radius: 6px; padding: .1rem .6rem; min-height: 1.7rem; }
button.zoom:hover { color: var(--ink); background: var(--tint); }
details > summary { cursor: pointer; color: var(--soft); font-size: .88rem; padding: .2rem 0; }
figure details table { font-size: .82rem; } figure details th, figure details td { padding: .25rem .6rem; }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .5rem; }
.panels.single { max-width: 40rem; }
.panels + .wide { margin-top: 1.2rem; }
pre { background: var(--tint); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; font-size: .85rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem 1.6rem; }
.tile { font-size: .85rem; color: var(--soft); }
.tile b { display: block; font-size: 1.35rem; line-height: 1.3; color: var(--ink); font-variant-numeric: tabular-nums; }
@media (max-width: 45rem) {
  button.zoom { display: none; }
  body { padding: 1.8rem 1rem 3rem; } h1 { font-size: 1.55rem; } p.lead { font-size: 1.02rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  th, td { padding: .4rem .55rem; } td:first-child { white-space: normal; max-width: 8.5rem; overflow-wrap: anywhere; }
}
@media print {
  body { padding: 0; max-width: none; font-size: 11px; }
  .wide { overflow: visible; border: 0; } table { font-size: 9px; } th, td { padding: .2rem .35rem; }
  .panels { grid-template-columns: 1fr 1fr; } section, .panels svg { break-inside: avoid; }
}
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], style: str = "", script: str = "") -> str:
    """A page of titled sections, whose bodies are HTML; ``style`` and ``script`` are added to those of all pages."""
    scripts = [one for one in (SCRIPT, script) if one]
    policy = _POLICY.format(" ".join(map(digest, scripts)))
    body = "\n".join(f"<section><h2>{escape(heading)}</h2>\n{content}</section>" for heading, content in sections)
    return visible(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{body}\n'
        f"{''.join(f'<script>{one}</script>' for one in scripts)}\n</body>\n</html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways where the screen is narrow."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>'
    )


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def facts(entries: Mapping[str, Any]) -> str:
    """Names and values, nested ones joined by commas."""
    lines = []
    for name, value in entries.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
        lines.append(f"<dt>{escape(name)}</dt><dd>{escape(shown)}</dd>")
    return f"<dl>{''.join(lines)}</dl>"


def tiles(entries: Mapping[str, str]) -> str:
    """A few numbers in large type, each above its name."""
    cells = (f'<div class="tile"><b>{escape(value)}</b>{escape(name)}</div>' for name, value in entries.items())
    return f'<div class="tiles">{"".join(cells)}</div>'


def plot(
    title: str, drawing: str, data: Mapping[str, Any], header: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """A drawing of curves under its title, with the data for the script and a table of some values."""
    attribute = escape(json.dumps(data, separators=(",", ":")))
    return (
        f'<figure class="plot" data-plot="{attribute}"><figcaption><span>{escape(title)}</span></figcaption>'
        f'<div class="area">{drawing}</div>'
        f"<details><summary>Values</summary>{table(header, rows)}</details></figure>"
    )


def panels(drawings: Sequence[str]) -> str:
    """Drawings side by side where there is room; a single one at moderate width."""
    return f'<div class="panels{" single" if len(drawings) == 1 else ""}">{"".join(drawings)}</div>'


# Corners of each marker, and by how many degrees the first one is turned from the top.
_SHAPES = {"s": (4, 45), "^": (3, 0), "D": (4, 0), "v": (3, 180), "<": (3, 270), "p": (5, 0), ">": (3, 90), "h": (6, 0)}


def legend(series: Sequence[tuple[str, str, str]], dotted: str = "") -> str:
    """A legend of (label, colour, matplotlib marker), and of a dotted grey line if it has a label."""
    line = '<line x1="0" x2="30" y1="7" y2="7" stroke="{}" stroke-width="2"{}/>'
    entries = [(label, line.format(colour, "") + _marker(marker, colour)) for label, colour, marker in series]
    entries += [(dotted, line.format("#666666", ' stroke-dasharray="2 3"'))] if dotted else []
    svg = '<svg width="30" height="14" viewBox="0 0 30 14" aria-hidden="true">'
    items = (f"<li>{svg}{drawing}</svg>{escape(label)}</li>" for label, drawing in entries)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _marker(marker: str, colour: str) -> str:
    if marker not in _SHAPES:
        return f'<circle cx="15" cy="7" r="4.4" fill="{colour}"/>'
    corners, turn = _SHAPES[marker]
    angles = [math.radians(turn + 360 * i / corners) for i in range(corners)]
    points = " ".join(f"{15 + 5.2 * math.sin(a):.2f},{7 - 5.2 * math.cos(a):.2f}" for a in angles)
    return f'<polygon points="{points}" fill="{colour}"/>'
