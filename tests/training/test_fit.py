"""Training in run directories: when it evaluates, what it keeps, and that it can be resumed."""

import math
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError, Interrupted
from corollout.events import Callback, Event, ignore
from corollout.signals import STOPS, exit_code
from corollout.training import Run, Schedule, fit, loop
from corollout.training.base import BaseTrainer, load_policy
from corollout.training.checkpoints import State
from corollout.training.metrics import TIMED
from corollout.weights import read_weights
from tests.support.small_task import eval_weights, make_mle_trainer, make_policy, make_trainer, weights

MAKERS = [partial(make_trainer, "arsm"), make_mle_trainer, partial(make_mle_trainer, ema_decay=0.8)]


class Scores:
    """An evaluation with given scores; the last one repeats."""

    def __init__(self, *scores: float):
        self.scores, self.calls = list(scores), 0

    def __call__(self) -> dict[str, float]:
        self.calls += 1
        return {"score": self.scores[min(self.calls, len(self.scores)) - 1]}


def fit_in(
    directory: Path,
    schedule: Schedule,
    trainer: BaseTrainer[Any] | None = None,
    evaluate: Any = None,
    on_event: Callback = ignore,
) -> dict[str, Any]:
    """Begin a run, or resume it."""
    with Run.open(directory, resume=True) if directory.exists() else Run.create(directory, {}) as run:
        return fit(trainer or make_trainer(), run, schedule, evaluate or Scores(0.1), "score", on_event=on_event)


def without_seconds(metrics: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(metrics).items() if name not in TIMED}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("updates", [0, 1, 3, 4])  # before the first, inside an epoch, at its end, after it
def test_a_state_resumes_bit_for_bit(make: Any, updates: int):
    whole, first, second = make(), make(), make()
    expected = [without_seconds(metrics) for metrics in whole.run(updates=8)]
    list(first.run(updates=updates))
    state = first.state()
    list(first.run(updates=updates + 1))  # a state is a copy
    list(second.run(updates=2))  # what it had is replaced
    second.load_state(state)
    assert [without_seconds(metrics) for metrics in second.run(updates=8)] == expected[updates:]
    assert torch.equal(weights(whole.policy), weights(second.policy))
    assert torch.equal(eval_weights(whole), eval_weights(second))
    assert [whole.updates, whole.epochs, whole.tokens] == [second.updates, second.epochs, second.tokens]


def test_states_and_weights_of_other_trainings_are_refused():
    with pytest.raises(InputError, match="3 updates per epoch, but this one has 1"):
        make_trainer(batch_size=12).load_state(make_trainer().state())
    policy = make_policy()
    tensors = dict(policy.state_dict())
    name = next(iter(tensors))
    without = {key: value for key, value in tensors.items() if key != name}
    for other, message in (
        (without, f"only the model has '{name}'"),
        ({**tensors, "more": torch.zeros(1)}, "only the file has 'more'"),
        ({**tensors, name: torch.zeros(1)}, "has the shape"),
    ):
        with pytest.raises(InputError, match=message):
            load_policy(policy, other, "the file")


def test_evaluations_and_the_best_weights(tmp_path: Path):
    """Before the first update, as scheduled, and at the end."""
    summary = fit_in(tmp_path / "run", Schedule("updates", 7, 3), evaluate=Scores(0.1, 0.3, 0.2, 0.25))
    run = Run.open(tmp_path / "run")
    evaluations = [(record["update"], record["score"]) for record in run.records("evaluation")]
    assert evaluations == [(0, 0.1), (3, 0.3), (6, 0.2), (7, 0.25)]
    assert len(run.records("update")) == 7
    assert (summary["best_update"], summary["best_score"], summary["stopped_early"]) == (3, 0.3, False)
    assert run.summary == summary
    trainer = make_trainer()
    list(trainer.run(updates=3))
    best, meta = read_weights(run.best)
    assert meta["update"] == "3"
    assert all(torch.equal(best[name], tensor) for name, tensor in trainer.policy.state_dict().items())
    # A finished run is left alone.
    assert fit_in(tmp_path / "run", Schedule("updates", 7, 1)) == summary
    assert fit_in(tmp_path / "run", Schedule("updates", 5, 1)) == summary


