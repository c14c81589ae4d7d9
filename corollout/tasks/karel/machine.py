"""The machine that runs Karel programs by the batch: compiled, exact, indifferent to what it is fed.

A program is first compiled, in one pass without recursion, to instructions with jump targets, or found to be no
program; then it runs on each of its worlds. ``interpreter.py`` does the same slowly and plainly, as a check.

    0 … 4      an action
    TEST       go on if the test holds, otherwise jump
    JUMP       jump
    SET        set a loop's counter
    LOOP       jump if the counter is at 0, otherwise count down and go on

Actions, tests and rounds of a loop cost a tick each; a program that wants more than ``TICKS`` has failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import no_type_check

import numba
import numpy as np

from corollout.errors import InputError
from corollout.row_threads import by_rows
from corollout.tasks.karel.grids import FIRST_BLOCKED, MOST_MARKERS, Grids
from corollout.tasks.karel.language import ACTIONS, COUNTS, ID, PAD, TESTS, TOKENS

TICKS = 200
OK, CRASH, TIMEOUT, SYNTAX = range(4)
STATUS = ("ok", "crash", "timeout", "syntax")

_MOVE, _LEFT, _RIGHT, _PICK, _PUT, TEST, _JUMP, _SET, LOOP = range(9)
_FRONT_CLEAR, _LEFT_CLEAR, _RIGHT_CLEAR, _MARKERS, _NO_MARKERS = range(5)
_IN_MAIN, _IN_REPEAT, _IN_WHILE, _IN_IF, _IN_THEN, _IN_ELSE = range(6)

_DEF, _RUN, _ELSE, _NOT = (ID[token] for token in ("DEF", "run", "ELSE", "not"))
_REPEAT, _WHILE, _IF, _IFELSE = (ID[token] for token in ("REPEAT", "WHILE", "IF", "IFELSE"))
_M_OPEN, _C_OPEN, _R_OPEN, _W_OPEN, _I_OPEN, _E_OPEN = (ID[token] for token in ("m(", "c(", "r(", "w(", "i(", "e("))
_C_CLOSE = ID["c)"]
# What ends a block of each kind, in the order of _IN_MAIN …
_CLOSERS = np.array([ID[token] for token in ("m)", "r)", "w)", "i)", "i)", "e)")], dtype=np.uint8)
_FIRST_ACTION, _FIRST_TEST, _FIRST_COUNT = ID[ACTIONS[0]], ID[TESTS[0]], ID[COUNTS[0]]
# Places that are not negative: a compiled loop need not look whether they count from the end.
_U = np.uint64
# What each action adds to the direction, to the steps ahead and to the markers.
_TURN, _GO, _MARK = np.array([0, 3, 1, 0, 0]), np.array([1, 0, 0, 0, 0]), np.array([0, 0, 0, -1, 1])
_ACTIONS, _TESTS, _COUNTS = len(ACTIONS), len(TESTS), len(COUNTS)


@dataclass(frozen=True)
class Programs:
    """Token sequences in an array, whatever they say."""

    tokens: np.ndarray  # uint8[program, width]
    lengths: np.ndarray  # int64[program]

    def __post_init__(self) -> None:
        rows, width = self.tokens.shape
        if self.lengths.shape != (rows,) or self.lengths.max(initial=0) > width:
            raise InputError(f"{rows} × {width} tokens need {rows} lengths of at most {width}")

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]]) -> "Programs":
        """Lists of token ids; an id that is no token stays none."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        flat = np.fromiter(chain.from_iterable(sequences), np.int64, int(lengths.sum()))
        flat = np.where((flat < 0) | (flat >= len(TOKENS)), PAD, flat)  # no program contains a PAD either
        tokens = np.zeros((len(sequences), max(int(lengths.max(initial=0)), 1)), np.uint8)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = flat
        return cls(tokens, lengths)


@dataclass(frozen=True)
class Verdicts:
    """What became of each program on each example of its task."""

    valid: np.ndarray  # bool[program]: it is a program
    right: np.ndarray  # bool[program, example]: it ran to its end and left the wanted world


