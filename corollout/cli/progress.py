"""Progress on the terminal while a run goes on."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from corollout.experiments.jobs import Hooks
from corollout.tasks.registry import KINDS


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
    words += [kind.measure.words(record[kind.measure.key]) for kind in KINDS.values() if kind.measure.key in record]
    return ", ".join(words)


@contextmanager
def following(console: Console, name: str, unit: str, total: float | int) -> Generator[Hooks, None, None]:
    """Hooks that show how a run goes on: rate, time left, loss or reward, rollouts, and the last evaluation."""
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

        yield Hooks(on_update, on_evaluation, lambda text: console.print(f"warning: {text}", markup=False))
        bars.update(task, completed=total)