def test_a_folder_is_enough(tmp_path: Path):
    schedule = Schedule("updates", 8, 2, patience=2)
    with pytest.raises(Interrupted):
        fit(make_trainer(), tmp_path / "run", schedule, Scores(0.2, 0.1), "score", on_event=signal_after_four)
    summary = fit(make_trainer(), str(tmp_path / "run"), schedule, Scores(0.1), "score")
    assert (summary["updates"], summary["stopped_early"], summary["best_update"]) == (4, True, 0)
    assert fit(make_trainer(), tmp_path / "run", schedule, Scores(0.1), "score") == summary
    assert [record["update"] for record in Run.open(tmp_path / "run").records("evaluation")] == [0, 2, 4]


def signal_after_four(event: Event, number: int = signal.SIGINT) -> None:
    if event.kind == "update" and event.record["update"] == 4:
        os.kill(os.getpid(), number)


interrupt_after_four = signal_after_four


def test_averaged_weights_are_evaluated_and_kept(tmp_path: Path):
    """Also by a run that was interrupted; and training continues from the last update's, not from the average."""
    evaluated = []

    def evaluation(trainer: BaseTrainer[Any]) -> dict[str, float]:
        evaluated.append(weights(trainer.policy).tolist())
        return {"score": float(len(evaluated) == 3)}

    whole, first, second = (make_mle_trainer(ema_decay=0.8) for _ in range(3))
    averages = [eval_weights(whole).tolist(), *(eval_weights(whole).tolist() for _ in whole.run(updates=9))]
    schedule = Schedule("updates", 9, 3)
    with pytest.raises(Interrupted):
        fit_in(tmp_path / "run", schedule, first, partial(evaluation, first), interrupt_after_four)
    fit_in(tmp_path / "run", schedule, second, partial(evaluation, second))
    assert evaluated == averages[::3]
    best, meta = read_weights(Run.open(tmp_path / "run").best)
    assert meta["update"] == "6"
    assert torch.cat([best[name].flatten() for name, _ in second.policy.named_parameters()]).tolist() == averages[6]


@pytest.mark.parametrize("unit", ["epochs", "tokens", "seconds"])
def test_every_unit_ends_a_training(tmp_path: Path, unit: Any):
    total = {"epochs": 2, "tokens": 500, "seconds": 0.05}[unit]
    summary = fit_in(tmp_path / "run", Schedule(unit, total, total), make_trainer(clock="cpu"))
    assert summary[unit] >= total
    assert Run.open(tmp_path / "run").records("evaluation")[-1]["update"] == summary["updates"]


def test_patience_ends_a_training(tmp_path: Path):
    schedule = Schedule("updates", 50, 2, patience=2)
    summary = fit_in(tmp_path / "run", schedule, evaluate=Scores(0.1, 0.3, 0.3, 0.2, 0.9))
    assert (summary["updates"], summary["best_update"], summary["stopped_early"]) == (6, 4, True)


def test_of_equal_scores_the_later_weights_are_the_best(tmp_path: Path):
    """Also if the run is interrupted in between."""
    schedule = Schedule("updates", 8, 2)
    with pytest.raises(Interrupted):
        fit_in(tmp_path / "run", schedule, evaluate=Scores(0.1, 0.3), on_event=interrupt_after_four)
    summary = fit_in(tmp_path / "run", schedule, evaluate=Scores(0.3, 0.3, 0.2))
    assert (summary["best_update"], summary["best_score"], summary["misses"]) == (6, 0.3, 3)
    trainer = make_trainer()
    list(trainer.run(updates=6))
    best, meta = read_weights(Run.open(tmp_path / "run").best)
    assert meta["update"] == "6"
    assert all(torch.equal(best[name], tensor) for name, tensor in trainer.policy.state_dict().items())


