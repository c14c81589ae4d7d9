"""Generated tasks keep their promises: checked with the plain interpreter, which shares no code with the generator."""

from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.tasks.karel.actions import carried_out
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.exercises import draw_world
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import Grids, unpack
from corollout.tasks.karel.interpreter import LIMIT, _Run, interpret
from corollout.tasks.karel.language import Action, Body, Condition, IfElse, Repeat, decode, parse, tokenize
from corollout.tasks.karel.programs import GRAMMAR, draw_program, length_weights
from corollout.tasks.karel.statistics import FEATURES, depth, distances, main, noise_floor, read_programs
from corollout.tasks.karel.world import World

COUNTS = {"train": 90, "val": 30, "test": 30}
SHORTEST, LONGEST, LARGEST = 6, 26, 7


@pytest.fixture(scope="module")
def data() -> dict[str, KarelData]:
    return generate(COUNTS, seed=3, workers=2, shortest=SHORTEST, longest=LONGEST, largest=LARGEST)


def programs(data: KarelData) -> list[list[str]]:
    return [decode(tokens[:length].tolist()) for tokens, length in zip(data.tokens, data.lengths, strict=True)]


def worlds(grids: Grids) -> list[World]:
    return [unpack(grids[e]) for e in range(len(grids.hero))]


def arrays(data: KarelData) -> list[np.ndarray]:
    return [data.tokens, data.lengths, data.inputs.cells, data.inputs.hero, data.outputs.cells, data.outputs.hero]


class Watched(_Run):
    """A run that notes which conditions were true and which were false."""

    def __init__(self, world: World, seen: set[tuple[int, bool]]):
        super().__init__(world, LIMIT)
        self.seen = seen

    def holds(self, condition: Condition) -> bool:
        value = super().holds(condition)
        self.seen.add((id(condition), value))
        return value


def inside(body: Body) -> list[Condition | Repeat]:
    """All conditions and loops of a block."""
    found: list[Condition | Repeat] = []
    for statement in body:
        if isinstance(statement, Action):
            continue
        found.append(statement if isinstance(statement, Repeat) else statement.condition)
        bodies = [statement.body, statement.otherwise] if isinstance(statement, IfElse) else [statement.body]
        found += chain.from_iterable(map(inside, bodies))
    return found


def test_every_split_has_its_tasks(data: dict[str, KarelData]):
    assert list(data) == ["train", "val", "test"]
    for split, count in COUNTS.items():
        tasks = data[split]
        assert len(tasks) == count
        assert tasks.examples == 6
        assert tasks.side == LARGEST + 2
        assert tasks.lengths.min() >= SHORTEST
        assert tasks.lengths.max() <= LONGEST
        assert not tasks.tokens[np.arange(tasks.tokens.shape[1]) >= tasks.lengths[:, None]].any()


def test_every_example_is_what_its_program_does(data: dict[str, KarelData]):
    for tasks in data.values():
        for row, program in enumerate(programs(tasks)):
            before, after = worlds(tasks.inputs[row]), worlds(tasks.outputs[row])
            assert len({(w.rows, w.cols, w.hero, w.walls, w.markers) for w in before}) == 6
            for one, other in zip(before, after, strict=True):
                result = interpret(program, one)
                assert result.status == "ok"
                assert result.world == other != one
                for world in (one, other):
                    assert 2 <= min(world.rows, world.cols) <= max(world.rows, world.cols) <= LARGEST
                    assert all(count <= 10 for _, count in world.markers)


def test_the_examples_exercise_every_branch(data: dict[str, KarelData]):
    branches = 0
    for tasks in data.values():
        for row, tokens in enumerate(programs(tasks)):
            program, seen = parse(tokens), set()
            for world in worlds(tasks.inputs[row]):
                Watched(world, seen).run(program.body)
            for part in inside(program.body):
                if isinstance(part, Repeat):
                    assert part.times > 0
                else:
                    assert {(id(part), True), (id(part), False)} <= seen
                    branches += 2
    assert branches > 100


