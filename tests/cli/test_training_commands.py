"""``corollout pretrain``, ``finetune`` and ``evaluate``, from settings to numbers."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from corollout.cli.main import cli
from corollout.config import read_toml, write_toml
from corollout.errors import CorolloutError, InputError
from corollout.tasks.karel.settings import scale
from corollout.training.runs import Run
from tests.support.small_karel import MODEL, small_run

SIZES = [
    *("--largest-world", "4", "--channels", "2", "--blocks", "0", "--pair-width", "8", "--embedding", "4"),
    *("--hidden", "8", "--max-length", "9"),
]


def call(*words: str | Path) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def data(run: Path) -> Path:
    return Path(Run.open(run).config["data"]["folder"])


def test_a_model_is_trained_fine_tuned_and_evaluated(tmp_path: Path, data: Path):
    first, second = tmp_path / "mle", tmp_path / "arsm"
    said = call("pretrain", "karel", "--data", data, "--out", first, *SIZES, "--epochs", "2", "--batch-size", "3")
    assert said.exit_code == 0
    assert "Best on the validation data: Generalization" in said.stdout
    budget = ["--unit", "updates", "--budget", "3", "--evaluate-every", "2", "--batch-size", "2"]
    said = call("finetune", first, "--estimator", "arsm", "--out", second, *budget)
    assert said.exit_code == 0
    assert [record["update"] for record in Run.open(second).records("evaluation")] == [0, 2, 3]
    assert len(Run.open(second).records("update")) == 3
    said = call("evaluate", second, "--beam", "2", "--json")
    numbers = json.loads(said.stdout)
    assert {"generalization", "semantic", "exact", "syntax", "top_1", "top_2"} <= numbers.keys()
    assert json.loads((second / "evaluation-test.json").read_text())["count"] == 3
    assert "Generalization" in call("evaluate", second, "--split", "val", "--beam", "0").stdout


def test_flags_win_over_the_file_and_the_file_over_the_scale(tmp_path: Path, data: Path):
    write_toml(tmp_path / "own.toml", {"pretrain": {"learning_rate": 0.5, "epochs": 1, "batch_size": 6}})
    flags = [*SIZES, "--config", tmp_path / "own.toml", "--learning-rate", "0.25"]
    call("pretrain", "karel", "--data", data, "--out", tmp_path / "run", "--scale", "tiny", *flags)
    settings = read_toml(tmp_path / "run" / "config.toml")
    assert settings["pretrain"]["learning_rate"] == 0.25
    assert settings["pretrain"]["epochs"] == 1
    assert settings["pretrain"]["patience"] == scale("tiny")["pretrain"]["patience"]
    assert settings["model"]["channels"] == 2


def test_the_best_weights_of_the_other_run_are_the_start(tmp_path: Path, run: Path):
    call("finetune", run, "--out", tmp_path / "sc", "--estimator", "sc", "--unit", "updates", "--budget", "1")
    assert (tmp_path / "sc" / "start.safetensors").read_bytes() == (run / "best.safetensors").read_bytes()
    assert read_toml(tmp_path / "sc" / "config.toml")["model"]["hidden"] == MODEL.hidden


def test_a_finished_run_is_resumed_to_the_same_end(tmp_path: Path, run: Path):
    words = ["--estimator", "rloo-2", "--unit", "updates", "--budget", "1"]
    call("finetune", run, "--out", tmp_path / "rloo", *words)
    before = (tmp_path / "rloo" / "metrics.jsonl").read_bytes()
    assert call("finetune", run, "--out", tmp_path / "rloo", "--resume").exit_code == 0
    assert (tmp_path / "rloo" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrain", "karel", "--out", "x"], "say by --data where the tasks are"),
        (["pretrain", "karel", "--out", "x", "--data", "nowhere"], "nowhere/train.jsonl does not exist"),
        (["pretrain", "karel", "--out", "x", "--data", "nowhere", "--scale", "huge"], "no scale is called 'huge'"),
        (["pretrain", "karel", "--out", "x", "--data", "nowhere", "--epochs", "0"], "--epochs must be at least 1"),
        (["pretrain", "karel", "--out", "x", "--config", "no.toml", "--data", "d"], "cannot read the settings no.toml"),
        (["pretrain", "karel", "--out", "x", "--resume", "--epochs", "3"], "keeps its settings"),
        (["pretrain", "karel", "--out", "x", "--resume"], "x holds no run"),
        (["finetune", "nowhere", "--out", "x"], "nowhere holds no run"),
        (["evaluate", "nowhere"], "nowhere holds no run"),
    ],
)
def test_bad_words_are_answered_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorolloutError, match=message):
        call(*words)
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_with_a_fine_tuning_is_said_before_anything_is_made(tmp_path: Path, run: Path):
    for flags, message in (
        (["--estimator", "magic"], "no estimator 'magic'"),
        (["--reward", "gold"], "no reward is called 'gold'"),
        (["--data", str(tmp_path)], "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            call("finetune", run, "--out", tmp_path / "x", *flags)
        assert not (tmp_path / "x").exists()


def test_a_directory_that_holds_a_run_is_refused(run: Path, data: Path):
    with pytest.raises(InputError, match="already holds a run"):
        call("pretrain", "karel", "--data", data, "--out", run, *SIZES)


def test_an_unknown_split_is_refused(run: Path):
    with pytest.raises(InputError, match="no split is called 'best'"):
        call("evaluate", run, "--split", "best")
