"""The machine that runs batches of Karel programs: compiled, exact, and safe for any tokens.

Tokens are first compiled, in one pass without recursion, to instructions with jump targets, or rejected; then the
program runs on each of its worlds. ``interpreter.py`` is the slow and simple reference for it.

    0 … 4      an action
    TEST       continue if the test holds, otherwise jump
    JUMP       jump
    SET        set a loop's counter
    LOOP       jump if the counter is 0, otherwise count down and continue

Actions, tests and iterations of a REPEAT cost a tick each; a program that needs more than ``TICKS`` fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import no_type_check

import numpy as np

from corollout.errors import InputError
from corollout.numba_cache import numba
from corollout.row_threads import by_rows
from corollout.tasks.karel.grids import FIRST_BLOCKED, Grids
from corollout.tasks.karel.language import ACTIONS, COUNTS, ID, PAD, TESTS, TOKENS
from corollout.tasks.karel.world import MOST_MARKERS

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
# The token that closes a block of each kind, in the order of _IN_MAIN …
_CLOSERS = np.array([ID[token] for token in ("m)", "r)", "w)", "i)", "i)", "e)")], dtype=np.uint8)
_FIRST_ACTION, _FIRST_TEST, _FIRST_COUNT = ID[ACTIONS[0]], ID[TESTS[0]], ID[COUNTS[0]]
# Unsigned indices: compiled code need not check whether they count from the end.
_U = np.uint64
# What each action adds to the direction, the steps ahead and the markers.
_TURN, _GO, _MARK = np.array([0, 3, 1, 0, 0]), np.array([1, 0, 0, 0, 0]), np.array([0, 0, 0, -1, 1])
_ACTIONS, _TESTS, _COUNTS = len(ACTIONS), len(TESTS), len(COUNTS)


@dataclass(frozen=True)
class Programs:
    """Token sequences in an array, valid programs or not."""

    tokens: np.ndarray  # uint8[program, width]
    lengths: np.ndarray  # int64[program]

    def __post_init__(self) -> None:
        # The compiled loops rely on this for every index.
        kinds = self.tokens.dtype, self.tokens.ndim, self.lengths.dtype, self.lengths.ndim
        if kinds != (np.uint8, 2, np.int64, 1):
            given = f"{kinds[0]} of {kinds[1]} and {kinds[2]} of {kinds[3]} dimensions"
            raise InputError(f"programs are tokens, uint8[program, width], and lengths, int64[program], not {given}")
        rows, width = self.tokens.shape
        valid = self.lengths.min(initial=0) >= 0 and self.lengths.max(initial=0) <= width
        if self.lengths.shape != (rows,) or not valid:
            raise InputError(f"{rows} × {width} tokens need {rows} lengths from 0 to {width}")

    def __len__(self) -> int:
        return len(self.lengths)

    def valid(self) -> np.ndarray:
        """bool[program]: whether the tokens are a program."""
        valid = np.zeros(len(self), np.bool_)
        by_rows(_check_all, self.tokens.shape[1], self.tokens, self.lengths, valid)
        return valid

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]]) -> "Programs":
        """Pack lists of token ids; an unknown id becomes PAD, which makes the program invalid as well."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        flat = np.fromiter(chain.from_iterable(sequences), np.int64, int(lengths.sum()))
        flat = np.where((flat < 0) | (flat >= len(TOKENS)), PAD, flat)
        tokens = np.zeros((len(sequences), max(int(lengths.max(initial=0)), 1)), np.uint8)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = flat
        return cls(tokens, lengths)


@dataclass(frozen=True)
class Verdicts:
    """How each program did on each example of its task."""

    valid: np.ndarray  # bool[program]: the tokens are a program
    right: np.ndarray  # bool[program, example]: it ran to its end and reached the output world


@dataclass(frozen=True)
class Executions:
    """The worlds after each program, also where it crashed or timed out."""

    status: np.ndarray  # uint8[program, example]
    ticks: np.ndarray  # int64[program, example]
    grids: Grids  # [program, example]


def judge(programs: Programs, tasks: np.ndarray, inputs: Grids, outputs: Grids, ticks: int = TICKS) -> Verdicts:
    """Run program i on the input worlds of task ``tasks[i]`` and compare with its output worlds.

    ``inputs`` and ``outputs`` are [task, example]. Worlds are equal if the hero and the markers are.
    """
    tasks = np.asarray(tasks)
    if tasks.size and tasks.dtype.kind not in "iu":
        raise InputError(f"tasks are given as integers, not as {tasks.dtype}")
    tasks = tasks.astype(np.int64, copy=False)
    count, examples, side = *_checked(inputs, ticks), inputs.side
    outputs.check()
    # Arrays of different sizes are refused: the compiled loops would read beyond their ends.
    shapes = [list(grids.cells.shape) for grids in (inputs, outputs)]
    if shapes[0] != shapes[1] or outputs.hero.shape != inputs.hero.shape:
        raise InputError(f"inputs and outputs must have the same shape, not {shapes[0]} and {shapes[1]}")
    if tasks.shape != (len(programs),):
        raise InputError(f"{len(programs)} programs need {len(programs)} tasks, not {tasks.size}")
    if len(wrong := tasks[(tasks < 0) | (tasks >= count)]):
        raise InputError(f"there is no task {wrong[0]}, only 0 to {count - 1}")
    valid = np.zeros(len(programs), np.bool_)
    right = np.zeros((len(programs), examples), np.bool_)
    cells = [grids.cells.reshape(count, examples, side * side) for grids in (inputs, outputs)]

    def loop(tokens: np.ndarray, lengths: np.ndarray, tasks: np.ndarray, valid: np.ndarray, right: np.ndarray) -> None:
        _judge(tokens, lengths, tasks, cells[0], inputs.hero, cells[1], outputs.hero, side, ticks, valid, right)

    by_rows(loop, examples * (side * side + 200), programs.tokens, programs.lengths, tasks, valid, right)
    return Verdicts(valid, right)