def test_no_program_occurs_twice(data: dict[str, KarelData]):
    found = [tuple(program) for tasks in data.values() for program in programs(tasks)]
    assert len(set(found)) == len(found) == sum(COUNTS.values())
    assert len({int(number) for tasks in data.values() for number in tasks.ids}) == len(found)


def test_the_result_does_not_depend_on_the_workers(data: dict[str, KarelData]):
    for workers in (1, 5):
        again = generate(COUNTS, seed=3, workers=workers, shortest=SHORTEST, longest=LONGEST, largest=LARGEST)
        for split, tasks in data.items():
            assert np.array_equal(tasks.ids, again[split].ids)
            assert all(map(np.array_equal, arrays(tasks), arrays(again[split])))


def test_tasks_are_those_of_a_smaller_set_but_for_programs_that_occur_twice():
    few, many = (generate({"train": count}, longest=30, largest=5)["train"] for count in (20, 60))
    assert all(map(np.array_equal, arrays(few), arrays(many.subset(20))))
    other = generate({"train": 20}, longest=30, largest=5, seed=1)["train"]
    assert not np.array_equal(few.tokens, other.tokens)
    val = generate({"val": 20}, longest=30, largest=5)["val"]
    assert not np.array_equal(few.tokens, val.tokens)


def test_programs_that_occur_twice_are_replaced_in_order():
    """There are few programs of six tokens: a task takes the first of its own that no earlier one has."""
    found = programs(generate({"train": 6, "test": 2}, shortest=6, longest=6, largest=4)["train"])
    assert len(set(map(tuple, found))) == 6
    assert {len(program) for program in found} == {6}


def test_progress_is_told():
    told: list[int] = []
    generate({"train": 70, "val": 5}, longest=14, largest=4, on_progress=told.append)
    assert sum(told) == 75
    assert len(told) > 1


