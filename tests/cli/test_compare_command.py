"""``corollout compare`` as a person meets it."""

import json
from pathlib import Path

import pytest

from tests.support.synthetic_runs import make_run

FILES = ["figure.png", "figure.svg", "report.html", "results.json", "table.md"]


@pytest.fixture
def corollout(command_line, tmp_path: Path):
    return command_line(tmp_path, 100)


def some_runs(folder: Path) -> list[str]:
    made = [make_run(folder / f"mle-{seed}", seed=seed, start=0.0, end=0.25) for seed in (0, 1)]
    for name, end in (("arsm", 0.32), ("sc", 0.27)):
        made += [
            make_run(folder / f"{name}-{seed}", name, seed=seed, end=end, mle=folder / f"mle-{seed}") for seed in (0, 1)
        ]
    return [str(run.relative_to(folder)) for run in made]


def test_a_table_and_a_report(corollout, tmp_path: Path):
    runs = some_runs(tmp_path)
    code, out, err = corollout("compare", *runs)
    assert (code, err) == (0, "")
    for word in ("MLE", "ARSM", "SC", "test", "gain", "equal", "comparison/report.html"):
        assert word in out
    assert "…" not in out.replace("…+", "").replace("…−", "")  # nothing is cut off
    folder = tmp_path / "comparison"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    results = json.loads((folder / "results.json").read_text())
    assert [(m["label"], m["seeds"]) for m in results["methods"]] == [("MLE", [0, 1]), ("ARSM", [0, 1]), ("SC", [0, 1])]
    assert "compare mle-0" in results["manifest"]["command"]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    for word in ("<title>MLE, ARSM and SC</title>", "Training, against seconds", "batch size", "arsm-1", "Cost"):
        assert word in page
    assert page.count('class="panels"') == 1
    for word in ("src=", "<link", "<script", "@import", "http-equiv"):
        assert word not in page  # it needs nothing from elsewhere
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))

    # A comparison may be made again in its folder.
    assert corollout("compare", *runs, "--by", "tokens")[0] == 0
    assert "Training, against tokens" in (folder / "report.html").read_text()


def test_labels_make_methods(corollout, tmp_path: Path):
    runs = some_runs(tmp_path)[2:]
    code, out, _ = corollout("compare", *runs, "--labels", "mine, mine,theirs,theirs", "--out", "x")
    assert code == 0
    assert "mine" in out
    assert [m["label"] for m in json.loads((tmp_path / "x" / "results.json").read_text())["methods"]] == [
        "mine",
        "theirs",
    ]


def test_maximum_likelihood_alone(corollout, tmp_path: Path):
    code, out, _ = corollout("compare", *some_runs(tmp_path)[:2])
    assert code == 0
    assert "gain" not in out.split("Gain")[0]
    assert "Loss" in (tmp_path / "comparison" / "figure.svg").read_text()


def test_a_result_without_any_record(corollout, tmp_path: Path):
    run = make_run(tmp_path / "run", "sc")
    (run / "metrics.jsonl").unlink()
    assert corollout("compare", "run")[0] == 0
    assert not (tmp_path / "comparison" / "figure.png").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere holds no run"),
        (["arsm-0", "arsm-0"], "was named twice"),
        (["arsm-0", "--by", "hours"], "--by must be one of seconds, tokens, updates"),
        (["arsm-0", "sc-0", "--labels", "a"], "2 runs and 1 labels"),
        (["arsm-0", "other"], "their tasks are 'karel' and 'captions'"),
        (["arsm-0", "silent"], "silent has no evaluation yet"),
        (["arsm-0", "--out", "full"], "full is not empty"),
        (["arsm-0", "--out", "demo"], "demo is not empty"),
        (["arsm-0", "--out", "file"], "cannot use file"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_a_sentence(corollout, tmp_path: Path, arguments: list[str], said: str):
    some_runs(tmp_path)
    make_run(tmp_path / "other", "sc", task="captions")
    make_run(tmp_path / "silent", "sc", evaluations=0, result=False)
    for name, text in (("full/mine.txt", "mine"), ("demo/results.json", '{"methods": []}'), ("file", "here first")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    code, _, err = corollout("compare", *arguments)
    assert code != 0
    assert said in err
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before