class Losses(Scores):
    """Evaluations with given losses besides."""

    def __init__(self, scores: list[float], losses: list[float]):
        super().__init__(*scores)
        self.losses = losses

    def __call__(self) -> dict[str, float]:
        numbers = super().__call__()
        return {**numbers, "loss": self.losses[min(self.calls, len(self.losses)) - 1]}


# Scores and losses of the evaluations at 0, 2, 4, 6, 8; the best update.
KEPT = [
    ([0.0], [3.0, 2.0, 1.0, 1.5, 1.2], 4),  # the score never changes: the least loss
    ([0.0], [3.0, 2.0, 2.0, 2.5, 2.0], 8),  # the last of those with the least loss
    ([0.0], [3.0, math.inf, 2.0, math.inf, 2.5], 4),
    ([0.0, 0.0, 0.0, 0.1, 0.1], [3.0, 1.0, 2.0, 2.5, 2.8], 8),  # from the first change on only the score counts
    ([0.2, 0.2, 0.1, 0.2, 0.1], [3.0, 1.0, 2.0, 2.5, 2.8], 6),
    ([0.2, 0.1, 0.1, 0.1, 0.1], [3.0, 1.0, 0.5, 0.1, 0.0], 0),
]


@pytest.mark.parametrize(("scores", "losses", "best"), KEPT)
def test_the_loss_decides_as_long_as_the_score_has_never_changed(
    tmp_path: Path, scores: list[float], losses: list[float], best: int
):
    """And an interrupted run, which reads what it knew from its checkpoint, decides alike."""
    schedule, evaluation = Schedule("updates", 8, 2), Losses(scores, losses)
    assert fit_in(tmp_path / "whole", schedule, evaluate=Losses(scores, losses))["best_update"] == best
    with pytest.raises(Interrupted):
        fit_in(tmp_path / "run", schedule, evaluate=evaluation, on_event=interrupt_after_four)
    assert evaluation.calls == 2  # the one after update 4 was interrupted
    assert fit_in(tmp_path / "run", schedule, evaluate=evaluation)["best_update"] == best
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    assert Run.open(tmp_path / "run").best.read_bytes() == Run.open(tmp_path / "whole").best.read_bytes()


@pytest.mark.parametrize("loss", [math.nan, None])
def test_without_a_loss_the_later_weights_are_the_best(tmp_path: Path, loss: float | None):
    evaluate = partial(dict, score=0.0, **({} if loss is None else {"loss": loss}))
    assert fit_in(tmp_path / "run", Schedule("updates", 4, 2), evaluate=evaluate)["best_update"] == 4


def test_patience_is_not_tried_as_long_as_the_score_has_never_changed(tmp_path: Path):
    schedule = Schedule("updates", 14, 2, patience=2)
    assert not fit_in(tmp_path / "same", schedule, evaluate=Scores(0.0))["stopped_early"]
    late = fit_in(tmp_path / "late", schedule, evaluate=Scores(0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1))
    assert (late["updates"], late["best_update"], late["stopped_early"]) == (12, 12, True)
    worse = fit_in(tmp_path / "worse", schedule, evaluate=Scores(0.2, 0.1))
    assert (worse["updates"], worse["best_update"]) == (4, 0)


def test_a_checkpoint_of_an_earlier_version_is_continued(tmp_path: Path):
    """It does not know whether the score ever changed, nor the loss."""
    schedule = Schedule("updates", 8, 2, patience=3)
    with pytest.raises(Interrupted):
        fit_in(tmp_path / "run", schedule, evaluate=Scores(0.1, 0.3, 0.2), on_event=interrupt_after_four)
    with Run.open(tmp_path / "run", resume=True) as run:
        update, state = run.load() or (0, State())
        for name in ("lowest_score", "best_loss"):
            del state.values["progress"][name]
        run.save(update, state)
    summary = fit_in(tmp_path / "run", schedule, evaluate=Scores(0.3, 0.1, 0.2))
    assert (summary["best_update"], summary["best_score"], summary["misses"]) == (4, 0.3, 2)


