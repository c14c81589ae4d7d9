"""Random worlds on which all of a program matters.

The distribution of worlds before any is chosen was estimated from the input worlds of genuine records: sides are
uniform, half of the worlds have no walls, two thirds have few markers, and three in five marked cells have one.
"""

from typing import no_type_check

import numba
import numpy as np

from corollout.tasks.karel.grids import BORDER, FIRST_BLOCKED, OUTSIDE, WALL
from corollout.tasks.karel.machine import LOOP, OK, TEST, TICKS, run_code
from corollout.tasks.karel.programs import uniform

SMALLEST, LARGEST = 2, 16
MOST_MARKERS_SHOWN = 10  # as many as the public tensors can tell apart

_WALLED, _FEWEST_WALLS, _MOST_WALLS = 0.5, 0.05, 0.20
_SPARSE, _FEWEST_MARKERS, _SPARSE_MARKERS = 2 / 3, 0.05, 0.15
_ONE_MARKER, _MORE_MARKERS = 0.62, 8

# How many worlds are tried with a program, how many if not one of them will do, and how many heroes in each.
_MOST_WORLDS, _HOPELESS, _HEROES = 500, 100, 4


@no_type_check
@numba.njit(cache=True, nogil=True)
def draw_world(state, largest, side, cells, free):
    """Fill ``cells[side · side]`` with a world, list in ``free`` the cells that are no walls; return their number."""
    rows = SMALLEST + int(uniform(state) * (largest - SMALLEST + 1))
    columns = SMALLEST + int(uniform(state) * (largest - SMALLEST + 1))
    walls, markers = 0.0, _FEWEST_MARKERS + (_SPARSE_MARKERS - _FEWEST_MARKERS) * uniform(state)
    if uniform(state) < _WALLED:
        walls = _FEWEST_WALLS + (_MOST_WALLS - _FEWEST_WALLS) * uniform(state)
    if uniform(state) >= _SPARSE:
        markers = _SPARSE_MARKERS + (1 - _SPARSE_MARKERS) * uniform(state)
    cells[:] = OUTSIDE
    for r in range(rows + 2):
        cells[r * side : r * side + columns + 2] = BORDER
    count = 0
    for r in range(1, rows + 1):
        for c in range(1, columns + 1):
            place, u = r * side + c, uniform(state)
            if u < walls:
                cells[place] = WALL
                continue
            free[count] = place
            count += 1
            # What a decision leaves of a uniform number is uniform again.
            u = (u - walls) / (1 - walls) / markers
            if u >= 1:
                cells[place] = 0
            elif u < _ONE_MARKER:
                cells[place] = 1
            else:
                cells[place] = 2 + int((u - _ONE_MARKER) / (1 - _ONE_MARKER) * _MORE_MARKERS)
    return count


@no_type_check
@numba.njit(cache=True, nogil=True)
def find_examples(state, code, size, largest, side, inputs, in_hero, outputs, out_hero, work):
    """Fill ``inputs[example, side · side]`` and the like with what a compiled program does; return whether it could.

    On every world it ends, changes something and leaves no more than ten markers in a cell. No two worlds are equal.
    On all of them together every test is once true and once false, and every loop goes round.
    """
    counters, cells, free, needed, visited = work
    uncovered = 0
    for at in range(size):
        needed[at, 0] = code[at, 0] == TEST
        needed[at, 1] = code[at, 0] == TEST or (code[at, 0] == LOOP and code[at - 1, 2] > 0)
        uncovered += needed[at, 0] + needed[at, 1]
    found = 0
    for tried in range(_MOST_WORLDS):
        if found == len(in_hero) or (tried == _HOPELESS and found == 0):
            break
        world = inputs[found]
        count = draw_world(state, largest, side, world, free)
        for _ in range(_HEROES if count > 0 else 0):
            start, facing = free[int(uniform(state) * count)], int(uniform(state) * 4)
            cells[:] = world
            visited[:size] = 0
            status, place, direction, _ = run_code(code, size, cells, start, facing, side, TICKS, counters, visited)
            if status != OK or not _usable(world, start, facing, cells, place, direction):
                continue
            new = 0
            for at in range(size):
                new += (visited[at, 0] & needed[at, 0]) + (visited[at, 1] & needed[at, 1])
            # Places are kept for worlds that show what those so far do not.
            if new == 0 and len(in_hero) - found <= uncovered:
                continue
            if _is_among(inputs[:found], in_hero, world, start, facing):
                continue
            for at in range(size):
                needed[at, 0] &= 1 - visited[at, 0]
                needed[at, 1] &= 1 - visited[at, 1]
            uncovered -= new
            outputs[found] = cells
            in_hero[found, 0], in_hero[found, 1] = start, facing
            out_hero[found, 0], out_hero[found, 1] = place, direction
            found += 1
            break
    if found < len(in_hero) or uncovered > 0:
        return False
    _shuffle(state, inputs, in_hero, outputs, out_hero, cells)
    return True


@no_type_check
@numba.njit(cache=True, nogil=True)
def _usable(world, start, facing, cells, place, direction):
    changed, most = place != start or direction != facing, 0
    for c in range(len(cells)):
        changed |= cells[c] != world[c]
        most = max(most, cells[c] if cells[c] < FIRST_BLOCKED else 0)
    return changed and most <= MOST_MARKERS_SHOWN


@no_type_check
@numba.njit(cache=True, nogil=True)
def _is_among(worlds, heroes, world, place, direction):
    for e in range(len(worlds)):
        if heroes[e, 0] == place and heroes[e, 1] == direction and np.array_equal(worlds[e], world):
            return True
    return False


@no_type_check
@numba.njit(cache=True, nogil=True)
def _shuffle(state, inputs, in_hero, outputs, out_hero, spare):
    """Which example is the last, and held out, must not depend on what it shows."""
    for last in range(len(in_hero) - 1, 0, -1):
        other = int(uniform(state) * (last + 1))
        for cells, hero in ((inputs, in_hero), (outputs, out_hero)):
            spare[:] = cells[last]
            cells[last] = cells[other]
            cells[other] = spare
            hero[last, 0], hero[other, 0] = hero[other, 0], hero[last, 0]
            hero[last, 1], hero[other, 1] = hero[other, 1], hero[last, 1]
