"""Random worlds that exercise every part of a program.

The distribution from which worlds are proposed was estimated from the input worlds of genuine records: sides are
uniform, half of the worlds have no walls, two thirds have few markers, and three in five marked cells have one marker.
"""

from typing import no_type_check

import numpy as np

from corollout.numba_cache import numba
from corollout.tasks.karel.grids import BORDER, FIRST_BLOCKED, OUTSIDE, WALL
from corollout.tasks.karel.machine import LOOP, OK, TEST, TICKS, run_code
from corollout.tasks.karel.programs import uniform

SMALLEST, LARGEST = 2, 16
MOST_MARKERS_SHOWN = 10  # the most that the public tensors can represent

_WALLED, _FEWEST_WALLS, _MOST_WALLS = 0.5, 0.05, 0.20
_SPARSE, _FEWEST_MARKERS, _SPARSE_MARKERS = 2 / 3, 0.05, 0.15
_ONE_MARKER, _MORE_MARKERS = 0.62, 8

# The number of worlds tried for a program, of worlds if none of them is usable, and of heroes in each.
_MOST_WORLDS, _HOPELESS, _HEROES = 500, 100, 4


@no_type_check
@numba.njit(cache=True, nogil=True)
def draw_world(state, largest, side, cells, free):
    """Fill ``cells[side · side]`` with a world and ``free`` with its cells that are not walls; return their number."""
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
            cell, u = r * side + c, uniform(state)
            if u < walls:
                cells[cell] = WALL
                continue
            free[count] = cell
            count += 1
            # After a decision, the rest of a uniform number is uniform again.
            u = (u - walls) / (1 - walls) / markers
            if u >= 1:
                cells[cell] = 0
            elif u < _ONE_MARKER:
                cells[cell] = 1
            else:
                cells[cell] = 2 + int((u - _ONE_MARKER) / (1 - _ONE_MARKER) * _MORE_MARKERS)
    return count


@no_type_check
@numba.njit(cache=True, nogil=True)
def find_examples(state, code, size, largest, side, inputs, in_hero, outputs, out_hero, work):
    """Fill ``inputs[example, side · side]`` etc. with worlds for a compiled program; return whether it succeeded.

    In every world the program ends, changes something and leaves at most ten markers on a cell. All worlds are
    different. Over all of them, every test is both true and false, and every loop iterates.
    """
    counters, cells, free, needed, visited = work
    uncovered = 0
    for at in range(size):
        needed[at, 0] = code[at, 0] == TEST
        needed[at, 1] = code[at, 0] == TEST or (code[at, 0] == LOOP and code[at - 1, 2] > 0)
        uncovered += needed[at, 0] + needed[at, 1]
    made = 0
    for tried in range(_MOST_WORLDS):
        if made == len(in_hero) or (tried == _HOPELESS and made == 0):
            break
        world = inputs[made]
        count = draw_world(state, largest, side, world, free)
        for _ in range(_HEROES if count > 0 else 0):
            start, facing = free[int(uniform(state) * count)], int(uniform(state) * 4)
            cells[:] = world
            visited[:size] = 0
            status, end, direction, _ = run_code(code, size, cells, start, facing, side, TICKS, counters, visited)
            if status != OK or not _usable(world, start, facing, cells, end, direction):
                continue
            new = 0
            for at in range(size):
                new += (visited[at, 0] & needed[at, 0]) + (visited[at, 1] & needed[at, 1])
            # Reserve the remaining examples for worlds that cover something new.
            if new == 0 and len(in_hero) - made <= uncovered:
                continue
            if _is_among(inputs[:made], in_hero, world, start, facing):
                continue
            for at in range(size):
                needed[at, 0] &= 1 - visited[at, 0]
                needed[at, 1] &= 1 - visited[at, 1]
            uncovered -= new
            outputs[made] = cells
            in_hero[made, 0], in_hero[made, 1] = start, facing
            out_hero[made, 0], out_hero[made, 1] = end, direction
            made += 1
            break
    if made < len(in_hero) or uncovered > 0:
        return False
    _shuffle(state, inputs, in_hero, outputs, out_hero, cells)
    return True


@no_type_check
@numba.njit(cache=True, nogil=True)
def _usable(world, start, facing, cells, end, direction):
    changed, most = end != start or direction != facing, 0
    for c in range(len(cells)):
        changed |= cells[c] != world[c]
        most = max(most, cells[c] if cells[c] < FIRST_BLOCKED else 0)
    return changed and most <= MOST_MARKERS_SHOWN


@no_type_check
@numba.njit(cache=True, nogil=True)
def _is_among(worlds, heroes, world, start, direction):
    for e in range(len(worlds)):
        if heroes[e, 0] == start and heroes[e, 1] == direction and np.array_equal(worlds[e], world):
            return True
    return False


@no_type_check
@numba.njit(cache=True, nogil=True)
def _shuffle(state, inputs, in_hero, outputs, out_hero, spare):
    """Shuffle, so that the example held out, the last, is a random one."""
    for last in range(len(in_hero) - 1, 0, -1):
        other = int(uniform(state) * (last + 1))
        for cells, hero in ((inputs, in_hero), (outputs, out_hero)):
            spare[:] = cells[last]
            cells[last] = cells[other]
            cells[other] = spare
            hero[last, 0], hero[other, 0] = hero[other, 0], hero[last, 0]
            hero[last, 1], hero[other, 1] = hero[other, 1], hero[last, 1]