def execute(programs: Programs, inputs: Grids, ticks: int = TICKS) -> Executions:
    """Run program i on the worlds ``inputs[i]``; ``inputs`` is [program, example] and not changed."""
    shape, side = _checked(inputs, ticks), inputs.side
    if len(programs) != shape[0]:
        raise InputError(f"{len(programs)} programs need {len(programs)} rows of worlds, not {shape[0]}")
    cells = np.array(inputs.cells, np.uint8).reshape(*shape, side * side)
    hero = np.array(inputs.hero, np.int16)
    status, used = np.zeros(shape, np.uint8), np.zeros(shape, np.int64)
    _execute_all(programs.tokens, programs.lengths, cells, hero, side, ticks, status, used)
    return Executions(status, used, Grids(cells.reshape(*shape, side, side), hero))


def _checked(inputs: Grids, ticks: int) -> tuple[int, int]:
    """The number of rows of worlds and of worlds in a row, after checks of everything that loops index with."""
    if inputs.check().hero.ndim != 3:
        raise InputError(f"expected worlds [row, example], not {list(inputs.hero.shape[:-1])}")
    if ticks < 0:
        raise InputError(f"a program can run for 0 ticks or more, not {ticks}")
    rows, examples, _ = inputs.hero.shape
    return rows, examples


@no_type_check
@numba.njit(cache=True, nogil=True)
def _check_all(tokens, lengths, valid):
    width = tokens.shape[1] + 1
    code, stack = np.zeros((width, 3), np.int64), np.zeros((width, 3), np.int64)
    for i in range(len(lengths)):
        valid[i] = compile_program(tokens[i], lengths[i], code, stack) >= 0


@no_type_check
@numba.njit(cache=True, nogil=True)
def compile_program(tokens, length, code, stack):
    """Write the instructions of a program to ``code[:, 3]``: operation, argument, target.

    Return their number, or −1 − p where p is the position of the first token that is not allowed (``length`` if the
    program ends too early). ``code`` and ``stack[:, 3]`` must have ``length`` rows or more.
    """
    if length < 1 or tokens[0] != _DEF:
        return -1
    if length < 2 or tokens[1] != _RUN:
        return -2
    if length < 3 or tokens[2] != _M_OPEN:
        return -3
    size, at, depth, loops = 0, 3, 0, 0
    # An open block: its kind, the instruction to patch when it closes, and its number of statements.
    stack[0, 0], stack[0, 1], stack[0, 2] = _IN_MAIN, 0, 0
    while at < length:
        token = tokens[at]
        kind = stack[depth, 0]
        if _FIRST_ACTION <= token < _FIRST_ACTION + _ACTIONS:
            action = token - _FIRST_ACTION
            code[size, 0], code[size, 1], code[size, 2] = action, _TURN[action], _MARK[action]
            size += 1
            stack[depth, 2] += 1
            at += 1
        elif token == _CLOSERS[kind]:
            if stack[depth, 2] == 0:
                return -1 - at  # an empty block
            at += 1
            opening = stack[depth, 1]
            if kind == _IN_MAIN:
                return size if at == length else -1 - at
            if kind in (_IN_REPEAT, _IN_WHILE):
                code[size, 0], code[size, 2] = _JUMP, opening
                size += 1
                code[opening, 2] = size
                loops -= kind == _IN_REPEAT
                depth -= 1
            elif kind == _IN_THEN:
                if at >= length or tokens[at] != _ELSE:
                    return -1 - at
                if at + 1 >= length or tokens[at + 1] != _E_OPEN:
                    return -2 - at
                at += 2
                code[size, 0] = _JUMP
                code[opening, 2] = size + 1
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = _IN_ELSE, size, 0
                size += 1
            else:
                code[opening, 2] = size
                depth -= 1
        elif token == _REPEAT:
            at += 1
            if at >= length or not _FIRST_COUNT <= tokens[at] < _FIRST_COUNT + _COUNTS:
                return -1 - at
            count = tokens[at] - _FIRST_COUNT
            at += 1
            if at >= length or tokens[at] != _R_OPEN:
                return -1 - at
            at += 1
            code[size, 0], code[size, 1], code[size, 2] = _SET, loops, count
            code[size + 1, 0], code[size + 1, 1] = LOOP, loops
            stack[depth, 2] += 1
            depth += 1
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = _IN_REPEAT, size + 1, 0
            loops += 1
            size += 2
        elif token in (_WHILE, _IF, _IFELSE):
            at += 1
            if at >= length or tokens[at] != _C_OPEN:
                return -1 - at
            at += 1
            negations = 0
            while at < length and tokens[at] == _NOT:
                at += 1
                if at >= length or tokens[at] != _C_OPEN:
                    return -1 - at
                at += 1
                negations += 1
            if at >= length or not _FIRST_TEST <= tokens[at] < _FIRST_TEST + _TESTS:
                return -1 - at
            test = tokens[at] - _FIRST_TEST
            at += 1
            for _ in range(negations + 1):
                if at >= length or tokens[at] != _C_CLOSE:
                    return -1 - at
                at += 1
            if at >= length or tokens[at] != (_W_OPEN if token == _WHILE else _I_OPEN):
                return -1 - at
            at += 1
            code[size, 0], code[size, 1] = TEST, 2 * test + negations % 2
            stack[depth, 2] += 1
            depth += 1
            stack[depth, 0] = _IN_WHILE if token == _WHILE else (_IN_IF if token == _IF else _IN_THEN)
            stack[depth, 1], stack[depth, 2] = size, 0
            size += 1
        else:
            return -1 - at
    return -1 - length


