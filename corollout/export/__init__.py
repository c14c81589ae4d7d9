"""Export: a model as a folder that needs nothing but NumPy, and the runtime in it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corollout.config import import_object
from corollout.errors import InputError
from corollout.export import runtime
from corollout.tasks.task import find_task
from corollout.training.run_weights import open_weights
from corollout.training.runs import Run

RUNTIME = "runtime.py"


@dataclass(frozen=True)
class Export:
    """An exported folder: the content of its ``model.json``, and the size of each file in bytes."""

    folder: Path
    model: dict[str, Any]
    sizes: dict[str, int]


def export_run(directory: Path | str, out: Path | str, weights: str = "best") -> Export:
    """Export a run's model with its best weights, those of its newest checkpoint ("last"), or those of a file."""
    directory, out = Path(directory), Path(out)
    run = Run.open(directory)
    spec = find_task(run.config.get("task"))
    if not spec.export:
        raise InputError(f"{directory} is a run of the task {spec.name!r}, whose models cannot be exported")
    check_out(out)  # before anything is read
    opened = open_weights(run, weights)
    source = {"run": directory.resolve().name, "weights": Path(weights).name, "update": opened.update}
    return import_object(spec.export)(opened.task, opened.engine, out, source)


def check_out(out: Path) -> None:
    """Raise an error unless the folder is new, empty, or an earlier export."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder: choose another with --out")
    if out.exists() and any(out.iterdir()):
        try:
            kind = json.loads((out / runtime.MODEL).read_bytes())["kind"]
        except (OSError, ValueError, KeyError, TypeError):
            kind = None
        if kind != runtime.KIND:
            raise InputError(f"{out} is not empty and not an earlier export: choose another with --out")
