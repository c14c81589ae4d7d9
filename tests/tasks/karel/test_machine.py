"""The compiled machine does what the simple interpreter does, for programs and all other tokens, inside its arrays.

``COROLLOUT_FUZZ`` is the number of sequences of the fuzz tests: 500, or 100,000 in ``make prove``.
"""

import os
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corollout import row_threads as threads
from corollout.errors import InputError
from corollout.tasks.karel.grids import Grids, pack, unpack
from corollout.tasks.karel.interpreter import LIMIT, interpret
from corollout.tasks.karel.language import ACTIONS, COUNTS, ID, PAD, TESTS, TOKENS, check, encode, parse
from corollout.tasks.karel.machine import OK, STATUS, TICKS, Programs, compile_program, execute, judge, run_code
from corollout.tasks.karel.world import World, same_state
from tests.support.karel_strategies import programs, worlds

FUZZ = int(os.environ.get("COROLLOUT_FUZZ", "500"))
OPEN = World(3, 3, (1, 1, 0))
SIDE = 18
MARK = 91  # around guarded arrays

Sequence = list[int]


class Guarded:
    """An array inside a larger one, whose other numbers must not change."""

    def __init__(self, rows: int, columns: int, dtype: type):
        self.margin = max(rows, 64)
        self.whole = np.full((rows + 2 * self.margin, columns), MARK, dtype)
        self.inner = self.whole[self.margin : self.margin + rows]

    @property
    def intact(self) -> bool:
        return bool((self.whole[: self.margin] == MARK).all() and (self.whole[-self.margin :] == MARK).all())


def compiled(sequence: Sequence) -> tuple[int, np.ndarray]:
    """What ``compile_program`` returns, given no more room than it asks for, and the instructions."""
    (tokens,) = Programs.pack([sequence]).tokens
    code, stack = (Guarded(len(sequence), 3, np.int32) for _ in range(2))
    size = compile_program(tokens, len(sequence), code.inner, stack.inner)
    assert (code.intact, stack.intact) == (True, True)
    return size, code.inner


def compiler_error(sequence: Sequence) -> int | None:
    """The position of the compiler's syntax error, or None."""
    size, _ = compiled(sequence)
    return None if size >= 0 else -1 - size


def error_position(sequence: Sequence) -> int | None:
    """The position of the syntax error, on which the compiler and the parser agree, or None."""
    position, error = compiler_error(sequence), check(sequence)
    assert position == (None if error is None else error.position)
    return position


def same_runs(
    sequences: list[Sequence], examples: list[list[World]], limits: tuple[int, ...] = (TICKS,), side: int = SIDE
) -> None:
    """Each sequence on each of its worlds: status, ticks and the world that is left are the interpreter's."""
    grids = pack([world for row in examples for world in row], side)
    shape = (len(examples), len(examples[0]))
    grids = Grids(grids.cells.reshape(*shape, side, side), grids.hero.reshape(*shape, 2))
    done = [execute(Programs.pack(sequences), grids, limit) for limit in limits]
    for i, sequence in enumerate(sequences):
        try:
            program = parse(sequence)
        except InputError:
            program = sequence
        for limit, result in zip(limits, done, strict=True):
            for e, world in enumerate(examples[i]):
                plain = interpret(program, world, limit)
                assert STATUS[result.status[i, e]] == plain.status, (sequence, world)
                assert result.ticks[i, e] == plain.ticks, (sequence, world)
                assert unpack(result.grids[i, e]) == plain.world, (sequence, world)


def tokens_of(text: str) -> Sequence:
    return encode(f"DEF run m( {text} m)".split())


HEAD = [ID["DEF"], ID["run"], ID["m("]]
valid = programs.map(lambda tokens: [ID[token] for token in tokens])


def damaged(sequence: Sequence, random: Random) -> Sequence:
    """A sequence after a random change."""
    at, token = random.randrange(max(len(sequence), 1)), random.randrange(len(TOKENS))
    before, after = sequence[:at], sequence[at:]
    changes = [
        [*before, token, *after],  # insert
        [*before, token, *after[1:]],  # replace
        before + after[1:],  # delete
        before + after[: 1 + token] + after,  # double
        before + after[1::-1] + after[2:],  # swap
        before,  # cut
    ]
    return random.choice(changes)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(valid, worlds(largest=5)), min_size=1, max_size=4), st.integers(0, 30))
