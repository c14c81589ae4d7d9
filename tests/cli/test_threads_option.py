"""``--threads`` of the commands that train: chosen, told, kept, and changed when a run is resumed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from corollout.cli import training as training_module
from corollout.config import read_toml
from corollout.threads import ThreadChoice
from corollout.training import start
from corollout.training.runs import Run
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning
from tests.support.commands import invoke, output, refusal
from tests.support.small_karel import small_run

SMALL = "--largest-world 4 --channels 2 --blocks 0 --pair-width 8 --embedding 4 --hidden 8 --max-length 9"
SIZES = SMALL.split()
BUDGET = "--unit updates --budget 2 --evaluate-every 1"
FEW = [*BUDGET.split(), "--estimator", "rloo-2", "--batch-size", "2", "--train-eval-examples", "2"]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


def stored(run: Path) -> object:
    return read_toml(run / "config.toml")["machine"]["threads"]


def choose_two(work: Callable[[], object] | None = None) -> ThreadChoice:
    assert work is not None
    work()  # the policy's first step
    return ThreadChoice(2, "2 threads: for a test", measured=True)


def test_the_choice_is_told_and_kept(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch):
    kept: list[bool] = []
    monkeypatch.setattr(training_module, "keep_pages", lambda: kept.append(True))
    monkeypatch.setattr(start, "choose_threads", choose_two)
    first = invoke("finetune", run, "--out", tmp_path / "run", *FEW)
    assert first.exit_code == 0
    assert first.stderr.splitlines().count("2 threads: for a test") == 1
    assert stored(tmp_path / "run") == 2
    assert torch.get_num_threads() == 2
    assert kept == [True]
    # Nothing is measured when it is resumed.
    monkeypatch.setattr(start, "choose_threads", None)
    torch.set_num_threads(1)
    (tmp_path / "run" / "summary.json").unlink()
    resumed = invoke("finetune", "--resume", "--out", tmp_path / "run")
    assert resumed.exit_code == 0
    assert "thread" not in resumed.stderr
    assert torch.get_num_threads() == 2
    assert kept == [True, True]


def test_a_number_decides_without_a_measurement(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "choose_threads", None)
    assert "thread" not in invoke("finetune", run, "--out", tmp_path / "one", *FEW, "--threads", "1").stderr
    assert stored(tmp_path / "one") == 1
    seconds = [*FEW[6:], "--unit", "seconds", "--budget", "0.01", "--evaluate-every", "1", "--clock", "cpu"]
    shown = invoke("finetune", run, "--out", tmp_path / "cpu", *seconds).stderr
    assert "1 thread: the budget counts the CPU time of all of them" in shown
    assert stored(tmp_path / "cpu") == 1


def test_the_environment_decides(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    data = Run.open(run).config["data"]["folder"]
    shown = invoke("pretrain", "karel", "--data", data, "--out", tmp_path / "mle", *SIZES, "--epochs", "1")
    assert "thread" not in shown.stderr  # whoever set it knows
    assert stored(tmp_path / "mle") == 2
    output("finetune", tmp_path / "mle", "--out", tmp_path / "run", *FEW, "--threads", "1")
    assert stored(tmp_path / "run") == 1


def test_a_resumed_run_takes_another_number_if_it_is_given(tmp_path: Path, run: Path):
    settings = FinetuneSettings(estimator="rloo-2", batch_size=2, budget=2.0, evaluate_every=1.0, train_eval_examples=2)
    create_finetuning(tmp_path / "run", run, settings, MachineSettings())
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    shown = invoke("finetune", "--resume", "--out", tmp_path / "run", "--threads", "2")
    assert shown.exit_code == 0
    assert "warning: the run began with --threads 1; with 2, rounding may differ" in shown.stderr
    assert torch.get_num_threads() == 2
    assert stored(tmp_path / "run") == 1
    assert "warning" not in invoke("finetune", "--resume", "--out", tmp_path / "other", "--threads", "1").stderr
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0", "--threads must be at least 1, not 0"),
        ("-2", "--threads must be at least 1, not -2"),
        ("two", '--threads must be a whole number or "auto", not "two"'),
        ("1.5", '--threads must be a whole number or "auto", not "1.5"'),
        ("none", '--threads must be a whole number or "auto", not "none"'),
        ("", '--threads must be a whole number or "auto", not ""'),
    ],
)
def test_values_that_are_refused(tmp_path: Path, run: Path, value: str, message: str):
    assert refusal("finetune", run, "--out", tmp_path / "run", *FEW, "--threads", value) == message
    assert refusal("finetune", "--resume", "--out", run, "--threads", value) == message
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_is_not_measured_again_and_keeps_its_other_settings(run: Path):
    said = refusal("finetune", "--resume", "--out", run, "--threads", "auto")
    assert said == "a resumed run keeps its number of threads: leave --threads out, or give a number"
    for more in (["--device", "cpu"], ["--threads", "1", "--device", "cpu"]):
        assert "leave out --device" in refusal("finetune", "--resume", "--out", run, *more)
    assert "leave out --seed" in refusal("finetune", "--resume", "--out", run, "--threads", "1", "--seed", "3")


def test_help_says_auto():
    shown = " ".join(output("finetune", "--help").split())
    assert "--threads <int|auto>" in shown
    assert "[default: auto]" in shown
