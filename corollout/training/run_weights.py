"""The weights of a run: which there are, and an engine with them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from corollout.errors import InputError
from corollout.files import read_weights
from corollout.rollouts import Engine
from corollout.tasks.task import Task, open_task
from corollout.training.base import load_policy
from corollout.training.checkpoints import TENSORS
from corollout.training.runs import Run

START = "start.safetensors"
WEIGHTS_HELP = "Weights: best, last, start, a checkpoint (step-00001000), a safetensors file, or another run."


class OpenedRun(NamedTuple):
    """A run's task, an engine with weights of its model, and after which update they were taken, if that is known."""

    task: Task
    engine: Engine
    update: int | None


def open_run(directory: Path, weights: str = "best") -> tuple[Task, Engine]:
    """A run's task, and an engine with some of its weights (see :func:`load_weights`)."""
    return open_weights(Run.open(directory), weights)[:2]


def open_weights(run: Run, weights: str, machine: Mapping[str, Any] | None = None) -> OpenedRun:
    """The same for a run that is open already; ``machine`` overrides the run's machine settings."""
    config = {**run.config, "machine": {**run.config["machine"], **(machine or {})}}
    torch.set_num_threads(config["machine"]["threads"])
    task = open_task(config)
    engine = task.engine()
    return OpenedRun(task, engine, load_weights(run, weights, engine))


def load_weights(run: Run, weights: str, engine: Engine) -> int | None:
    """Load weights into a run's model; return after which update they were taken, if that is known.

    They are ``best``, ``last``, ``start`` (where a fine-tuning started), the name of one of the run's checkpoints, a
    file, or the directory of another run with the same model, whose best weights are used.
    """
    if weights == "last":
        checkpoint = run.load()
        if checkpoint is None:
            raise InputError(f"{run.directory} has no checkpoint yet")
        tensors, source, update = _policy_tensors(checkpoint[1].tensors), run.checkpoints, checkpoint[0]
    elif re.fullmatch(r"step-\d+", weights):
        source = run.checkpoints / weights / TENSORS
        if not source.exists():
            existing = sorted(path.name for path in run.checkpoints.glob("step-*")) or ["none"]
            raise InputError(f"{run.directory} has no checkpoint {weights}; it has {', '.join(existing)}")
        tensors, update = _policy_tensors(read_weights(source)[0]), int(weights.removeprefix("step-"))
    else:
        source = _weights_file(run, weights)
        tensors, meta = read_weights(source)
        update = int(meta["update"]) if "update" in meta else None
    assert isinstance(engine.policy, nn.Module)
    load_policy(engine.policy, tensors, str(source))
    return update


def _policy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The policy's weights among the tensors of a checkpoint."""
    prefix = "learner/policy/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _weights_file(run: Run, weights: str) -> Path:
    if weights == "best":
        return run.best
    path = run.directory / START if weights == "start" else Path(weights)
    if weights == "start" and not path.exists():
        raise InputError(f"{run.directory} has no {START}: only a fine-tuning has weights that it started from")
    if not path.exists() and path.suffix != ".safetensors":
        raise InputError(
            f"there are no weights {weights!r}: choose best, last, start, a checkpoint such as step-00001000, a "
            f"safetensors file, or another run's directory"
        )
    return Run.open(path).best if path.is_dir() else path
