"""Runs that are made longer: they go on as if they had been that long from the start."""

from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.errors import InputError
from corollout.events import Event, ignore
from corollout.training import Run, Schedule, fit
from corollout.training.base import BaseTrainer
from corollout.training.extension import extended
from corollout.training.metrics import TIMED
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.start import create_finetuning, create_pretraining, resume_run
from corollout.weights import read_weights
from tests.support.commands import invoke, refusal
from tests.support.errors import refused
from tests.support.repeat_task import ModelSettings
from tests.support.small_task import make_mle_trainer, make_trainer, weights

TASK = "tests.support.repeat_task"


def fit_in(directory: Path, schedule: Schedule, trainer: BaseTrainer[Any], events: list[Event]) -> dict[str, Any]:
    """The score of an evaluation grows with the updates, but for the last ones."""

    def evaluation() -> dict[str, float]:
        return {"score": float(min(trainer.updates, 9))}

    with Run.open(directory, resume=True) if directory.exists() else Run.create(directory, {}) as run:
        return fit(trainer, run, schedule, evaluation, "score", on_event=events.append)


def timeless(directory: Path, *kinds: str) -> list[dict[str, Any]]:
    records = [record for record in Run.open(directory).records() if record["kind"] in kinds]
    return [{name: value for name, value in record.items() if name not in TIMED} for record in records]


@pytest.mark.parametrize("make", [lambda: make_trainer("rloo-2:baseline=fitted"), make_mle_trainer])
def test_a_longer_schedule_continues_bit_for_bit(tmp_path: Path, make: Any):
    """Also if the old end was not an evaluation of the new schedule: that one remains, and changes nothing."""
    long, events = Schedule("updates", 12, 4), []
    whole, first, second = make(), make(), make()
    expected = fit_in(tmp_path / "whole", long, whole, [])
    short = fit_in(tmp_path / "run", Schedule("updates", 6, 4), first, [])
    assert (short["updates"], short["best_update"]) == (6, 6)
    summary = fit_in(tmp_path / "run", long, second, events)
    assert torch.equal(weights(whole.policy), weights(second.policy))
    assert timeless(tmp_path / "run", "update") == timeless(tmp_path / "whole", "update")
    evaluations = [record["update"] for record in timeless(tmp_path / "run", "evaluation")]
    assert evaluations == [0, 4, 6, 8, 12]
    same = ("updates", "best_update", "best_score", "tokens", "epochs", "stopped_early")
    assert [summary[name] for name in same] == [expected[name] for name in same]
    assert Run.open(tmp_path / "run").summary == summary
    assert Run.open(tmp_path / "run").config["fit"]["total"] == 12
    notes = [event.record["text"] for event in events if event.kind == "note"]
    assert notes == [
        "continued from 6 to 12 updates: the next evaluation at 8, then every 4; the learning rate stays as it is"
    ]
    # It is not extended again.
    assert fit_in(tmp_path / "run", long, make(), []) == summary


def test_an_interrupted_run_is_made_longer(tmp_path: Path):
    class PowerCut(Exception):
        pass

    def power_cut(event: Event) -> None:
        if event.kind == "update" and event.record["update"] == 5:
            raise PowerCut

    whole, events = make_trainer(), []
    fit_in(tmp_path / "whole", Schedule("updates", 9, 4), whole, [])
    with pytest.raises(PowerCut), Run.create(tmp_path / "run", {}) as run:
        fit(make_trainer(), run, Schedule("updates", 6, 4), lambda: {"score": 0.0}, "score", on_event=power_cut)
    again = make_trainer()
    fit_in(tmp_path / "run", Schedule("updates", 9, 4), again, events)
    assert torch.equal(weights(whole.policy), weights(again.policy))
    assert [record["update"] for record in Run.open(tmp_path / "run").records("evaluation")] == [0, 4, 8, 9]


def test_a_run_that_stopped_early_needs_more_patience(tmp_path: Path):
    """Its score stops growing at update 9."""
    schedule = Schedule("updates", 40, 3, patience=1)
    short = fit_in(tmp_path / "run", schedule, make_trainer(), [])
    assert (short["stopped_early"], short["updates"], short["misses"]) == (True, 12, 1)
    assert fit_in(tmp_path / "run", Schedule("updates", 60, 3, patience=1), make_trainer(), []) == short
    longer = fit_in(tmp_path / "run", Schedule("updates", 40, 3, patience=2), make_trainer(), [])
    assert (longer["stopped_early"], longer["updates"], longer["misses"]) == (True, 15, 2)


