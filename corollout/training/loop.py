"""The loop of every run: updates, evaluations, the best weights, checkpoints, early stopping."""

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from corollout.arguments import is_number, require_callable, require_count, require_instance, require_number
from corollout.errors import InputError, Interrupted
from corollout.events import Callback, Event, ignore, note, warning
from corollout.processes import Processes, processes
from corollout.signals import StopRequest, deferred_stops
from corollout.text import quoted
from corollout.training.base import BaseTrainer
from corollout.training.card import write_card
from corollout.training.checkpoints import State, join_states, split_state
from corollout.training.runs import CONFIG, Run, is_of_command
from corollout.training.settings import Unit
from corollout.weights import read_weights, write_weights


@dataclass(frozen=True)
class Schedule:
    """How long to train and how often to evaluate, in one unit."""

    unit: Unit
    total: float | int
    every: float | int  # between evaluations
    patience: int | None = None  # stop after so many evaluations without improvement, if the score ever changed
    save_seconds: float | int = 60  # between checkpoints; there is one after each evaluation as well

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise InputError(
                f"the unit of a schedule must be one of {', '.join(get_args(Unit))}, not {quoted(self.unit)}"
            )
        if self.patience is not None:
            require_count("patience", self.patience)
        require_number(
            "save_seconds", self.save_seconds, "a number of seconds, 0 or more", lambda seconds: seconds >= 0
        )
        if not is_number(self.total) or not is_number(self.every) or not self.total > 0 or not self.every > 0:
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

    def is_complete(self, summary: Mapping[str, Any]) -> bool:
        """Whether a run with this summary has nothing left to do: not if the schedule is longer than it was."""
        reached = summary.get(self.unit)
        if not isinstance(reached, int | float) or reached >= self.total:
            return True
        if not summary.get("stopped_early"):
            return False
        return self.patience is not None and summary.get("misses", math.inf) >= self.patience


@dataclass
class _Progress:
    next_evaluation: float | int = 0
    best_score: float = -math.inf
    best_update: int = 0
    misses: int = 0  # evaluations since the score last rose
    stopped: bool = False
    total: float | int | None = None  # of the schedule; None in checkpoints of earlier versions
    every: float | int | None = None
    lowest_score: float = math.inf  # like the next, not in checkpoints of earlier versions
    best_loss: float = math.inf  # that decided while all scores were equal

    def judge(self, score: float, loss: float, update: int) -> bool:
        """Count an evaluation; whether its weights are the best so far.

        Of equal scores the later one counts; but as long as all scores are equal, as of a policy that has not learned
        anything yet, the lower loss does, and patience is not tried.
        """
        rises = score > self.best_score
        self.lowest_score = min(self.lowest_score, score)  # NaN is none
        has_changed = self.lowest_score < self.best_score or rises
        is_best = rises or (score == self.best_score and (has_changed or not loss > self.best_loss))
        if is_best:
            self.best_score, self.best_update, self.best_loss = score, update, loss
        self.misses = 0 if rises else self.misses + has_changed
        return is_best

    def follow(self, schedule: Schedule, reached: float | int) -> bool:
        """Go on by a schedule that may be another one than before; whether its end is another one."""
        before, self.total = (self.total, self.every), schedule.total
        self.every = schedule.every
        self.stopped = schedule.patience is not None and self.misses >= schedule.patience
        is_due = reached >= self.next_evaluation
        if not is_due and (before != (schedule.total, schedule.every) or self.next_evaluation == math.inf):
            self.next_evaluation = schedule.next_evaluation(reached)
        return before[0] not in (None, schedule.total)