@dataclass(frozen=True)
class Executions:
    """Where each program left each world, crashed and timed-out ones included."""

    status: np.ndarray  # uint8[program, example]
    ticks: np.ndarray  # int64[program, example]
    grids: Grids  # [program, example]


def judge(programs: Programs, tasks: np.ndarray, inputs: Grids, outputs: Grids, ticks: int = TICKS) -> Verdicts:
    """Run program i on the input worlds of task ``tasks[i]`` and compare with its output worlds.

    ``inputs`` and ``outputs`` are [task, example]; only state counts: the hero's place and direction, and the markers.
    """
    tasks = np.asarray(tasks, np.int64)
    _check(len(programs), tasks, inputs, outputs)
    count, examples, side = *inputs.hero.shape[:2], inputs.side
    valid = np.zeros(len(programs), np.bool_)
    right = np.zeros((len(programs), examples), np.bool_)
    worlds = (
        inputs.cells.reshape(count, examples, side * side),
        inputs.hero,
        outputs.cells.reshape(count, examples, side * side),
        outputs.hero,
    )

    def loop(tokens: np.ndarray, lengths: np.ndarray, tasks: np.ndarray, valid: np.ndarray, right: np.ndarray) -> None:
        _judge(tokens, lengths, tasks, *worlds, side, ticks, valid, right)

    work = examples * (side * side + 200)
    by_rows(loop, work, programs.tokens, programs.lengths, tasks, valid, right)
    return Verdicts(valid, right)


def _check(programs: int, tasks: np.ndarray, inputs: Grids, outputs: Grids) -> None:
    """Refuse what does not fit together: the compiled loops would read beside the arrays."""
    if outputs.cells.shape != inputs.cells.shape or outputs.hero.shape != inputs.hero.shape:
        raise InputError(
            f"inputs and outputs must have the same shape, not {list(inputs.cells.shape)} and "
            f"{list(outputs.cells.shape)}"
        )
    if tasks.shape != (programs,):
        raise InputError(f"{programs} programs need a task each, not {tasks.size} tasks")
    if programs and not 0 <= tasks.min() <= tasks.max() < len(inputs.hero):
        wrong = tasks[(tasks < 0) | (tasks >= len(inputs.hero))][0]
        raise InputError(f"there is no task {wrong} among {len(inputs.hero)}")


def execute(programs: Programs, inputs: Grids, ticks: int = TICKS) -> Executions:
    """Run program i on the worlds ``inputs[i]``; ``inputs`` is [program, example] and left as it was."""
    shape, side = inputs.hero.shape[:2], inputs.side
    if len(programs) != shape[0]:
        raise InputError(f"{len(programs)} programs need a row of worlds each, but there are {shape[0]} rows")
    cells = np.array(inputs.cells, np.uint8).reshape(*shape, side * side)
    hero = np.array(inputs.hero, np.int16)
    status, used = np.zeros(shape, np.uint8), np.zeros(shape, np.int64)
    _execute_all(programs.tokens, programs.lengths, cells, hero, side, ticks, status, used)
    return Executions(status, used, Grids(cells.reshape(*shape, side, side), hero))


