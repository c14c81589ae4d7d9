"""Create, resume and evaluate runs: pre-training and fine-tuning of any task in a run directory.

A run's ``config.toml`` is all that is needed to repeat or resume it: the task and its data, the model, the training,
and for fine-tuning the weights to start from, which are copied into the run. Its section ``inputs`` has digests of the
data, the tree and the reward, by which a run that is resumed notices that they have changed.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from corollout.config import from_table, to_table
from corollout.errors import InputError
from corollout.estimators import make_estimator
from corollout.events import Callback, ignore, note, warning
from corollout.files import check_entries, digest_of, write_json
from corollout.launch import ranks_here
from corollout.policies import TreeHead, evaluation_mode
from corollout.processes import processes
from corollout.tasks.task import Evaluation, Metric, Task, find_task, open_task, reward_names
from corollout.threads import available_cores, choose_threads, use_threads
from corollout.training.base import BaseTrainer, load_policy, policy_module
from corollout.training.extension import extended, finetuning_schedule, pretraining_schedule, require_resumable
from corollout.training.finetuning import Trainer
from corollout.training.imitation import TARGET
from corollout.training.likelihood import mean_loss
from corollout.training.loop import Schedule, fit
from corollout.training.mle import LearningRateDecay, MLETrainer, ScheduledSampling
from corollout.training.optimizers import make_adam, make_scheduler
from corollout.training.regularisation import KL
from corollout.training.run_weights import START, open_run, require_data, set_temperature
from corollout.training.runs import CONFIG, Run, require_no_run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.warm_up import warm_up
from corollout.trees import load_tree, save_tree
from corollout.trees.files import StoredTree
from corollout.weights import read_weights, write_weights

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
    on_event: Callback = ignore,
) -> None:
    """Create the directory of a pre-training; :func:`resume_run` then runs it.

    With a tree, the model's head is a tree whatever its settings say, and the tree's file is copied into the run. A
    number of threads that is to be chosen is chosen here, and reported as a note: the run keeps it.
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
        "data": {} if data is None else {"folder": os.path.realpath(data)},
        "model": to_table(model),
        "pretrain": to_table(settings),
        "machine": to_table(machine),
    }
    _require_no_run(directory)
    training = _pretraining(config, tree, str(directory))  # whatever is wrong is reported before anything is written

    def fill(folder: Path) -> None:
        if training.tree is not None:
            save_tree(folder / TREE, training.tree.tree, training.tree.builder, training.task.tokens)

    config["machine"] = to_table(_with_threads(machine, training.trainer, on_event))
    config["inputs"] = _inputs(training, config)
    Run.create(directory, config, fill).close()


def create_finetuning(
    directory: Path,
    start: Path,
    settings: FinetuneSettings,
    machine: MachineSettings,
    data: Path | None = None,
    on_event: Callback = ignore,
) -> None:
    """Create the directory of a fine-tuning that starts from the best weights of another run.

    If these weights may be as bad as random ones, that is reported as a warning.
    """
    _require_no_run(directory)
    parent = Run.open(start)
    if data is None:
        require_data(parent, "name its new place with --data")
    spec = find_task(parent.task)
    rewards = reward_names(settings.reward) or list(spec.rewards[:1])
    for reward in rewards:
        if reward not in spec.rewards:
            choice = ", ".join(spec.rewards)
            raise InputError(f"the task {spec.name!r} has no reward {reward!r}: choose one of {choice}")
    if settings.kl_target is not None and not settings.kl:
        raise InputError("a target of the divergence needs a coefficient to start from: give --kl with --kl-target")
    weights, meta = read_weights(parent.best)
    _warn_of_untrained(parent, spec.metric, on_event)
    config = {
        "task": parent.config["task"],
        "kind": "finetune",
        "scale": parent.config.get("scale", "small"),
        "start": {"run": os.path.realpath(start), "update": int(meta.get("update", 0))},
        "data": parent.section("data") if data is None else {"folder": os.path.realpath(data)},
        "model": parent.section("model"),
        "finetune": to_table(replace(settings, reward=",".join(rewards))),
        "machine": to_table(machine),
    }
    for estimator in (settings.estimator, *_probe_names(settings)):
        make_estimator(estimator).check_head(config["model"].get("head", "softmax"))
    training = _finetuning(config, weights, str(parent.best), str(directory))
    if machine.threads is None and (settings.unit, settings.clock) == ("seconds", "cpu"):
        on_event(note("1 thread: the budget counts the CPU time of all of them"))
        machine = replace(machine, threads=1)
    config["machine"] = to_table(_with_threads(machine, training.trainer, on_event))
    config["inputs"] = _inputs(training, config)
    Run.create(directory, config, lambda folder: write_weights(folder / START, weights, meta)).close()


