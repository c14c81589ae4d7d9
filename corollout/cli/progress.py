"""What the terminal shows of the events of long work."""

import math
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from corollout.cli.terminal import Terminal
from corollout.compilation import announced
from corollout.events import Callback, Event
from corollout.tasks.spec import Metric

PLAIN_SECONDS = 10.0  # between lines where stderr is not a terminal


@contextmanager
def show_events(
    console: Terminal | None = None,
    title: str = "",
    total: float | int | None = None,
    unit: str = "parts",
    metric: Metric | None = None,
) -> Generator[Callback, None, None]:
    """A callback that shows events: a bar for each part of the work, and lines for notes, warnings and choices.

    With a title there is a bar for the whole. Its unit is "updates", "epochs", "tokens" or "seconds" of one run, whose
    loss or reward, rollouts and metric are shown beside it; or "parts", of which finished ones become lines. A part
    counts 1, or its ``weight`` if the events have one; one whose first event says that it is done was done before.
    """
    display = _Display(console or Terminal(stderr=True), title, total, unit, metric)
    with display.bars, announced(display.show):
        yield display.show
        display.finish()


class _Display:
    def __init__(self, console: Terminal, title: str, total: float | int | None, unit: str, metric: Metric | None):
        self._unit, self._total, self._metric = unit, total, metric
        self._lines = not console.is_terminal
        note = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False, table_column=note),
            console=console,
            expand=True,
            disable=self._lines,
            speed_estimate_period=600,
        )
        self._whole = self.bars.add_task(title, total=total, note="") if title else None
        self._bars: dict[str, TaskID] = {}  # of parts
        self._shares: dict[str, float | int] = {}  # what each part contributes to the whole
        self._finished: set[str] = set()
        self._records: dict[str, dict[str, Any]] = {}  # the newest values of each part, "" being the run itself
        self._notes: set[str] = set()  # that were shown
        self._printed = time.monotonic()

    def show(self, event: Event) -> None:
        record = event.record
        if event.kind == "progress":
            self._show_part(**{"total": None, "weight": 1.0, **record})
        elif event.kind in ("update", "evaluation") and self._whole is not None and self._unit != "parts":
            self._show_run(self._whole, record)
        elif event.kind == "note" and record["text"] not in self._notes:  # workers make the same ones
            self._notes.add(record["text"])
            self.print(record["text"])
        elif event.kind == "warning":
            self.print(f"warning: {record['text']}")
        elif event.kind == "choice":
            job = f"{record['job']}, " if "job" in record else ""
            self.print(f"{job}after {record['update']} updates: {record['reason']}")
        if self._lines and time.monotonic() - self._printed > PLAIN_SECONDS:
            for task in self.bars.tasks:
                if not task.finished:
                    self.print(_line(task))

    def finish(self) -> None:
        if self._whole is not None and self._total is not None:
            self.bars.update(self._whole, completed=self._total)

    def print(self, text: str) -> None:
        self._printed = time.monotonic()
        self.bars.console.print(text, soft_wrap=True)

    def _show_run(self, bar: TaskID, record: Mapping[str, Any]) -> None:
        key = {"updates": "update"}.get(self._unit, self._unit)
        done = record.get(key, record.get("epoch", 0) if key == "epochs" else 0)
        note = self._note("", record)
        if record.get("seconds"):
            note = ", ".join(filter(None, [f"{record['update'] / record['seconds']:.1f} updates/s", note]))
        self.bars.update(bar, completed=done if self._total is None else min(done, self._total), note=note)

    def _show_part(
        self, part: str, done: float | int, total: float | int | None, weight: float | int, **record: Any
    ) -> None:
        if part in self._finished:
            return
        whole = self._whole if self._unit == "parts" else None
        is_new, finished = part not in self._bars, total is not None and done >= total
        note = record.get("note") or self._note(part, record)
        if whole is None or not (is_new and finished):
            bar = self._bars.get(part)
            if bar is None:
                bar = self._bars[part] = self.bars.add_task(
                    part if whole is None else f"  {part}", total=total, note=""
                )
            self.bars.update(bar, completed=done, total=total, note=note)
        if finished:
            self._finished.add(part)
        if whole is None:
            return
        self._shares[part] = weight * min(done / total, 1.0) if total else 0.0
        state: dict[str, Any] = {"completed": math.fsum(self._shares.values()), "note": f"{len(self._finished)} done"}
        if is_new and finished:  # it was done before: the time left is estimated without it
            self.bars.reset(whole, **state)
            return
        self.bars.update(whole, **state)
        if finished:
            self.bars.remove_task(self._bars.pop(part))
            self.print(f"{part}: {note or 'done'}")

    def _note(self, part: str, record: Mapping[str, Any]) -> str:
        """The newest values in a few words."""
        values = self._records.setdefault(part, {})
        values.update({name: value for name, value in record.items() if value is not None})
        notes = []
        if "loss" in values:
            notes.append(f"{values['loss']:.2f} nats a token")
        if "reward" in values:
            notes.append(f"reward {values['reward']:.2f}")
        if values.get("rollouts_per_step"):
            notes.append(f"{values['rollouts_per_step']:.1f} rollouts a step")
        if self._metric is not None and self._metric.key in values:
            notes.append(self._metric.text(values[self._metric.key]))
        return ", ".join(notes)


def _line(task: Task) -> str:
    left = task.time_remaining
    parts = [f"{task.percentage:.0f} %" if task.total else f"{task.completed:g}", task.fields["note"]]
    parts.insert(1, f"{math.ceil(left / 60)} min left" if left else "")
    return f"{task.description.strip()}: {', '.join(filter(None, parts))}"
