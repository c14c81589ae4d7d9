"""The compiled machine does what the plain interpreter does: on programs, on whatever else, and inside its arrays.

``COROLLOUT_FUZZ`` is the number of sequences of the fuzz tests; ``make fuzz`` tries 100,000.
"""

import os
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corollout import row_threads as threads
from corollout.errors import InputError
from corollout.tasks.karel.grids import Grids, pack, unpack
from corollout.tasks.karel.interpreter import LIMIT, interpret
from corollout.tasks.karel.language import (
    ACTIONS,
    COUNTS,
    ID,
    PAD,
    TESTS,
    TOKENS,
    KarelSyntaxError,
    check,
    encode,
    parse,
)
from corollout.tasks.karel.machine import (
    OK,
    STATUS,
    TICKS,
    Programs,
    compile_program,
    execute,
    judge,
    run_code,
)
from corollout.tasks.karel.world import World, same_state
from tests.support.karel_strategies import programs, worlds

FUZZ = int(os.environ.get("COROLLOUT_FUZZ", "2000"))
OPEN = World(3, 3, (1, 1, 0))
SIDE = 18
MARK = 91  # what stands around guarded arrays

Sequence = list[int]


class Guarded:
    """An array in the midst of a larger one, whose other numbers must stay as they are."""

    def __init__(self, rows: int, columns: int, dtype: type):
        self.margin = max(rows, 64)
        self.whole = np.full((rows + 2 * self.margin, columns), MARK, dtype)
        self.inner = self.whole[self.margin : self.margin + rows]

    @property
    def intact(self) -> bool:
        return bool(
            (self.whole[: self.margin] == MARK).all() and (self.whole[len(self.whole) - self.margin :] == MARK).all()
        )


def compiled(sequence: Sequence) -> tuple[int, np.ndarray]:
    """What ``compile_program`` returns, given no more room than it asks for, and the instructions."""
    (tokens,) = Programs.pack([sequence]).tokens
    code, stack = (Guarded(len(sequence), 3, np.int32) for _ in range(2))
    size = compile_program(tokens, len(sequence), code.inner, stack.inner)
    assert code.intact
    assert stack.intact
    return size, code.inner


def wanted_verdict(sequence: Sequence) -> int | None:
    """The place of the error, or None."""
    error = check(sequence)
    return None if error is None else error.position


def verdict(sequence: Sequence) -> int | None:
    size, _ = compiled(sequence)
    return None if size >= 0 else -1 - size


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
        except KarelSyntaxError:
            program = sequence
        for limit, result in zip(limits, done, strict=True):
            for e, world in enumerate(examples[i]):
                plain = interpret(program, world, limit)
                assert STATUS[result.status[i, e]] == plain.status, (sequence, world)
                assert result.ticks[i, e] == plain.ticks, (sequence, world)
                assert unpack(result.grids[i, e]) == plain.world, (sequence, world)


def tokens_of(text: str) -> Sequence:
    return encode(f"DEF run m( {text} m)".split())


# --- strategies ----------------------------------------------------------------------------------------------------

# Nothing of the package is called in here: what it checks at random places would be a chance that is not Hypothesis's.
HEAD = [ID["DEF"], ID["run"], ID["m("]]
valid = programs.map(lambda tokens: [ID[token] for token in tokens])
ids = st.integers(0, len(TOKENS) - 1)
strange_ids = st.integers(-5, 300) | st.sampled_from([-(2**63), 2**63 - 1, 2**32 + ID["DEF"], 256 + ID["DEF"]])
edits = st.tuples(st.sampled_from(["replace", "insert", "delete", "double", "swap", "cut"]), st.integers(0, 999), ids)


def edited(sequence: Sequence, changes: list[tuple[str, int, int]]) -> Sequence:
    """A sequence after some changes at places that are counted round."""
    out = list(sequence)
    for kind, number, token in changes:
        place = number % max(len(out), 1)
        match kind:
            case "insert":
                out.insert(place, token)
            case "replace":
                out[place : place + 1] = [token]
            case "delete":
                del out[place : place + 1]
            case "double":
                out[place:place] = out[place : place + 1 + token]
            case "swap":
                out[place : place + 2] = out[place : place + 2][::-1]
            case _:
                del out[place:]
    return out