@no_type_check
@numba.njit(cache=True, nogil=True)
def run_code(code, size, cells, cell, direction, side, limit, counters, visited):
    """Run compiled instructions on one world; ``cells[side · side]`` is changed.

    ``counters`` has an entry for each loop. ``visited[:, 2]``, unless it is None, gets a 1 for each test and loop that
    was reached: in column 1 if the test held or the loop continued, else in column 0. Return status, cell, direction,
    ticks.
    """
    at, ticks = 0, 0
    while at < size:
        operation = code[_U(at), 0]
        if operation < _ACTIONS:  # the most frequent case first
            if ticks == limit:
                return TIMEOUT, cell, direction, ticks
            ticks += 1
            # The same arithmetic for all five actions: a branch for each would be mispredicted often.
            direction = (direction + code[_U(at), 1]) & 3
            target = cell + _GO[_U(operation)] * (_ahead(cell, direction, side) - cell)
            markers = cells[_U(target)] + code[_U(at), 2]
            if markers < 0 or markers > MOST_MARKERS:  # walls are larger numbers
                return CRASH, cell, direction, ticks
            cell = target
            cells[_U(cell)] = markers
            at += 1
        elif operation == _JUMP:
            at = code[_U(at), 2]
        elif operation == _SET:
            counters[code[at, 1]] = code[at, 2]
            at += 1
        elif operation == LOOP:
            slot = _U(code[_U(at), 1])
            continues = counters[slot] > 0
            if visited is not None:
                visited[at, 1 if continues else 0] = 1
            if not continues:
                at = code[_U(at), 2]
                continue
            if ticks == limit:
                return TIMEOUT, cell, direction, ticks
            ticks += 1
            counters[slot] -= 1
            at += 1
        else:
            if ticks == limit:
                return TIMEOUT, cell, direction, ticks
            ticks += 1
            test = code[at, 1] >> 1
            if test >= _MARKERS:
                holds = (cells[_U(cell)] > 0) == (test == _MARKERS)
            else:
                turn = 0 if test == _FRONT_CLEAR else (3 if test == _LEFT_CLEAR else 1)
                holds = cells[_U(_ahead(cell, (direction + turn) & 3, side))] < FIRST_BLOCKED
            holds ^= code[at, 1] & 1 == 1
            if visited is not None:
                visited[at, 1 if holds else 0] = 1
            at = at + 1 if holds else code[at, 2]
    return OK, cell, direction, ticks


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _ahead(cell, direction, side):
    """The next cell in a direction; the border keeps it inside the grid."""
    step = side if direction & 1 == 0 else 1
    return cell + step if direction < 2 else cell - step


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
            for c in range(side * side):  # a view of the world would cost more than the copy
                cells[c] = in_cells[task, e, c]
            start, facing = np.int64(in_hero[task, e, 0]), np.int64(in_hero[task, e, 1])
            status, cell, direction, _ = run_code(code, size, cells, start, facing, side, limit, counters, None)
            if status != OK or cell != out_hero[task, e, 0] or direction != out_hero[task, e, 1]:
                continue
            differing = np.uint8(0)
            for c in range(side * side):
                differing |= cells[c] ^ out_cells[task, e, c]
            right[i, e] = differing == 0 or _same_markers(cells, out_cells[task, e])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _same_markers(cells, expected):
    """Whether the markers agree, whatever the walls."""
    for c in range(len(cells)):
        if (cells[c] if cells[c] < FIRST_BLOCKED else 0) != (expected[c] if expected[c] < FIRST_BLOCKED else 0):
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
            start, facing = np.int64(hero[i, e, 0]), np.int64(hero[i, e, 1])
            statuses[i, e], hero[i, e, 0], hero[i, e, 1], ticks[i, e] = run_code(
                code, size, cells[i, e], start, facing, side, limit, counters, None
            )