def fit(
    trainer: BaseTrainer[Any],
    run: Run | Path | str,
    schedule: Schedule,
    evaluate: Callable[[], Mapping[str, float]],
    metric: str,
    *,
    on_event: Callback | None = None,
) -> dict[str, Any]:
    """Train to the end of the schedule, from the run's newest checkpoint if it has one; return the run's summary.

    ``run`` may be a directory: if there is a run in it, that is resumed, otherwise one is created there.
    ``evaluate`` is called before the first update, at the points of the schedule and at the end. Its entry ``metric``
    decides which weights are kept as the best, and of equal scores the later one. As long as it has never changed, its
    entry ``loss`` decides, if it has one (lower is better), and patience does not run out. A signal that asks to stop
    takes effect after the current update, or in the middle of an evaluation, which the resumed run then repeats.

    If the run is finished, its summary is returned; unless the schedule is longer now: then the run goes on from its
    last checkpoint, as if it had had this schedule from the start. Events go to ``on_event``, by default the trainer's.

    The processes of a job all call this, and ``evaluate`` is called in all of them; the numbers of the first count,
    which alone writes to the run and reports events. A signal to any of them stops all after the same update.
    """
    require_instance("trainer", trainer, BaseTrainer, "a Trainer or an MLETrainer")
    require_instance("run", run, (Run, Path, str), "a Run, as Run.create(directory, config) makes it, or a directory")
    require_instance("schedule", schedule, Schedule, "a Schedule, as in Schedule('updates', total=100, every=10)")
    require_callable("evaluate", evaluate, "a function that returns named numbers")
    require_instance("metric", metric, str, "the name of a number that evaluate returns")
    on_event = trainer.on_event if on_event is None else on_event
    require_callable("on_event", on_event, "a function of an Event")
    group = processes()
    if not group.is_first:
        on_event = ignore
    if not isinstance(run, Run):
        has_run = group.from_first((Path(run) / CONFIG).exists())
        with Run.open(run, resume=True) if has_run else Run.create(run, {}) as opened:
            return fit(trainer, opened, schedule, evaluate, metric, on_event=on_event)
    summary: Any = group.from_first(run.summary if group.is_first else None)
    if summary is not None and schedule.is_complete(summary):
        return summary
    if not is_of_command(run.config):
        numbers = {name: value for name, value in asdict(schedule).items() if value is not None}
        run.record_training({"kind": trainer.kind, "metric": metric, **numbers, **trainer.settings()})

    def log(event: Event) -> None:
        if event.kind == "samples":
            run.log_samples(dict(event.record))
        else:
            run.log(event.kind, dict(event.record))
        on_event(event)

    def counts() -> dict[str, Any]:
        return {"epochs": trainer.epochs, "tokens": trainer.tokens, "seconds": trainer.seconds}

    def save() -> None:
        nonlocal saved, saved_update
        run.save(trainer.updates, join_states({"learner": trainer.state(), "progress": State({}, asdict(progress))}))
        saved, saved_update = time.monotonic(), trainer.updates

    with deferred_stops() as stop, _reporting(trainer, log):
        progress, saved = _resume(trainer, run, on_event), time.monotonic()
        saved_update = trainer.updates if trainer.updates else None
        if progress.follow(schedule, getattr(trainer, schedule.unit)):
            log(note(_new_end(trainer, schedule, progress)))
        run.unfinish()
        while True:
            group.during = f"update {trainer.updates + 1}"
            reached = getattr(trainer, schedule.unit)
            is_due = reached >= progress.next_evaluation
            if is_due:
                numbers: dict[str, Any] = {"update": trainer.updates, **counts()}
                try:
                    with trainer.eval_weights(), _interrupting(stop, group):
                        numbers |= _of_first(group, _measured(evaluate(), metric, progress))
                except KeyboardInterrupt:
                    if stop.is_urgent:
                        raise
                    _agreed(group, stop)
                    if saved_update != trainer.updates:
                        save()
                    raise _interrupted(trainer, run) from None
                is_best = progress.judge(float(numbers[metric]), _loss_of(numbers), trainer.updates)
                progress.next_evaluation = schedule.next_evaluation(reached)
                progress.stopped = schedule.patience is not None and progress.misses >= schedule.patience
                log(Event("evaluation", numbers))
                # The checkpoint first: the best weights can be written again from it, but not the other way round.
                save()
                if is_best:
                    _write_best(trainer, run)
            is_stopping, may_save = _agreed(group, stop, time.monotonic() - saved > schedule.save_seconds)
            if not is_due and (is_stopping or may_save):
                save()
            if reached >= schedule.total or progress.stopped:
                break
            if is_stopping:
                raise _interrupted(trainer, run)
            log(Event("update", asdict(trainer.step())))
        summary = {
            "updates": trainer.updates,
            **counts(),
            "best_update": progress.best_update,
            f"best_{metric}": progress.best_score,
            "stopped_early": progress.stopped,
            "misses": progress.misses,
        }
        if group.is_first:
            write_card(run, trainer, summary)
        run.finish(summary)
    return summary


