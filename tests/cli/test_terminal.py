"""The terminal shows foreign text and never obeys it."""

import ast
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.columns import Columns
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import corollout
from corollout.cli import main
from corollout.cli.progress import show_events
from corollout.cli.tables import plain_table
from corollout.cli.terminal import Terminal
from corollout.events import Event
from tests.support.signal_handlers import kept_handlers

EVIL = "[/b] :dog: \x1b]0;x\x07 \x9b5m \udce9 \u202e"
SHOWN = r"[/b] :dog: \x1b]0;x\x07 \x9b5m \udce9 \u202e"
SOURCES = Path(corollout.__file__).parent


def _tree(text: str) -> Tree:
    tree = Tree("top")
    tree.add(Text(text))
    return tree


def _grid(text: str) -> Table:
    grid = Table.grid()
    grid.add_row(Text(text), text)
    return grid


@pytest.mark.parametrize(
    "make",
    [
        lambda text: text,
        Text,
        _tree,
        _grid,
        lambda text: plain_table(text, ["a", "b"], [[text, text]]),
        lambda text: Padding(Columns([text, Text(text)]), (1, 2)),
    ],
)
def test_whatever_is_printed(make: Callable[[str], object]) -> None:
    file = io.StringIO()
    console = Terminal(file=file, width=200)
    console.print(make(EVIL))
    console.rule(Text(EVIL, "bold"))
    console.rule(EVIL)
    text = file.getvalue()
    text.encode()
    assert not set(text) & set("\x1b\x07\x9b\u202e")
    assert text.count(r"\x9b5m") >= 3
    # Text objects have been measured before, so that their ends may be cut off in narrow cells; strings are complete.
    assert SHOWN in text


def test_styles_are_still_those_of_the_console() -> None:
    file = io.StringIO()
    Terminal(file=file, force_terminal=True, color_system="standard", legacy_windows=False).print(
        Text("good\x1b[0m", "green")
    )
    assert file.getvalue() == "\x1b[32mgood\\x1b[0m\x1b[0m\n"


def test_events() -> None:
    for terminal in (True, False):
        file = io.StringIO()
        console = Terminal(file=file, force_terminal=terminal, width=160, color_system=None, legacy_windows=False)
        with show_events(console, EVIL, total=2) as show:
            show(Event("warning", {"text": EVIL}))
            show(Event("progress", {"part": EVIL, "done": 1, "total": 1, "note": EVIL}))
        assert f"warning: {SHOWN}" in file.getvalue()
        assert not set(file.getvalue()) & set("\x07\x9b\u202e\udce9")


def test_only_one_module_makes_consoles() -> None:
    makers = [
        path.relative_to(SOURCES).as_posix()
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
        if alias.name in ("Console", "get_console", "rich.console") or (alias.name == "print" and node.names)
    ]
    assert makers == ["cli/terminal.py"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["compare", EVIL], 1, "error: "),
        (["evaluate", "x", f"--{EVIL}"], 2, "No such option"),
        (["evaluate", "x", EVIL], 2, "unexpected extra argument"),
        ([EVIL], 2, "No such command"),
        (["data", EVIL], 2, "No such command"),
        (["pretrain", EVIL], 1, "is not an import path"),
        (["compare", EVIL + "y" * 5000], 1, "File name too long"),
    ],
)
def test_errors(arguments: list[str], code: int, message: str, monkeypatch, capfd) -> None:
    monkeypatch.setattr(sys, "argv", ["corollout", *arguments])
    with pytest.raises(SystemExit) as left, kept_handlers():
        main.app()
    shown = capfd.readouterr()
    assert (left.value.code, shown.out) == (code, "")
    assert message in shown.err
    assert r"\x1b]0;x\x07" in shown.err
    assert not set(shown.err) & set("\x1b\x07\x9b\u202e")


def test_an_error_is_not_as_long_as_what_it_is_about(monkeypatch, capfd) -> None:
    monkeypatch.setattr(sys, "argv", ["corollout", "evaluate", "x", "9" * 10**6])
    with pytest.raises(SystemExit), kept_handlers():
        main.app()
    assert len(capfd.readouterr().err) < 5000


def test_names_that_are_not_utf_8_and_a_terminal_that_is_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from corollout.cli.main import app; app()", "evaluate", b"caf\xe9\x1b[31m"]
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(rb"error: ")
    assert rb"caf\udce9\x1b[31m" in done.stderr
    assert done.stderr.count(b"\n") == 1