def test_programs_do_what_the_interpreter_does(cases, ticks):
    """With any limit of ticks, in grids of any side, where every beginning of a program ends too early."""
    assert TICKS == LIMIT
    sequences, examples = [tokens for tokens, _ in cases], [[World.from_json(data)] * 2 for _, data in cases]
    for side in (7, 8, 40):
        same_runs(sequences, examples, (TICKS, ticks), side)
    sequence = cases[0][0]
    assert error_position(sequence) is None
    for length in range(len(sequence)):
        assert error_position(sequence[:length]) == length


def test_every_change_of_a_single_token():
    condition, loop = "c( not c( markersPresent c) c)", "WHILE c( frontIsClear c) w( move w)"
    sequence = tokens_of(
        f"IFELSE {condition} i( REPEAT R=3 r( move r) i) ELSE e( {loop} e) IF c( leftIsClear c) i( move i)"
    )
    for position, old in enumerate(sequence):
        for token in range(len(TOKENS)):
            error_position([*sequence[:position], token, *sequence[position + 1 :]])
        for number in (-1, len(TOKENS), old + 256, old - 256, 2**63 - 1, -(2**63)):  # not tokens
            assert error_position([*sequence[:position], number, *sequence[position + 1 :]]) == position


def test_every_sequence_of_a_few_tokens():
    """All of one or two, alone, at the beginning of the main block and after the program."""
    program = tokens_of("move")
    for one in range(len(TOKENS)):
        assert error_position([*program, one]) == len(program)
        for sequence in ([one], [ID["DEF"], one], [ID["DEF"], ID["run"], one]):
            error_position(sequence)
        for two in range(len(TOKENS)):
            for sequence in ([one, two], [*HEAD, one, two]):
                error_position(sequence)


def test_tokens_beyond_the_length_are_not_read():
    sequence = tokens_of("REPEAT R=3 r( move r)")
    whole = np.array(sequence, np.uint8)
    code, stack = np.zeros((20, 3), np.int32), np.zeros((20, 3), np.int32)
    for length in range(len(sequence)):
        assert compile_program(whole, length, code, stack) == -1 - length
    padded = np.concatenate([whole, whole])
    assert compile_program(padded, len(sequence), code, stack) >= 0
    programs = Programs(np.stack([padded, padded]), np.array([len(sequence), len(sequence) - 1]))
    assert execute(programs, pack([OPEN, OPEN], 5)[:, None]).status.tolist() == [[1], [3]]


@pytest.mark.parametrize(
    ("before", "middle", "after"),
    [
        ("REPEAT R=1 r(", "putMarker", "r)"),
        ("REPEAT R=0 r(", "putMarker", "r)"),
        ("WHILE c( noMarkersPresent c) w(", "putMarker", "w)"),
        ("IF c( not c( markersPresent c) c) i(", "putMarker", "i)"),
        ("IFELSE c( frontIsClear c) i(", "move", "i) ELSE e( turnLeft e)"),
        ("IFELSE c( markersPresent c) i( turnRight i) ELSE e(", "move", "e)"),
        ("IF c( frontIsClear c) i( WHILE c( frontIsClear c) w( REPEAT R=1 r(", "turnLeft move", "r) w) i)"),
    ],
)
def test_very_deep_programs(before, middle, after):
    levels = 10_200
    depth = levels // (before.count("r(") + before.count("w(") + before.count("i("))
    sequence = tokens_of(" ".join([before] * depth + [middle] + [after] * depth))
    assert compiler_error(sequence) is None
    assert compiler_error(sequence[:-2]) == len(sequence) - 2
    assert compiler_error([*sequence[:-2], ID["move"]]) == len(sequence) - 1
    inside = len(sequence) - depth // 2
    assert compiler_error([*sequence[:inside], ID["m)"]]) == inside
    same_runs([sequence], [[OPEN]], (TICKS, 100_000))