hostile = st.one_of(
    st.builds(edited, valid, st.lists(edits, max_size=3)),
    st.builds(lambda size, tail: HEAD[:size] + tail, st.integers(0, 3), st.lists(ids)),
    st.lists(ids | strange_ids),
)


# --- equal to the interpreter --------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(valid, st.lists(worlds(), min_size=2, max_size=2)), min_size=1, max_size=4))
def test_programs_do_what_the_interpreter_does(cases):
    same_runs([tokens for tokens, _ in cases], [[World.from_json(data) for data in pair] for _, pair in cases])


@settings(max_examples=50, deadline=None)
@given(valid, worlds(), st.integers(0, 30))
def test_any_limit_of_ticks(sequence, data, ticks):
    same_runs([sequence], [[World.from_json(data)]], (ticks,))


@settings(max_examples=50, deadline=None)
@given(valid, worlds(largest=5))
def test_the_side_of_the_grid_does_not_matter(sequence, data):
    for side in (7, 8, 40):
        same_runs([sequence], [[World.from_json(data)]], side=side)


@settings(max_examples=60, deadline=None)
@given(valid)
def test_every_beginning_of_a_program_ends_too_early(sequence):
    assert verdict(sequence) is None
    for length in range(len(sequence)):
        assert verdict(sequence[:length]) == length == wanted_verdict(sequence[:length])


@pytest.mark.parametrize("token", range(len(TOKENS)))
def test_no_token_may_follow_the_program(token):
    sequence = tokens_of("move")
    assert verdict([*sequence, token]) == len(sequence) == wanted_verdict([*sequence, token])


def test_every_change_of_a_single_token():
    condition, loop = "c( not c( markersPresent c) c)", "WHILE c( frontIsClear c) w( move w)"
    sequence = tokens_of(
        f"IFELSE {condition} i( REPEAT R=3 r( move r) i) ELSE e( {loop} e) IF c( leftIsClear c) i( move i)"
    )
    for place in range(len(sequence)):
        for token in range(-1, len(TOKENS) + 1):
            changed = [*sequence[:place], token, *sequence[place + 1 :]]
            assert verdict(changed) == wanted_verdict(changed)


def test_every_sequence_of_a_few_tokens():
    """All of one or two, alone and at the beginning of the main block."""
    for one in range(len(TOKENS)):
        for sequence in ([one], [ID["DEF"], one], [ID["DEF"], ID["run"], one]):
            assert verdict(sequence) == wanted_verdict(sequence)
        for two in range(len(TOKENS)):
            for sequence in ([one, two], [*HEAD, one, two]):
                assert verdict(sequence) == wanted_verdict(sequence)


def test_what_stands_behind_the_length_is_not_read():
    sequence = tokens_of("REPEAT R=3 r( move r)")
    whole = np.array(sequence, np.uint8)
    code, stack = np.zeros((20, 3), np.int32), np.zeros((20, 3), np.int32)
    for length in range(len(sequence)):
        assert compile_program(whole, length, code, stack) == -1 - length
    padded = np.concatenate([whole, whole])
    assert compile_program(padded, len(sequence), code, stack) >= 0
    programs = Programs(np.stack([padded, padded]), np.array([len(sequence), len(sequence) - 1]))
    assert execute(programs, pack([OPEN, OPEN], 5)[:, None]).status.tolist() == [[1], [3]]


# --- sizes ---------------------------------------------------------------------------------------------------------


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
    assert verdict(sequence) is None
    assert verdict(sequence[:-2]) == len(sequence) - 2
    assert verdict([*sequence[:-2], ID["move"]]) == len(sequence) - 1
    inside = len(sequence) - depth // 2
    assert verdict([*sequence[:inside], ID["m)"]]) == inside
    same_runs([sequence], [[OPEN]], (TICKS, 100_000))


@pytest.mark.parametrize("negations", [10_000, 10_001])
def test_very_many_negations(negations):
    sequence = tokens_of(f"IF {'c( not ' * negations}c( frontIsClear c){' c)' * negations} i( move i)")
    assert verdict(sequence) is None
    assert verdict(sequence[:10_000]) == 10_000
    same_runs([sequence], [[OPEN]])


def test_very_long_programs():
    statement = "REPEAT R=2 r( move turnLeft r) IF c( markersPresent c) i( pickMarker i)"
    sequence = tokens_of(" ".join([statement] * 2_000))
    assert verdict(sequence) is None
    assert verdict([*sequence, PAD]) == len(sequence)
    same_runs([sequence, tokens_of("move")], [[OPEN], [OPEN]], (TICKS, 20_000))


