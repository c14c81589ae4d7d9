"""Pre-training, fine-tuning and evaluation as they are done in run directories.

A run's ``config.toml`` is all that a job needs to be done again, or to go on: the task and its data, the model, the
training, and for fine-tuning the weights to start from, which are copied into the run.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from corollout.config import from_table, to_table
from corollout.errors import InputError
from corollout.estimators import ARM, ARS, BinaryTreeARSM, make_estimator
from corollout.policies import TreeHead
from corollout.rollouts import Engine
from corollout.tasks.registry import open_task
from corollout.tasks.task import Evaluation, Task
from corollout.training.base import Event, load_policy
from corollout.training.checkpoints import TENSORS, read_weights, write_weights
from corollout.training.finetuning import Trainer
from corollout.training.fit import Schedule, fit
from corollout.training.mle import Decay, MLETrainer, Sampling
from corollout.training.runs import Run, refuse_a_run
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.trees import load_tree, save_tree

START, TREE = "start.safetensors", "tree.safetensors"


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Callbacks:
    """Who wants to know how a job goes on."""

    on_update: Callable[[Any], None] = _ignore
    on_evaluation: Callable[[dict[str, Any]], None] = _ignore
    on_news: Callable[[Event], None] = _ignore
    warn: Callable[[str], None] = _ignore


def new_pretraining(
    directory: Path,
    task: str,
    data: Path,
    model: Any,
    settings: PretrainSettings,
    machine: MachineSettings,
    scale: str = "small",
    tree: Path | None = None,
) -> None:
    """Make the directory of a pre-training; ``resume`` then does it.

    With a tree the model's head is one, whatever its settings say, and the tree's file is copied into the run.
    """
    model = model if tree is None else _with_tree(model, task)
    if tree is None and getattr(model, "head", None) == "tree":
        raise InputError("a model whose head is a tree needs one: make it with `corollout tree build`, and name it")
    config = {
        "task": task,
        "kind": "pretrain",
        "scale": scale,
        "data": {"folder": str(data.resolve())},
        "model": to_table(model),
        "pretrain": to_table(settings),
        "machine": to_table(machine),
    }
    # Whoever names a wrong folder or tree hears of it before anything is made.
    opened = open_task(config)
    opened.split("train")
    if tree is not None:
        stored = load_tree(tree, opened.words)
        _make(directory)
        save_tree(directory / TREE, stored.tree, stored.builder, opened.words)  # first, as below
    Run.create(directory, config).close()


def _with_tree(model: Any, task: str) -> Any:
    """The settings of a model whose head is a tree."""
    if not hasattr(model, "head"):
        raise InputError(f"a model of the task {task!r} has no head that could be a tree")
    return replace(model, head="tree")


def _make(directory: Path) -> None:
    refuse_a_run(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to the run directory {directory}: {error.strerror or error}") from error


def new_finetuning(
    directory: Path, start: Path, settings: FinetuneSettings, machine: MachineSettings, data: Path | None = None
) -> None:
    """Make the directory of a fine-tuning that starts from the best weights of another run."""
    parent = Run.open(start)
    weights, meta = read_weights(parent.best)
    folder = Path(parent.config["data"]["folder"]) if data is None else data.resolve()
    config = {
        "task": parent.config["task"],
        "kind": "finetune",
        "scale": parent.config.get("scale", "small"),
        "start": {"run": str(start.resolve()), "update": int(meta.get("update", 0))},
        "data": {"folder": str(folder)},
        "model": parent.config["model"],
        "finetune": to_table(settings),
        "machine": to_table(machine),
    }
    # What is wrong is said before anything is made.
    for estimator in (settings.estimator, *_listed(settings.probes)):
        _check_head(estimator, config["model"].get("head", "softmax"))
    open_task(config).reward(settings.reward)
    _make(directory)
    write_weights(directory / START, weights, meta)  # first: what has a config.toml is complete
    Run.create(directory, config).close()


def _check_head(estimator: str, head: str) -> None:
    """Refuse an estimator that is for another head; those that only need the probability of a token suit both."""
    made = make_estimator(estimator)
    if head == "tree" and isinstance(made, ARS | ARM):
        raise InputError(f"{estimator} is for a softmax, but the run's head is a tree: choose bt-arsm or bt-disarm")
    if head != "tree" and isinstance(made, BinaryTreeARSM):
        raise InputError(f"{estimator} is for a tree, but the run's head is a softmax: choose arsm or ars-K")


def _listed(estimators: str) -> list[str]:
    """Names with semicolons between them: their options have commas."""
    return [name.strip() for name in estimators.split(";") if name.strip()]


def resume(directory: Path, hooks: Callbacks | None = None) -> dict[str, Any]:
    """Do what the run's settings say, from its newest checkpoint on; return its summary."""
    hooks = hooks or Callbacks()
    with Run.open(directory, resume=True) as run:
        kind = run.config.get("kind")
        if kind not in ("pretrain", "finetune"):
            raise InputError(f"{directory} is no run that could go on: its config.toml has the kind {kind!r}")
        if (summary := run.finished) is not None:
            return summary
        machine = from_table(MachineSettings, run.config["machine"], str(directory / "config.toml"))
        torch.set_num_threads(machine.threads)
        return _pretrain(run, machine, hooks) if kind == "pretrain" else _finetune(run, machine, hooks)


