"""Trainings in run directories: where they evaluate, what they keep, and that they can be taken up again."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.errors import InputError, Interrupted
from corollout.training import MLETrainer, Trainer
from corollout.training.base import BaseTrainer, load_policy
from corollout.training.checkpoints import read_weights
from corollout.training.fit import Schedule, fit
from corollout.training.runs import Run
from tests.support.small_task import likeness, make_data, make_engine, make_policy


def reinforced(name: str = "arsm", **options: Any) -> Trainer:
    policy = make_policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    return Trainer(make_engine(policy), make_data(12), likeness, name, optimizer, batch_size=5, **options)


def taught(**options: Any) -> MLETrainer:
    policy = make_policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    return MLETrainer(make_engine(policy), make_data(12), optimizer, batch_size=5, **options)


def averaged() -> MLETrainer:
    return taught(ema_decay=0.8)


MAKERS = [reinforced, taught, averaged]


def weights(learner: BaseTrainer[Any]) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.policy.parameters()]


def same(one: BaseTrainer[Any], other: BaseTrainer[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def timeless(record: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name != "seconds"}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("updates", [0, 1, 3, 4])  # before the first, inside an epoch, at its end, after it
def test_a_state_goes_on_bit_for_bit(make: Any, updates: int):
    whole, first, second = make(), make(), make()
    list(whole.run(updates=8))
    list(first.run(updates=updates))
    second.restore(first.state())
    told = [timeless(record) for record in second.run(updates=8)]
    assert same(whole, second)
    assert [whole.updates, whole.epochs, whole.tokens] == [second.updates, second.epochs, second.tokens]
    again = make()
    assert told == [timeless(record) for record in again.run(updates=8)][updates:]


def test_a_state_of_another_training_is_refused():
    learner = reinforced()
    state = learner.state()
    with pytest.raises(InputError, match="3 updates an epoch, this one has 1: the data or the batch size is another"):
        Trainer(learner.engine, make_data(12), likeness, "arsm", learner.optimizer, batch_size=12).restore(state)


def test_weights_of_another_model_are_refused():
    policy = make_policy()
    own = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    name = next(iter(own))
    with pytest.raises(InputError, match=f"only one of them has '{name}'"):
        load_policy(policy, {key: value for key, value in own.items() if key != name}, "the file")
    with pytest.raises(InputError, match="'more'"):
        load_policy(policy, {**own, "more": torch.zeros(1)}, "the file")
    with pytest.raises(InputError, match="has the shapes"):
        load_policy(policy, {**own, name: torch.zeros(1)}, "the file")


def test_processor_time_can_be_the_clock():
    learner = reinforced(clock="cpu")
    list(learner.run(updates=2))
    assert 0 < learner.seconds < 60


class Looks:
    """An evaluation with a script."""

    def __init__(self, *scores: float):
        self.scores, self.calls = list(scores), 0

    def __call__(self) -> dict[str, float]:
        self.calls += 1
        return {"score": self.scores[min(self.calls, len(self.scores)) - 1]}


def test_evaluations_come_before_the_first_update_at_their_points_and_at_the_end(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as run:
        summary = fit(reinforced(), run, Schedule("updates", 7, 3), Looks(0.1, 0.3, 0.2, 0.25), "score")
    seen = Run.open(tmp_path / "run").records("evaluation")
    assert [(record["update"], record["score"]) for record in seen] == [(0, 0.1), (3, 0.3), (6, 0.2), (7, 0.25)]
    assert len(Run.open(tmp_path / "run").records("update")) == 7
    assert (summary["best_update"], summary["best_score"], summary["stopped_early"]) == (3, 0.3, False)
    assert Run.open(tmp_path / "run").finished == summary


def test_the_best_weights_are_kept(tmp_path: Path):
    learner = reinforced()
    list(learner.run(updates=3))
    with Run.create(tmp_path / "run", {}) as run:
        fit(reinforced(), run, Schedule("updates", 7, 3), Looks(0.1, 0.3, 0.2, 0.25), "score")
        best, words = read_weights(run.best)
    assert words["update"] == "3"
    assert all(torch.equal(best[name], tensor) for name, tensor in learner.policy.state_dict().items())


def interrupt_after_four(metrics: Any) -> None:
    if metrics.update == 4:
        os.kill(os.getpid(), signal.SIGINT)


def test_averaged_weights_are_evaluated_and_kept(tmp_path: Path):
    """Also by a run that was interrupted; and training goes on from the last update's, not from the average."""

    def bits(learner: MLETrainer) -> list[bytes]:
        return [tensor.numpy().tobytes() for tensor in learner.policy.state_dict().values()]

    def shown(learner: MLETrainer) -> list[bytes]:
        with learner.shown():
            return bits(learner)

    seen = []

    def look(learner: MLETrainer) -> dict[str, float]:
        seen.append(bits(learner))
        return {"score": float(len(seen) == 3)}

    whole, first, second = averaged(), averaged(), averaged()
    averages = [shown(whole), *(shown(whole) for _ in whole.run(updates=9))]
    schedule = Schedule("updates", 9, 3)
    with Run.create(tmp_path / "run", {}) as run, pytest.raises(Interrupted):
        fit(first, run, schedule, lambda: look(first), "score", on_update=interrupt_after_four)
    with Run.open(tmp_path / "run", resume=True) as run:
        fit(second, run, schedule, lambda: look(second), "score")
        best, words = read_weights(run.best)
    assert seen == averages[::3]
    assert len({str(each) for each in seen}) == 4
    assert words["update"] == "6"
    assert [best[name].numpy().tobytes() for name in second.policy.state_dict()] == averages[6]