def test_a_loop_that_never_ends_is_stopped():
    sequence = tokens_of("WHILE c( not c( not c( noMarkersPresent c) c) c) w( REPEAT R=0 r( move r) w)")
    same_runs([sequence], [[OPEN]], (10_000,))


# --- batches -------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(ids | strange_ids), max_size=6))
def test_packing(sequences):
    packed = Programs.pack(sequences)
    assert len(packed) == len(sequences)
    assert packed.lengths.tolist() == list(map(len, sequences))
    for tokens, sequence in zip(packed.tokens, sequences, strict=True):
        known = [token if 0 <= token < len(TOKENS) else PAD for token in sequence]
        assert tokens.tolist() == known + [PAD] * (len(tokens) - len(known))


def test_numbers_that_are_no_tokens_make_no_program():
    sequence = tokens_of("REPEAT R=3 r( move r)")
    for place in range(len(sequence)):
        for number in (-1, len(TOKENS), sequence[place] + 256, sequence[place] - 256, 2**63 - 1, -(2**63)):
            changed = [*sequence[:place], number, *sequence[place + 1 :]]
            assert verdict(changed) == place == wanted_verdict(changed)


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3], [1, 5], [[1, 2]]])
def test_lengths_that_the_tokens_have_not_are_refused(lengths):
    with pytest.raises(InputError, match="2 lengths of at most 4"):
        Programs(np.zeros((2, 4), np.uint8), np.array(lengths))


def test_empty_batches():
    none, grids = Programs.pack([]), pack([OPEN] * 6, 5)
    tasks = Grids(grids.cells[None], grids.hero[None])
    for inputs in (tasks, tasks[:0]):
        verdicts = judge(none, np.zeros(0, np.int64), inputs, inputs)
        assert (verdicts.valid.shape, verdicts.right.shape) == ((0,), (0, 6))
    done = execute(none, tasks[:0])
    assert (done.status.shape, done.grids.cells.shape, done.grids.hero.shape) == ((0, 6), (0, 6, 5, 5), (0, 6, 2))
    empty = judge(Programs.pack([[], []]), np.zeros(2, np.int64), tasks, tasks)
    assert not empty.valid.any()
    assert not empty.right.any()
    no_examples = judge(Programs.pack([tokens_of("move")]), np.zeros(1, np.int64), tasks[:, :0], tasks[:, :0])
    assert (no_examples.valid.tolist(), no_examples.right.shape) == ([True], (1, 0))


@pytest.mark.parametrize("tasks", [[0], [0, 1, 0], [0, 2], [-1, 0]])
def test_tasks_that_there_are_not_are_refused(tasks):
    grids = pack([OPEN] * 2, 5)[:, None]
    with pytest.raises(InputError, match="task"):
        judge(Programs.pack([tokens_of("move")] * 2), np.array(tasks), grids, grids)


def test_inputs_and_outputs_that_do_not_match_are_refused():
    program, none = Programs.pack([tokens_of("move")]), np.zeros(1, np.int64)
    small, large = pack([OPEN] * 2, 5)[None], pack([OPEN] * 2, 6)[None]
    for outputs in (large, small[:, :1], small[:0]):
        with pytest.raises(InputError, match="outputs"):
            judge(program, none, small, outputs)
    with pytest.raises(InputError, match="2 programs"):
        execute(Programs.pack([tokens_of("move")] * 2), small)


def make_tasks(sequences: list[Sequence], random: Random) -> tuple[Grids, Grids, list[list[tuple[World, World]]]]:
    """Six examples for each sequence; most outputs are what the sequence leaves, some are something else."""
    pairs = []
    for sequence in sequences:
        pairs.append([])
        for _ in range(6):
            before = random_world(random)
            after = interpret(sequence, before).world
            match random.randrange(8):
                case 0:
                    after = random_world(random)
                case 1:  # the same state between other walls
                    free = {(r, c) for r in range(after.rows) for c in range(after.cols)}
                    free -= {after.hero[:2], *(cell for cell, _ in after.markers)}
                    walls = frozenset(cell for cell in free if random.random() < 0.3)
                    after = World(after.rows, after.cols, after.hero, walls, after.markers)
                case 2:
                    after = World(after.rows, after.cols, (*after.hero[:2], (after.hero[2] + 1) % 4), after.walls)
                case _:
                    pass
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
    before = [array.copy() for grids in (inputs, outputs) for array in (grids.cells, grids.hero)]
    packed = Programs.pack(sequences)
    tokens, lengths = packed.tokens.copy(), packed.lengths.copy()
    verdicts = judge(packed, tasks, inputs, outputs)
    done = execute(packed, inputs[tasks])
    unchanged = [inputs.cells, inputs.hero, outputs.cells, outputs.hero]
    assert all(np.array_equal(a, b) for a, b in zip(before, unchanged, strict=True))
    assert np.array_equal(packed.tokens, tokens)
    assert np.array_equal(packed.lengths, lengths)
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