def test_commands_make_runs_longer(tmp_path: Path):
    """Bit for bit, and the run keeps its new length."""
    settings = PretrainSettings(epochs=2, batch_size=8, learning_rate=0.01, decay=0.5)
    for name, epochs in (("short", 2), ("long", 4)):
        create_pretraining(
            tmp_path / name, TASK, None, ModelSettings(), PretrainSettings(**{**vars(settings), "epochs": epochs}),
            MachineSettings(),
        )  # fmt: skip
        resume_run(tmp_path / name, ignore)
    events: list[Event] = []
    resume_run(tmp_path / "short", events.append, longer={"epochs": 4})
    decay = "the learning rate goes on to be multiplied by 0.5 every epoch"
    said = f"continued from 2 to 4 epochs: the next evaluation at 3, then every 1; {decay}"
    assert [event.record["text"] for event in events if event.kind == "note"] == [said]
    assert "epochs = 4" in (tmp_path / "short" / "config.toml").read_text()
    assert _weights(tmp_path / "short") == _weights(tmp_path / "long")

    for name, budget in (("tuned", 3.0), ("whole", 5.0)):
        tuning = FinetuneSettings("rloo-2", batch_size=8, budget=budget, evaluate_every=1.0, train_eval_examples=4)
        create_finetuning(tmp_path / name, tmp_path / "long", tuning, MachineSettings())
        resume_run(tmp_path / name, ignore)
    run = tmp_path / "tuned"
    said = refusal("finetune", "--resume", "--out", run, "--budget", 2)
    assert said == f"a resumed run can be made longer, not shorter: the budget of {run} is 3, more than 2"
    not_a_pretraining = refusal("pretrain", "karel", "--resume", "--out", run, "--epochs", 9)
    assert "is not a run of `corollout pretrain`" in not_a_pretraining
    assert "keeps its settings, but for its length" in refusal("finetune", "--resume", "--out", run, "--seed", 3)
    assert invoke("finetune", "--resume", "--out", run, "--budget", 5).exit_code == 0
    before = (run / "metrics.jsonl").read_bytes()
    assert resume_run(run, ignore)["updates"] == 5
    assert (run / "metrics.jsonl").read_bytes() == before
    assert _weights(run) == _weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "longer", "said"),
    [
        ({"schedule": "linear"}, {"budget": 3.0}, "the learning rate of .* falls to 0 with the end of its budget"),
        ({}, {"patience": 3}, "the patience of .* is 0, which sets no end"),
        ({"patience": 3}, {"patience": 2}, "the patience of .* is 3, more than 2"),
        ({"patience": 3}, {"patience": 0}, "has trained for all of its updates: .* a larger --budget does"),
    ],
)
def test_fine_tunings_that_cannot_be_made_longer(
    tmp_path: Path, settings: dict[str, Any], longer: dict[str, Any], said: str
):
    config = {"kind": "finetune", "finetune": {"budget": 2.0, **settings}}
    with Run.create(tmp_path / "run", config) as run:
        run.finish({"updates": 2, "stopped_early": False, "misses": 0})
        with pytest.raises(InputError, match=said):
            extended(run, longer)


def test_a_fine_tuning_that_stopped_early_gets_more_patience(tmp_path: Path):
    config = {"kind": "finetune", "finetune": {"budget": 9.0, "patience": 1}}
    with Run.create(tmp_path / "run", config) as run:
        run.finish({"updates": 2, "stopped_early": True, "misses": 1})
        with pytest.raises(InputError, match="1 evaluations had brought no improvement: a larger --budget changes"):
            extended(run, {"budget": 20.0})
        assert extended(run, {"patience": 0})[1].patience is None
        assert not extended(run, {"patience": 2})[1].is_complete(run.summary or {})


def _weights(run: Path) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in read_weights(run / "best.safetensors")[0].items()}


def test_what_evaluations_must_return(tmp_path: Path):
    def begin(name: str, numbers: Any) -> None:
        with Run.create(tmp_path / name, {}) as run:
            fit(make_trainer(), run, Schedule("updates", 2, 1), lambda: numbers, "score")

    refused("evaluate must return a dict with a number for the metric 'score', not 0.5", begin, "a", 0.5)
    refused(r"must return a dict with a number for the metric 'score', not \['reward'\]", begin, "b", {"reward": 1.0})
    refused("evaluate returned NaN for 'score'", begin, "c", {"score": float("nan")})
    with pytest.raises(InputError, match="opened for reading only"):
        fit(make_trainer(), Run.open(tmp_path / "a"), Schedule("updates", 2, 1), lambda: {"score": 0.0}, "score")