def _warn_of_untrained(parent: Run, metric: Metric, on_event: Callback) -> None:
    """Report a run in which no evaluation was better than any other."""
    scores = [record.get(metric.key) for record in parent.records("evaluation")]
    scores = [score for score in scores if isinstance(score, int | float)]
    if scores and min(scores) == max(scores):
        times = f"all {len(scores)} evaluations" if len(scores) > 1 else "its only evaluation"
        on_event(
            warning(
                f"in {times} of {parent.directory} it had {metric.text(scores[0])}: its weights may be no better than "
                f"random ones, from which fine-tuning may learn nothing; train it longer first"
            )
        )


def _require_no_run(directory: Path) -> None:
    group = processes()
    with group.agreed():
        if group.is_first:
            require_no_run(directory)


def _with_threads(machine: MachineSettings, trainer: BaseTrainer[Any], on_event: Callback) -> MachineSettings:
    """The settings with a number of threads: if none is given, by a measurement of the policy's own steps."""
    if machine.threads is not None:
        return machine
    if torch.device(machine.device).type != "cpu":
        choice = choose_threads()
    else:
        policy = trainer.engine.policy
        batch = trainer.data.batch(range(min(trainer.batch_size, len(trainer.data))), trainer.device)
        tokens = torch.full_like(batch.examples, trainer.engine.bos)

        @torch.no_grad()
        def first_step() -> None:
            with evaluation_mode(policy):
                policy.step(policy.start(policy.encode(batch.context)), tokens)

        choice = choose_threads(first_step)
    if choice.measured:
        on_event(note(choice.reason))
    return replace(machine, threads=processes().from_first(choice.threads))


def _probe_names(settings: FinetuneSettings) -> list[str]:
    """Estimators to probe, separated by semicolons: their options contain commas."""
    is_given = settings.probe_every or settings.probes != FinetuneSettings().probes
    names = settings.probes.split(";") if is_given else []
    return [name.strip() for name in names if name.strip()]