@pytest.mark.parametrize("unit", ["epochs", "tokens", "seconds"])
def test_every_unit_ends_a_training(tmp_path: Path, unit: Any):
    total = {"epochs": 2, "tokens": 500, "seconds": 0.05}[unit]
    with Run.create(tmp_path / "run", {}) as run:
        summary = fit(reinforced(), run, Schedule(unit, total, total), Looks(0.1), "score")
    assert summary[unit] >= total
    assert Run.open(tmp_path / "run").records("evaluation")[-1]["update"] == summary["updates"]


def test_patience_ends_a_training(tmp_path: Path):
    look = Looks(0.1, 0.3, 0.3, 0.2, 0.9)
    with Run.create(tmp_path / "run", {}) as run:
        summary = fit(reinforced(), run, Schedule("updates", 50, 2, patience=2), look, "score")
    assert (summary["updates"], summary["best_update"], summary["stopped_early"]) == (6, 2, True)


@pytest.mark.parametrize("make", MAKERS)
def test_an_interrupt_saves_and_the_run_goes_on(tmp_path: Path, make: Any):
    learner = make()
    schedule = Schedule("updates", 9, 3)
    with Run.create(tmp_path / "run", {}) as run, pytest.raises(Interrupted, match="stopped after update 4"):
        fit(learner, run, schedule, Looks(0.1), "score", on_update=interrupt_after_four)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    whole, second = make(), make()
    list(whole.run(updates=9))
    with Run.open(tmp_path / "run", resume=True) as run:
        fit(second, run, schedule, Looks(0.1), "score", warn=pytest.fail)
    assert same(whole, second)
    assert [r["update"] for r in Run.open(tmp_path / "run").records("update")] == list(range(1, 10))


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path):
    whole = reinforced()
    with Run.create(tmp_path / "run", {}) as run:
        fit(whole, run, Schedule("updates", 9, 3), Looks(0.1), "score")
    (tmp_path / "run" / "summary.json").unlink()
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    (newest / "tensors.safetensors").write_bytes((newest / "tensors.safetensors").read_bytes()[:-7])
    second, warnings = reinforced(), []
    with Run.open(tmp_path / "run", resume=True) as run:
        fit(second, run, Schedule("updates", 9, 3), Looks(0.1), "score", warn=warnings.append)
    assert len(warnings) == 1
    assert str(newest) in warnings[0]
    assert same(whole, second)


def test_a_run_that_is_killed_before_its_first_update_is_evaluated_once(tmp_path: Path):
    class Killed(Exception):
        pass

    def kill(metrics: Any) -> None:
        raise Killed

    schedule = Schedule("updates", 3, 3)
    with Run.create(tmp_path / "run", {}) as run, pytest.raises(Killed):
        fit(reinforced(), run, schedule, Looks(0.1), "score", on_update=kill)
    with Run.open(tmp_path / "run", resume=True) as run:
        fit(reinforced(), run, schedule, Looks(0.1), "score")
    seen = Run.open(tmp_path / "run").records()
    assert [(r["kind"], r["update"]) for r in seen] == [
        ("evaluation", 0),
        *(("update", number) for number in (1, 2, 3)),
        ("evaluation", 3),
    ]


def test_a_finished_run_is_left_alone(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as run:
        first = fit(reinforced(), run, Schedule("updates", 2, 1), Looks(0.1), "score")
        assert fit(reinforced(), run, Schedule("updates", 5, 1), Looks(0.1), "score") == first


def test_a_schedule_without_length_is_refused():
    with pytest.raises(InputError, match="cannot be"):
        Schedule("updates", 0, 1)
