"""Create, resume and evaluate runs: pre-training and fine-tuning of any task in a run directory.

``fit`` is the loop of every run: updates, evaluations, the best weights, checkpoints, early stopping.

A run's ``config.toml`` is all that is needed to repeat or resume it: the task and its data, the model, the training,
and for fine-tuning the weights to start from, which are copied into the run.
"""

import math
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corollout.config import from_table, to_table
from corollout.errors import InputError, Interrupted
from corollout.estimators import make_estimator
from corollout.events import Callback, Event, ignore
from corollout.files import make_folder, read_weights, write_json, write_weights
from corollout.policies import TreeHead
from corollout.rollouts import Engine
from corollout.tasks.task import Evaluation, Task, find_task, open_task
from corollout.training.base import BaseTrainer, Unit, load_policy
from corollout.training.checkpoints import State, join_states, split_state
from corollout.training.finetuning import Trainer
from corollout.training.mle import LearningRateDecay, MLETrainer, ScheduledSampling
from corollout.training.run_weights import START, open_run
from corollout.training.runs import Run, require_no_run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.trees import load_tree, save_tree


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


@dataclass
class _Progress:
    next_evaluation: float | int
    best_score: float = -math.inf
    best_update: int = 0
    misses: int = 0  # evaluations since the best one
    stopped: bool = False


def fit(
    trainer: BaseTrainer[Any],
    run: Run,
    schedule: Schedule,
    evaluate: Callable[[], Mapping[str, float]],
    metric: str,
    *,
    on_event: Callback = ignore,
) -> dict[str, Any]:
    """Train to the end of the schedule, from the run's newest checkpoint if it has one; return the run's summary.

    ``evaluate`` is called before the first update, at the points of the schedule and at the end; its entry ``metric``
    decides which weights are kept as the best. Ctrl-C takes effect after the current update.
    """
    if (summary := run.summary) is not None:
        return summary

    def log(event: Event) -> None:
        run.log(event.kind, dict(event.record))
        on_event(event)

    def counts() -> dict[str, Any]:
        return {"epochs": trainer.epochs, "tokens": trainer.tokens, "seconds": trainer.seconds}

    def evaluate_now() -> None:
        with trainer.eval_weights():
            numbers: dict[str, Any] = {"update": trainer.updates, **counts(), **evaluate()}
            if numbers[metric] > progress.best_score:
                progress.best_score, progress.best_update, progress.misses = numbers[metric], trainer.updates, 0
                write_weights(run.best, trainer.policy.state_dict(), {"update": str(trainer.updates)})
            else:
                progress.misses += 1
        log(Event("evaluation", numbers))

    def save() -> None:
        run.save(trainer.updates, join_states({"learner": trainer.state(), "progress": State({}, asdict(progress))}))

    trainer.on_event = log
    checkpoint = run.load(on_event)
    if checkpoint is None:
        progress = _Progress(next_evaluation=schedule.every)
        evaluate_now()
        save()
    else:
        parts = split_state(checkpoint[1])
        trainer.load_state(parts["learner"])
        progress = _Progress(**parts["progress"].values)
    saved = time.monotonic()
    with _deferred_interrupts() as interrupted:
        while getattr(trainer, schedule.unit) < schedule.total and not progress.stopped:
            log(Event("update", asdict(trainer.step())))
            reached = getattr(trainer, schedule.unit)
            is_due = reached >= min(progress.next_evaluation, schedule.total)
            if is_due:
                evaluate_now()
                while progress.next_evaluation <= reached:
                    progress.next_evaluation += schedule.every
                progress.stopped = schedule.patience is not None and progress.misses >= schedule.patience
            if is_due or interrupted() or time.monotonic() - saved > schedule.save_seconds:
                save()
                saved = time.monotonic()
            if interrupted():
                raise Interrupted(f"stopped after update {trainer.updates}, which is saved in {run.directory}")
    summary = {
        "updates": trainer.updates,
        **counts(),
        "best_update": progress.best_update,
        f"best_{metric}": progress.best_score,
        "stopped_early": progress.stopped,
    }
    run.finish(summary)
    return summary