def resume_run(
    directory: Path,
    on_event: Callback = ignore,
    accept_changes: bool = False,
    threads: int | None = None,
    longer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run what the settings of a run say, from its newest checkpoint on; return its summary.

    Data, tree and reward must be those that the run began with, unless ``accept_changes``. ``threads`` is another
    number of threads than the run's, with which the weights may differ by rounding. ``longer`` are settings by which
    the run is to be longer than it was, finished or not (``EXTENDABLE`` has their names); the run keeps them.
    """
    with Run.open(directory, resume=True) as run:
        config = str(directory / CONFIG)
        require_resumable(run)
        kind = str(run.config["kind"])
        require_data(run)
        metric = find_task(run.task).metric.key
        group = processes()
        with group.agreed():
            settings, schedule = extended(run, longer or {})
            summary = run.summary
        summary: Any = group.from_first(summary)
        if summary is not None and schedule.is_complete(summary):
            path, advice = directory / "summary.json", "remove it to resume the run"
            numbers: dict[str, Any] = {"updates": int, "best_update": int, f"best_{metric}": (int, float)}
            return check_entries(summary, path, advice, **numbers)
        machine = from_table(MachineSettings, run.section("machine"), config)
        if threads is None and ranks_here() > 1 and machine.threads is not None:
            threads = min(machine.threads, available_cores())
        if threads is not None and threads != machine.threads:
            on_event(warning(f"the run began with --threads {machine.threads}; with {threads}, rounding may differ"))
        use_threads(threads or machine.threads)
        run_config = {**run.config, kind: settings}
        if kind == "finetune":
            start = directory / START
            training = _finetuning(run_config, read_weights(start)[0], str(start), config, on_event)
        else:
            tree = directory / TREE
            training = _pretraining(run_config, tree if tree.exists() else None, config, on_event)
        _check_inputs(run, _inputs(training, run.config), accept_changes, on_event)
        if isinstance(training.trainer, Trainer):
            warm_up(training.trainer)
        run.change_settings(kind, settings)
        return fit(training.trainer, run, training.schedule, training.evaluate, metric, on_event=on_event)


@dataclass(frozen=True)
class _Training:
    """All that a run trains with."""

    task: Task
    trainer: BaseTrainer[Any]
    schedule: Schedule
    evaluate: Callable[[], dict[str, float]]
    tree: StoredTree | None = None


def _pretraining(config: dict[str, Any], tree: Path | None, where: str, on_event: Callback = ignore) -> _Training:
    """``tree`` is the file of the head's tree, if there is one; ``where`` is the name of the settings in errors."""
    settings = from_table(PretrainSettings, config.get("pretrain", {}), where)
    task = open_task(config, on_event)
    stored = None if tree is None else load_tree(tree, task.tokens)
    engine = task.engine(settings.seed)
    if isinstance(engine.head, TreeHead):
        if stored is None:
            raise InputError(f"{where} has no tree, which the head of its model needs")
        engine.head.plant(stored.tree)
    trainer = MLETrainer(
        engine,
        task.mle_data,
        make_adam(policy_module(engine).parameters(), settings.learning_rate),
        batch_size=settings.batch_size,
        max_grad_norm=settings.max_grad_norm or None,
        max_grad_value=settings.max_grad_value or None,
        decay=LearningRateDecay(settings.decay, settings.decay_every),
        scheduled_sampling=ScheduledSampling(settings.scheduled_sampling, settings.scheduled_sampling_every),
        ema_decay=settings.ema_decay,
        seed=settings.seed,
        device=task.device,
        clock=settings.clock,
    )
    schedule = pretraining_schedule(settings)

    def evaluate() -> dict[str, float]:
        numbers, columns = task.evaluate(engine, task.val).numbers(), task.val.columns
        if TARGET not in columns.columns:
            return numbers
        # The first epochs may solve nothing at all: then the loss says which weights are the best.
        return {**numbers, "loss": mean_loss(engine, columns, TARGET, settings.batch_size, task.device)}

    return _Training(task, trainer, schedule, evaluate, stored)


def _finetuning(
    config: dict[str, Any], weights: dict[str, Tensor], source: str, where: str, on_event: Callback = ignore
) -> _Training:
    """The weights come from ``source``."""
    settings = from_table(FinetuneSettings, config.get("finetune", {}), where)
    task = open_task(config, on_event)
    engine = task.engine()
    load_policy(policy_module(engine), weights, source)
    set_temperature(engine, config)
    optimizer, columns = make_adam(policy_module(engine).parameters(), settings.learning_rate), task.train.columns
    trainer = Trainer(
        engine,
        columns,
        task.weighted_reward(settings.reward, settings.reward_weights),
        settings.estimator,
        optimizer,
        batch_size=settings.batch_size,
        accumulate=settings.accumulate,
        micro_batch=settings.micro_batch,
        balance=settings.balance,
        scheduler=_scheduler(optimizer, settings, len(columns)),
        kl=KL(settings.kl, settings.kl_target) if settings.kl else None,
        entropy=settings.entropy,
        mle_weight=settings.mle_weight,
        mle_data=task.mle_data if settings.mle_weight and TARGET not in columns.columns else None,
        ema_decay=settings.ema_decay,
        max_grad_norm=settings.max_grad_norm or None,
        max_grad_value=settings.max_grad_value or None,
        seed=settings.seed,
        variance_decay=settings.variance_decay,
        device=task.device,
        clock=settings.clock,
        probe_every=settings.probe_every,
        probes=_probe_names(settings),
        samples_every=settings.samples_every,
        decode=task.tokens,
    )
    train_examples = task.train.first(settings.train_eval_examples)

    def evaluate() -> dict[str, float]:
        train_score = float(task.evaluate(engine, train_examples).scores.mean())
        return {**task.evaluate(engine, task.val).numbers(), f"train_{task.metric.key}": train_score}

    return _Training(task, trainer, finetuning_schedule(settings), evaluate)


def _scheduler(optimizer: torch.optim.Optimizer, settings: FinetuneSettings, examples: int) -> LRScheduler | None:
    """The schedule of the learning rate, which is measured in updates whatever the unit of the budget."""
    total = settings.schedule_updates
    if total is None and settings.unit == "updates":
        total = math.ceil(settings.budget)
    elif total is None and settings.unit == "epochs":
        total = math.ceil(settings.budget) * -(-examples // (settings.batch_size * settings.accumulate))
    if settings.schedule != "constant" and total is None:
        raise InputError(
            f"a {settings.schedule} schedule is measured in updates, and how many there are in a budget of "
            f"{settings.unit} is not known: give --schedule-updates"
        )
    return make_scheduler(optimizer, settings.warm_up, settings.schedule, total)


def _inputs(training: _Training, config: dict[str, Any]) -> dict[str, str]:
    """Digests of what a run depends on besides its settings, and of its reward."""
    inputs = {"data": training.task.data_digest()}
    if training.tree is not None:
        inputs["tree"] = digest_of([training.tree.tree.children.tobytes()])
    if config["kind"] == "finetune":
        weights = config["finetune"].get("reward_weights", [])
        described: Any = [
            {"name": name, **training.task.reward_settings(name)} for name in reward_names(config["finetune"]["reward"])
        ]
        described = described[0] if len(described) == 1 and not weights else {"rewards": described, "weights": weights}
        inputs["reward"] = digest_of([json.dumps(described, sort_keys=True).encode()])
    return inputs


def _check_inputs(run: Run, inputs: dict[str, str], accept_changes: bool, on_event: Callback) -> None:
    known = run.section("inputs")  # a run of an earlier version has none
    changed = [name for name, digest in inputs.items() if known.get(name, digest) != digest]
    if not changed:
        return
    what = f"the {' and the '.join(changed)} of {run.directory} changed after the run began"
    if not accept_changes:
        raise InputError(f"{what}: undo the change, or continue anyway with --accept-changes")
    on_event(warning(what))


def evaluate_run(
    directory: Path,
    split: str = "test",
    beam: int = 0,
    weights: str = "best",
    device: str | None = None,
    data: Path | None = None,
) -> tuple[Task, Evaluation]:
    """A run's task, and the evaluation of its weights on a split."""
    task, engine = open_run(directory, weights, device, data)
    return task, task.evaluate(engine, task.named_split(split), beam)


def save_evaluation(directory: Path, split: str, weights: str, evaluation: Evaluation) -> None:
    """Write an evaluation into its run, where comparisons find it."""
    suffix = "" if weights == "best" else f"-{Path(weights).stem}"
    numbers = {"count": len(evaluation.scores), **evaluation.numbers()}
    write_json(directory / f"evaluation-{split}{suffix}.json", numbers)
