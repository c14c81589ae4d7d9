"""Progress on the terminal while a run goes on."""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from corollout.sweeps.sweep import Job
from corollout.tasks.registry import TASKS
from corollout.training.base import Event
from corollout.training.start import Callbacks


def progress_bars(console: Console) -> Progress:
    """Bars with time used, time left, and a note, which is cut where the terminal is narrow."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        console=console,
        expand=True,
    )


def note(record: dict[str, Any]) -> str:
    """A record in a few words."""
    words = []
    if record.get("loss") is not None:
        words.append(f"{record['loss']:.2f} nats a token")
    if record.get("reward") is not None:
        words.append(f"reward {record['reward']:.2f}")
    if record.get("rollouts_per_step"):
        words.append(f"{record['rollouts_per_step']:.1f} rollouts a step")
    words += [kind.metric.words(record[kind.metric.key]) for kind in TASKS.values() if kind.metric.key in record]
    return ", ".join(words)


@contextmanager
def following(console: Console, name: str, unit: str, total: float | int) -> Generator[Callbacks, None, None]:
    """Callbacks that show how a run goes on: rate, time left, loss or reward, rollouts, and the last evaluation."""
    with progress_bars(console) as bars:
        task = bars.add_task(name, total=total, note="")
        last: dict[str, Any] = {}

        def on_update(metrics: Any) -> None:
            last.update(vars(metrics))
            counts = {"updates": metrics.update, "tokens": metrics.tokens, "seconds": metrics.seconds}
            rate = metrics.update / max(metrics.seconds, 1e-9)
            done = counts.get(unit, last.get("epochs_done", metrics.epoch))
            bars.update(task, completed=min(done, total), note=f"{rate:.1f} updates/s, {note(last)}")

        def on_evaluation(numbers: dict[str, Any]) -> None:
            last.update(numbers, epochs_done=numbers["epochs"])
            bars.update(task, note=note(last))

        def on_news(item: Event) -> None:
            if item.kind == "choice":
                console.print(f"after {item.record['update']} updates: {item.record['reason']}", markup=False)

        yield Callbacks(on_update, on_evaluation, on_news, lambda text: console.print(f"warning: {text}", markup=False))
        bars.update(task, completed=total)


class Board:
    """A bar for the whole experiment, with the time that is left, and one for each part under way."""

    def __init__(self, bars: Progress, parts: int, weight: float):
        self._bars, self._parts, self._weight = bars, parts, weight
        self._shares: dict[str, float] = {}  # what each part contributes to the weight
        self._done: set[str] = set()
        self._rows: dict[str, TaskID] = {}
        self._records: dict[str, dict[str, Any]] = {}
        self._whole: TaskID | None = None

    def skip(self, weights: Mapping[str, float]) -> None:
        """Parts that were done before: they do not count as work of now."""
        for name, weight in weights.items():
            self._shares[name] = weight
            self._done.add(name)
        if self._whole is not None:  # the speed is measured anew
            self._bars.remove_task(self._whole)
            self._whole = None
        self._show()

    def on_job(self, job: Job, progress: float, record: dict[str, Any]) -> None:
        known = self._records.setdefault(job.name, {})
        known.update(record)
        fraction = progress / job.total
        # A run that has used its budget is still to be evaluated: it is done when its result is there.
        self.tell(job.name, 1.0 if job.done else min(fraction, 0.999), note(known))

    def tell(self, name: str, fraction: float, words: str, weight: float = 1.0) -> None:
        """How far a part is; a fraction of 1 ends it."""
        if name in self._done:
            return
        self._shares[name] = weight * fraction
        if fraction < 1:
            if name not in self._rows:
                self._rows[name] = self._bars.add_task(f"  {name}", total=1.0, note="")
            self._bars.update(self._rows[name], completed=fraction, note=words)
        else:
            self._done.add(name)
            if name in self._rows:
                self._bars.remove_task(self._rows.pop(name))
            self._bars.console.print(f"{name}: {words or 'done'}", markup=False)
        self._show()

    def _show(self) -> None:
        done = math.fsum(self._shares.values())
        words = f"{len(self._done)} of {self._parts} parts"
        if self._whole is None:
            self._whole = self._bars.add_task("all", total=self._weight, completed=done, note=words)  # pyright: ignore[reportArgumentType]
        self._bars.update(self._whole, completed=done, note=words)
