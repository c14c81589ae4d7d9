"""Generated tasks are as promised: checked with the simple interpreter, which shares no code with the generator."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.events import Event
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.exercises import draw_world
from corollout.tasks.karel.generator import generate, make_data
from corollout.tasks.karel.grids import Grids, unpack
from corollout.tasks.karel.interpreter import LIMIT, _Run, interpret
from corollout.tasks.karel.language import Action, Body, Condition, Repeat, decode, parse, tokenize
from corollout.tasks.karel.programs import GRAMMAR, draw_program, length_weights
from corollout.tasks.karel.records import actions_taken
from corollout.tasks.karel.settings import DataSettings
from corollout.tasks.karel.statistics import FEATURES, depth, distances, main, read_programs
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

    seen: set[tuple[int, bool]]

    def holds(self, condition: Condition) -> bool:
        value = super().holds(condition)
        self.seen.add((id(condition), value))
        return value


def inside(body: Body) -> list[Condition | Repeat]:
    """All conditions and loops of a block."""
    found: list[Condition | Repeat] = []
    for statement in body:
        if not isinstance(statement, Action):
            found.append(statement if isinstance(statement, Repeat) else statement.condition)
            found += inside((*statement.body, *getattr(statement, "otherwise", ())))
    return found


def test_every_split_has_its_tasks_and_no_program_occurs_twice(data: dict[str, KarelData]):
    assert {split: len(tasks) for split, tasks in data.items()} == COUNTS
    for tasks in data.values():
        assert (tasks.examples, tasks.side) == (6, LARGEST + 2)
        assert SHORTEST <= tasks.lengths.min() <= tasks.lengths.max() <= LONGEST
        assert not tasks.tokens[np.arange(tasks.tokens.shape[1]) >= tasks.lengths[:, None]].any()
    found = [tuple(program) for tasks in data.values() for program in programs(tasks)]
    assert len(set(found)) == len(found) == sum(COUNTS.values())
    assert len({int(number) for tasks in data.values() for number in tasks.ids}) == len(found)


def test_every_example_is_what_its_program_does_and_all_exercise_every_branch(data: dict[str, KarelData]):
    branches = 0
    for tasks, row in ((one, row) for one in data.values() for row in range(len(one))):
        program, seen = parse(tasks.tokens[row, : tasks.lengths[row]].tolist()), set()
        before, after = worlds(tasks.inputs[row]), worlds(tasks.outputs[row])
        assert len({(w.rows, w.cols, w.hero, w.walls, w.markers) for w in before}) == 6
        for e, (one, other) in enumerate(zip(before, after, strict=True)):
            result = interpret(program, one)
            assert result.status == "ok"
            assert result.world == other != one
            assert actions_taken(tasks.tokens[row, : tasks.lengths[row]], tasks.inputs[row, e]) == result.actions
            for world in (one, other):
                assert 2 <= min(world.rows, world.cols) <= max(world.rows, world.cols) <= LARGEST
                assert all(count <= 10 for _, count in world.markers)
            watched = Watched(one, LIMIT)
            watched.seen = seen
            watched.run(program.body)
        for part in inside(program.body):
            if isinstance(part, Repeat):
                assert part.times > 0
            else:
                assert {(id(part), True), (id(part), False)} <= seen
                branches += 2
    assert branches > 100


def test_the_result_does_not_depend_on_the_workers(data: dict[str, KarelData]):
    for workers in (1, 5):
        again = generate(COUNTS, seed=3, workers=workers, shortest=SHORTEST, longest=LONGEST, largest=LARGEST)
        for split, tasks in data.items():
            assert np.array_equal(tasks.ids, again[split].ids)
            assert all(map(np.array_equal, arrays(tasks), arrays(again[split])))


def test_tasks_are_those_of_a_smaller_set_but_for_programs_that_occur_twice():
    few, many = (generate({"train": count}, longest=30, largest=5)["train"] for count in (20, 60))
    assert all(np.array_equal(one, other[:20]) for one, other in zip(arrays(few), arrays(many), strict=True))
    other = generate({"train": 20}, longest=30, largest=5, seed=1)["train"]
    assert not np.array_equal(few.tokens, other.tokens)
    val = generate({"val": 20}, longest=30, largest=5)["val"]
    assert not np.array_equal(few.tokens, val.tokens)

    # There are few programs of six tokens: a task takes the first of its own that no earlier one has.
    found = programs(generate({"train": 6, "test": 2}, shortest=6, longest=6, largest=4)["train"])
    assert len(set(map(tuple, found))) == 6
    assert {len(program) for program in found} == {6}


@pytest.mark.parametrize(
    ("counts", "limits", "said"),
    [
        ({"train": 20}, {"shortest": 5, "longest": 6, "largest": 3}, "too few different programs of 5 to 6 tokens"),
        ({"train": 1}, {"longest": 4}, "programs of 5 to 4 tokens .* from 5 to 200"),
        ({"train": 1}, {"shortest": 9, "longest": 8}, "programs of 9 to 8 tokens"),
        ({"train": 1}, {"largest": 17}, "from 2 to 16 rows and columns, not 17"),
        ({"train": 1}, {"largest": 1}, "not 1"),
        ({"train": 0, "val": 0}, {}, "not all 0"),
        ({"train": -1, "val": 3}, {}, "0 or more"),
        ({"training": 1}, {}, "unknown split 'training'"),
    ],
)
def test_impossible_settings_are_refused(counts: dict[str, int], limits: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        generate(counts, **limits)


def test_drawn_programs_are_valid_and_of_their_length():
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
    # Lengths below and above the genuine ones have weights.
    weights = length_weights(8, 70)
    assert (weights > 0).tolist() == [False] * 8 + [True] * 63
    assert len(length_weights(5, 9)) == 10


def test_worlds_of_all_sizes_are_drawn():
    state, cells, free = np.array([1], np.uint64), np.zeros(64, np.uint8), np.zeros(64, np.int64)
    sizes, counts = set(), set()
    for _ in range(600):
        if number := draw_world(state, 6, 8, cells, free):
            world = unpack(Grids(cells.reshape(8, 8), np.array([free[0], 0], np.int16)))
            sizes.add((world.rows, world.cols))
            assert number == world.rows * world.cols - len(world.walls)
            counts.update(count for _, count in world.markers)
    assert sizes == {(rows, cols) for rows in range(2, 7) for cols in range(2, 7)}
    assert counts == set(range(1, 10))


SETTINGS = DataSettings(train=6, val=4, test=3, shortest=5, longest=8, largest=4)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_folder_of_data_is_made_once(tmp_path: Path):
    events: list[Event] = []
    make_data(tmp_path / "data", SETTINGS, on_event=events.append)
    counts = {name: text.count(b"\n") for name, text in contents(tmp_path / "data").items()}
    assert counts == {"train.jsonl": 6, "val.jsonl": 4, "test.jsonl": 3}
    done = {event.record["part"]: (event.record["done"], event.record["total"]) for event in events}
    assert done == {"tasks": (13, 13), **{f"writing {s}.jsonl": (n, n) for s, n in zip(COUNTS, (6, 4, 3), strict=True)}}
    assert KarelData.open(tmp_path / "data" / "val.jsonl", on_event=events.append).lengths.shape == (4,)
    events.clear()
    make_data(tmp_path / "data", SETTINGS, on_event=events.append)
    assert not events  # complete: nothing to do
    make_data(tmp_path / "only", replace(SETTINGS, train=0, val=0))
    assert list(contents(tmp_path / "only")) == ["test.jsonl"]


@pytest.mark.parametrize("name", ["train.jsonl", "val.json", "test.jsonl"])
def test_files_of_others_are_never_touched(tmp_path: Path, name: str):
    (tmp_path / name).write_text("precious")
    with pytest.raises(InputError, match=f"{name} but not all splits"):
        make_data(tmp_path, SETTINGS)
    assert contents(tmp_path) == {name: b"precious"}
    for split in COUNTS:  # with all of them there is nothing to do
        (tmp_path / f"{split}.json").write_text("public")
    make_data(tmp_path, SETTINGS)
    assert set(contents(tmp_path)) == {"train.json", "val.json", "test.json", name}


def test_an_interrupted_run_can_be_repeated(tmp_path: Path):
    def interrupt(event: Event) -> None:
        if event.record["part"] == "writing val.jsonl":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_data(tmp_path, SETTINGS, on_event=interrupt)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".temporary-staging.0123456789ab").mkdir()  # of a run that was killed
    make_data(tmp_path, SETTINGS)
    assert len(contents(tmp_path)) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to the folder"):
        make_data(tmp_path / "file" / "data", SETTINGS)


STRAIGHT = tokenize("DEF run m( move turnLeft m)")
LOOP = tokenize("DEF run m( REPEAT R=3 r( IF c( not c( frontIsClear c) c) i( move i) r) m)")
BRANCH = tokenize("DEF run m( IFELSE c( markersPresent c) i( pickMarker i) ELSE e( move e) m)")


def test_distances_of_small_sets():
    assert [depth(program) for program in (STRAIGHT, LOOP, BRANCH)] == [0, 2, 1]
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
    [
        ("", "no programs"),
        ("DEF run m( move m)\nDEF run m( m)\n", "line 2: "),
        (None, "cannot read"),
        (" ".join(LOOP), "no program of at most 6 tokens"),
    ],
)
def test_bad_files_of_programs_are_refused(tmp_path: Path, text: str | None, said: str):
    for name, content in (("generated.txt", text), ("short.txt", " ".join(STRAIGHT))):
        if content is not None:
            (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        main([str(tmp_path / "generated.txt"), str(tmp_path / "short.txt")])
