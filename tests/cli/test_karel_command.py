"""``corollout karel`` as a person meets it."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from corollout.cli.main import app
from corollout.tasks.karel import World, parse, pretty
from corollout.tasks.karel.show import before_after, program_text, world_text

COROLLOUT = str(Path(sys.executable).parent / "corollout")
WORLD = {"rows": 2, "cols": 3, "hero": "0:0:east", "blocked": "1:1", "markers": "1:0:2", "crashed": False}
PROGRAM = "DEF run m( WHILE c( frontIsClear c) w( move putMarker putMarker w) m)"


class Done(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def run(monkeypatch, capsys):
    """The command line in this process, which is faster than a new one for each command."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["corollout", "karel", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as left:
            app()
        return Done(left.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def world(tmp_path):
    path = tmp_path / "world.json"
    path.write_text(json.dumps(WORLD))
    return str(path)


def test_help(run):
    assert "run" in run("--help").out
    shown = run("run", "--help").out
    assert "--world" in shown
    assert "--json" in shown


def test_a_run_shows_program_worlds_and_outcome(run, world):
    done = run("run", PROGRAM, "--world", world)
    assert done.code == 0, done.err
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert [line.removeprefix("  ") for line in lines[1:8]] == pretty(parse(PROGRAM)).splitlines()
    assert lines[9].split() == ["before", "after"]
    assert lines[10:14] == [
        "  ┌───────┐    ┌───────┐",
        "  │ 2██ · │    │ 2██ · │",
        "  │ ▶ · · │    │ · 2▶2 │",
        "  └───────┘    └───────┘",
    ]
    assert "ok: the program ran to its end" in done.out
    assert "actions 6, ticks 9" in done.out
    assert "move putMarker\N{NO-BREAK SPACE}×2 move putMarker\N{NO-BREAK SPACE}×2" in done.out


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("DEF run m( turnLeft move move m)", "crash", "crash: the next action could not be carried out"),
        ("DEF run m( WHILE c( frontIsClear c) w( turnLeft turnRight w) m)", "timeout", "time-out: "),
    ],
)
def test_a_crash_and_a_time_out_are_results(run, world, program, status, said):
    shown = run("run", program, "--world", world)
    assert (shown.code, shown.err) == (0, "")
    assert said in shown.out
    printed = json.loads(run("run", program, "--world", world, "--json").out)
    assert printed["status"] == status
    assert printed["world"]["crashed"] == (status == "crash")


def test_json(run, world):
    printed = json.loads(run("run", PROGRAM, "--world", world, "--json").out)
    after = {**WORLD, "hero": "0:2:east", "markers": "0:1:2 0:2:2 1:0:2"}
    once = ["move", "putMarker", "putMarker"]
    assert printed == {"status": "ok", "actions": once * 2, "world": after}
    crash = json.loads(run("run", "DEF run m( turnRight move m)", "--world", world, "--json").out)
    assert crash == {
        "status": "crash",
        "actions": ["turnRight"],
        "world": {**WORLD, "hero": "0:0:south", "crashed": True},
    }


def test_an_example_of_a_data_set_standard_input_and_a_program_file(run, tmp_path):
    path = tmp_path / "program.karel"
    path.write_text(pretty(parse(PROGRAM)))
    example = {"example_index": 0, "inpgrid_json": WORLD, "outgrid_json": WORLD}
    done = run("run", f"@{path}", "--world", "-", "--json", stdin=json.dumps(example).encode())
    assert done.code == 0, done.err
    assert json.loads(done.out)["world"]["hero"] == "0:2:east"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("DEF run m( m)", "error: token 3 ('m)'): expected a statement, for the block opened at token 2 'm('"),
        ("DEF run m( jump m)", "error: token 3 ('jump', unknown to Karel): expected a statement"),
        ("", "error: token 0 (the end): expected 'DEF'"),
        ("@/nowhere/program", "error: cannot read /nowhere/program: No such file or directory"),
    ],
)
def test_what_is_no_program_is_an_error_of_one_sentence(run, world, program, said):
    done = run("run", program, "--world", world)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(said)
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "standard input, line 1, column 1: not JSON, Expecting value"),
        (b"{\n  rows}", "standard input, line 2, column 3: not JSON"),
        (b"\xff", "cannot read standard input: it is not UTF-8 text"),
        (b"[1, 2]", "standard input: expected a JSON object with rows, cols, hero, blocked and markers"),
        (b'{"inpgrid_json": 7}', "standard input: expected a JSON object"),
        (b"[" * 100_000, "standard input: nested too deeply"),
        (b'{"rows": ' + b"1" * 5000 + b"}", "or a number too long"),
        (b'{"rows": 2, "cols": 2}', "standard input: world, hero: is missing"),
        (b'{"rows": 2, "cols": 2, "hero": "2:0:east"}', "standard input: world, hero: 2:0 lies outside the grid"),
    ],
)
def test_what_is_no_world_is_an_error_of_one_sentence(run, content, said):
    done = run("run", PROGRAM, "--world", "-", stdin=content)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_world_file_that_is_not_there(run):
    done = run("run", PROGRAM, "--world", "/nowhere/world.json")
    assert (done.code, done.err) == (1, "error: cannot read /nowhere/world.json: No such file or directory\n")


def test_the_installed_command(world):
    done = subprocess.run(
        [COROLLOUT, "karel", "run", PROGRAM, "--world", world, "--json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["status"] == "ok"


def test_colours_change_nothing_but_the_colour():
    world = World(2, 4, (1, 2, 3), frozenset({(0, 0)}), (((1, 2), 12), ((0, 3), 1)))
    text = world_text(world)
    assert text.plain == world.draw()
    styles = {text.plain[span.start]: str(span.style) for span in text.spans}
    assert len({styles[glyph] for glyph in "◀█1"}) == 3
    program = parse("DEF run m( IFELSE c( not c( frontIsClear c) c) i( move i) ELSE e( turnLeft e) m)")
    assert program_text(program).plain == pretty(program)


def test_worlds_stand_below_each_other_where_there_is_no_room():
    world = World(1, 10, (0, 0, 1))
    for width, lines in ((80, 4), (40, 8)):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(before_after(world, world))
        shown = capture.get()
        assert shown.count("▶") == 2
        assert len(shown.splitlines()) == lines