@contextmanager
def _deferred_interrupts() -> Generator[Callable[[], bool], None, None]:
    """Inside, the first Ctrl-C is only noted; a second one interrupts at once."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, which gets the signals
        yield lambda: False
        return
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)


TREE = "tree.safetensors"


def create_pretraining(
    directory: Path,
    task: str,
    data: Path | None,
    model: Any,
    settings: PretrainSettings,
    machine: MachineSettings,
    scale: str = "small",
    tree: Path | None = None,
) -> None:
    """Create the directory of a pre-training; :func:`resume_run` then runs it.

    With a tree, the model's head is a tree whatever its settings say, and the tree's file is copied into the run.
    """
    if tree is not None:
        if not hasattr(model, "head"):
            raise InputError(f"models of the task {task!r} have no head that could be a tree: leave --tree out")
        model = replace(model, head="tree")
    elif getattr(model, "head", None) == "tree":
        raise InputError("a model with a tree head needs a tree: make one with `corollout tree build` and name it")
    config = {
        "task": task,
        "kind": "pretrain",
        "scale": scale,
        "data": {} if data is None else {"folder": str(data.resolve())},
        "model": to_table(model),
        "pretrain": to_table(settings),
        "machine": to_table(machine),
    }
    opened = open_task(config)  # whatever is wrong is reported before anything is written
    opened.split("train")
    if tree is not None:
        stored = load_tree(tree, opened.tokens)
        _make_run_folder(directory)
        # First: a directory with a config.toml is complete.
        save_tree(directory / TREE, stored.tree, stored.builder, opened.tokens)
    Run.create(directory, config).close()


def create_finetuning(
    directory: Path, start: Path, settings: FinetuneSettings, machine: MachineSettings, data: Path | None = None
) -> None:
    """Create the directory of a fine-tuning that starts from the best weights of another run."""
    parent = Run.open(start)
    spec = find_task(parent.config.get("task"))
    reward = settings.reward or spec.rewards[0]
    if reward not in spec.rewards:
        raise InputError(f"the task {spec.name!r} has no reward {reward!r}: choose one of {', '.join(spec.rewards)}")
    weights, meta = read_weights(parent.best)
    config = {
        "task": parent.config["task"],
        "kind": "finetune",
        "scale": parent.config.get("scale", "small"),
        "start": {"run": str(start.resolve()), "update": int(meta.get("update", 0))},
        "data": parent.config.get("data", {}) if data is None else {"folder": str(data.resolve())},
        "model": parent.config["model"],
        "finetune": to_table(replace(settings, reward=reward)),
        "machine": to_table(machine),
    }
    for estimator in (settings.estimator, *_probe_names(settings)):
        make_estimator(estimator).check_head(config["model"].get("head", "softmax"))
    open_task(config).split("train")  # whatever is wrong is reported before anything is written
    _make_run_folder(directory)
    write_weights(directory / START, weights, meta)  # first: a directory with a config.toml is complete
    Run.create(directory, config).close()


def _make_run_folder(directory: Path) -> None:
    require_no_run(directory)
    make_folder(directory)


def _probe_names(settings: FinetuneSettings) -> list[str]:
    """Estimators to probe, separated by semicolons: their options contain commas."""
    is_given = settings.probe_every or settings.probes != FinetuneSettings().probes
    names = settings.probes.split(";") if is_given else []
    return [name.strip() for name in names if name.strip()]


def resume_run(directory: Path, on_event: Callback = ignore) -> dict[str, Any]:
    """Run what the settings of a run say, from its newest checkpoint on; return its summary."""
    with Run.open(directory, resume=True) as run:
        kind = run.config.get("kind")
        if kind not in ("pretrain", "finetune"):
            raise InputError(f"{directory} cannot be resumed: its config.toml has the unknown kind {kind!r}")
        if (summary := run.summary) is not None:
            return summary
        machine = from_table(MachineSettings, run.config["machine"], str(directory / "config.toml"))
        torch.set_num_threads(machine.threads)
        return (_pretrain if kind == "pretrain" else _finetune)(run, machine, on_event)


def _pretrain(run: Run, machine: MachineSettings, on_event: Callback) -> dict[str, Any]:
    settings = from_table(PretrainSettings, run.config["pretrain"], str(run.directory / "config.toml"))
    task = open_task(run.config, on_event)
    engine = task.engine(settings.seed)
    if isinstance(engine.head, TreeHead):
        engine.head.plant(load_tree(run.directory / TREE, task.tokens).tree)
    trainer = MLETrainer(
        engine,
        task.mle_data,
        torch.optim.Adam(policy_module(engine).parameters(), lr=settings.learning_rate),
        batch_size=settings.batch_size,
        max_grad_norm=settings.max_grad_norm,
        decay=LearningRateDecay(settings.decay, settings.decay_every),
        scheduled_sampling=ScheduledSampling(settings.scheduled_sampling, settings.scheduled_sampling_every),
        ema_decay=settings.ema_decay,
        seed=settings.seed,
        device=machine.device,
        clock=settings.clock,
    )
    schedule = Schedule("epochs", settings.epochs, settings.evaluate_every, settings.patience)

    def evaluate() -> dict[str, float]:
        return task.evaluate(engine, task.val).numbers()

    return fit(trainer, run, schedule, evaluate, task.metric.key, on_event=on_event)


def _finetune(run: Run, machine: MachineSettings, on_event: Callback) -> dict[str, Any]:
    settings = from_table(FinetuneSettings, run.config["finetune"], str(run.directory / "config.toml"))
    task = open_task(run.config, on_event)
    engine = task.engine()
    start = run.directory / START
    load_policy(policy_module(engine), read_weights(start, machine.device)[0], str(start))
    trainer = Trainer(
        engine,
        task.train.columns,
        task.reward(settings.reward or task.rewards[0]),
        settings.estimator,
        torch.optim.Adam(policy_module(engine).parameters(), lr=settings.learning_rate),
        batch_size=settings.batch_size,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        variance_decay=settings.variance_decay,
        device=machine.device,
        clock=settings.clock,
        probe_every=settings.probe_every,
        probes=_probe_names(settings),
    )
    train_examples = task.train.first(settings.train_eval_examples)

    def evaluate() -> dict[str, float]:
        train_score = float(task.evaluate(engine, train_examples).scores.mean())
        return {**task.evaluate(engine, task.val).numbers(), f"train_{task.metric.key}": train_score}

    schedule = Schedule(settings.unit, settings.budget, settings.evaluate_every)
    return fit(trainer, run, schedule, evaluate, task.metric.key, on_event=on_event)


def evaluate_run(directory: Path, split: str = "test", beam: int = 0, weights: str = "best") -> tuple[Task, Evaluation]:
    """A run's task, and the evaluation of its weights on a split."""
    task, engine = open_run(directory, weights)
    return task, task.evaluate(engine, task.split(split), beam)


def save_evaluation(directory: Path, split: str, weights: str, evaluation: Evaluation) -> None:
    """Write an evaluation into its run, where comparisons find it."""
    suffix = "" if weights == "best" else f"-{Path(weights).stem}"
    numbers = {"count": len(evaluation.scores), **evaluation.numbers()}
    write_json(directory / f"evaluation-{split}{suffix}.json", numbers)


def policy_module(engine: Engine) -> nn.Module:
    """The engine's policy as a module."""
    assert isinstance(engine.policy, nn.Module)
    return engine.policy
