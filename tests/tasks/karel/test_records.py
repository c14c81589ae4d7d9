"""The public format: what is written is read, and every kind of bad line is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.tasks.karel.dataset import KarelData, read_records
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import OUTSIDE, needed_side, pack, resized, unpack
from corollout.tasks.karel.interpreter import interpret
from corollout.tasks.karel.language import parse
from corollout.tasks.karel.program_json import to_json
from corollout.tasks.karel.tensors import grid_to_tensor, tensor_to_grid
from corollout.tasks.karel.world import World

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def data() -> KarelData:
    return generate({"train": 24}, seed=1, longest=20, largest=16)["train"]


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
def test_what_is_written_is_read_and_is_what_the_slow_way_makes(data: KarelData, tmp_path: Path, forms: Any):
    data.write(tmp_path / "a.jsonl", forms)
    read, bad = read_records(tmp_path / "a.jsonl")
    assert (bad, read.lengths.tolist(), read.ids.tolist()) == ([], data.lengths.tolist(), data.ids.tolist())
    assert np.array_equal(read.tokens, data.tokens[:, : read.tokens.shape[1]])
    for found, meant in ((read.inputs, data.inputs), (read.outputs, data.outputs)):
        again = resized(found, data.side)
        assert np.array_equal(again.cells, meant.cells)
        assert np.array_equal(again.hero, meant.hero)
    for row, line in enumerate(map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())):
        assert list(line) == ["program_tokens", "guid", "examples"]
        assert int(line["guid"], 16) == int(data.ids[row]) % 2**64
        for number, found in enumerate(line["examples"]):
            world = unpack(data.inputs[row, number])
            assert found == example(" ".join(line["program_tokens"]), world, number, forms)


def test_tensors_are_those_of_single_worlds(data: KarelData):
    for row in range(len(data)):
        for e in range(data.examples):
            grid = data.outputs[row, e]
            text = grid_to_tensor(grid)
            assert text is not None
            read = tensor_to_grid(text)
            assert read is not None
            assert text == unpack(grid).to_tensor()
            assert World.from_tensor(text) == unpack(read) == unpack(grid)


WALLS = 4 * 324


@pytest.mark.parametrize(
    "added",
    [
        *("0:1.0", "5184:1.0", "99999999999:1.0", "12", "12:2.0", "-5:1.0", "²:1.0", "\ud800:1.0"),
        *(f"{WALLS + 17 * 18 + 17}:1.0", f"{WALLS + 2 * 18 + 3}:1.0", "first", "last", "without first", "without last"),
    ],
)
def test_the_quick_reader_refuses_what_the_slow_one_refuses(added: str):
    items = World(3, 4, (1, 2, 0), frozenset({(2, 3)})).to_tensor().split()
    changes = {"first": [*items, items[0]], "last": [*items, items[-1]]}
    changes |= {"without first": items[1:], "without last": items[:-1]}
    text = " ".join(changes.get(added, [*items, added]))
    for refused in (text, ""):
        assert tensor_to_grid(refused) is None
        with pytest.raises(InputError):
            World.from_tensor(refused)


def test_a_world_without_a_tensor_is_not_written(tmp_path: Path):
    for world in (World(17, 4, (0, 0, 0)), World(3, 3, (0, 0, 0), markers=(((0, 0), 11),)), World(1, 3, (0, 0, 0))):
        assert grid_to_tensor(pack([world], 20)[0]) is None
    worlds = pack([World(17, 4, (0, 0, 0)), World(17, 4, (1, 0, 0))], 19)[None]
    large = KarelData(np.array([[3, 4, 5, 48, 6]], np.uint8), np.array([5]), worlds, worlds, np.array([1]))
    with pytest.raises(InputError, match="has no tensor"):
        large.write(tmp_path / "a.jsonl")
    assert list(tmp_path.iterdir()) == []
    large.write(tmp_path / "a.jsonl", "json")
    assert read_records(tmp_path / "a.jsonl")[0].side == 19


def test_unusual_but_valid_records_are_read(tmp_path: Path):
    plain = record("tensor")
    del plain["guid"], plain["examples"][0]["actions"]
    spaced = record("tensor")
    spaced["guid"] = "another one"
    first = spaced["examples"][0]
    first["inpgrid_tensor"] = " " + first["inpgrid_tensor"].replace(":1.0 ", ":1  ")
    backwards = record("json")
    backwards["examples"].reverse()
    backwards["program_json"] = to_json(parse(backwards.pop("program_tokens")))
    read, _ = read_records(save(tmp_path / "a.jsonl", plain, "", spaced, backwards, backwards))
    assert len(read) == len(set(read.ids.tolist())) == 4
    assert read.side == 6
    for row in range(1, 4):
        assert np.array_equal(read.inputs.cells[row], read.inputs.cells[0])
        assert np.array_equal(read.outputs.hero[row], read.outputs.hero[0])
        assert read.tokens[row].tolist() == read.tokens[0].tolist()
    # Worlds may be larger than a tensor.
    large = record("json")
    large["examples"][1] = example(PROGRAM, World(30, 2, (29, 1, 0)), 1, "json")
    read, _ = read_records(save(tmp_path / "a.jsonl", record("tensor"), large))
    assert read.side == needed_side(read.inputs) == 32
    assert unpack(read.inputs[1, 1]) == World(30, 2, (29, 1, 0))
    assert unpack(read.inputs[0, 1]) == World(3, 4, (1, 2, 1), frozenset({(0, 0)}))


def changed(*path: Any, to: Any) -> Change:
    """A record with another value at a path; ... removes it."""

    def change(data: dict[str, Any]) -> None:
        node: Any = data
        for key in path[:-1]:
            node = node[key]
        if to is ...:
            del node[path[-1]]
        else:
            node[path[-1]] = to

    return change


BAD_LINES = [
    (changed("program_tokens", to=...), "program_tokens: expected a list of tokens, not None"),
    (changed("program_tokens", 3, to="jump"), "token 4: 'jump' is not in the vocabulary"),
    (changed("program_tokens", 3, to=7), "token 4: 7 is not in the vocabulary"),
    (changed("program_tokens", 3, to="ELSE"), "ELSE"),
    (changed("program_tokens", to=["DEF", "run", "m(", "m)"]), "m\\)"),
    (changed("guid", to=12), "guid: expected a string, not 12"),
    (changed("guid", to="\ud800"), "half of a surrogate pair"),
    (changed("examples", to=...), "examples: expected a list of two or more, not None"),
    (changed("examples", 1, to="x"), "example 1: expected an object, not 'x'"),
    (changed("examples", 2, to=...), "2 examples, but earlier records have 3"),
    (changed("examples", 1, "example_index", to="1"), "example_index: expected whole numbers"),
    (changed("examples", 1, "example_index", to=0), "example_index: a number occurs twice"),
    (changed("examples", 1, "inpgrid_tensor", to=5), "example 1: inpgrid_tensor: expected a string, not 5"),
    (changed("examples", 1, "inpgrid_tensor", to="5:1.0"), "example 1: inpgrid_tensor: .*border"),
    (changed("examples", 1, "outgrid_json", "hero", to="9:9:east"), "example 1: outgrid_json: world, hero: 9:9"),
    (changed("examples", 1, "outgrid_json", "rows", to=...), "example 1: outgrid_json: world, rows: missing"),
    (changed("examples", 1, "outgrid_json", to=[1]), "example 1: outgrid_json: expected an object"),
    (changed("examples", 2, "outgrid_json", to=...), "example 2: outgrid_tensor and outgrid_json are both missing"),
    (changed("examples", 0, "outgrid_json", "blocked", to=""), "example 0: input and output have different walls"),
    (changed("examples", 1, "outgrid_json", "hero", to="0:1:east"), "example 1: .* are different worlds"),
]


@pytest.mark.parametrize(("change", "said"), BAD_LINES, ids=[said for _, said in BAD_LINES])
def test_a_bad_record_is_named(tmp_path: Path, change: Change, said: str):
    bad = record("json" if "walls" in said or "missing" in said else "both")
    change(bad)
    path = save(tmp_path / "a.jsonl", record(), bad, record())
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: .*{said}"):
        read_records(path)
    read, (error,) = read_records(path, skip_bad=True)
    assert len(read) == 2
    assert "line 2: " in error


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"program_tokens": [', "not JSON, .* at character"),
        (b"[1, 2]", "expected an object with program_tokens and examples"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "number is too long"),
    ],
)
def test_a_line_that_is_not_a_record_is_named(tmp_path: Path, line: bytes, said: str):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line + b"\n" + json.dumps(record()).encode() + b"\n")
    with pytest.raises(InputError, match=f"line 1: .*{said}"):
        read_records(path)
    assert len(read_records(path, skip_bad=True)[0]) == 1


def test_files_without_records_are_refused(data: KarelData, tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot read .*absent\.jsonl: No such file"):
        KarelData.open(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="no records"):
        read_records(save(tmp_path / "a.jsonl", ""))
    with pytest.raises(InputError, match=r"no records but 1 bad lines, the first: .*line 1"):
        read_records(save(tmp_path / "a.jsonl", "{"), skip_bad=True)
    with pytest.raises(InputError, match="cannot write"):
        data.write(tmp_path / "a.jsonl" / "a.jsonl")


def test_resizing_moves_heroes_and_adds_outside(data: KarelData):
    larger = resized(data.inputs, 25)
    assert larger.side == 25
    assert (larger.cells[:, :, 18:] == OUTSIDE).all()
    assert unpack(larger[3, 2]) == unpack(data.inputs[3, 2])
    assert np.array_equal(resized(larger, 18).hero, data.inputs.hero)
    with pytest.raises(InputError, match="the largest world has 16 rows or columns: the grids need a side of 18"):
        resized(data.inputs, 10)
