"""The command line as a whole: help, exit codes, and the demo."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from corollout.cli import main, root
from corollout.config import option
from corollout.errors import InputError, Interrupted
from tests.support.commands import invoke
from tests.support.signal_handlers import kept_handlers

COROLLOUT = str(Path(sys.executable).parent / "corollout")
SHORT = ["--tokens", "3000", "--epochs", "1", "--estimates", "3"]


@dataclass(frozen=True)
class Settings:
    how: str = option("", "How to end.", choices=("", "error", "interrupted", "bug"))


def end(settings: Settings) -> None:
    """End in some way."""
    if settings.how == "error":
        raise InputError("this [is] wrong")
    if settings.how == "interrupted":
        raise Interrupted("Continue with: corollout again")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["end"], 0, ""),
        (["end", "--how", "error"], 1, "error: this [is] wrong\n"),
        (["end", "--how", "interrupted"], 130, "Continue with: corollout again\n"),
        (["end", "--how", "nicely"], 1, "error: --how must be one of"),
        (["end", "--why"], 2, "No such option"),
        (["edn"], 2, "Did you mean 'end'?"),
    ],
)
def test_exit_codes_and_errors_of_one_sentence(arguments: list[str], code: int, message: str, monkeypatch, capsys):
    monkeypatch.setattr(root, "COMMANDS", {"end": "tests.cli.test_cli:end"})
    monkeypatch.setattr(sys, "argv", ["corollout", *arguments])
    with pytest.raises(SystemExit) as left, kept_handlers():
        main.app()
    shown = capsys.readouterr()
    assert (left.value.code or 0, shown.out) == (code, "")
    assert message in shown.err


@pytest.mark.parametrize(
    ("how", "moment", "code", "message"),
    [
        ("", "atexit.register(stop)", -signal.SIGINT, ""),
        ("", "run.end_at_once = stop", 0, ""),
        ("error", "run.print_error = stop", 130, "Stopped. Run the same command again.\n"),
        ("", "run.cli = leave", 130, "Stopped. Run the same command again.\n"),
    ],
    ids=["after the end", "at the end", "in an error", "before a command"],
)
def test_a_signal_outside_of_a_command_leaves_no_traceback(how: str, moment: str, code: int, message: str):
    script = f"""
import atexit, os, signal
from corollout.cli import main, root, run
ends = run.print_error, run.end_at_once
def stop(*_, **__):
    run.print_error, run.end_at_once = ends
    os.kill(os.getpid(), signal.SIGINT)
class HalfMade:
    def __del__(self):
        self.never_set
def leave(**_):
    half_made = HalfMade()
    stop()
root.COMMANDS = {{"end": "tests.cli.test_cli:end"}}
{moment}
main.app()
"""
    command = [sys.executable, "-c", script, "end", "--how", how]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (code, message)


def test_the_version_and_help_lists_all_commands_without_importing_them():
    script = (
        "import sys; from corollout.cli.main import app\n"
        "try: app()\nexcept SystemExit: print([m for m in ('matplotlib', 'corollout.lab.lab') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=False)
    names = re.findall(r"^  (\w+)", result.stdout.partition("Commands:")[2], re.MULTILINE)
    expected = {"demo", "pretrain", "finetune", "evaluate", "compare", "generate", "export", "inspect", "lab", "data"}
    assert expected | {"lm", "reproduce", "karel", "tree", "score"} == set(names)
    assert result.stdout.splitlines()[-1] == "[]"
    assert subprocess.run([COROLLOUT, "--version"], capture_output=True, text=True).stdout.startswith("corollout 0.")


@pytest.mark.parametrize("arguments", [["--tokens", "0"], ["--jobs", "0"], ["--seed", "x"], ["--out", "file"]])
def test_mistakes_in_a_demo_are_found_before_it_starts(arguments: list[str], tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("here first")
    assert arguments[0] in str(invoke("demo", *SHORT, *arguments).exception)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.prove
def test_demo_writes_a_table_figures_a_page_and_its_numbers(tmp_path: Path):
    arguments = [COROLLOUT, "demo", "--out", "out", *SHORT]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    for name in ("MLE", "ARSM", "RLOO", "SC", "report.html"):
        assert name in result.stdout
    (folder,) = (tmp_path / "out").iterdir()
    report = folder / "report"
    assert json.loads((report / "manifest.json").read_text())["settings"]["finetune"]["budget"] == 3000
    assert (report / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (report / "report.html").read_text()
    assert [word in page for word in ("<svg", "http-equiv", "src=")] == [True, False, False]
    for method in ("arsm", "rloo-8", "sc"):
        (directory,) = (folder / "seed-0").glob(f"{method}-*")
        last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
        assert (last["kind"], last["tokens"] >= 3000) == ("evaluation", True)
