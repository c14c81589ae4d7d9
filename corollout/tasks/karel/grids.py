"""Many worlds in two arrays, as the machine runs them and the encoder reads them.

A grid is a square of bytes: cell (r, c) of the world, rows counted from the bottom, is at (r + 1, c + 1), border cells
are around the world, and the rest of the square is outside. A byte is a number of markers, 0 … 101, or one of the codes
below. The hero is an index into the flattened grid and a direction, 0 … 3 for north, east, south, west.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, no_type_check

import numpy as np

from corollout.errors import InputError
from corollout.numba_cache import numba
from corollout.tasks.karel.world import LARGEST, MOST_MARKERS, World

OUTSIDE, BORDER, WALL = 253, 254, 255
FIRST_BLOCKED = OUTSIDE
LARGEST_SIDE = 181  # so that an int16 can hold an index into the grid


@dataclass(frozen=True)
class Grids:
    """Worlds in grids of one side, with any leading dimensions: ``cells[..., side, side]`` and ``hero[..., 2]``."""

    cells: np.ndarray  # uint8
    hero: np.ndarray  # int16: index of its cell, direction

    @property
    def side(self) -> int:
        """The side of the square, border included: 10 for a world of 8 × 8."""
        return self.cells.shape[-1]

    def __getitem__(self, index: Any) -> "Grids":
        return Grids(self.cells[index], self.hero[index])

    def check(self) -> "Grids":
        """Raise an error unless these are worlds with their borders: compiled loops rely on it for every index."""
        if self._problem is not None:
            raise InputError(self._problem)
        return self

    @cached_property
    def _problem(self) -> str | None:
        cells, hero = self.cells, self.hero
        if cells.dtype != np.uint8 or hero.dtype != np.int16:
            return f"the cells of grids must be uint8 and the heroes int16, not {cells.dtype} and {hero.dtype}"
        if cells.ndim < 2 or hero.ndim < 1 or cells.shape != (*hero.shape[:-1], self.side, self.side):
            shapes = f"cells{list(cells.shape)} and hero{list(hero.shape)}"
            return f"expected grids cells[…, side, side] and hero[…, 2], not {shapes}"
        if hero.shape[-1] != 2 or not 3 <= self.side <= LARGEST_SIDE:
            sizes = f"a side of 3 to {LARGEST_SIDE} and heroes of 2 numbers"
            return f"grids have {sizes}, not a side of {self.side} and heroes of {hero.shape[-1]}"
        flat = np.ascontiguousarray(cells).reshape(-1, self.side, self.side)
        wrong = _first_invalid(flat, np.ascontiguousarray(hero).reshape(-1, 2))
        if wrong >= 0:
            index = np.unravel_index(wrong, hero.shape[:-1]) if hero.ndim > 1 else ()
            return f"grid {list(map(int, index))} is not a world with its border and its hero: make it with pack"
        return None


def pack(worlds: Sequence[World], side: int) -> Grids:
    """Worlds as ``cells[world, side, side]`` and ``hero[world, 2]``."""
    if not 3 <= side <= LARGEST_SIDE:
        raise InputError(f"a grid's side must be from 3 to {LARGEST_SIDE}, not {side}")
    cells = np.full((len(worlds), side, side), OUTSIDE, np.uint8)
    hero = np.zeros((len(worlds), 2), np.int16)
    for number, world in enumerate(worlds):
        if max(world.rows, world.cols) > side - 2:
            raise InputError(
                f"world {number} has {world.rows} rows and {world.cols} columns; a grid of side {side}, border "
                f"included, holds at most {side - 2}"
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


@no_type_check
@numba.njit(cache=True, nogil=True)
def _first_invalid(cells, heroes):
    """The first of ``cells[grid, side, side]`` that is not a world or whose hero is not in it, or −1."""
    side = cells.shape[1]
    for g in range(len(cells)):
        height, width = 0, 0  # with the border
        while height < side and cells[g, height, 0] == BORDER:
            height += 1
        while width < side and cells[g, 0, width] == BORDER:
            width += 1
        if not (3 <= height <= LARGEST + 2 and 3 <= width <= LARGEST + 2):
            return g
        for r in range(side):
            for c in range(side):
                value = cells[g, r, c]
                if r >= height or c >= width:
                    valid = value == OUTSIDE
                elif r == 0 or c == 0 or r == height - 1 or c == width - 1:
                    valid = value == BORDER
                else:
                    valid = value <= MOST_MARKERS or value == WALL
                if not valid:
                    return g
        cell, direction = np.int64(heroes[g, 0]), np.int64(heroes[g, 1])
        if not (0 <= cell < side * side and 0 <= direction < 4):
            return g
        if cells[g, cell // side, cell % side] > MOST_MARKERS:
            return g
    return -1


def unpack(grids: Grids) -> World:
    """One world from ``cells[side, side]`` and ``hero[2]``; the inverse of :func:`pack`."""
    if grids.cells.ndim != 2 or grids.cells.shape[0] != grids.side or grids.hero.shape != (2,):
        raise InputError(
            f"expected one world, cells[side, side] and hero[2], not cells{list(grids.cells.shape)} and "
            f"hero{list(grids.hero.shape)}; select one by its index"
        )
    rows, cols = (int((line == BORDER).sum()) - 2 for line in (grids.cells[:, 0], grids.cells[0]))
    cell, direction = grids.hero.tolist()
    inner = grids.cells[1 : max(rows, 0) + 1, 1 : max(cols, 0) + 1]
    walls = frozenset((row, col) for row, col in np.argwhere(inner == WALL).tolist())
    marked = np.argwhere((inner > 0) & (inner < FIRST_BLOCKED)).tolist()
    markers = tuple(((row, col), int(inner[row, col])) for row, col in marked)
    world = World(rows, cols, (cell // grids.side - 1, cell % grids.side - 1, direction), walls, markers)
    if not np.array_equal(pack([world], grids.side).cells[0], grids.cells):
        raise InputError("the cells are not a world with its border: make them with pack")
    return world


def needed_side(grids: Grids) -> int:
    """The side of a grid, border included, that holds the largest of these worlds."""
    first_lines = (grids.cells[..., :, 0], grids.cells[..., 0, :])
    return max(int((line == BORDER).sum(-1).max(initial=0)) for line in first_lines)


def resized(grids: Grids, side: int) -> Grids:
    """The same worlds in grids of another side."""
    old, needed = grids.side, needed_side(grids)
    if not needed <= side <= LARGEST_SIDE:
        raise InputError(
            f"the largest world has {needed - 2} rows or columns: the grids need a side of {needed} to "
            f"{LARGEST_SIDE}, not {side}"
        )
    if side == old:
        return grids
    cells = np.full((*grids.hero.shape[:-1], side, side), OUTSIDE, np.uint8)
    kept = min(side, old)
    cells[..., :kept, :kept] = grids.cells[..., :kept, :kept]
    hero = np.array(grids.hero)
    hero[..., 0] = hero[..., 0] // old * side + hero[..., 0] % old
    return Grids(cells, hero)


def stacked(parts: Sequence[Grids]) -> Grids:
    """Grids of any sides in one array, with a new first dimension."""
    side = max(part.side for part in parts)
    fitting = [resized(part, side) if part.side < side else part for part in parts]
    return Grids(np.stack([part.cells for part in fitting]), np.stack([part.hero for part in fitting]))
