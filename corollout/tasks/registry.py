"""The tasks by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from corollout.config import from_table
from corollout.errors import InputError
from corollout.tasks.captioning.task import CAPTIONS
from corollout.tasks.karel.task import KAREL
from corollout.tasks.task import Task, TaskSpec

TASKS: dict[str, TaskSpec] = {"karel": KAREL, "captions": CAPTIONS}


def find_task(name: object) -> TaskSpec:
    if name not in TASKS:
        raise InputError(f"no task is called {name!r}: there are {', '.join(TASKS)}")
    return TASKS[str(name)]


def open_task(config: dict[str, Any], warn: Callable[[str], None] = lambda text: None) -> Task:
    """The task of a run's settings."""
    kind = find_task(config.get("task"))
    model = from_table(kind.model, config["model"], "section model")
    return kind.open(Path(config["data"]["folder"]), model, config["machine"]["device"], warn)