@pytest.mark.parametrize("make", MAKERS)
def test_an_interrupted_run_is_saved_and_resumed(tmp_path: Path, make: Any):
    schedule, events = Schedule("updates", 9, 3), []
    with pytest.raises(Interrupted, match="stopped after update 4"):
        fit_in(tmp_path / "run", schedule, make(), on_event=interrupt_after_four)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    whole, second = make(), make()
    list(whole.run(updates=9))
    fit_in(tmp_path / "run", schedule, second, on_event=events.append)
    assert "warning" not in {event.kind for event in events}
    assert torch.equal(weights(whole.policy), weights(second.policy))
    assert [r["update"] for r in Run.open(tmp_path / "run").records("update")] == list(range(1, 10))


def records(directory: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in r.items() if key not in TIMED} for r in Run.open(directory).records()]


@pytest.mark.parametrize("number", STOPS)
def test_every_signal_saves(tmp_path: Path, number: signal.Signals):
    before = [signal.getsignal(each) for each in STOPS]
    with pytest.raises(Interrupted, match="stopped after update 4, which is saved in"):
        fit_in(tmp_path / "run", Schedule("updates", 9, 5), on_event=partial(signal_after_four, number=number))
    assert exit_code() == 128 + number
    assert [signal.getsignal(each) for each in STOPS] == before
    checkpoint = Run.open(tmp_path / "run").load()
    assert checkpoint is not None
    assert checkpoint[0] == 4


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path, number: signal.Signals):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        summary = fit_in(
            tmp_path / "run", Schedule("updates", 6, 5), on_event=partial(signal_after_four, number=number)
        )
    finally:
        signal.signal(number, before)
    assert summary["updates"] == 6


@pytest.mark.parametrize("evaluation", [1, 2, 3])  # before the first update, on the way, and at the end
@pytest.mark.parametrize("make", MAKERS[1:])
def test_an_evaluation_is_interrupted_at_once_and_repeated(tmp_path: Path, evaluation: int, make: Any):
    """Whatever weights were evaluated, those of the last update are saved."""

    class Stopping(Scores):
        def __call__(self) -> dict[str, float]:
            if self.calls + 1 == evaluation:
                self.calls = -1
                os.kill(os.getpid(), signal.SIGTERM)
                pytest.fail("the evaluation goes on")
            return super().__call__()

    schedule = Schedule("updates", 6, 3)
    fit_in(tmp_path / "whole", schedule, make(), Scores(0.1))
    with pytest.raises(Interrupted, match=f"stopped after update {3 * (evaluation - 1)}"):
        fit_in(tmp_path / "run", schedule, make(), Stopping(0.1))
    fit_in(tmp_path / "run", schedule, make(), Scores(0.1))
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    assert Run.open(tmp_path / "run").best.read_bytes() == Run.open(tmp_path / "whole").best.read_bytes()


def test_a_second_signal_ends_at_once_and_saves_nothing_half_done(tmp_path: Path):
    def insist(event: Event) -> None:
        if event.kind == "update" and event.record["update"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    schedule = Schedule("updates", 6, 3)
    with pytest.raises(KeyboardInterrupt):
        fit_in(tmp_path / "run", schedule, on_event=insist)
    fit_in(tmp_path / "whole", schedule)
    fit_in(tmp_path / "run", schedule)
    assert records(tmp_path / "run") == records(tmp_path / "whole")


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", ["checkpoint", "evaluation"])
def test_the_best_weights_are_those_that_the_checkpoint_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
):
    """A run that is killed between the checkpoint and the best weights, and does better before than after it."""
    schedule, scores, target = Schedule("updates", 6, 3), Scores(0.1, 0.9), {"evaluation": "save", "checkpoint": "best"}

    def die(*arguments: Any) -> None:
        raise Killed

    def kill(event: Event) -> None:
        if event.kind == "evaluation" and event.record["update"] == 3:
            saves = target[after] == "save"
            monkeypatch.setattr(*((Run, "save") if saves else (loop, "_write_best")), die)

    with pytest.raises(Killed):
        fit_in(tmp_path / "run", schedule, evaluate=scores, on_event=kill)
    monkeypatch.undo()
    summary = fit_in(tmp_path / "run", schedule, evaluate=Scores(0.05))
    assert summary["best_update"] == {"checkpoint": 3, "evaluation": 0}[after]
    assert read_weights(Run.open(tmp_path / "run").best)[1]["update"] == str(summary["best_update"])


