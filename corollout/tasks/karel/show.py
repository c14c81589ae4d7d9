"""Karel worlds and programs in colour, for the terminal and for pages."""

import re
from html import escape

from rich.columns import Columns
from rich.console import Group
from rich.text import Text

from corollout.tasks.karel import Program, World, pretty
from corollout.tasks.karel.language import token_kind
from corollout.tasks.karel.world import DIRECTIONS

HERO, MARKERS, WALL, EMPTY, BORDER = "bold bright_cyan", "yellow", "grey50", "grey30", "grey50"
TOKEN_STYLES = {"action": "green", "test": "cyan", "keyword": "bold magenta", "bracket": "grey50"}
_CELL = 20  # side of a cell on a page
CSS = """
svg.world { min-width: 0; display: block; }
.world .floor { fill: #fff; stroke: #57606a; stroke-width: 1.5; }
.world .lines { stroke: #e6eaee; fill: none; }
.world .wall { fill: #57606a; }
.world .marker { fill: #f5c542; }
.world .hero { fill: #0072B2; stroke: #fff; stroke-width: 1; }
.world text { font: 600 10px system-ui, sans-serif; text-anchor: middle; fill: #4d3800; }
.world text.under { font-size: 8px; text-anchor: end; }
.examples { display: flex; flex-wrap: wrap; gap: 1rem 2.2rem; }
.example figcaption { font-size: .85rem; color: var(--soft); margin-bottom: .3rem; }
.example { margin: 0; }
.example div { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem; color: var(--soft); }
.example.held figcaption { color: var(--ink); font-weight: 600; }
code { font: .86em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.action { color: #116329; } .test { color: #0550ae; } .keyword { color: #8250df; font-weight: 600; }
.bracket { color: #8c959f; }
"""


def world_text(world: World) -> Text:
    """``World.draw`` in colour."""
    hero = (world.rows - 1 - world.hero[0], world.hero[1])
    counts = {(world.rows - 1 - row, col) for (row, col), _ in world.markers}
    walls = {(world.rows - 1 - row, col) for row, col in world.walls}
    first, *lines, last = world.draw().splitlines()
    text = Text(no_wrap=True, overflow="crop")
    text.append(f"{first}\n", BORDER)
    for row, (line, labels) in enumerate(zip(lines, world.labels(), strict=True)):
        text.append(line[0], BORDER)
        for col, label in enumerate(labels):
            cell = (row, col)
            if cell == hero and cell in counts:
                text.append(label[0], HERO).append(label[1:], MARKERS)
            elif cell == hero:
                text.append(label, HERO)
            else:
                text.append(label, WALL if cell in walls else MARKERS if cell in counts else EMPTY)
        text.append(f"{line[-2:]}\n", BORDER)
    return text.append(last, BORDER)


def titled(world: World, title: str) -> Group:
    """A world below its title."""
    drawing = world_text(world)
    return Group(Text(title.center(drawing.plain.index("\n")), "bold"), drawing)


def before_after(before: World, after: World) -> Columns:
    """Two worlds side by side, or below each other on a narrow terminal."""
    return Columns([titled(before, "before"), titled(after, "after")], padding=(0, 4))


def program_text(program: Program) -> Text:
    """A program, indented and in colour."""
    text = Text()
    for part in re.split(r"(\s+)", pretty(program)):
        text.append(part, "" if not part.strip() else TOKEN_STYLES[token_kind(part)])
    return text


def world_svg(world: World, title: str) -> str:
    """A world as an SVG element: dark walls, markers as discs with their number, the hero as an arrow."""
    width, height = world.cols * _CELL, world.rows * _CELL
    lines = [f"M0 {y}H{width}" for y in range(_CELL, height, _CELL)]
    lines += [f"M{x} 0V{height}" for x in range(_CELL, width, _CELL)]
    parts = [f'<path class="lines" d="{"".join(lines)}"/>']

    def corner(cell: tuple[int, int]) -> tuple[int, int]:
        """The upper left corner of a cell; rows are counted from the bottom."""
        return cell[1] * _CELL, (world.rows - 1 - cell[0]) * _CELL

    def square(kind: str, x: int, y: int) -> str:
        return f'<rect class="{kind}" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}"/>'

    parts += [square("wall", *corner(cell)) for cell in sorted(world.walls)]
    row, col, direction = world.hero
    middle = _CELL / 2
    for cell, count in world.markers:
        x, y = corner(cell)
        if cell == (row, col):  # room for the hero
            parts.append(square("marker", x, y))
            parts.append(f'<text class="under" x="{x + _CELL - 1.5:g}" y="{y + _CELL - 1.5:g}">{count}</text>')
        else:
            parts.append(f'<circle class="marker" cx="{x + middle:g}" cy="{y + middle:g}" r="8"/>')
            parts.append(f'<text x="{x + middle:g}" y="{y + middle + 3.6:g}">{count}</text>')
    x, y = corner((row, col))
    arrow = f"translate({x + middle:g} {y + middle:g}) rotate({90 * direction})"
    parts.append(f'<path class="hero" transform="{arrow}" d="M0-7L5.5 6L0 3L-5.5 6Z"/>')
    label = f"{title}: hero at {row}:{col} facing {DIRECTIONS[direction]}"
    return (
        f'<svg class="world" role="img" aria-label="{escape(label)}" viewBox="-1 -1 {width + 2} {height + 2}" '
        f'width="{width + 2}" height="{height + 2}">'
        f'<rect class="floor" width="{width}" height="{height}"/>{"".join(parts)}</svg>'
    )