@pytest.mark.parametrize(
    ("counts", "limits", "said"),
    [
        ({"train": 20}, {"shortest": 5, "longest": 6, "largest": 3}, "too few different programs of 5 to 6 tokens"),
        ({"train": 1}, {"longest": 4}, "from 5 to 200 tokens"),
        ({"train": 1}, {"shortest": 9, "longest": 8}, "cannot be from 9 to 8 long"),
        ({"train": 1}, {"largest": 17}, "from 2 to 16 rows and columns, not 17"),
        ({"train": 1}, {"largest": 1}, "not 1"),
        ({"train": 1}, {"examples": 1}, "two examples or more"),
        ({"train": 0, "val": 0}, {}, "not all 0"),
        ({"train": -1, "val": 3}, {}, "0 or more"),
        ({"training": 1}, {}, "no split is called 'training'"),
    ],
)
def test_impossible_wishes_are_refused(counts: dict[str, int], limits: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        generate(counts, **limits)


def test_drawn_programs_are_sound_and_of_their_length():
    state, tokens = np.array([5], np.uint64), np.zeros(60, np.uint8)
    constructs = set()
    for length in [*range(5, 20), 30, 45, 60]:
        buffer = tokens[:length].copy()
        drawn = 0
        while drawn < 10:
            if draw_program(state, length, GRAMMAR, buffer):
                program = decode(buffer.tolist())
                parse(program)
                assert "move" in program
                text = " ".join(program)
                for never in ("turnLeft turnRight", "turnLeft turnLeft turnLeft", "pickMarker putMarker", "R=1 "):
                    assert never not in text
                assert depth(program) <= 4
                constructs.update(program)
                drawn += 1
    assert {"REPEAT", "WHILE", "IF", "IFELSE", "not", "R=10"} <= constructs


def test_lengths_below_and_above_the_genuine_ones_have_weights():
    weights = length_weights(8, 70)
    assert len(weights) == 71
    assert not weights[:8].any()
    assert (weights[8:] > 0).all()
    assert len(length_weights(5, 9)) == 10


def test_worlds_of_all_sizes_are_drawn():
    state, cells, free = np.array([1], np.uint64), np.zeros(64, np.uint8), np.zeros(64, np.int64)
    sizes, counts = set(), set()
    for _ in range(600):
        number = draw_world(state, 6, 8, cells, free)
        grid = cells.reshape(8, 8)
        if number:
            world = unpack(Grids(grid, np.array([free[0], 0], np.int16)))
            sizes.add((world.rows, world.cols))
            assert number == world.rows * world.cols - len(world.walls)
            counts.update(count for _, count in world.markers)
    assert sizes == {(rows, cols) for rows in range(2, 7) for cols in range(2, 7)}
    assert counts == set(range(1, 10))


def test_actions_are_those_of_the_interpreter(data: dict[str, KarelData]):
    tasks = data["val"]
    for row, program in enumerate(programs(tasks)):
        ids = tasks.tokens[row, : tasks.lengths[row]]
        for e, world in enumerate(worlds(tasks.inputs[row])):
            assert carried_out(ids, tasks.inputs[row, e]) == interpret(program, world).actions


# --- statistics ----------------------------------------------------------------------------------------------------

STRAIGHT, LOOP, BRANCH = map(
    tokenize,
    (
        "DEF run m( move turnLeft m)",
        "DEF run m( REPEAT R=3 r( IF c( not c( frontIsClear c) c) i( move i) r) m)",
        "DEF run m( IFELSE c( markersPresent c) i( pickMarker i) ELSE e( move e) m)",
    ),
)


def test_distances_of_small_sets():
    assert set(distances([STRAIGHT], [STRAIGHT]).values()) == {0}
    far = distances([STRAIGHT], [LOOP])
    assert far["length"] == far["depth"] == far["constructs"] == far["conditions"] == far["repeat counts"] == 1
    # DEF, run, m( and m) are common: 4 of 6 tokens here, 4 of 18 there; so are two bigrams, of 5 and of 17.
    assert far["tokens"] == pytest.approx(1 - (4 * 1 / 18 + 1 / 18))
    assert far["bigrams"] == pytest.approx(1 - 2 / 17)
    half = distances([STRAIGHT, LOOP], [STRAIGHT, STRAIGHT])
    assert half["length"] == half["depth"] == 0.5
    for a, b in combinations([[STRAIGHT], [LOOP], [BRANCH, LOOP]], 2):
        assert distances(a, b) == distances(b, a)


def test_depth_counts_constructs_inside_one_another():
    assert [depth(program) for program in (STRAIGHT, LOOP, BRANCH)] == [0, 2, 1]


def test_generated_programs_are_as_near_to_one_another_as_halves_are(data: dict[str, KarelData]):
    near = distances(programs(data["train"]), programs(data["val"]) + programs(data["test"]))
    floor = noise_floor(programs(data["train"]))
    assert near["tokens"] < 2 * floor["tokens"] + 0.05
    assert set(near) == set(floor) == set(FEATURES)


def test_the_command_prints_a_table(data: dict[str, KarelData], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data["val"].write(tmp_path / "val.jsonl")
    text = tmp_path / "programs.txt"
    text.write_text("\n".join(" ".join(program) for program in programs(data["train"])) + "\n\n")
    assert read_programs(text) == programs(data["train"])
    main([str(tmp_path / "val.jsonl"), str(text)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("compared with 90")
    assert [line.split("  ")[0].strip() for line in lines[2:]] == list(FEATURES)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no program"), ("DEF run m( move m)\nDEF run m( m)\n", "line 2: ")],
)
def test_bad_files_of_programs_are_refused(tmp_path: Path, text: str, said: str):
    (tmp_path / "p.txt").write_text(text)
    with pytest.raises(InputError, match=said):
        read_programs(tmp_path / "p.txt")
    with pytest.raises(InputError, match="cannot read"):
        read_programs(tmp_path / "absent.txt")
    (tmp_path / "long.txt").write_text(" ".join(LOOP))
    (tmp_path / "short.txt").write_text(" ".join(STRAIGHT))
    with pytest.raises(InputError, match="no program of at most 6 tokens"):
        main([str(tmp_path / "long.txt"), str(tmp_path / "short.txt")])
