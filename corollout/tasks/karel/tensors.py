"""The public sparse tensors, read from text into grids and back by compiled loops.

``World.from_tensor`` and ``World.to_tensor`` do the same one world at a time, and say what is wrong with one.
"""

from typing import no_type_check

import numba
import numpy as np

from corollout.tasks.karel.grids import BORDER, FIRST_BLOCKED, OUTSIDE, WALL
from corollout.tasks.karel.world import CHANNELS, TENSOR_SIDE

_PLANE = TENSOR_SIDE * TENSOR_SIDE
_WALLS, _BORDERS, _MARKERS = 4, 5, 6
_NAMES = [f"{index}:1.0" for index in range(CHANNELS * _PLANE)]


def tensor_to_grid(text: str, cells: np.ndarray, hero: np.ndarray) -> bool:
    """Read a tensor into ``cells[18, 18]`` and ``hero[2]``; return False if it is not in the usual form."""
    try:
        data = np.frombuffer(text.encode("ascii"), np.uint8)
    except UnicodeEncodeError:
        return False
    return bool(_read(data, cells.reshape(-1), hero))


def grid_to_tensor(cells: np.ndarray, hero: np.ndarray) -> str | None:
    """The tensor of ``cells[side, side]`` and ``hero[2]``, or None if a tensor cannot say it."""
    filled = np.zeros(CHANNELS * _PLANE, np.bool_)
    if not _fill(np.ascontiguousarray(cells), int(hero[0]), int(hero[1]), filled):
        return None
    return " ".join([_NAMES[index] for index in filled.nonzero()[0].tolist()])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _read(text, cells, hero):
    """Items must be "digits:1.0", parted by one blank."""
    cells[:] = OUTSIDE
    heroes, at = 0, 0
    rows, columns, borders = 0, 0, 0
    # The border first tells the inside from the outside; everything else is then put inside it.
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
            channel, place = index // _PLANE, index % _PLANE
            if first_pass:
                if channel == _BORDERS:
                    if cells[place] == BORDER:
                        return False
                    cells[place] = BORDER
                    borders += 1
                    rows, columns = max(rows, place // TENSOR_SIDE - 1), max(columns, place % TENSOR_SIDE - 1)
            elif channel < _WALLS:
                heroes += 1
                hero[0], hero[1] = place, channel
            elif channel != _BORDERS:
                if cells[place] != 0:
                    return False
                cells[place] = WALL if channel == _WALLS else channel - _MARKERS + 1
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
def _fill(cells, place, direction, filled):
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
    filled[direction * _PLANE + place // side * TENSOR_SIDE + place % side] = True
    return cells[3, 0] == BORDER and cells[0, 3] == BORDER
