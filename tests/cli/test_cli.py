"""The command line as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COROLLOUT = str(Path(sys.executable).parent / "corollout")
SHORT = ["--tokens", "3000", "--pretraining", "100", "--estimates", "3"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COROLLOUT, *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def test_help_and_version():
    shown = run("--help")
    assert shown.returncode == 0
    assert "demo" in shown.stdout
    options = run("demo", "--help").stdout
    for option in ("--out", "--tokens", "--pretraining", "--estimates", "--rate", "--seed", "--threads"):
        assert option in options
    assert run("--version").stdout.startswith("corollout 0.")


def test_demo_writes_a_table_a_figure_a_page_and_its_numbers(tmp_path: Path):
    first = run("demo", "--out", "out", *SHORT, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    for name in ("ARSM", "RLOO-4", "self-critic", "REINFORCE", "variance", "report.html"):
        assert name in first.stdout
    (folder,) = (tmp_path / "out").iterdir()
    results = json.loads((folder / "results.json").read_text())
    assert results["manifest"]["seed"] == 0
    assert "demo --out out" in results["manifest"]["command"]
    for method in results["methods"]:
        lines = (folder / method["estimator"] / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1]) == method["last_update"]
        assert method["last_update"]["tokens"] >= 3000
        assert method["probe"]["variance"] > 0
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 1
    assert "http-equiv" not in page
    assert "src=" not in page

    again = run("demo", "--out", "out", *SHORT, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    second = max((tmp_path / "out").iterdir())
    assert second != folder  # nothing is overwritten
    one, two = (json.loads((f / "results.json").read_text())["methods"] for f in (folder, second))
    assert [m["reward_after"] for m in one] == [m["reward_after"] for m in two]  # same seed, same result
    assert [m["probe"]["variance"] for m in one] == [m["probe"]["variance"] for m in two]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--tokens", "0"], "tokens"),
        (["demo", "--rate", "-1"], "learning rate"),
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
