"""``corollout lab`` as a person meets it, on a run of a few seconds."""

import json
import shutil
from pathlib import Path

import pytest

from corollout.cli.lab import listed
from corollout.errors import InputError
from corollout.lab.on_run import labels
from corollout.lab.store import digest_of
from corollout.training import start as jobs
from corollout.training.checkpoints import write_weights
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings
from tests.support.pages import Page
from tests.support.small_karel import small_run

FEW = ["--examples", "2", "--estimates", "8", "--reference", "rloo-4", "--reference-estimates", "8", "--rounds", "1"]
FILES = ["figure-variance.png", "figure-variance.svg", "figure.png", "figure.svg", "points", "report.html"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run by maximum likelihood and one that was fine-tuned from it."""
    folder = tmp_path_factory.mktemp("lab_runs")
    shutil.copytree(small_run(tmp_path_factory), folder / "mle")
    # Its newest weights earn something, those that were best on other tasks nothing.
    _, engine, update = jobs.open_weights(Run.open(folder / "mle"), "last")
    write_weights(folder / "mle" / "best.safetensors", jobs.module(engine).state_dict(), {"update": str(update)})
    settings = FinetuneSettings(estimator="rloo-2", batch_size=2, budget=2.0, evaluate_every=1.0, train_eval_examples=1)
    jobs.new_finetuning(folder / "rloo", folder / "mle", settings, MachineSettings())
    jobs.resume(folder / "rloo")
    return folder


@pytest.fixture
def corollout(command_line, runs: Path):
    return command_line(runs, 80)


def test_a_lab_prints_and_writes_everything(corollout, runs: Path):
    words = ["lab", "mle", *FEW, "--estimators", "rloo-2,set-3:baseline=fitted", "--estimators", "rl-beam-2"]
    code, out, err = corollout(*words)
    assert (code, "Traceback" in err) == (0, False)
    said = " ".join(out.split())  # where a line ends depends on the seconds that are measured
    for word in (
        "mle, best",
        "Gradient estimates",
        "rl-beam-2 †",
        "Variance × tokens over that of rloo-2",
        "nats a token",
        "Left out as biased: rl-beam-2",
        "Report: mle/lab/report.html",
        "●",
    ):
        assert word in said
    assert max(map(len, out.splitlines())) <= 80
    assert "fitt…" not in out

    folder = runs / "mle" / "lab"
    assert sorted(path.name for path in folder.iterdir()) == [*FILES, "results.json", "table.md"]
    results = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
    assert results["kind"] == "lab"
    (point,) = results["points"]
    assert [row["estimator"] for row in point["rows"]] == ["rloo-2", "set-3:baseline=fitted", "rl-beam-2"]
    assert (point["label"], point["base"], point["settings"]["estimates"]) == ("best", "rloo-2", 8)
    assert "lab mle" in results["manifest"]["command"]
    assert " ".join(point["advice"].split()) in said
    page = Page(folder / "report.html")
    for word in ("Estimator lab: mle", "Variance × cost over that of rloo-2", "squared error of the reference"):
        assert word in page.text
    text = (folder / "report.html").read_text()
    ids = [part.split('"')[0] for part in text.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    assert "| rl-beam-2 † |" in (folder / "table.md").read_text()

    code, _, err = corollout(*words, "--seed", "3")
    assert code == 1
    assert "other settings (seed: 0, now 3): choose another folder" in err


def test_several_points(corollout, runs: Path):
    words = ["--at", "start", "--at", "last", "--estimators", "rloo-2 sc"]
    code, out, _ = corollout("lab", "rloo", *FEW[2:], *words, "--threads", "1", "--out", "several")
    assert code == 0
    results = json.loads((runs / "several" / "results.json").read_text())
    config = Run.open(runs / "rloo").config["finetune"]
    assert results["reward"] == config["reward"]
    assert results["points"][0]["facts"]["contexts"] == config["batch_size"] == 2
    assert [(point["label"], point["update"]) for point in results["points"]][1] == ("last", 2)
    assert all(f"rloo, {label}" in out for label in ("start", "last"))
    drawn = {path.stem for path in (runs / "several").glob("*.svg")}
    assert drawn == {"figure", "figure-variance-1", "figure-variance-2"}
    Page(runs / "several" / "report.html")


def test_who_stops_it_hears_how_it_goes_on(corollout, monkeypatch: pytest.MonkeyPatch):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("corollout.cli.lab.lab_of_run", stopped)
    code, _, err = corollout("lab", "mle", "--out", "stopped")
    assert code == 130
    assert "Stopped; what was measured is in stopped, and the same command goes on." in err


def test_weights_by_all_their_names(runs: Path):
    run = Run.open(runs / "rloo")
    checkpoint = max(path.name for path in run.checkpoints.iterdir())
    opened = {
        name: jobs.open_weights(run, name, {"threads": 1})
        for name in ("start", "last", checkpoint, str(runs / "mle"), str(runs / "mle" / "best.safetensors"))
    }
    digests = [digest_of(jobs.module(engine)) for _, engine, _ in opened.values()]
    assert digests[0] == digests[3] == digests[4] != digests[1] == digests[2]
    updates = [update for _, _, update in opened.values()]
    assert updates[1] == updates[2] == 2
    assert updates[0] == updates[3] == updates[4]


def test_points_are_called_by_their_last_part_if_that_is_enough():
    assert labels(["best", "runs/arsm", "runs/arsm/best.safetensors"]) == ["best", "arsm", "arsm/best"]
    assert labels(["a/mle", "b/mle", "last"]) == ["a/mle", "b/mle", "last"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere holds no run"),
        (["mle", "--estimators", "magic"], "there is no estimator 'magic'"),
        (["mle", "--estimators", "rloo-2,rloo-2"], "--estimators needs different names, not rloo-2, rloo-2"),
        (["mle", "--estimators", "rloo-2,bt-arsm"], "bt-arsm cannot be measured here: BT-ARSM is for a policy whose"),
        (["mle", "--at", "step-00000007"], "mle has no checkpoint step-00000007; it has step-"),
        (["mle", "--at", "start"], "mle has no start.safetensors: only a fine-tuning has weights that it started from"),
        (["mle", "--at", "worst"], "there are no weights 'worst': say best, last, start"),
        (["mle", "--at", "empty"], "empty holds no run"),
        (["mle", "--at", "best", "--at", "best"], "name different weights to measure at"),
        (["mle", "--reward", "gold"], "no reward is called 'gold'"),
        (["mle", "--reference", "rl-beam-2"], "a reference must be without bias"),
        (["mle", "--out", "full"], "full is not empty and holds no earlier lab"),
    ],
)
def test_bad_input_is_a_sentence(corollout, runs: Path, arguments: list[str], said: str):
    (runs / "empty").mkdir(exist_ok=True)
    (runs / "full").mkdir(exist_ok=True)
    (runs / "full" / "mine.txt").write_text("mine")
    out = [] if "--out" in arguments else ["--out", "new"]
    code, _, err = corollout("lab", *FEW, *arguments, *out)
    assert code == 1
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in err
    assert not (runs / "new").exists()


def test_lists_of_estimators():
    assert listed(["rloo-8,set-8", "sc arsm"]) == ["rloo-8", "set-8", "sc", "arsm"]
    assert listed(["arsm:budget=64,budget_per=example, rloo-8 set-8:baseline=fitted"]) == [
        "arsm:budget=64,budget_per=example",
        "rloo-8",
        "set-8:baseline=fitted",
    ]
    with pytest.raises(InputError, match="needs different names, not none"):
        listed([" , "])
