"""The weights of a run: which there are, and an engine with them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from corollout.config import NONE, from_table
from corollout.errors import InputError
from corollout.events import Event
from corollout.rollouts import Engine
from corollout.tasks.task import Task, open_task
from corollout.threads import use_threads
from corollout.training.base import load_policy, policy_module
from corollout.training.checkpoints import read_checkpoint
from corollout.training.runs import CONFIG, Run, training_settings
from corollout.training.settings import MachineSettings
from corollout.weights import read_weights

START = "start.safetensors"


class OpenedRun(NamedTuple):
    """A run's task, an engine with weights of its model, and after which update they were taken, if that is known."""

    task: Task
    engine: Engine
    update: int | None


def open_run(
    directory: Path, weights: str = "best", device: str | None = None, data: Path | None = None
) -> tuple[Task, Engine]:
    """A run's task, and an engine with some of its weights (see :func:`load_weights`).

    ``device`` and ``data`` are where to compute and where the data is, if that is not as in the run.
    """
    return open_weights(Run.open(directory), weights, {} if device is None else {"device": device}, data)[:2]


def open_weights(
    run: Run, weights: str, machine: Mapping[str, Any] | None = None, data: Path | None = None
) -> OpenedRun:
    """The same for a run that is open already; ``machine`` overrides the run's machine settings."""
    config = {**run.config, "machine": {**run.section("machine"), **(machine or {})}}
    settings = from_table(MachineSettings, config["machine"], str(run.directory / CONFIG))
    config["task"] = run.task
    if data is None:
        require_data(run, "name its new place with --data")
    elif not data.exists():
        raise InputError(f"there is no data at {data}: name the folder of the data with --data")
    else:
        config["data"] = {**run.section("data"), "folder": os.path.realpath(data)}
    task = open_task(config)
    use_threads(settings.threads)
    engine = task.engine()
    set_temperature(engine, config)
    return OpenedRun(task, engine, load_weights(run, weights, engine))


def set_temperature(engine: Engine, config: Mapping[str, Any]) -> None:
    """Give an engine the temperature that a fine-tuning has in its settings; 1 leaves the task's."""
    temperature = training_settings(config).get("temperature", 1.0)
    if temperature != 1:
        engine.use(engine.policy, temperature)


def require_data(run: Run, advice: str = "") -> None:
    """Raise an error if the folder of a run's data is gone."""
    folder = run.section("data").get("folder")
    if isinstance(folder, str) and folder not in ("", NONE) and not os.path.exists(folder):
        entry = f"the entry folder in section data of {run.directory / CONFIG}"
        raise InputError(
            f"the data of {run.directory} is not at {folder} any more: move it back, or {advice or f'correct {entry}'}"
        )


def load_weights(run: Run, weights: str, engine: Engine) -> int | None:
    """Load weights into a run's model; return after which update they were taken, if that is known.

    They are ``best``, ``last``, ``start`` (where a fine-tuning started), the name of one of the run's checkpoints, a
    file, or the directory of another run with the same model, whose best weights are used.
    """
    if weights == "last":
        checkpoint = run.load(_refuse)
        if checkpoint is None:
            raise InputError(f"{run.directory} has no checkpoint yet")
        tensors, source, update = _policy_tensors(checkpoint[1].tensors), run.checkpoints, checkpoint[0]
    elif match := re.fullmatch(r"step-0*(\d{1,18})", weights):
        source, update = run.checkpoints / weights, int(match[1])
        tensors = _policy_tensors(read_checkpoint(run.checkpoints, update).tensors)
    else:
        source, is_ours = _weights_file(run, weights)
        tensors, meta = read_weights(source, foreign=not is_ours)
        update = int(meta["update"]) if meta.get("update", "").isdecimal() else None
    load_policy(policy_module(engine, "a run"), tensors, str(source))
    return update


def _refuse(event: Event) -> None:
    """Whoever asks for the last weights must not get others without noticing."""
    raise InputError(f"{event.record['text']}; choose other weights with --weights")


def _policy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The policy's weights among the tensors of a checkpoint."""
    prefix = "learner/policy/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _weights_file(run: Run, weights: str) -> tuple[Path, bool]:
    """The file, and whether a run wrote it, so that it has a digest."""
    if weights == "best":
        return run.best, True
    path = run.directory / START if weights == "start" else Path(weights)
    if weights == "start" and not path.exists():
        raise InputError(f"{run.directory} has no {START}: only a fine-tuning has weights that it started from")
    if not path.exists() and path.suffix != ".safetensors":
        raise InputError(
            f"there are no weights {weights!r}: choose best, last, start, a checkpoint such as step-00001000, a "
            f"safetensors file, or another run's directory"
        )
    return (Run.open(path).best, True) if path.is_dir() else (path, weights == "start")