def test_very_many_negations_and_very_long_programs():
    for negations in (10_000, 10_001):
        sequence = tokens_of(f"IF {'c( not ' * negations}c( frontIsClear c){' c)' * negations} i( move i)")
        assert compiler_error(sequence) is None
        assert compiler_error(sequence[:10_000]) == 10_000
        same_runs([sequence], [[OPEN]])
    statement = "REPEAT R=2 r( move turnLeft r) IF c( markersPresent c) i( pickMarker i)"
    sequence = tokens_of(" ".join([statement] * 2_000))
    assert compiler_error(sequence) is None
    assert compiler_error([*sequence, PAD]) == len(sequence)
    same_runs([sequence, tokens_of("move")], [[OPEN], [OPEN]], (TICKS, 20_000))


def test_empty_batches():
    none, grids = Programs.pack([]), pack([OPEN] * 6, 5)
    tasks = Grids(grids.cells[None], grids.hero[None])
    for inputs in (tasks, tasks[:0]):
        verdicts = judge(none, np.zeros(0, np.int64), inputs, inputs)
        assert (verdicts.valid.shape, verdicts.right.shape) == ((0,), (0, 6))
    done = execute(none, tasks[:0])
    assert (done.status.shape, done.grids.cells.shape, done.grids.hero.shape) == ((0, 6), (0, 6, 5, 5), (0, 6, 2))
    empty = judge(Programs.pack([[], []]), np.zeros(2, np.int64), tasks, tasks)
    assert (empty.valid.any(), empty.right.any()) == (False, False)
    no_examples = judge(Programs.pack([tokens_of("move")]), np.zeros(1, np.int64), tasks[:, :0], tasks[:, :0])
    assert (no_examples.valid.tolist(), no_examples.right.shape) == ([True], (1, 0))


def test_arrays_that_do_not_match_are_refused():
    for lengths in ([1], [1, 2, 3], [1, 5], [-1, 2]):
        with pytest.raises(InputError, match="2 lengths from 0 to 4"):
            Programs(np.zeros((2, 4), np.uint8), np.array(lengths))
    for tokens, lengths in ((np.uint8, [[1, 2]]), (np.uint8, [1.0, 2.0]), (np.int64, [1, 2])):
        with pytest.raises(InputError, match=r"uint8\[program, width\]"):
            Programs(np.zeros((2, 4), tokens), np.array(lengths))
    grids = pack([OPEN] * 2, 5)[:, None]
    for tasks in ([0], [0, 1, 0], [0, 2], [-1, 0]):
        with pytest.raises(InputError, match="task"):
            judge(Programs.pack([tokens_of("move")] * 2), np.array(tasks), grids, grids)
    program, none = Programs.pack([tokens_of("move")]), np.zeros(1, np.int64)
    with pytest.raises(InputError, match="integers"):
        judge(program, np.zeros(1), grids[:1], grids[:1])
    with pytest.raises(InputError, match="0 ticks or more"):
        execute(program, grids[:1], ticks=-1)
    small, large = pack([OPEN] * 2, 5)[None], pack([OPEN] * 2, 6)[None]
    for outputs in (large, small[:, :1], small[:0]):
        with pytest.raises(InputError, match="outputs"):
            judge(program, none, small, outputs)
    with pytest.raises(InputError, match="2 programs"):
        execute(Programs.pack([tokens_of("move")] * 2), small)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cells, hero: (cells.astype(np.int64), hero), "uint8"),
        (lambda cells, hero: (cells, hero.astype(np.int64)), "int16"),
        (lambda cells, hero: (cells[..., :-1], hero), "side, side"),
        (lambda cells, hero: (cells, hero[..., :1]), "heroes of 1"),
        (lambda cells, hero: (cells, _with(hero, 0, 12_345)), r"grid \[0, 0\]"),  # beyond the grid
        (lambda cells, hero: (cells, _with(hero, 0, 0)), r"grid \[0, 0\]"),  # on the border
        (lambda cells, hero: (cells, _with(hero, 0, -3)), r"grid \[0, 0\]"),
        (lambda cells, hero: (cells, _with(hero, 1, 4)), r"grid \[0, 0\]"),
        (lambda cells, hero: (_with(cells, 2, 0), hero), r"grid \[0, 0\]"),  # a gap in the border
        (lambda cells, hero: (_with(cells, 6, 102), hero), r"grid \[0, 0\]"),  # too many markers
        (lambda cells, hero: (np.zeros_like(cells), hero), r"grid \[0, 0\]"),
    ],
)
def test_worlds_that_a_hero_could_leave_are_refused(change: Callable[..., Any], message: str):
    good = pack([OPEN], 5)[:, None]
    bad, program = Grids(*change(good.cells, good.hero)), Programs.pack([tokens_of("move")])
    first = np.zeros(1, np.int64)
    for call in (lambda: judge(program, first, bad, bad), lambda: judge(program, first, good, bad)):
        with pytest.raises(InputError, match=message):
            call()
    with pytest.raises(InputError, match=message):
        execute(program, bad)


