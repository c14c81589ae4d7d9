"""The actions that a program carries out in a world, found with the compiled machine."""

from typing import no_type_check

import numba
import numpy as np

from corollout.tasks.karel.grids import Grids
from corollout.tasks.karel.language import ACTIONS
from corollout.tasks.karel.machine import TICKS, compile_program, run_code

_MOVE, _LEFT, _RIGHT, _PICK, _PUT = range(len(ACTIONS))


def carried_out(program: np.ndarray, world: Grids) -> list[str]:
    """The actions of a sound program in one world, ``cells[side, side]`` and ``hero[2]``."""
    found = np.zeros(TICKS, np.uint8)
    cells = np.ascontiguousarray(world.cells).reshape(-1)
    count = _actions(np.ascontiguousarray(program), cells, int(world.hero[0]), int(world.hero[1]), world.side, found)
    return [ACTIONS[action] for action in found[:count].tolist()]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _actions(program, world, place, direction, side, found):
    """Stop the machine after 1, 2, … ticks: every action, and nothing else, shows in hero or markers."""
    width = len(program) + 1
    code, stack = np.zeros((width, 3), np.int32), np.zeros((width, 3), np.int32)
    counters = np.zeros(width, np.int32)
    size = compile_program(program, len(program), code, stack)
    cells = world.copy()
    _, _, _, ticks = run_code(code, size, cells, place, direction, side, TICKS, counters, None)
    count, here, facing, markers = 0, place, direction, np.int64(world[place])
    for limit in range(1, ticks + 1):
        cells[:] = world
        _, there, towards, _ = run_code(code, size, cells, place, direction, side, limit, counters, None)
        left = np.int64(cells[there])
        action = -1
        if there != here:
            action = _MOVE
        elif towards != facing:
            action = _RIGHT if towards == (facing + 1) & 3 else _LEFT
        elif left != markers:
            action = _PUT if left > markers else _PICK
        if action >= 0:
            found[count] = action
            count += 1
        here, facing, markers = there, towards, left
    return count
