"""The public sparse tensors, converted from text to grids and back by compiled loops.

``World.from_tensor`` and ``World.to_tensor`` do the same slowly, and explain errors.
"""

from typing import no_type_check

import numpy as np

from corollout.numba_cache import numba
from corollout.tasks.karel.grids import BORDER, FIRST_BLOCKED, OUTSIDE, WALL, Grids
from corollout.tasks.karel.world import CHANNELS, TENSOR_SIDE

_PLANE = TENSOR_SIDE * TENSOR_SIDE
_WALLS, _BORDERS, _MARKERS = 4, 5, 6
_NAMES = [f"{index}:1.0" for index in range(CHANNELS * _PLANE)]


def tensor_to_grid(text: str) -> Grids | None:
    """The world of a tensor as ``cells[18, 18]`` and ``hero[2]``, or None if it is not in the canonical form."""
    cells, hero = np.empty((TENSOR_SIDE, TENSOR_SIDE), np.uint8), np.zeros(2, np.int16)
    data = np.frombuffer(text.encode(errors="replace"), np.uint8)
    return Grids(cells, hero) if _read(data, cells.reshape(-1), hero) else None


def grid_to_tensor(world: Grids) -> str | None:
    """The tensor of ``cells[side, side]`` and ``hero[2]``, or None if a tensor cannot represent it."""
    filled, (cell, direction) = np.zeros(CHANNELS * _PLANE, np.bool_), world.hero.tolist()
    if not _fill(np.ascontiguousarray(world.cells), cell, direction, filled):
        return None
    return " ".join([_NAMES[index] for index in filled.nonzero()[0].tolist()])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _read(text, cells, hero):
    """Items must be "digits:1.0", separated by one blank."""
    cells[:] = OUTSIDE
    heroes, at = 0, 0
    rows, columns, borders = 0, 0, 0
    # The first pass reads the border, which separates inside from outside; the second reads everything else.
    for first_pass in (True, False):
        at = 0
        while at < len(text):
            index, digits = 0, 0
            while at < len(text) and 48 <= text[at] <= 57 and digits < 5:
                index = index * 10 + text[at] - 48
                at += 1
                digits += 1
            if digits == 0 or index >= CHANNELS * _PLANE or at + 4 > len(text):
                return False
            if text[at] != 58 or text[at + 1] != 49 or text[at + 2] != 46 or text[at + 3] != 48:
                return False
            at += 4
            if at < len(text):
                if text[at] != 32 or at + 1 == len(text):
                    return False
                at += 1
            channel, cell = index // _PLANE, index % _PLANE
            if first_pass:
                if channel == _BORDERS:
                    if cells[cell] == BORDER:
                        return False
                    cells[cell] = BORDER
                    borders += 1
                    rows, columns = max(rows, cell // TENSOR_SIDE - 1), max(columns, cell % TENSOR_SIDE - 1)
            elif channel < _WALLS:
                heroes += 1
                hero[0], hero[1] = cell, channel
            elif channel != _BORDERS:
                if cells[cell] != 0:
                    return False
                cells[cell] = WALL if channel == _WALLS else channel - _MARKERS + 1
        if first_pass:
            if min(rows, columns) < 2 or borders != 2 * (rows + columns) + 4:
                return False
            for r in range(rows + 2):
                for c in range(columns + 2):
                    frame = r == 0 or c == 0 or r == rows + 1 or c == columns + 1
                    if frame and cells[r * TENSOR_SIDE + c] != BORDER:
                        return False
                    if not frame:
                        cells[r * TENSOR_SIDE + c] = 0
    return heroes == 1 and cells[hero[0]] < FIRST_BLOCKED


@no_type_check
@numba.njit(cache=True, nogil=True)
def _fill(cells, cell, direction, filled):
    side = cells.shape[0]
    for r in range(side):
        for c in range(side):
            value = cells[r, c]
            if value == OUTSIDE or value == 0:
                continue
            if r >= TENSOR_SIDE or c >= TENSOR_SIDE:
                return False
            if value == WALL:
                channel = _WALLS
            elif value == BORDER:
                channel = _BORDERS
            elif value <= CHANNELS - _MARKERS:
                channel = _MARKERS + value - 1
            else:
                return False
            filled[channel * _PLANE + r * TENSOR_SIDE + c] = True
    filled[direction * _PLANE + cell // side * TENSOR_SIDE + cell % side] = True
    return cells[3, 0] == BORDER and cells[0, 3] == BORDER