@no_type_check
@numba.njit(cache=True, nogil=True)
def compile_program(tokens, length, code, stack):
    """Write the instructions of a program to ``code[:, 3]``: operation, argument, target.

    Return how many they are, or −1 − p where p is the place of the first token that cannot stand there (``length`` if
    the end came too early). ``code`` and ``stack[:, 3]`` must have ``length`` rows or more.
    """
    if length < 1 or tokens[0] != _DEF:
        return -1
    if length < 2 or tokens[1] != _RUN:
        return -2
    if length < 3 or tokens[2] != _M_OPEN:
        return -3
    size, place, depth, loops = 0, 3, 0, 0
    # A block that is open: its kind, the instruction to patch when it closes, and how many statements it has.
    stack[0, 0], stack[0, 1], stack[0, 2] = _IN_MAIN, 0, 0
    while place < length:
        token = tokens[place]
        kind = stack[depth, 0]
        if _FIRST_ACTION <= token < _FIRST_ACTION + _ACTIONS:
            action = token - _FIRST_ACTION
            code[size, 0], code[size, 1], code[size, 2] = action, _TURN[action], _MARK[action]
            size += 1
            stack[depth, 2] += 1
            place += 1
        elif token == _CLOSERS[kind]:
            if stack[depth, 2] == 0:
                return -1 - place  # an empty block
            place += 1
            opening = stack[depth, 1]
            if kind == _IN_MAIN:
                return size if place == length else -1 - place
            if kind in (_IN_REPEAT, _IN_WHILE):
                code[size, 0], code[size, 2] = _JUMP, opening
                size += 1
                code[opening, 2] = size
                loops -= kind == _IN_REPEAT
                depth -= 1
            elif kind == _IN_THEN:
                if place >= length or tokens[place] != _ELSE:
                    return -1 - place
                if place + 1 >= length or tokens[place + 1] != _E_OPEN:
                    return -2 - place
                place += 2
                code[size, 0] = _JUMP
                code[opening, 2] = size + 1
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = _IN_ELSE, size, 0
                size += 1
            else:
                code[opening, 2] = size
                depth -= 1
        elif token == _REPEAT:
            place += 1
            if place >= length or not _FIRST_COUNT <= tokens[place] < _FIRST_COUNT + _COUNTS:
                return -1 - place
            count = tokens[place] - _FIRST_COUNT
            place += 1
            if place >= length or tokens[place] != _R_OPEN:
                return -1 - place
            place += 1
            code[size, 0], code[size, 1], code[size, 2] = _SET, loops, count
            code[size + 1, 0], code[size + 1, 1] = LOOP, loops
            stack[depth, 2] += 1
            depth += 1
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = _IN_REPEAT, size + 1, 0
            loops += 1
            size += 2
        elif token in (_WHILE, _IF, _IFELSE):
            place += 1
            if place >= length or tokens[place] != _C_OPEN:
                return -1 - place
            place += 1
            negations = 0
            while place < length and tokens[place] == _NOT:
                place += 1
                if place >= length or tokens[place] != _C_OPEN:
                    return -1 - place
                place += 1
                negations += 1
            if place >= length or not _FIRST_TEST <= tokens[place] < _FIRST_TEST + _TESTS:
                return -1 - place
            test = tokens[place] - _FIRST_TEST
            place += 1
            for _ in range(negations + 1):
                if place >= length or tokens[place] != _C_CLOSE:
                    return -1 - place
                place += 1
            if place >= length or tokens[place] != (_W_OPEN if token == _WHILE else _I_OPEN):
                return -1 - place
            place += 1
            code[size, 0], code[size, 1] = TEST, 2 * test + negations % 2
            stack[depth, 2] += 1
            depth += 1
            stack[depth, 0] = _IN_WHILE if token == _WHILE else (_IN_IF if token == _IF else _IN_THEN)
            stack[depth, 1], stack[depth, 2] = size, 0
            size += 1
        else:
            return -1 - place
    return -1 - length