def _with(array: np.ndarray, place: int, value: int) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[place] = value
    return changed


def make_tasks(sequences: list[Sequence], random: Random) -> tuple[Grids, Grids, list[list[tuple[World, World]]]]:
    """Six examples for each sequence; most outputs are what the sequence leaves, some are something else."""
    pairs = []
    for sequence in sequences:
        pairs.append([])
        for _ in range(6):
            before = random_world(random)
            after = interpret(sequence, before).world
            kind = random.randrange(8)
            if kind == 0:
                after = random_world(random)
            elif kind == 1:  # the same state between other walls
                free = {(r, c) for r in range(after.rows) for c in range(after.cols)}
                free -= {after.hero[:2], *(cell for cell, _ in after.markers)}
                walls = frozenset(cell for cell in free if random.random() < 0.3)
                after = World(after.rows, after.cols, after.hero, walls, after.markers)
            elif kind == 2:
                after = World(after.rows, after.cols, (*after.hero[:2], (after.hero[2] + 1) % 4), after.walls)
            pairs[-1].append((before, after))
    flat = [pair for row in pairs for pair in row]
    sides = [pack([pair[which] for pair in flat], 10) for which in (0, 1)]
    shape = (len(sequences), 6)
    inputs, outputs = (Grids(g.cells.reshape(*shape, 10, 10), g.hero.reshape(*shape, 2)) for g in sides)
    return inputs, outputs, pairs


def test_to_judge_is_to_execute_and_compare():
    random = Random(3)
    sequences = [hostile_sequence(random) for _ in range(120)]
    inputs, outputs, pairs = make_tasks(sequences, random)
    tasks = np.array([random.randrange(120) if random.random() < 0.5 else i for i in range(120)])
    packed = Programs.pack(sequences)
    arrays = [packed.tokens, packed.lengths, inputs.cells, inputs.hero, outputs.cells, outputs.hero]
    before = [array.copy() for array in arrays]
    verdicts = judge(packed, tasks, inputs, outputs)
    done = execute(packed, inputs[tasks])
    assert all(map(np.array_equal, before, arrays))
    for i, (sequence, task) in enumerate(zip(sequences, tasks.tolist(), strict=True)):
        assert verdicts.valid[i] == (check(sequence) is None)
        for e in range(6):
            equal = same_state(unpack(done.grids[i, e]), pairs[task][e][1])
            assert verdicts.right[i, e] == (done.status[i, e] == OK and equal)
    assert 0.1 < verdicts.right.mean() < 0.9


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch):
    random = Random(4)
    sequences = [hostile_sequence(random) for _ in range(60)]
    inputs, outputs, _ = make_tasks(sequences, random)
    packed, tasks = Programs.pack(sequences), np.arange(60)
    alone = judge(packed, tasks, inputs, outputs)
    assert alone.right.any()
    monkeypatch.setattr(threads, "_WORTH_IT", 1)
    for count in (2, 3, 8):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        together = judge(packed, tasks, inputs, outputs)
        assert np.array_equal(together.valid, alone.valid)
        assert np.array_equal(together.right, alone.right)


