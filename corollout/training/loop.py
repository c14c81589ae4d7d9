"""The loop of every run: updates, evaluations, the best weights, checkpoints, early stopping."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corollout.errors import InputError, Interrupted
from corollout.events import Callback, Event, ignore, warning
from corollout.signals import deferred_stops
from corollout.training.base import BaseTrainer
from corollout.training.card import write_card
from corollout.training.checkpoints import State, join_states, split_state
from corollout.training.runs import CONFIG, Run
from corollout.training.settings import Unit
from corollout.weights import read_weights, write_weights


@dataclass(frozen=True)
class Schedule:
    """How long to train and how often to evaluate, in one unit."""

    unit: Unit
    total: float | int
    every: float | int  # between evaluations
    patience: int | None = None  # stop after this many evaluations without improvement
    save_seconds: float | int = 60  # between checkpoints; there is one after each evaluation as well

    def __post_init__(self) -> None:
        if not self.total > 0 or not self.every > 0:
            raise InputError(
                f"training for {self.total} {self.unit} with an evaluation every {self.every} is not possible: both "
                f"must be positive"
            )

    def next_evaluation(self, reached: float | int) -> float | int:
        """When to evaluate after an evaluation: at the next multiple of ``every`` and at the end, then never again."""
        if reached >= self.total:
            return math.inf
        multiples = reached / self.every
        following = self.every * (math.floor(multiples + 1e-9) + 1) if multiples < 2**53 else reached
        return min(following if following > reached else math.nextafter(reached, math.inf), self.total)


@dataclass
class _Progress:
    next_evaluation: float | int = 0
    best_score: float = -math.inf
    best_update: int = 0
    misses: int = 0  # evaluations since the best one
    stopped: bool = False


def fit(
    trainer: BaseTrainer[Any],
    run: Run | Path | str,
    schedule: Schedule,
    evaluate: Callable[[], Mapping[str, float]],
    metric: str,
    *,
    on_event: Callback = ignore,
) -> dict[str, Any]:
    """Train to the end of the schedule, from the run's newest checkpoint if it has one; return the run's summary.

    ``run`` may be a directory: if there is a run in it, that is resumed, otherwise one is created there.
    ``evaluate`` is called before the first update, at the points of the schedule and at the end; its entry ``metric``
    decides which weights are kept as the best. A signal that asks to stop takes effect after the current update, or in
    the middle of an evaluation, which the resumed run then repeats.
    """
    if not isinstance(run, Run):
        has_run = (Path(run) / CONFIG).exists()
        with Run.open(run, resume=True) if has_run else Run.create(run, {}) as opened:
            return fit(trainer, opened, schedule, evaluate, metric, on_event=on_event)
    if (summary := run.summary) is not None:
        return summary

    def log(event: Event) -> None:
        if event.kind == "samples":
            run.log_samples(dict(event.record))
        else:
            run.log(event.kind, dict(event.record))
        on_event(event)

    def counts() -> dict[str, Any]:
        return {"epochs": trainer.epochs, "tokens": trainer.tokens, "seconds": trainer.seconds}

    def save() -> None:
        run.save(trainer.updates, join_states({"learner": trainer.state(), "progress": State({}, asdict(progress))}))

    trainer.on_event = log
    with deferred_stops() as stop:
        progress, saved = _resume(trainer, run, on_event), time.monotonic()
        saved_update = trainer.updates if trainer.updates else None
        while True:
            reached = getattr(trainer, schedule.unit)
            if reached >= progress.next_evaluation:
                numbers: dict[str, Any] = {"update": trainer.updates, **counts()}
                try:
                    with trainer.eval_weights(), stop.interrupting():
                        numbers |= evaluate()
                except KeyboardInterrupt:
                    if stop.is_urgent:
                        raise
                    if saved_update != trainer.updates:
                        save()
                    raise _interrupted(trainer, run) from None
                is_best = numbers[metric] > progress.best_score
                if is_best:
                    progress.best_score, progress.best_update, progress.misses = numbers[metric], trainer.updates, 0
                else:
                    progress.misses += 1
                progress.next_evaluation = schedule.next_evaluation(reached)
                progress.stopped = schedule.patience is not None and progress.misses >= schedule.patience
                log(Event("evaluation", numbers))
                # The checkpoint first: the best weights can be written again from it, but not the other way round.
                save()
                saved, saved_update = time.monotonic(), trainer.updates
                if is_best:
                    _write_best(trainer, run)
            elif stop or time.monotonic() - saved > schedule.save_seconds:
                save()
                saved, saved_update = time.monotonic(), trainer.updates
            if reached >= schedule.total or progress.stopped:
                break
            if stop:
                raise _interrupted(trainer, run)
            log(Event("update", asdict(trainer.step())))
        summary = {
            "updates": trainer.updates,
            **counts(),
            "best_update": progress.best_update,
            f"best_{metric}": progress.best_score,
            "stopped_early": progress.stopped,
        }
        write_card(run, trainer, metric, summary)
        run.finish(summary)
    return summary


def _resume(trainer: BaseTrainer[Any], run: Run, on_event: Callback) -> _Progress:
    """Load the newest checkpoint, if there is one, and make sure that the best weights are those that it knows."""
    checkpoint = run.load(on_event)
    if checkpoint is None:
        return _Progress()
    try:
        parts = split_state(checkpoint[1])
        trainer.load_state(parts["learner"])
        progress = _Progress(**parts["progress"].values)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise InputError(
            f"the checkpoint of update {checkpoint[0]} in {run.directory} is not one of this training ({error!r})"
        ) from error
    if progress.best_score == -math.inf:  # stopped in the first evaluation
        return progress
    try:
        update = read_weights(run.best)[1].get("update")
    except InputError:
        update = None
    if update != str(progress.best_update):
        if progress.best_update == trainer.updates:
            _write_best(trainer, run)  # killed after the checkpoint
        else:  # killed in between, and the checkpoint that knew them is damaged
            what = f"{run.best} is damaged or not of update {progress.best_update}"
            on_event(warning(f"{what}: the best weights from now on are kept"))
            progress.best_score = -math.inf
    return progress


def _write_best(trainer: BaseTrainer[Any], run: Run) -> None:
    with trainer.eval_weights():
        write_weights(run.best, trainer.policy.state_dict(), {"update": str(trainer.updates)})


def _interrupted(trainer: BaseTrainer[Any], run: Run) -> Interrupted:
    return Interrupted(f"stopped after update {trainer.updates}, which is saved in {run.directory}")
