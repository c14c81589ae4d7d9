"""Karel worlds as drawings in a page."""

from html import escape

from corollout.tasks.karel.world import DIRECTIONS, World

_CELL = 20
_TURNS = (0, 90, 180, 270)  # of an arrow that points north, by direction


def world_svg(world: World, title: str) -> str:
    """A world as an SVG element: walls dark, markers as discs with their number, the hero an arrow."""
    width, height = world.cols * _CELL, world.rows * _CELL
    lines = [f"M0 {y}H{width}" for y in range(_CELL, height, _CELL)]
    lines += [f"M{x} 0V{height}" for x in range(_CELL, width, _CELL)]
    parts = [f'<path class="lines" d="{"".join(lines)}"/>']
    for cell in sorted(world.walls):
        x, y = _corner(world, cell)
        parts.append(f'<rect class="wall" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}"/>')
    row, col, direction = world.hero
    middle = _CELL / 2
    for cell, count in world.markers:
        x, y = _corner(world, cell)
        if cell == (row, col):  # room for the hero
            parts.append(f'<rect class="marker" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}"/>')
            parts.append(f'<text class="under" x="{x + _CELL - 1.5:g}" y="{y + _CELL - 1.5:g}">{count}</text>')
        else:
            parts.append(f'<circle class="marker" cx="{x + middle:g}" cy="{y + middle:g}" r="8"/>')
            parts.append(f'<text x="{x + middle:g}" y="{y + middle + 3.6:g}">{count}</text>')
    x, y = _corner(world, (row, col))
    arrow = f"translate({x + middle:g} {y + middle:g}) rotate({_TURNS[direction]})"
    parts.append(f'<path class="hero" transform="{arrow}" d="M0-7L5.5 6L0 3L-5.5 6Z"/>')
    label = f"{title}: hero at {row}:{col} facing {DIRECTIONS[direction]}"
    return (
        f'<svg class="world" role="img" aria-label="{escape(label)}" viewBox="-1 -1 {width + 2} {height + 2}" '
        f'width="{width + 2}" height="{height + 2}">'
        f'<rect class="floor" width="{width}" height="{height}"/>{"".join(parts)}</svg>'
    )


def _corner(world: World, cell: tuple[int, int]) -> tuple[int, int]:
    """The upper left corner of a cell; rows are counted from the bottom."""
    return cell[1] * _CELL, (world.rows - 1 - cell[0]) * _CELL


STYLE = """
svg.world { min-width: 0; display: block; }
.world .floor { fill: #fff; stroke: #57606a; stroke-width: 1.5; }
.world .lines { stroke: #e6eaee; fill: none; }
.world .wall { fill: #57606a; }
.world .marker { fill: #f5c542; }
.world .hero { fill: #0072B2; stroke: #fff; stroke-width: 1; }
.world text { font: 600 10px system-ui, sans-serif; text-anchor: middle; fill: #4d3800; }
.world text.under { font-size: 8px; text-anchor: end; }
"""