def _pretrain(run: Run, machine: MachineSettings, hooks: Callbacks) -> dict[str, Any]:
    settings = from_table(PretrainSettings, run.config["pretrain"], str(run.directory / "config.toml"))
    task = open_task(run.config, hooks.warn)
    engine = task.engine(settings.seed)
    if isinstance(engine.head, TreeHead):
        engine.head.plant(load_tree(run.directory / TREE, task.words).tree)
    learner = MLETrainer(
        engine,
        task.mle_data,
        torch.optim.Adam(module(engine).parameters(), lr=settings.learning_rate),
        batch_size=settings.batch_size,
        max_grad_norm=settings.max_grad_norm,
        decay=Decay(settings.decay, settings.decay_every),
        sampling=Sampling(settings.scheduled_sampling, settings.scheduled_sampling_every),
        ema_decay=settings.ema_decay,
        seed=settings.seed,
        device=machine.device,
        clock=settings.clock,
    )
    schedule = Schedule("epochs", settings.epochs, settings.evaluate_every, settings.patience)
    return _fit(learner, run, schedule, task, lambda: task.evaluate(engine, task.val).numbers(), hooks)


def _finetune(run: Run, machine: MachineSettings, hooks: Callbacks) -> dict[str, Any]:
    settings = from_table(FinetuneSettings, run.config["finetune"], str(run.directory / "config.toml"))
    task = open_task(run.config, hooks.warn)
    engine = task.engine()
    start = run.directory / START
    load_policy(module(engine), read_weights(start, machine.device)[0], str(start))
    learner = Trainer(
        engine,
        task.train.columns,
        task.reward(settings.reward),
        settings.estimator,
        torch.optim.Adam(module(engine).parameters(), lr=settings.learning_rate),
        batch_size=settings.batch_size,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        variance_decay=settings.variance_decay,
        device=machine.device,
        clock=settings.clock,
        probe_every=settings.probe_every,
        probes=_listed(settings.probes),
    )
    looked_at = task.train.first(settings.train_eval_examples)

    def evaluate() -> dict[str, float]:
        seen = float(task.evaluate(engine, looked_at).scores.mean())
        return {**task.evaluate(engine, task.val).numbers(), f"train_{task.metric.key}": seen}

    schedule = Schedule(settings.unit, settings.budget, settings.evaluate_every)
    return _fit(learner, run, schedule, task, evaluate, hooks)


def _fit(
    learner: Any, run: Run, schedule: Schedule, task: Task, evaluate: Callable[[], dict[str, float]], hooks: Callbacks
) -> dict[str, Any]:
    return fit(
        learner,
        run,
        schedule,
        evaluate,
        task.metric.key,
        on_update=hooks.on_update,
        on_evaluation=hooks.on_evaluation,
        on_news=hooks.on_news,
        warn=hooks.warn,
    )


def open_run(directory: Path, weights: str = "best") -> tuple[Task, Engine]:
    """A run's task, and an engine with its best weights, those of its newest checkpoint, or those of a file."""
    return open_weights(Run.open(directory), weights)[:2]


class Opened(NamedTuple):
    """A run's task, an engine with weights of its model, and after which update they were taken, if that is known."""

    task: Task
    engine: Engine
    update: int | None


def open_weights(run: Run, weights: str, machine: Mapping[str, Any] | None = None) -> Opened:
    """The same of a run that is open already; ``machine`` has settings that are to be others than the run's."""
    config = {**run.config, "machine": {**run.config["machine"], **(machine or {})}}
    torch.set_num_threads(config["machine"]["threads"])
    task = open_task(config)
    engine = task.engine()
    return Opened(task, engine, load_weights(run, weights, engine))


def load_weights(run: Run, weights: str, engine: Engine) -> int | None:
    """Put weights into a run's model; say after which update they were taken, if that is known.

    They are ``best``, ``last``, ``start`` (from which a fine-tuning began), the name of one of the run's checkpoints, a
    file, or the directory of another run with the same model, of which the best are taken.
    """
    if weights == "last":
        found = run.load(_ignore)
        if found is None:
            raise InputError(f"{run.directory} has no checkpoint yet")
        tensors, where, update = _policy_part(found[1].tensors), run.checkpoints, found[0]
    elif re.fullmatch(r"step-\d+", weights):
        where = _checkpoint(run, weights)
        tensors, update = _policy_part(read_weights(where)[0]), int(weights.removeprefix("step-"))
    else:
        where = _weights_file(run, weights)
        tensors, meta = read_weights(where)
        update = int(meta["update"]) if "update" in meta else None
    load_policy(module(engine), tensors, str(where))
    return update


def _policy_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The policy's weights among the tensors of a checkpoint."""
    prefix = "learner/policy/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _checkpoint(run: Run, name: str) -> Path:
    path = run.checkpoints / name / TENSORS
    if not path.exists():
        there = sorted(other.name for other in run.checkpoints.glob("step-*")) or ["none"]
        raise InputError(f"{run.directory} has no checkpoint {name}; it has {', '.join(there)}")
    return path


def _weights_file(run: Run, weights: str) -> Path:
    if weights == "best":
        return run.best
    if weights == "start":
        if not (run.directory / START).exists():
            raise InputError(f"{run.directory} has no {START}: only a fine-tuning has weights that it started from")
        return run.directory / START
    path = Path(weights)
    if not path.exists() and path.suffix != ".safetensors":
        raise InputError(
            f"there are no weights {weights!r}: say best, last, start, the name of a checkpoint as in step-00001000, a "
            f"safetensors file, or another run's directory"
        )
    return Run.open(path).best if path.is_dir() else path


def evaluate_run(directory: Path, split: str = "test", beam: int = 0, weights: str = "best") -> tuple[Task, Evaluation]:
    """A run's task, and what its weights achieve on a split."""
    task, engine = open_run(directory, weights)
    return task, task.evaluate(engine, task.split(split), beam)


def module(engine: Engine) -> nn.Module:
    """The engine's policy as a module."""
    assert isinstance(engine.policy, nn.Module)
    return engine.policy
