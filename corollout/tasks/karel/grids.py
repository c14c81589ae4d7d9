"""Many worlds in two arrays: the form in which the machine runs them and the encoder reads them.

A grid is a square of bytes with the world's frame in it: cell (r, c) of the world, rows counted from the bottom, stands
at (r + 1, c + 1), the frame of border cells around it, and whatever is left of the square is outside. A byte is a
number of markers, 0 … 101, or one of the codes below. The hero is its place in the flattened grid and its direction,
0 … 3 for north, east, south, west.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corollout.errors import InputError
from corollout.tasks.karel.world import DIRECTIONS as DIRECTIONS
from corollout.tasks.karel.world import MOST_MARKERS as MOST_MARKERS
from corollout.tasks.karel.world import World

OUTSIDE, BORDER, WALL = 253, 254, 255
FIRST_BLOCKED = OUTSIDE
LARGEST_SIDE = 181  # whose places an int16 can count


@dataclass(frozen=True)
class Grids:
    """Worlds of equal side, in any arrangement: ``cells[..., side, side]`` and ``hero[..., 2]``."""

    cells: np.ndarray  # uint8
    hero: np.ndarray  # int16: place, direction

    @property
    def side(self) -> int:
        """The square's side, frame included: a world of 8 × 8 needs 10."""
        return self.cells.shape[-1]

    def __getitem__(self, index: Any) -> "Grids":
        return Grids(self.cells[index], self.hero[index])


def pack(worlds: Sequence[World], side: int) -> Grids:
    """Worlds as ``cells[world, side, side]`` and ``hero[world, 2]``."""
    if not 3 <= side <= LARGEST_SIDE:
        raise InputError(f"a grid's side must be from 3 to {LARGEST_SIDE}, not {side}")
    cells = np.full((len(worlds), side, side), OUTSIDE, np.uint8)
    hero = np.zeros((len(worlds), 2), np.int16)
    for number, world in enumerate(worlds):
        if max(world.rows, world.cols) > side - 2:
            raise InputError(
                f"world {number} has {world.rows} rows and {world.cols} columns; a grid of side {side}, of which "
                f"the border takes two, holds at most {side - 2}"
            )
        cells[number, : world.rows + 2, : world.cols + 2] = BORDER
        cells[number, 1 : world.rows + 1, 1 : world.cols + 1] = 0
        for row, col in world.walls:
            cells[number, row + 1, col + 1] = WALL
        for (row, col), count in world.markers:
            cells[number, row + 1, col + 1] = count
        row, col, direction = world.hero
        hero[number] = (row + 1) * side + col + 1, direction
    return Grids(cells, hero)


def unpack(grids: Grids) -> World:
    """One world, ``cells[side, side]`` and ``hero[2]``, as it was packed."""
    if grids.cells.ndim != 2 or grids.cells.shape[0] != grids.side or grids.hero.shape != (2,):
        raise InputError(
            f"expected one world, cells[side, side] and hero[2], not cells{list(grids.cells.shape)} and "
            f"hero{list(grids.hero.shape)}; choose one by its index"
        )
    rows, cols = (int((line == BORDER).sum()) - 2 for line in (grids.cells[:, 0], grids.cells[0]))
    place, direction = grids.hero.tolist()
    inner = grids.cells[1 : max(rows, 0) + 1, 1 : max(cols, 0) + 1]
    walls = frozenset((row, col) for row, col in np.argwhere(inner == WALL).tolist())
    marked = np.argwhere((inner > 0) & (inner < FIRST_BLOCKED)).tolist()
    markers = tuple(((row, col), int(inner[row, col])) for row, col in marked)
    world = World(rows, cols, (place // grids.side - 1, place % grids.side - 1, direction), walls, markers)
    if not np.array_equal(pack([world], grids.side).cells[0], grids.cells):
        raise InputError("the cells are not those of a world with its border; make them with pack")
    return world
