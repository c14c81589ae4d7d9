"""``corollout lab`` on a run of a few seconds."""

import json
import shutil
from pathlib import Path

import pytest

from corollout.errors import InputError, Interrupted
from corollout.lab.on_run import point_labels, split_names
from corollout.lab.store import digest_of
from corollout.reports.report import open_report
from corollout.training.run_weights import open_weights
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning, policy_module, resume_run
from corollout.weights import write_weights
from tests.support.commands import invoke, output, refusal
from tests.support.pages import Page
from tests.support.small_karel import small_run

FEW = ["--examples", "2", "--estimates", "8", "--reference", "rloo-4", "--reference-estimates", "8", "--rounds", "1"]


@pytest.fixture(scope="module")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pre-training and a fine-tuning that started from it."""
    folder = tmp_path_factory.mktemp("lab_runs")
    shutil.copytree(small_run(tmp_path_factory), folder / "mle")
    # Its newest weights get rewards, those that were best on other tasks do not.
    _, engine, update = open_weights(Run.open(folder / "mle"), "last")
    write_weights(folder / "mle" / "best.safetensors", policy_module(engine).state_dict(), {"update": str(update)})
    settings = FinetuneSettings(estimator="rloo-2", batch_size=2, budget=2.0, evaluate_every=1.0, train_eval_examples=1)
    create_finetuning(folder / "rloo", folder / "mle", settings, MachineSettings())
    resume_run(folder / "rloo")
    return folder


@pytest.fixture
def runs(made_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made_runs)
    return made_runs


def test_a_lab_prints_and_writes_everything(runs: Path):
    arguments = ["lab", "mle", *FEW, "--estimators", "rloo-2,set-3:baseline=fitted", "--estimators", "rl-beam-2"]
    result = invoke(*arguments, columns=80)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())  # where a line ends depends on the seconds that are measured
    for part in ("mle, best", "Gradient estimates", "rl-beam-2 †", "Report: mle/lab/report.html", "●"):
        assert part in text
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "fitt…" not in result.stdout

    folder = runs / "mle" / "lab"
    names = "figure-variance.png figure.png manifest.json points report.html report.json table.md"
    assert sorted(path.name for path in folder.iterdir()) == names.split()
    report = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    (point,) = report["numbers"]["points"]
    assert (report["kind"], report["numbers"]["run"]) == ("lab", "mle")
    assert [row["estimator"] for row in point["rows"]] == ["rloo-2", "set-3:baseline=fitted", "rl-beam-2"]
    assert (point["label"], point["base"], point["settings"]["estimates"]) == ("best", "rloo-2", 8)
    assert " ".join(point["advice"].split()) in text
    page = Page(folder / "report.html")
    for part in ("Estimator lab: mle", "Variance × cost over that of rloo-2", "squared error of the reference"):
        assert part in page.text
    ids = [part.split('"')[0] for part in (folder / "report.html").read_text().split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    assert "| rl-beam-2 † |" in (folder / "table.md").read_text()
    assert "<svg" in open_report(folder).page()
    assert "other settings (seed: 0, now 3)" in refusal(*arguments, "--seed", "3")


@pytest.mark.prove
def test_several_points(runs: Path):
    points = ["--weights", "start", "--at", "last"]
    out = output("lab", "rloo", *FEW[2:], *points, "--estimators", "rloo-2 sc", "--threads", "1", "--out", "several")
    numbers = open_report(runs / "several").numbers
    config = Run.open(runs / "rloo").config["finetune"]
    assert numbers["reward"] == config["reward"]
    assert numbers["points"][0]["facts"]["contexts"] == config["batch_size"] == 2
    assert [(point["label"], point["update"]) for point in numbers["points"]][1] == ("last", 2)
    assert all(f"rloo, {label}" in out for label in ("start", "last"))
    figures = sorted(path.stem for path in (runs / "several").glob("*.png"))
    assert figures == ["figure", "figure-variance-1", "figure-variance-2"]
    Page(runs / "several" / "report.html")


def test_an_interrupted_lab_says_how_to_continue(runs: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("corollout.cli.lab.lab_of_run", interrupt)
    error = invoke("lab", "mle", "--out", "stopped").exception
    assert isinstance(error, Interrupted)
    assert "kept in stopped" in str(error)


def test_weights_by_all_their_names(runs: Path):
    run = Run.open(runs / "rloo")
    checkpoint = max(path.name for path in run.checkpoints.iterdir())
    names = ("start", "last", checkpoint, str(runs / "mle"), str(runs / "mle" / "best.safetensors"))
    opened = [open_weights(run, name, {"threads": 1}) for name in names]
    states = [(digest_of(policy_module(engine)), update) for _, engine, update in opened]
    assert states[0] == states[3] == states[4] != states[1] == states[2]
    assert states[1][1] == 2


def test_labels_of_points_and_lists_of_estimators():
    assert point_labels(["best", "runs/arsm", "runs/arsm/best.safetensors"]) == ["best", "arsm", "arsm/best"]
    assert point_labels(["a/mle", "b/mle", "last"]) == ["a/mle", "b/mle", "last"]
    assert split_names(["rloo-8,set-8", "sc arsm"]) == ["rloo-8", "set-8", "sc", "arsm"]
    names = split_names(["arsm:budget=64", "budget_per=example", " rloo-8 set-8:baseline=fitted"])
    assert names == ["arsm:budget=64,budget_per=example", "rloo-8", "set-8:baseline=fitted"]
    with pytest.raises(InputError, match="needs different names, not none"):
        split_names([" , "])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere"),
        (["mle", "--estimators", "magic"], "'magic'"),
        (["mle", "--estimators", "rloo-2,rloo-2"], "--estimators needs different names"),
        (["mle", "--estimators", "rloo-2,bt-arsm"], "bt-arsm does not work here"),
        (["mle", "--weights", "step-00000007"], "mle has no checkpoint step-00000007; it has step-"),
        (["mle", "--weights", "start"], "mle has no start.safetensors"),
        (["mle", "--weights", "worst"], "no weights 'worst'"),
        (["mle", "--weights", "empty"], "empty"),
        (["mle", "--weights", "best,best"], "--weights needs different weights"),
        (["mle", "--reward", "gold"], "'gold'"),
        (["mle", "--reference", "rl-beam-2"], "the reference must be unbiased"),
        (["mle", "--estimates", "7"], "--estimates must be at least 8"),
        (["mle", "--out", "full"], "full is not empty and holds no earlier lab"),
    ],
)
def test_bad_input_is_a_sentence(runs: Path, arguments: list[str], message: str):
    (runs / "empty").mkdir(exist_ok=True)
    (runs / "full").mkdir(exist_ok=True)
    (runs / "full" / "mine.txt").write_text("mine")
    assert message in refusal("lab", *FEW, "--out", "new", *arguments)
    assert not (runs / "new").exists()
