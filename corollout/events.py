"""Events: how long work reports what happens, through one callback.

An event has a ``kind`` and a ``record``:

    update       one training update: the fields of its metrics
    evaluation   an evaluation of the policy: update, epochs, tokens, seconds and the task's metrics
    choice       the estimator "auto" chose a candidate: update, reason
    probe        variance and cost of some estimators, measured during training
    progress     a part of the work advanced: part, done, total (None if unknown), optionally note and weight
    note         text: what was decided or is being done, worth a line
    warning      text: something the user should know
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened during long work."""

    kind: str
    record: Mapping[str, Any] = field(default_factory=dict)


Callback = Callable[[Event], None]


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The entries of a record that are numbers, but for the update, which says when they were measured.

    Those of an entry that is a mapping are called "entry/name".
    """
    named = {name: value for name, value in record.items() if name != "update" and not isinstance(value, Mapping)}
    for entry, mapping in record.items():
        if isinstance(mapping, Mapping):
            named |= {f"{entry}/{name}": value for name, value in mapping.items()}
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def ignore(event: Event) -> None:
    """The callback that does nothing."""


class TrainingWarning(UserWarning):
    """Something that the user of a trainer should know."""


def warn(event: Event) -> None:
    """The callback of trainers that were given none: warnings are issued as Python's."""
    if event.kind == "warning":
        warnings.warn(event.record["text"], TrainingWarning, stacklevel=2)


def note(text: str) -> Event:
    return Event("note", {"text": text})


def warning(text: str) -> Event:
    return Event("warning", {"text": text})


class Progress:
    """Counts how much of one part of the work is done, and reports it."""

    def __init__(self, on_event: Callback, part: str, total: float | int | None = None, done: float | int = 0):
        self._on_event, self.part, self.total, self.done = on_event, part, total, done

    def advance(self, count: float | int = 1, **record: Any) -> None:
        self.report(self.done + count, **record)

    def report(self, done: float | int, **record: Any) -> None:
        self.done = done
        self._on_event(Event("progress", {"part": self.part, "done": done, "total": self.total, **record}))
