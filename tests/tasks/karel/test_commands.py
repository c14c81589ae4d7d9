"""The commands of Karel: ``corollout karel run``, ``corollout data karel`` and the check of its data."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from corollout.tasks.karel import World, parse, pretty
from corollout.tasks.karel.commands import check_data
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.show import before_after, program_text, world_text
from tests.support.commands import invoke, output, refusal

WORLD = {"rows": 2, "cols": 3, "hero": "0:0:east", "blocked": "1:1", "markers": "1:0:2", "crashed": False}
PROGRAM = "DEF run m( WHILE c( frontIsClear c) w( move putMarker putMarker w) m)"
SMALL = ["--train", "12", "--val", "4", "--test", "3", "--longest", "14", "--largest", "4", "--workers", "1"]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    (tmp_path / "world.json").write_text(json.dumps(WORLD))
    return tmp_path / "world.json"


def test_a_run_shows_program_worlds_and_outcome(world: Path):
    text = output("karel", "run", PROGRAM, "--world", world, columns=80)
    lines = [line.rstrip() for line in text.splitlines()]
    assert [line.removeprefix("  ") for line in lines[1:8]] == pretty(parse(PROGRAM)).splitlines()
    assert lines[9].split() == ["before", "after"]
    assert lines[10:14] == [
        "  ┌───────┐    ┌───────┐",
        "  │ 2██ · │    │ 2██ · │",
        "  │ ▶ · · │    │ · 2▶2 │",
        "  └───────┘    └───────┘",
    ]
    for said in ("ok: the program ran to its end", "actions 6, ticks 9", "move putMarker\N{NO-BREAK SPACE}×2 move"):
        assert said in text


@pytest.mark.parametrize(
    ("program", "said", "status", "actions", "change"),
    [
        (PROGRAM, "ok: ", "ok", 6, {"hero": "0:2:east", "markers": "0:1:2 0:2:2 1:0:2"}),
        ("DEF run m( turnRight move m)", "crash: the next", "crash", 1, {"hero": "0:0:south", "crashed": True}),
        ("DEF run m( WHILE c( frontIsClear c) w( turnLeft turnRight w) m)", "time-out: ", "timeout", 133, None),
    ],
)
def test_json_and_statuses(world: Path, program: str, said: str, status: str, actions: int, change: dict | None):
    assert said in output("karel", "run", program, "--world", world)
    printed = json.loads(output("karel", "run", program, "--world", world, "--json"))
    assert (printed["status"], len(printed["actions"])) == (status, actions)
    assert change is None or printed["world"] == {**WORLD, **change}


def test_an_example_of_a_data_set_standard_input_and_a_program_file(tmp_path: Path):
    (tmp_path / "program.karel").write_text(pretty(parse(PROGRAM)))
    example = json.dumps({"example_index": 0, "inpgrid_json": WORLD, "outgrid_json": WORLD}).encode()
    shown = output("karel", "run", f"@{tmp_path / 'program.karel'}", "--world", "-", "--json", stdin=example)
    assert json.loads(shown)["world"]["hero"] == "0:2:east"


@pytest.mark.parametrize(
    ("program", "content", "said"),
    [
        ("DEF run m( m)", b"", "token 3 ('m)'): expected a statement, for the block opened at token 2 'm('"),
        ("@/nowhere/program", b"", "cannot read /nowhere/program: No such file or directory"),
        (PROGRAM, b"", "standard input, line 1, column 1: not JSON, Expecting value"),
        (PROGRAM, b"\xff", "standard input is not UTF-8 text"),
        (PROGRAM, b"[1, 2]", "standard input: expected an object with rows, cols, hero, blocked and markers"),
        (PROGRAM, b'{"inpgrid_json": 7}', "standard input: expected an object"),
        (PROGRAM, b"[" * 100_000, "standard input: nested too deeply"),
        (PROGRAM, b'{"rows": ' + b"1" * 5000 + b"}", "or a number is too long"),
        (PROGRAM, b'{"rows": 2, "cols": 2}', "standard input: world, hero: missing"),
    ],
)
def test_a_bad_program_or_world_is_an_error(program: str, content: bytes, said: str):
    assert said in refusal("karel", "run", program, "--world", "-", stdin=content)


def test_colours_change_nothing_but_the_colour():
    world = World(2, 4, (1, 2, 3), frozenset({(0, 0)}), (((1, 2), 12), ((0, 3), 1)))
    text = world_text(world)
    assert text.plain == world.draw()
    styles = {text.plain[span.start]: str(span.style) for span in text.spans}
    assert len({styles[glyph] for glyph in "◀█1"}) == 3
    program = parse("DEF run m( IFELSE c( not c( frontIsClear c) c) i( move i) ELSE e( turnLeft e) m)")
    assert program_text(program).plain == pretty(program)


@pytest.mark.parametrize(("width", "lines"), [(80, 4), (40, 8)])
def test_worlds_are_below_each_other_in_a_narrow_terminal(width: int, lines: int):
    console, world = Console(width=width), World(1, 10, (0, 0, 1))
    with console.capture() as capture:
        console.print(before_after(world, world))
    assert (capture.get().count("▶"), len(capture.get().splitlines())) == (2, lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "karel"
    shown = output("data", "karel", "--out", out, "--scale", "tiny", *SMALL, "--seed", "4", "--forms", "both")
    assert "train.jsonl: 12 programs of" in shown
    return out


def test_a_data_set_with_caches_and_a_manifest_is_made(folder: Path):
    files = ("train.jsonl", "val.jsonl", "test.jsonl")
    assert {entry.name for entry in folder.iterdir()} == {"manifest.json", *files, *(f"{file}.cache" for file in files)}
    facts = json.loads((folder / "manifest.json").read_text())
    assert (facts["seed"], facts["train"], facts["largest"], facts["scale"]) == (4, 12, 4, "tiny")
    assert [len(KarelData.open(folder / file)) for file in files] == [12, 4, 3]
    assert "inpgrid_json" in (folder / "val.jsonl").read_text()


def test_folders_that_are_refused_are_left_alone(tmp_path: Path):
    (tmp_path / "precious").write_text("")
    assert "is not empty" in refusal("data", "karel", "--out", tmp_path, *SMALL)
    assert "cannot " in refusal("data", "karel", "--out", tmp_path / "precious" / "x", *SMALL)
    assert "not 40" in refusal("data", "karel", "--out", tmp_path / "x", *SMALL, "--largest", 40)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["precious"]


def test_data_is_checked(folder: Path, tmp_path: Path):
    shown = output("data", "check", folder / "train.jsonl", folder / "val.jsonl")
    assert "reproduced: 72 of 72 examples" in shown
    assert "val.jsonl: 4 programs of" in shown
    whole = check_data(folder)
    assert whole is not None
    assert (len(whole.lines), whole.failures) == (6, 0)
    assert check_data(tmp_path) is None


def test_wrong_examples_and_bad_lines_are_found(folder: Path, tmp_path: Path):
    lines = (folder / "train.jsonl").read_text().splitlines()
    first = {**json.loads(lines[0]), "program_tokens": ["DEF", "run", "m(", "turnLeft", "turnRight", "m)"]}
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([json.dumps(first), *lines[1:3], "{}"]))
    assert "line 4: program_tokens" in refusal("data", "check", path)
    done = invoke("data", "check", path, "--skip-bad")
    assert "bad lines: 1, the first: " in done.output
    assert "reproduced: 12 of 18 examples" in done.output
    assert "6 examples" in str(done.exception)
