"""A whole training in its run directory: updates, evaluations, the best weights, checkpoints, early stopping."""

import math
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from corollout.errors import InputError, Interrupted
from corollout.training.base import BaseTrainer, Event
from corollout.training.checkpoints import State, join_states, split_state, write_weights
from corollout.training.runs import Run

Unit = Literal["updates", "epochs", "tokens", "seconds"]


@dataclass(frozen=True)
class Schedule:
    """How long to train and how often to look, in one unit."""

    unit: Unit
    total: float | int
    every: float | int  # between evaluations
    patience: int | None = None  # evaluations without a better one, after which to stop
    save_seconds: float | int = 60  # between checkpoints; there is one after each evaluation as well

    def __post_init__(self) -> None:
        if not self.total > 0 or not self.every > 0:
            raise InputError(f"a training of {self.total} {self.unit} with an evaluation every {self.every} cannot be")


@dataclass
class Progress:
    """How far a training has come."""

    next_evaluation: float | int
    best_score: float = -math.inf
    best_update: int = 0
    misses: int = 0  # evaluations since the best one
    stopped: bool = False


def fit(
    learner: BaseTrainer[Any],
    run: Run,
    schedule: Schedule,
    evaluate: Callable[[], Mapping[str, float]],
    score: str,
    *,
    on_update: Callable[[Any], None] = lambda metrics: None,
    on_evaluation: Callable[[dict[str, Any]], None] = lambda numbers: None,
    on_news: Callable[[Event], None] = lambda item: None,
    warn: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train to the end of the schedule, from the run's newest checkpoint if it has one; return the run's summary.

    ``evaluate`` is called before the first update, at the schedule's points and at the end; its entry ``score`` decides
    which weights are kept as the best. An interrupt from the keyboard is obeyed after the update under way.
    """
    if (summary := run.finished) is not None:
        return summary
    progress = _restore(learner, run, warn)
    if progress is None:
        progress = Progress(next_evaluation=schedule.every)
        _evaluate(learner, run, evaluate, score, progress, on_evaluation)
        _save(learner, run, progress)
    saved = time.monotonic()
    with _interrupts() as interrupted:
        while getattr(learner, schedule.unit) < schedule.total and not progress.stopped:
            metrics = learner.step()
            run.log("update", asdict(metrics))
            for item in learner.news:
                run.log(item.kind, item.record)
                on_news(item)
            learner.news.clear()
            on_update(metrics)
            reached = getattr(learner, schedule.unit)
            if reached >= min(progress.next_evaluation, schedule.total):
                _evaluate(learner, run, evaluate, score, progress, on_evaluation)
                while progress.next_evaluation <= reached:
                    progress.next_evaluation += schedule.every
                progress.stopped = schedule.patience is not None and progress.misses >= schedule.patience
                _save(learner, run, progress)
                saved = time.monotonic()
            elif interrupted() or time.monotonic() - saved > schedule.save_seconds:
                _save(learner, run, progress)
                saved = time.monotonic()
            if interrupted():
                raise Interrupted(f"stopped after update {learner.updates}; {run.directory} is saved up to there")
    summary = {
        "updates": learner.updates,
        "epochs": learner.epochs,
        "tokens": learner.tokens,
        "seconds": learner.seconds,
        "best_update": progress.best_update,
        f"best_{score}": progress.best_score,
        "stopped_early": progress.stopped,
    }
    run.finish(summary)
    return summary


def _restore(learner: BaseTrainer[Any], run: Run, warn: Callable[[str], None]) -> Progress | None:
    found = run.load(warn)
    if found is None:
        return None
    parts = split_state(found[1])
    learner.restore(State(parts["learner"].tensors, parts["learner"].values))
    return Progress(**parts["progress"].values)


def _save(learner: BaseTrainer[Any], run: Run, progress: Progress) -> None:
    run.save(learner.updates, join_states({"learner": learner.state(), "progress": State({}, asdict(progress))}))


def _evaluate(
    learner: BaseTrainer[Any],
    run: Run,
    evaluate: Callable[[], Mapping[str, float]],
    score: str,
    progress: Progress,
    on_evaluation: Callable[[dict[str, Any]], None],
) -> None:
    counts = {name: getattr(learner, name) for name in ("epochs", "tokens", "seconds")}
    with learner.eval_weights():
        numbers: dict[str, Any] = {"update": learner.updates, **counts, **evaluate()}
        if numbers[score] > progress.best_score:
            progress.best_score, progress.best_update, progress.misses = numbers[score], learner.updates, 0
            write_weights(run.best, learner.policy.state_dict(), {"update": str(learner.updates)})
        else:
            progress.misses += 1
    run.log("evaluation", numbers)
    on_evaluation(numbers)


@contextmanager
def _interrupts() -> Generator[Callable[[], bool], None, None]:
    """Inside, Ctrl-C is only noted; asked for twice, it interrupts at once."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: nobody presses keys here
        yield lambda: False
        return
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