@no_type_check
@numba.njit(cache=True, nogil=True)
def run_code(code, size, cells, place, direction, side, limit, counters, visited):
    """Run compiled instructions on one world; ``cells[side · side]`` is changed.

    ``counters`` has a place for each loop. ``visited[:, 2]``, unless it is None, gets a 1 for each instruction that was
    reached: in column 1 if a test held or a loop went on, in column 0 if not. Return status, place, direction, ticks.
    """
    at, ticks = 0, 0
    while at < size:
        operation = code[_U(at), 0]
        if operation < _ACTIONS:  # first, for they are the most
            if ticks == limit:
                return TIMEOUT, place, direction, ticks
            ticks += 1
            # All five actions by the same arithmetic: which one comes next is hard to foresee, for the processor too.
            direction = (direction + code[_U(at), 1]) & 3
            there = place + _GO[_U(operation)] * (_ahead(place, direction, side) - place)
            markers = cells[_U(there)] + code[_U(at), 2]
            if markers < 0 or markers > MOST_MARKERS:  # walls have larger numbers
                return CRASH, place, direction, ticks
            place = there
            cells[_U(place)] = markers
            at += 1
        elif operation == _JUMP:
            at = code[_U(at), 2]
        elif operation == _SET:
            counters[code[at, 1]] = code[at, 2]
            at += 1
        elif operation == LOOP:
            slot = _U(code[_U(at), 1])
            going = counters[slot] > 0
            if visited is not None:
                visited[at, 1 if going else 0] = 1
            if not going:
                at = code[_U(at), 2]
                continue
            if ticks == limit:
                return TIMEOUT, place, direction, ticks
            ticks += 1
            counters[slot] -= 1
            at += 1
        else:
            if ticks == limit:
                return TIMEOUT, place, direction, ticks
            ticks += 1
            test = code[at, 1] >> 1
            if test >= _MARKERS:
                holds = (cells[_U(place)] > 0) == (test == _MARKERS)
            else:
                turn = 0 if test == _FRONT_CLEAR else (3 if test == _LEFT_CLEAR else 1)
                holds = cells[_U(_ahead(place, (direction + turn) & 3, side))] < FIRST_BLOCKED
            holds ^= code[at, 1] & 1 == 1
            if visited is not None:
                visited[at, 1 if holds else 0] = 1
            at = at + 1 if holds else code[at, 2]
    return OK, place, direction, ticks


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _ahead(place, direction, side):
    """The next place in a direction; the frame keeps it inside the grid."""
    step = side if direction & 1 == 0 else 1
    return place + step if direction < 2 else place - step


@no_type_check
@numba.njit(cache=True, nogil=True)
def _judge(tokens, lengths, tasks, in_cells, in_hero, out_cells, out_hero, side, limit, valid, right):
    width = tokens.shape[1] + 1
    code, stack = np.zeros((width, 3), np.int64), np.zeros((width, 3), np.int64)
    counters, cells = np.zeros(width, np.int32), np.zeros(side * side, np.uint8)
    for i in range(len(lengths)):
        size = compile_program(tokens[i], lengths[i], code, stack)
        valid[i] = size >= 0
        if size < 0:
            continue
        task = tasks[i]
        for e in range(in_hero.shape[1]):
            for c in range(side * side):  # without a view of the world, which would cost more than the copy
                cells[c] = in_cells[task, e, c]
            status, place, direction, _ = run_code(
                code,
                size,
                cells,
                np.int64(in_hero[task, e, 0]),
                np.int64(in_hero[task, e, 1]),
                side,
                limit,
                counters,
                None,
            )
            if status != OK or place != out_hero[task, e, 0] or direction != out_hero[task, e, 1]:
                continue
            differing = np.uint8(0)
            for c in range(side * side):
                differing |= cells[c] ^ out_cells[task, e, c]
            right[i, e] = differing == 0 or _same_markers(cells, out_cells[task, e])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _same_markers(cells, wanted):
    """Walls are no part of the state."""
    for c in range(len(cells)):
        if (cells[c] if cells[c] < FIRST_BLOCKED else 0) != (wanted[c] if wanted[c] < FIRST_BLOCKED else 0):
            return False
    return True


@no_type_check
@numba.njit(cache=True, nogil=True)
def _execute_all(tokens, lengths, cells, hero, side, limit, statuses, ticks):
    width = tokens.shape[1] + 1
    code, stack = np.zeros((width, 3), np.int64), np.zeros((width, 3), np.int64)
    counters = np.zeros(width, np.int32)
    for i in range(len(lengths)):
        size = compile_program(tokens[i], lengths[i], code, stack)
        for e in range(cells.shape[1]):
            if size < 0:
                statuses[i, e] = SYNTAX
                continue
            status, place, direction, used = run_code(
                code, size, cells[i, e], np.int64(hero[i, e, 0]), np.int64(hero[i, e, 1]), side, limit, counters, None
            )
            statuses[i, e], ticks[i, e] = status, used
            hero[i, e, 0], hero[i, e, 1] = place, direction
