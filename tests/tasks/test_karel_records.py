"""The public format: what is written is read, and every kind of bad line is named."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import OUTSIDE, Grids, pack, unpack
from corollout.tasks.karel.interpreter import interpret
from corollout.tasks.karel.language import parse
from corollout.tasks.karel.program_json import to_json
from corollout.tasks.karel.records import needed_side, read_records, resized, write_records
from corollout.tasks.karel.tensors import grid_to_tensor, tensor_to_grid
from corollout.tasks.karel.world import World

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def data() -> KarelData:
    return generate({"train": 24}, seed=1, longest=20, largest=16)["train"]


def write(data: KarelData, path: Path, forms: Any = "tensor") -> list[dict[str, Any]]:
    write_records(path, data.tokens, data.lengths, data.inputs, data.outputs, data.ids, forms)
    return [json.loads(line) for line in path.read_text().splitlines()]


def example(program: str, world: World, index: int, forms: str = "both") -> dict[str, Any]:
    result = interpret(program, world)
    assert result.status == "ok"
    made: dict[str, Any] = {"example_index": index, "actions": result.actions}
    for name, one in (("inpgrid", world), ("outgrid", result.world)):
        if forms != "json":
            made[f"{name}_tensor"] = one.to_tensor()
        if forms != "tensor":
            made[f"{name}_json"] = one.to_json()
    return made


PROGRAM = "DEF run m( putMarker turnLeft m)"


def record(forms: str = "both", examples: int = 3) -> dict[str, Any]:
    made = [example(PROGRAM, World(3, 4, (1, 2, e), frozenset({(0, 0)})), e, forms) for e in range(examples)]
    return {"program_tokens": PROGRAM.split(), "guid": "226540459e33b9d9", "examples": made}


def save(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("forms", ["tensor", "json", "both"])
def test_what_is_written_is_read(data: KarelData, tmp_path: Path, forms: str):
    lines = write(data, tmp_path / "a.jsonl", forms)
    read = read_records(tmp_path / "a.jsonl")
    assert read.bad == []
    assert read.lengths.tolist() == data.lengths.tolist()
    assert np.array_equal(read.tokens, data.tokens[:, : read.tokens.shape[1]])
    assert np.array_equal(read.ids, data.ids)
    for found, meant in ((read.inputs, data.inputs), (read.outputs, data.outputs)):
        again = resized(found, data.side)
        assert np.array_equal(again.cells, meant.cells)
        assert np.array_equal(again.hero, meant.hero)
    keys = {"inpgrid_tensor": forms != "json", "outgrid_json": forms != "tensor", "actions": True}
    assert all((key in lines[0]["examples"][0]) is there for key, there in keys.items())


def test_every_line_is_a_record_as_the_slow_way_makes_it(data: KarelData, tmp_path: Path):
    for row, line in enumerate(write(data, tmp_path / "a.jsonl", "both")):
        assert list(line) == ["program_tokens", "guid", "examples"]
        assert int(line["guid"], 16) == int(data.ids[row]) % 2**64
        for number, found in enumerate(line["examples"]):
            world = unpack(data.inputs[row, number])
            assert found == example(" ".join(line["program_tokens"]), world, number)


def test_tensors_are_those_of_single_worlds(data: KarelData):
    cells, hero = np.empty((18, 18), np.uint8), np.zeros(2, np.int16)
    for row in range(len(data)):
        for e in range(data.examples):
            grid = data.outputs[row, e]
            text = grid_to_tensor(grid.cells, grid.hero)
            assert text is not None
            assert text == unpack(grid).to_tensor()
            assert tensor_to_grid(text, cells, hero)
            assert World.from_tensor(text) == unpack(Grids(cells, hero)) == unpack(grid)


@pytest.mark.parametrize(
    "change",
    [
        lambda items: items[1:],
        lambda items: items[:-1],
        lambda items: [*items, items[0]],
        lambda items: [*items, items[-1]],
        lambda items: [*items, "0:1.0"],
        lambda items: [*items, "5184:1.0"],
        lambda items: [*items, "99999999999:1.0"],
        lambda items: [*items, "12"],
        lambda items: [*items, "12:2.0"],
        lambda items: [*items, "-5:1.0"],
        lambda items: [*items, "²:1.0"],
        lambda items: [*items, str(4 * 324 + 17 * 18 + 17) + ":1.0"],
        lambda items: [*items, str(4 * 324 + 2 * 18 + 3) + ":1.0"],
        lambda items: [],
    ],
)
def test_the_quick_reader_refuses_what_the_slow_one_refuses(change: Callable[[list[str]], list[str]]):
    text = " ".join(change(World(3, 4, (1, 2, 0), frozenset({(2, 3)})).to_tensor().split()))
    cells, hero = np.empty((18, 18), np.uint8), np.zeros(2, np.int16)
    assert not tensor_to_grid(text, cells, hero)
    with pytest.raises(InputError):
        World.from_tensor(text)


def test_worlds_without_a_tensor_have_none():
    for world in (World(17, 4, (0, 0, 0)), World(3, 3, (0, 0, 0), markers=(((0, 0), 11),)), World(1, 3, (0, 0, 0))):
        grid = pack([world], 20)[0]
        assert grid_to_tensor(grid.cells, grid.hero) is None
        with pytest.raises(InputError):
            world.to_tensor()


def test_a_world_that_a_tensor_cannot_say_is_not_written(tmp_path: Path):
    worlds = pack([World(17, 4, (0, 0, 0)), World(17, 4, (1, 0, 0))], 19)[None]
    tokens = np.array([[3, 4, 5, 48, 6]], np.uint8)
    with pytest.raises(InputError, match="has no tensor"):
        write_records(tmp_path / "a.jsonl", tokens, np.array([5]), worlds, worlds, np.array([1]))
    assert list(tmp_path.iterdir()) == []
    write_records(tmp_path / "a.jsonl", tokens, np.array([5]), worlds, worlds, np.array([1]), "json")
    read = read_records(tmp_path / "a.jsonl")
    assert read.inputs.side == 19


def test_unusual_but_sound_records_are_read(tmp_path: Path):
    plain = record("tensor")
    del plain["guid"], plain["examples"][0]["actions"]
    spaced = record("tensor")
    spaced["guid"] = "another one"
    first = spaced["examples"][0]
    first["inpgrid_tensor"] = " " + first["inpgrid_tensor"].replace(":1.0 ", ":1  ")
    backwards = record("json")
    backwards["examples"].reverse()
    backwards["program_json"] = to_json(parse(backwards.pop("program_tokens")))
    read = read_records(save(tmp_path / "a.jsonl", plain, "", spaced, backwards, backwards))
    assert len(read.lengths) == len(set(read.ids.tolist())) == 4
    assert read.inputs.side == 6
    for row in range(1, 4):
        assert np.array_equal(read.inputs.cells[row], read.inputs.cells[0])
        assert np.array_equal(read.outputs.hero[row], read.outputs.hero[0])
        assert read.tokens[row].tolist() == read.tokens[0].tolist()


def test_worlds_larger_than_a_tensor_are_read(tmp_path: Path):
    large = record("json")
    large["examples"][1] = example(PROGRAM, World(30, 2, (29, 1, 0)), 1, "json")
    read = read_records(save(tmp_path / "a.jsonl", record("tensor"), large))
    assert read.inputs.side == needed_side(read.inputs) == 32
    assert unpack(read.inputs[1, 1]) == World(30, 2, (29, 1, 0))
    assert unpack(read.inputs[0, 1]) == World(3, 4, (1, 2, 1), frozenset({(0, 0)}))


def changed(*path: Any, to: Any) -> Change:
    """A record with something else in one place; ... removes it."""

    def change(data: dict[str, Any]) -> None:
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        if to is ...:
            del place[path[-1]]
        else:
            place[path[-1]] = to

    return change


BAD_LINES = [
    (changed("program_tokens", to=...), "program_tokens: expected a list of tokens, not None"),
    (changed("program_tokens", to="DEF run m( move m)"), "program_tokens: expected a list"),
    (changed("program_tokens", 3, to="jump"), "token 4: 'jump' is not in the vocabulary"),
    (changed("program_tokens", 3, to=7), "token 4: 7 is not in the vocabulary"),
    (changed("program_tokens", 3, to="ELSE"), "ELSE"),
    (changed("program_tokens", to=["DEF", "run", "m(", "m)"]), "m\\)"),
    (changed("guid", to=12), "guid: expected a string, not 12"),
    (changed("examples", to=...), "examples: expected a list of two or more, not None"),
    (changed("examples", to=[]), "examples: expected a list of two or more"),
    (changed("examples", 1, to="x"), "example 1: expected an object, not 'x'"),
    (changed("examples", 2, to=...), "2 examples, but the records before have 3"),
    (changed("examples", 1, "example_index", to="1"), "example_index: expected whole numbers"),
    (changed("examples", 1, "example_index", to=0), "example_index: the same number twice"),
    (changed("examples", 1, "inpgrid_tensor", to=5), "example 1: inpgrid_tensor: expected a string, not 5"),
    (changed("examples", 1, "inpgrid_tensor", to="5:1.0"), "example 1: inpgrid_tensor: .*border"),
    (changed("examples", 1, "outgrid_json", "hero", to="9:9:east"), "example 1: outgrid_json: world, hero: 9:9"),
    (changed("examples", 1, "outgrid_json", "rows", to=...), "example 1: outgrid_json: world, rows: is missing"),
    (changed("examples", 1, "outgrid_json", to=[1]), "example 1: outgrid_json: expected an object"),
    (
        changed("examples", 1, "outgrid_json", "hero", to="0:1:east"),
        "example 1: outgrid_tensor and outgrid_json are different worlds",
    ),
]


@pytest.mark.parametrize(("change", "said"), BAD_LINES, ids=[said for _, said in BAD_LINES])
def test_a_bad_record_is_named(tmp_path: Path, change: Change, said: str):
    bad = copy.deepcopy(record())
    change(bad)
    path = save(tmp_path / "a.jsonl", record(), bad, record())
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: .*{said}"):
        read_records(path)
    read = read_records(path, skip_bad=True)
    assert len(read.lengths) == 2
    assert len(read.bad) == 1
    assert "line 2: " in read.bad[0]


def test_missing_worlds_and_different_walls_are_named(tmp_path: Path):
    bad = record("tensor")
    del bad["examples"][2]["outgrid_tensor"]
    with pytest.raises(InputError, match="example 2: neither outgrid_tensor nor outgrid_json is there"):
        read_records(save(tmp_path / "a.jsonl", bad))
    bad = record("json")
    bad["examples"][0]["outgrid_json"]["blocked"] = ""
    with pytest.raises(InputError, match="example 0: the walls of the input and of the output differ"):
        read_records(save(tmp_path / "a.jsonl", bad))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"program_tokens": [', "not JSON, .* at character"),
        (b"[1, 2]", "expected an object with program_tokens and examples"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "number too long"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, said: str):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line + b"\n" + json.dumps(record()).encode() + b"\n")
    with pytest.raises(InputError, match=f"line 1: .*{said}"):
        read_records(path)
    assert len(read_records(path, skip_bad=True).lengths) == 1


def test_files_without_records_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot read .*absent\.jsonl: No such file"):
        read_records(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="no record"):
        read_records(save(tmp_path / "a.jsonl", ""))
    with pytest.raises(InputError, match=r"no record but 1 bad lines, the first: .*line 1"):
        read_records(save(tmp_path / "a.jsonl", "{"), skip_bad=True)


def test_an_unwritable_place_is_an_error_in_a_sentence(data: KarelData, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write(data, tmp_path / "file" / "a.jsonl")


def test_resizing_moves_heroes_and_adds_outside(data: KarelData):
    larger = resized(data.inputs, 25)
    assert larger.side == 25
    assert (larger.cells[:, :, 18:] == OUTSIDE).all()
    assert unpack(larger[3, 2]) == unpack(data.inputs[3, 2])
    assert np.array_equal(resized(larger, 18).hero, data.inputs.hero)
    with pytest.raises(InputError, match="there are worlds of 16 rows or columns: they need grids of a side from 18"):
        resized(data.inputs, 10)