def _agreed(group: Processes, stop: StopRequest, may_save: bool = False) -> tuple[bool, bool]:
    """Whether any process was asked to stop, as all of them then are; and whether the first one wants to save."""
    said = group.exchange([stop.number, may_save])
    number = max(number for number, _ in said)
    stop.adopt(number)
    return number > 0, bool(said[0][1])


@contextmanager
def _interrupting(stop: StopRequest, group: Processes) -> Generator[None, None, None]:
    """Inside, a signal interrupts an evaluation: at once, or where the processes that divide it ask for signals."""
    if group.size == 1:
        with stop.interrupting():
            yield
        return
    group.during = "an evaluation"
    with stop.asking():
        yield


def _measured(numbers: Any, metric: str, progress: _Progress) -> dict[str, float]:
    """What an evaluation returned, which must have the metric; NaN, as if every reward was skipped, is not the best."""
    if not isinstance(numbers, Mapping) or not isinstance(numbers.get(metric), int | float):
        given = sorted(numbers) if isinstance(numbers, Mapping) else quoted(numbers)
        raise InputError(f"evaluate must return a dict with a number for the metric {metric!r}, not {given}")
    if math.isnan(numbers[metric]) and progress.best_score == -math.inf:
        raise InputError(f"evaluate returned NaN for {metric!r}: no weights could ever be kept as the best")
    return dict(numbers)


def _loss_of(numbers: Mapping[str, Any]) -> float:
    """The loss of an evaluation; infinite if it has none."""
    loss = numbers.get("loss")
    return math.inf if not isinstance(loss, int | float) or math.isnan(loss) else float(loss)


def _of_first(group: Processes, numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the first process: by those, all decide alike."""
    if group.size == 1:
        return numbers
    return group.from_first({name: float(number) for name, number in numbers.items()})


def _new_end(trainer: BaseTrainer[Any], schedule: Schedule, progress: _Progress) -> str:
    """How a run goes on that has another schedule than before."""
    points = f"the next evaluation at {progress.next_evaluation:g}, then every {schedule.every:g}"
    if progress.next_evaluation >= schedule.total:
        points = "one more evaluation, at the end"
    reached = getattr(trainer, schedule.unit)
    return f"continued from {reached:g} to {schedule.total:g} {schedule.unit}: {points}; {trainer.learning_rate_text()}"


@contextmanager
def _reporting(trainer: BaseTrainer[Any], on_event: Callback) -> Generator[None, None, None]:
    """Inside, the trainer's events go to a callback."""
    before, trainer.on_event = trainer.on_event, on_event
    try:
        yield
    finally:
        trainer.on_event = before


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
        update = read_weights(run.best)[1].get("update") if processes().is_first else None
    except InputError:
        update = None
    update = processes().from_first(update)
    if update != str(progress.best_update):
        if progress.best_update == trainer.updates:
            _write_best(trainer, run)  # killed after the checkpoint
        else:  # killed in between, and the checkpoint that knew them is damaged
            what = f"{run.best} is damaged or not of update {progress.best_update}"
            on_event(warning(f"{what}: the best weights from now on are kept"))
            progress.best_score = -math.inf
    return progress


def _write_best(trainer: BaseTrainer[Any], run: Run) -> None:
    if not processes().is_first:
        return
    with trainer.eval_weights():
        write_weights(run.best, trainer.policy.state_dict(), {"update": str(trainer.updates)})


def _interrupted(trainer: BaseTrainer[Any], run: Run) -> Interrupted:
    return Interrupted(f"stopped after update {trainer.updates}, which is saved in {run.directory}")
