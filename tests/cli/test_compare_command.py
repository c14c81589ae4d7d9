"""``corollout compare`` as a person meets it."""

import json
import sys
from pathlib import Path

import pytest

from corollout.errors import InputError
from tests.support.commands import invoke
from tests.support.pages import Page
from tests.support.synthetic_runs import make_run

FILES = ["figure.png", "manifest.json", "report.html", "report.json", "table.md"]


@pytest.fixture
def corollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command line as a function that returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["corollout", *arguments])
        result = invoke(*arguments, columns=100)
        error = f"error: {result.exception}" if isinstance(result.exception, InputError) else result.stderr
        return result.exit_code, result.stdout, error

    return run


def some_runs(folder: Path) -> list[str]:
    mle = [make_run(folder / f"mle-{seed}", seed=seed, start=0.0, end=0.25) for seed in (0, 1)]
    for name, end in (("arsm", 0.32), ("sc", 0.27)):
        for seed in (0, 1):
            make_run(folder / f"{name}-{seed}", name, seed=seed, end=end, mle=mle[seed])
    return ["mle-0", "mle-1", "arsm-0", "arsm-1", "sc-0", "sc-1"]


def test_a_table_and_a_report(corollout, tmp_path: Path):
    runs = some_runs(tmp_path)
    code, out, err = corollout("compare", *runs)
    assert (code, err) == (0, "")
    for word in ("MLE", "ARSM", "SC", "test", "gain", "equal", "comparison/report.html"):
        assert word in out
    assert "…" not in out.replace("…+", "").replace("…−", "")  # nothing is cut off
    folder = tmp_path / "comparison"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    report = json.loads((folder / "report.json").read_text())
    seeds = {method["label"]: method["seeds"] for method in report["numbers"]["methods"]}
    assert seeds == {"MLE": [0, 1], "ARSM": [0, 1], "SC": [0, 1]}
    assert "compare mle-0" in report["manifest"]["command"]
    page = (folder / "report.html").read_text()
    for part in ("<title>MLE, ARSM and SC</title>", "Training, against seconds", "batch size", "arsm-1", "Cost"):
        assert part in page
    assert Page(folder / "report.html").count("div", "panels") == 1

    # The page can be made again without the runs, also elsewhere.
    (folder / "report.html").unlink()
    code, again, _ = corollout("compare", "comparison")
    assert (code, again) == (0, out)
    assert (folder / "report.html").read_text() == page
    assert corollout("compare", "comparison", "--out", "new")[0] == 0
    assert (tmp_path / "new" / "report.html").read_text() == page

    # Another comparison gets a folder of its own. Runs with the same label are seeds of one method.
    labels = ["--labels", "mine, mine,theirs,theirs"]
    code, out, _ = corollout("compare", *runs[2:], "--by", "tokens", *labels)
    assert (code, "comparison-2/report.html" in out) == (0, True)
    assert "Training, against tokens" in (tmp_path / "comparison-2" / "report.html").read_text()
    methods = json.loads((tmp_path / "comparison-2" / "report.json").read_text())["numbers"]["methods"]
    assert [method["label"] for method in methods] == ["mine", "theirs"]
    # Nothing is overwritten.
    assert "is not empty" in corollout("compare", *runs, "--out", "comparison")[2]
    (folder / "report.html").write_text("mine")
    assert "is another page" in corollout("compare", "comparison")[2]
    assert (folder / "report.html").read_text() == "mine"


def test_maximum_likelihood_alone_and_a_result_without_any_record(corollout, tmp_path: Path):
    code, out, _ = corollout("compare", *some_runs(tmp_path)[:2], "--out", "mle")
    assert code == 0
    assert "gain" not in out.split("Gain")[0]
    assert "Loss" in (tmp_path / "mle" / "report.html").read_text()
    run = make_run(tmp_path / "run", "sc")
    (run / "metrics.jsonl").unlink()
    assert corollout("compare", "run")[0] == 0
    assert not (tmp_path / "comparison" / "figure.png").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is not a run directory"),
        (["arsm-0", "--by", "hours"], "--by must be one of seconds, tokens, updates"),
        (["arsm-0", "sc-0", "--labels", "a"], "2 runs but 1 labels"),
        (["arsm-0", "other"], "one is of the task 'karel', the other is of the task 'captions'"),
        (["arsm-0", "silent"], "silent has no complete evaluation in metrics.jsonl"),
        (["arsm-0", "--out", "full"], "full is not empty"),
        (["arsm-0", "--out", "file"], "cannot use the folder file"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_a_sentence(corollout, tmp_path: Path, arguments: list[str], said: str):
    some_runs(tmp_path)
    make_run(tmp_path / "other", "sc", task="captions")
    make_run(tmp_path / "silent", "sc", evaluations=0, result=False)
    (tmp_path / "full").mkdir()
    for name in ("full/report.html", "file"):
        (tmp_path / name).write_text("here first")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = corollout("compare", *arguments)
    assert code != 0
    assert said in err
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before


def test_markup_mathematics_and_escapes_in_labels_and_paths(corollout, tmp_path: Path):
    runs, out = some_runs(tmp_path)[:2], "[/red]x\x1b[31m"
    code, shown, err = corollout("compare", *runs, "--out", out, "--labels", r"$\foo$,_[/b]" "\x1b[31m")
    assert (code, err) == (0, "")
    assert r"Report: [/red]x\x1b[31m/report.html" in shown
    assert r"_[/b]\x1b[31m" in shown
    page = (tmp_path / out / "report.html").read_text()
    assert page.count(r"$\foo$") > 3
    assert "\x1b" not in page
    assert json.loads((tmp_path / out / "manifest.json").read_text())["command"].count(r"\x1b") == 1