def run_guarded(sequence: Sequence, world: World, side: int) -> np.ndarray | None:
    """Compile and run with arrays that are not a number larger than they have to be; return what was visited."""
    size, code = compiled(sequence)
    if size < 0:
        return None
    grid = pack([world], side)
    cells = Guarded(1, side * side, np.uint8)
    cells.inner[0] = grid.cells[0].reshape(-1)
    counters, visited = Guarded(sequence.count(ID["REPEAT"]), 1, np.int32), Guarded(size, 2, np.uint8)
    visited.inner[:] = 0
    start, facing = grid.hero[0].tolist()
    status, place, direction, ticks = run_code(
        code, size, cells.inner[0], start, facing, side, TICKS, counters.inner.reshape(-1), visited.inner
    )
    for array in (cells, counters, visited):
        assert array.intact
    left = unpack(Grids(cells.inner.reshape(side, side), np.array([place, direction], np.int16)))
    plain = interpret(sequence, world)
    assert (STATUS[status], ticks, left) == (plain.status, plain.ticks, plain.world)
    assert visited.inner.max(initial=0) <= 1
    return visited.inner


def test_what_was_visited():
    sequence = tokens_of("REPEAT R=2 r( IF c( frontIsClear c) i( move i) r) WHILE c( markersPresent c) w( move w)")
    visited = run_guarded(sequence, OPEN, 5)
    assert visited is not None
    # SET, LOOP, TEST, move, JUMP, TEST, move, JUMP
    assert visited.tolist() == [[0, 0], [1, 1], [1, 1], [0, 0], [0, 0], [1, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(2, 7))])
def test_fuzz(seed):
    """Five more seeds in ``make prove``."""
    random = Random(seed)
    pool = [random_world(random) for _ in range(200)]
    counts = dict.fromkeys(STATUS, 0)
    for start in range(0, FUZZ, 500):
        size = min(500, FUZZ - start)
        sequences = [hostile_sequence(random) for _ in range(size)]
        chosen = random.choices(pool, k=size)
        for sequence, world in zip(sequences, chosen, strict=True):
            error_position(sequence)
            run_guarded(sequence, world, 10)
        same_runs(sequences, [[world] for world in chosen], side=10)
        for sequence, world in zip(sequences, chosen, strict=True):
            counts[interpret(sequence, world).status] += 1
    assert min(counts.values()) > FUZZ // 200  # the fuzz reaches everything


def random_world(random: Random) -> World:
    rows, cols = random.randint(1, 8), random.randint(1, 8)
    cells = [(r, c) for r in range(rows) for c in range(cols)]
    hero = random.choice(cells)
    walls = frozenset(cell for cell in cells if cell != hero and random.random() < random.choice([0, 0.3]))
    most = random.choice([2, 101])
    marked = [cell for cell in cells if cell not in walls and random.random() < 0.3]
    markers = tuple((cell, random.randint(max(1, most - 3), most)) for cell in marked)
    return World(rows, cols, (*hero, random.randrange(4)), walls, markers)


def hostile_sequence(random: Random) -> Sequence:
    """A program in half of the cases, otherwise one that was damaged, or noise."""
    kind = random.random()
    if kind < 0.1:
        strange = random.choice([-(2**63), 2**63 - 1, 2**32 + ID["DEF"], 256 + ID["DEF"], 300])
        noise = [random.choice([random.randint(-2, len(TOKENS) + 1), strange]) for _ in range(random.randrange(40))]
        return HEAD[: random.randrange(4)] + noise
    sequence = encode(["DEF", "run", "m(", *random_block(random, 3), "m)"])
    if kind < 0.6:
        return sequence
    once = damaged(sequence, random)
    return once if kind < 0.8 else damaged(once, random)


def random_block(random: Random, depth: int) -> list[str]:
    return [token for _ in range(random.choice([1, 1, 2, 3])) for token in random_statement(random, depth)]


def random_statement(random: Random, depth: int) -> list[str]:
    kind = random.choice(["action", "REPEAT", "WHILE", "IF", "IFELSE"]) if depth else "action"
    negations = random.choice([0, 0, 1, 2])
    condition = ["c(", *["not", "c("] * negations, random.choice(TESTS), *["c)"] * (negations + 1)]
    if kind == "action":
        return [random.choice(ACTIONS)]
    head = [random.choice(COUNTS)] if kind == "REPEAT" else condition
    letter = {"REPEAT": "r", "WHILE": "w"}.get(kind, "i")
    statement = [kind, *head, f"{letter}(", *random_block(random, depth - 1), f"{letter})"]
    return [*statement, "ELSE", "e(", *random_block(random, depth - 1), "e)"] if kind == "IFELSE" else statement
