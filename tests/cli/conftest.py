"""What tests of commands have in common."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corollout.cli.main import app

CommandLine = Callable[[Path, int], Callable[..., tuple[int, str, str]]]


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """In a folder and with so many columns, the command line as a function; it gives exit code, output and errors."""

    def within(folder: Path, columns: int) -> Callable[..., tuple[int, str, str]]:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", str(columns))

        def run(*arguments: str) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", ["corollout", *arguments])
            with pytest.raises(SystemExit) as left:
                app()
            shown = capsys.readouterr()
            return int(left.value.code or 0), shown.out, shown.err

        return run

    return within
