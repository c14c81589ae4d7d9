"""``corollout pretrain``, ``finetune`` and ``evaluate``, from settings to numbers."""

import json
import os
from pathlib import Path

import pytest

from corollout.config import read_toml, write_toml
from corollout.errors import InputError
from corollout.tasks.task import find_task
from corollout.training.runs import Run
from tests.support.commands import invoke, output, refusal
from tests.support.small_karel import MODEL, small_run

SMALL = "--largest-world 4 --channels 2 --blocks 0 --pair-width 8 --embedding 4 --hidden 8 --max-length 9"
SIZES = SMALL.split()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def data(run: Path) -> Path:
    return Path(Run.open(run).config["data"]["folder"])


def test_a_model_is_trained_fine_tuned_and_evaluated(tmp_path: Path, data: Path):
    first, second = tmp_path / "mle", tmp_path / "arsm"
    few = ["--epochs", "2", "--batch-size", "3"]
    shown = output("pretrain", "karel", "--data", data, "--out", first, *SIZES, *few)
    assert "Best on the validation data: Generalization" in shown
    budget = ["--unit", "updates", "--budget", "3", "--evaluate-every", "2", "--batch-size", "2"]
    output("finetune", first, "--estimator", "arsm", "--out", second, *budget)
    assert [record["update"] for record in Run.open(second).records("evaluation")] == [0, 2, 3]
    assert len(Run.open(second).records("update")) == 3
    numbers = json.loads(output("evaluate", second, "--beam", "2", "--json"))
    assert {"generalization", "semantic", "exact", "syntax", "top_1", "top_2"} <= numbers.keys()
    assert json.loads((second / "evaluation-test.json").read_text())["count"] == 3
    assert "Generalization" in output("evaluate", second, "--split", "val", "--beam", "0")


def test_flags_win_over_the_file_and_the_file_over_the_scale(tmp_path: Path, data: Path, run: Path):
    write_toml(tmp_path / "my.toml", {"pretrain": {"learning_rate": 0.5, "epochs": 1, "batch_size": 6}})
    flags = ["--config", tmp_path / "my.toml", "--learning-rate", "0.25"]
    output("pretrain", "karel", "--data", data, "--out", tmp_path / "run", "--scale", "tiny", *SIZES, *flags)
    settings = read_toml(tmp_path / "run" / "config.toml")
    assert settings["pretrain"]["learning_rate"] == 0.25
    assert settings["pretrain"]["epochs"] == 1
    assert settings["pretrain"]["patience"] == find_task("karel").scale("tiny")["pretrain"]["patience"]
    assert settings["model"]["channels"] == 2
    # The settings of another run are a file, too.
    flags = ["--config", run / "config.toml", "--epochs", "1"]
    output("pretrain", "karel", "--data", data, "--out", tmp_path / "2", *flags)
    assert read_toml(tmp_path / "2" / "config.toml")["model"] == read_toml(run / "config.toml")["model"]
    # An error in the file names the file.
    write_toml(tmp_path / "my.toml", {"pretrain": {"epoch": 1}})
    said = refusal("pretrain", "karel", "--data", data, "--out", tmp_path / "x", "--config", tmp_path / "my.toml")
    assert "my.toml: unknown key 'epoch' in section pretrain; did you mean 'epochs'" in said


def test_fine_tuning_starts_from_the_best_weights_and_resumes_to_the_same_end(tmp_path: Path, run: Path):
    out = tmp_path / "rloo"
    output("finetune", run, "--out", out, "--estimator", "rloo-2", "--unit", "updates", "--budget", "1")
    assert (out / "start.safetensors").read_bytes() == (run / "best.safetensors").read_bytes()
    assert read_toml(out / "config.toml")["model"]["hidden"] == MODEL.hidden
    before = (out / "metrics.jsonl").read_bytes()
    output("finetune", "--resume", "--out", out)
    output("finetune", run, "--resume", "--out", out)
    assert (out / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrain karel --out x", "--data"),
        ("pretrain karel --out x --data nowhere", "nowhere"),
        ("pretrain karel --out x --data nowhere --scale huge", "huge"),
        ("pretrain karel --out x --data nowhere --epochs 0", "--epochs must be at least 1"),
        ("pretrain karel --out x --config no.toml --data d", "cannot read the settings no.toml"),
        ("pretrain karel --out x --resume --epochs 3", "x is not a run directory"),
        ("pretrain karel --out x --resume", "x is not a run"),
        ("pretrain sudoku --out x", "unknown task 'sudoku'"),
        ("pretrain no.such.task --out x", "cannot import 'no"),
        ("finetune --out x", "name the run to start from"),
        (
            "finetune --resume --out x --data d",
            "keeps its settings, but for its length (--budget and --patience): leave out --data",
        ),
        ("finetune nowhere --out x", "nowhere is not a run"),
        ("evaluate nowhere", "nowhere is not a run"),
    ],
)
def test_mistakes_are_errors_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(*arguments.split())
    assert not list(tmp_path.iterdir())


def test_mistakes_with_a_run_are_errors_before_anything_is_written(tmp_path: Path, run: Path, data: Path):
    mistakes = {"--estimator": "no estimator 'magic'", "--reward": "no reward 'magic'", "--data": "magic"}
    for flag, message in mistakes.items():
        assert message in refusal("finetune", run, "--out", tmp_path / "x", flag, "magic")
    assert not (tmp_path / "x").exists()
    assert "already holds a run" in refusal("pretrain", "karel", "--data", data, "--out", run, *SIZES)
    assert "best" in refusal("evaluate", run, "--split", "best")


def test_help_of_pretrain_names_the_tasks_and_of_a_task_its_options():
    assert "karel, captions, or the import path" in " ".join(output("pretrain", "--help").split())
    text = output("pretrain", "karel", "--help")
    for option in ("--out", "--data", "--scale", "--config", "--tree", "--resume", "--hidden", "--epochs", "--device"):
        assert option in text


@pytest.mark.parametrize("task", ["karel", "captions"])
def test_a_task_that_needs_data_says_how_to_get_it(task: str, tmp_path: Path):
    said = refusal("pretrain", task, "--out", tmp_path / "run")
    assert f"the task {task} needs data" in said
    assert "--data" in said
    assert not (tmp_path / "run").exists()


def test_numbers_that_cannot_be_saved_are_printed(run: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise InputError("cannot write evaluation-val.json: No space left on device")

    monkeypatch.setattr("corollout.cli.evaluate.save_evaluation", refuse)
    result = invoke("evaluate", run, "--split", "val", "--beam", "0", "--json")
    assert isinstance(result.exception, InputError)
    assert json.loads(result.stdout)["generalization"] >= 0
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    again = invoke("evaluate", run, "--split", "val", "--beam", "0", "--json")
    assert (again.exit_code, again.stdout) == (0, result.stdout)
    assert again.stderr == f"warning: the numbers are not saved, because {run} is read-only\n"
