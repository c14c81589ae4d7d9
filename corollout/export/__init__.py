"""Export: a model as a folder that needs nothing but NumPy, and the runtime in it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corollout.config import import_object
from corollout.errors import InputError
from corollout.folders import require_empty
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
    spec = find_task(run.task)
    if not spec.export:
        raise InputError(f"{directory} is a run of the task {spec.name!r}, whose models cannot be exported")
    require_empty(out)  # before anything is read
    opened = open_weights(run, weights)
    source = {
        "run": os.path.basename(os.path.realpath(directory)),
        "weights": Path(weights).name,
        "update": opened.update,
    }
    return import_object(spec.export)(opened.task, opened.engine, out, source)
