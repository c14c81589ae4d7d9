"""What long work tells whoever is watching: one kind of event, one kind of callback.

An event has a ``kind`` and a ``record`` with whatever belongs to it:

    update       one update of a training: the fields of its metrics
    evaluation   a policy was evaluated: update, epochs, tokens, seconds and the task's metrics
    choice       the estimator "auto" chose one of its candidates
    probe        variance and cost of some estimators, measured along training
    progress     a part of the work has come on: ``part``, ``done``, ``total`` (None if unknown), and maybe a ``note``
    warning      ``text``: something a person should know
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened in long work."""

    kind: str
    record: Mapping[str, Any] = field(default_factory=dict)


Callback = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The callback of those who do not want to know."""


def warning(text: str) -> Event:
    return Event("warning", {"text": text})


class Progress:
    """Counts what is done of one part of the work, and reports it."""

    def __init__(self, on_event: Callback, part: str, total: float | None = None, done: float = 0):
        self._on_event, self.part, self.total, self.done = on_event, part, total, done

    def advance(self, count: float = 1, **record: Any) -> None:
        self.report(self.done + count, **record)

    def report(self, done: float, **record: Any) -> None:
        self.done = done
        self._on_event(Event("progress", {"part": self.part, "done": done, "total": self.total, **record}))