def test_best_weights_that_are_lost_are_replaced_by_the_next_best(tmp_path: Path):
    schedule, warnings = Schedule("updates", 9, 3), []
    with pytest.raises(Interrupted):
        fit_in(tmp_path / "run", schedule, evaluate=Scores(0.9), on_event=interrupt_after_four)
    run = Run.open(tmp_path / "run")
    run.best.write_bytes(run.best.read_bytes()[:-1])
    summary = fit_in(tmp_path / "run", schedule, evaluate=Scores(0.2, 0.1), on_event=warnings.append)
    said = [event.record["text"] for event in warnings if event.kind == "warning"]
    assert ["best.safetensors is damaged" in text for text in said] == [True]
    assert (summary["best_update"], summary["best_score"]) == (6, 0.2)
    assert read_weights(run.best)[1]["update"] == "6"


@pytest.mark.parametrize("unit", ["tokens", "seconds", "updates"])
def test_evaluations_that_are_due_at_every_instant_end(tmp_path: Path, unit: Any):
    total = {"tokens": 100, "seconds": 0.05, "updates": 4}[unit]
    summary = fit_in(tmp_path / "run", Schedule(unit, total, 1e-9), make_trainer(clock="cpu"))
    evaluated = [record["update"] for record in Run.open(tmp_path / "run").records("evaluation")]
    assert evaluated == list(range(summary["updates"] + 1))


DUE = [(3, 0, 3), (3, 3, 6), (3, 5, 6), (3, 9, 10), (3, 10, math.inf), (1e-300, 7, 7), (0.1, 0.3, 0.4)]


@pytest.mark.parametrize(("every", "reached", "expected"), DUE)
def test_when_the_next_evaluation_is_due(every: float, reached: float, expected: float):
    due = Schedule("tokens", 10, every).next_evaluation(reached)
    assert due > reached
    assert due == pytest.approx(expected)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as run:
        run.save(3, State({}, {"other": 1}))
    with pytest.raises(InputError, match=r"update 3 in .* is not one of this training"):
        fit_in(tmp_path / "run", Schedule("updates", 9, 3))


def test_a_schedule_without_length_is_refused():
    with pytest.raises(InputError, match="training for 0 updates"):
        Schedule("updates", 0, 1)


def test_updates_are_reported_with_a_run_and_without(tmp_path: Path):
    seen: list[Event] = []
    trainer = make_trainer("rloo-2", on_event=seen.append)
    trainer.train(updates=2)
    assert [(event.kind, event.record["update"]) for event in seen] == [("update", 1), ("update", 2)]
    for total in (4, 6):  # a run that is made longer reports to its own directory only
        with Run.create(tmp_path / str(total), {}) as run:
            fit(trainer, run, Schedule("updates", total, 10), lambda: {"score": 0.0}, "score")
        assert [record["update"] for record in run.records("update")] == [total - 1, total]
    assert [event.record["update"] for event in seen if event.kind == "update"] == [1, 2, 3, 4, 5, 6]
    assert {event.kind for event in seen} == {"update", "evaluation"}


def test_an_evaluation_may_return_numbers_of_numpy(tmp_path: Path):
    evaluations = iter([np.float64(0.1), np.float64(0.3), np.float64(0.3)])
    evaluate = lambda: {"score": next(evaluations), "loss": np.float64(1.0)}  # noqa: E731
    summary = fit_in(tmp_path / "run", Schedule("updates", 2, 1), evaluate=evaluate)
    assert (summary["best_update"], summary["best_score"]) == (2, 0.3)
