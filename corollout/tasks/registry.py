"""The tasks by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from corollout.config import from_table
from corollout.errors import InputError
from corollout.tasks.captioning.task import CAPTIONS
from corollout.tasks.karel.task import KAREL
from corollout.tasks.task import Kind, Task

KINDS: dict[str, Kind] = {"karel": KAREL, "captions": CAPTIONS}


def kind_of(name: object) -> Kind:
    if name not in KINDS:
        raise InputError(f"no task is called {name!r}: there are {', '.join(KINDS)}")
    return KINDS[str(name)]


def open_task(config: dict[str, Any], warn: Callable[[str], None] = lambda text: None) -> Task:
    """The task of a run's settings."""
    kind = kind_of(config.get("task"))
    model = from_table(kind.model, config["model"], "section model")
    return kind.open(Path(config["data"]["folder"]), model, config["machine"]["device"], warn)
