"""The command line as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COROLLOUT = str(Path(sys.executable).parent / "corollout")
SHORT = ["--tokens", "3000", "--epochs", "1", "--estimates", "3"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COROLLOUT, *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def test_help_and_version():
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    options = run("demo", "--help").stdout
    for option in ("--out", "--tokens", "--epochs", "--estimates", "--seed", "--jobs"):
        assert option in options
    assert run("--version").stdout.startswith("corollout 0.")


@pytest.mark.slow
def test_demo_writes_a_table_figures_a_page_and_its_numbers(tmp_path: Path):
    first = run("demo", "--out", "out", *SHORT, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    for name in ("MLE", "ARSM", "RLOO", "SC", "report.html"):
        assert name in first.stdout
    (folder,) = (tmp_path / "out").iterdir()
    report = folder / "report"
    assert json.loads((report / "manifest.json").read_text())["settings"]["finetune"]["budget"] == 3000
    assert (report / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (report / "report.html").read_text()
    assert "<svg" in page
    assert "http-equiv" not in page
    assert "src=" not in page
    for method in ("arsm", "rloo-8", "sc"):
        (directory,) = (folder / "seed-0").glob(f"{method}-*")
        last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["kind"] == "evaluation"
        assert last["tokens"] >= 3000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--tokens", "0"], "tokens"),
        (["demo", "--jobs", "0"], "jobs"),
        (["demo", "--seed", "x"], "seed"),
        (["dmeo"], "dmeo"),
    ],
)
def test_bad_input_is_a_sentence(arguments: list[str], said: str, tmp_path: Path):
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode != 0
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("here first")
    result = run("demo", "--out", "file", *SHORT, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: cannot make the folder file")
    assert "--out" in result.stderr
    assert (tmp_path / "file").read_text() == "here first"
