"""Loggers: callbacks that pass the numbers of a training on, to a service, to files or to the terminal.

Wherever ``on_event`` is asked for, any function of an :class:`Event` will do; these are some, and :func:`together`
makes one of several. What they need is imported when they are made. Numbers of an event are called "update/reward",
"evaluation/CIDEr-D" and so on, and belong to the update after which they were measured.
"""

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from corollout.arguments import require_callable, require_instance, require_number
from corollout.config import import_object
from corollout.errors import InputError
from corollout.event_file import EventFile
from corollout.events import Callback, Event, numbers_of
from corollout.text import quoted

_MEASURED = ("update", "evaluation")


class Logger:
    """Base class of loggers that want numbers: override ``log``, and ``close`` if there is something to close."""

    def log(self, update: int, numbers: dict[str, float]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def __call__(self, event: Event) -> None:
        update = event.record.get("update")
        if event.kind in _MEASURED and isinstance(update, int):
            numbers = {f"{event.kind}/{name}": value for name, value in numbers_of(event.record).items()}
            self.log(update, numbers)

    def __enter__(self) -> "Logger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TensorBoard(Logger):
    """Event files in a folder. A run directory has its own in ``events``."""

    def __init__(self, folder: Path | str):
        require_instance("the folder of event files", folder, (str, Path), "a path")
        self._file = EventFile(Path(folder), None)

    def log(self, update: int, numbers: dict[str, float]) -> None:
        self._file.scalars(update, numbers)

    def close(self) -> None:
        self._file.close()


class WeightsAndBiases(Logger):
    """A run at Weights & Biases (package ``wandb``); ``options`` are those of ``wandb.init``."""

    def __init__(self, project: str | None = None, **options: Any):
        self._run: Any = _package("wandb").init(project=project, **options)

    def log(self, update: int, numbers: dict[str, float]) -> None:
        # The service refuses earlier steps than it has seen, which a resumed run would send.
        self._run.log({**numbers, "updates": update})

    def close(self) -> None:
        self._run.finish()


class MLflow(Logger):
    """A run of MLflow (package ``mlflow``), where ``MLFLOW_TRACKING_URI`` says, else in the working directory."""

    def __init__(self, experiment: str | None = None, run_name: str | None = None):
        self._mlflow = _package("mlflow")
        if experiment is not None:
            self._mlflow.set_experiment(experiment)
        self._mlflow.start_run(run_name=run_name)

    def log(self, update: int, numbers: dict[str, float]) -> None:
        self._mlflow.log_metrics(numbers, step=update)

    def close(self) -> None:
        self._mlflow.end_run()


class Lines(Logger):
    """A line of text now and then: at each evaluation, and for updates at most once every so many seconds."""

    SHOWN = ("reward", "loss", "mle_loss", "entropy", "kl", "mean_length", "gradient_norm")

    def __init__(self, seconds: float | int = 10.0, stream: Any = None):
        require_number("seconds", seconds, "a number of seconds, 0 or more", lambda seconds: seconds >= 0)
        self._seconds, self._stream = seconds, stream
        self._last = -float("inf")

    def __call__(self, event: Event) -> None:
        if event.kind in ("note", "warning"):
            self._print(f"warning: {event.record['text']}" if event.kind == "warning" else event.record["text"])
        elif event.kind == "update" and time.monotonic() - self._last < self._seconds:
            return
        else:
            super().__call__(event)

    def log(self, update: int, numbers: dict[str, float]) -> None:
        self._last = time.monotonic()
        named = {name.partition("/")[2]: value for name, value in numbers.items()}
        is_update = next(iter(numbers), "").startswith("update/")
        shown = [name for name in named if not is_update or name in self.SHOWN or name.startswith("rewards/")]
        words = (f"{name.replace('_', ' ')} {named[name]:.4g}" for name in shown)
        self._print(f"update {update:,}: {', '.join(words)}")

    def _print(self, text: str) -> None:
        print(text, file=self._stream or sys.stderr, flush=True)


def together(*callbacks: Callback) -> Callback:
    """One callback that calls all of these."""
    for number, callback in enumerate(callbacks):
        require_callable(f"callback {number}", callback, "a function of an Event")

    def call_all(event: Event) -> None:
        for callback in callbacks:
            callback(event)

    return call_all


_KINDS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def make_logger(name: str) -> Callback:
    """The logger of a name such as ``wandb:my-project``, ``mlflow:my-experiment``, ``tensorboard:FOLDER``, or of an
    import path, ``package.module:NAME``: a class or function without arguments that returns a callback.
    """
    require_instance("the name of a logger", name, str, "text such as 'wandb:my-project'")
    kind, _, rest = name.partition(":")
    if kind == "tensorboard" and not rest:
        raise InputError("tensorboard needs a folder, as in tensorboard:logs")
    if kind in _KINDS:
        return _KINDS[kind](rest or None)
    if not rest:
        raise InputError(
            f"there is no logger {quoted(name)}: choose one of {', '.join(_KINDS)}, or give the import path "
            f"package.module:NAME of your own"
        )
    made: Any = import_object(name)
    logger: Any = made() if callable(made) else None
    if not callable(logger):
        raise InputError(f"{quoted(name)} must be a class or function without arguments that returns a callback")
    return cast(Callback, logger)


def close_all(callbacks: Sequence[Callback]) -> None:
    """Close those that can be closed."""
    for callback in callbacks:
        if isinstance(callback, Logger):
            callback.close()


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"logging to {name} needs the package {name} ({error}): pip install {name}") from error