# --- inside the arrays ---------------------------------------------------------------------------------------------


def run_guarded(sequence: Sequence, world: World, side: int) -> None:
    """Compile and run with arrays that are not a number larger than they have to be."""
    size, code = compiled(sequence)
    if size < 0:
        return
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


def test_what_was_visited():
    sequence = tokens_of("REPEAT R=2 r( IF c( frontIsClear c) i( move i) r) WHILE c( markersPresent c) w( move w)")
    size, code = compiled(sequence)
    grid, visited = pack([OPEN], 5), np.zeros((size, 2), np.uint8)
    start, facing = grid.hero[0].tolist()
    run_code(code, size, grid.cells[0].reshape(-1), start, facing, 5, TICKS, np.zeros(1, np.int32), visited)
    # SET, LOOP, TEST, move, JUMP, TEST, move, JUMP
    assert visited.tolist() == [[0, 0], [1, 1], [1, 1], [0, 0], [0, 0], [1, 0], [0, 0], [0, 0]]


@settings(max_examples=max(1, FUZZ // 10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(hostile, min_size=5, max_size=5), worlds(largest=6))
def test_fuzz_by_hypothesis(sequences, data):
    """Half of the fuzz: five sequences an example."""
    world = World.from_json(data)
    for sequence in sequences:
        assert verdict(sequence) == wanted_verdict(sequence)
        run_guarded(sequence, world, 8)
    same_runs(sequences, [[world]] * len(sequences), side=8)


def test_fuzz_by_the_batch():
    """The other half."""
    random = Random(1)
    pool = [random_world(random) for _ in range(200)]
    counts = dict.fromkeys(STATUS, 0)
    for start in range(0, FUZZ // 2, 500):
        size = min(500, FUZZ // 2 - start)
        sequences = [hostile_sequence(random) for _ in range(size)]
        chosen = random.choices(pool, k=size)
        for sequence, world in zip(sequences, chosen, strict=True):
            assert verdict(sequence) == wanted_verdict(sequence)
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
        return [random.randint(-2, len(TOKENS) + 1) for _ in range(random.randrange(40))]
    sequence = encode(["DEF", "run", "m(", *random_block(random, 3), "m)"])
    if kind < 0.6:
        return sequence
    names = ["replace", "insert", "delete", "double", "swap", "cut"]
    changes = [(random.choice(names), random.randrange(999), random.randrange(len(TOKENS))) for _ in range(2)]
    return edited(sequence, changes[: random.randint(1, 2)])


def random_block(random: Random, depth: int) -> list[str]:
    return [token for _ in range(random.choice([1, 1, 2, 3])) for token in random_statement(random, depth)]


def random_statement(random: Random, depth: int) -> list[str]:
    kind = random.choice(["action", "REPEAT", "WHILE", "IF", "IFELSE"]) if depth else "action"
    negations = random.choice([0, 0, 1, 2])
    condition = ["c(", *["not", "c("] * negations, random.choice(TESTS), *["c)"] * (negations + 1)]
    match kind:
        case "action":
            return [random.choice(ACTIONS)]
        case "REPEAT":
            return ["REPEAT", random.choice(COUNTS), "r(", *random_block(random, depth - 1), "r)"]
        case "WHILE":
            return ["WHILE", *condition, "w(", *random_block(random, depth - 1), "w)"]
        case "IF":
            return ["IF", *condition, "i(", *random_block(random, depth - 1), "i)"]
        case _:
            then, otherwise = random_block(random, depth - 1), random_block(random, depth - 1)
            return ["IFELSE", *condition, "i(", *then, "i)", "ELSE", "e(", *otherwise, "e)"]


def test_both_have_the_same_limit():
    assert TICKS == LIMIT
