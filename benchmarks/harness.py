"""What every benchmark shares: alternating timings, targets, the record of where and when, and the printed table.

Absolute times drift on a shared machine, by a factor of three on the one this was written on. Contestants therefore
take turns, each in every round, and only ratios of their medians are compared with a target. Two threads are not
always faster than one, least of all while another program uses the cores, so contestants run with PyTorch's default
number of threads and with one, and each is judged by the better of its two medians.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from corollout.reports.manifest import manifest


class Contestant(NamedTuple):
    name: str
    threads: int
    call: Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """All repetitions of one contestant, in the order they were made."""

    name: str
    threads: int
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return first, third

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "median": self.median, "quartiles": list(self.quartiles)}


@dataclass(frozen=True)
class Target:
    """A number that a measurement has to reach (``at_least``) or not to exceed. A quick run judges nothing."""

    statement: str
    measured: float
    bound: float
    at_least: bool
    judged: bool

    @property
    def passed(self) -> bool | None:
        if not self.judged:
            return None
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


class Result(TypedDict):
    """What ``run`` of a benchmark returns, and what its JSON file contains."""

    benchmark: str
    quick: bool
    settings: dict[str, Any]
    seeds: dict[str, int]
    timings: list[dict[str, Any]]  # raw seconds, medians and quartiles
    measurements: dict[str, Any]  # everything derived from them, and counts
    targets: list[dict[str, Any]]
    table: list[dict[str, str]]  # what is printed: one dictionary for each row, its keys being the columns
    manifest: NotRequired[dict[str, Any]]  # added by ``write``


def thread_counts() -> list[int]:
    """PyTorch's default number of threads, and one."""
    return sorted({torch.get_num_threads(), 1}, reverse=True)


def with_threads(name: str, call: Callable[[], object]) -> list[Contestant]:
    """The same call with every number of threads that is tried."""
    return [Contestant(name, threads, call) for threads in thread_counts()]


def time_alternately(
    contestants: Sequence[Contestant], repetitions: int, progress: Progress, description: str
) -> list[Timing]:
    """Time the contestants in turn, round after round; the first round warms up and is not counted.

    Every other round has the opposite order: who comes later may find data of the one before in the caches.
    """
    default = torch.get_num_threads()
    seconds: list[list[float]] = [[] for _ in contestants]
    task = progress.add_task(description, total=(repetitions + 1) * len(contestants))
    try:
        for turn in range(repetitions + 1):
            pairs = list(zip(contestants, seconds, strict=True))
            for contestant, taken in pairs[:: -1 if turn % 2 else 1]:
                torch.set_num_threads(contestant.threads)
                start = time.perf_counter()
                contestant.call()
                end = time.perf_counter()
                if turn:
                    taken.append(end - start)
                progress.advance(task)
    finally:
        torch.set_num_threads(default)
        progress.remove_task(task)
    return [Timing(c.name, c.threads, taken) for c, taken in zip(contestants, seconds, strict=True)]


def best(timings: Iterable[Timing], name: str) -> Timing:
    """A contestant's timing with the number of threads that suits it best."""
    return min((timing for timing in timings if timing.name == name), key=lambda timing: timing.median)


def figure(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def milliseconds(timing: Timing, parts: int = 1) -> str:
    """Median and quartiles, for a table; of one of so many equal parts."""
    first, third = timing.quartiles
    median, first, third = (figure(seconds / parts * 1e3) for seconds in (timing.median, first, third))
    return f"{median} ({first}–{third})"


def write(result: Result, directory: Path, load_before: Sequence[float]) -> Path:
    """Write a result with its manifest into a folder that exists; return the file."""
    path = directory / f"{result['benchmark']}.json"
    complete: Result = {**result, "manifest": manifest(load_before=list(load_before), load_after=list(os.getloadavg()))}
    path.write_text(json.dumps(complete, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def show(result: Result, console: Console) -> None:
    """Print the table of a result, and a line for each target."""
    table = Table(title=result["benchmark"], title_justify="left")
    for number, column in enumerate(result["table"][0]):
        table.add_column(column, justify="right" if number else "left")
    for row in result["table"]:
        table.add_row(*(escape(cell) for cell in row.values()))
    console.print(table)
    for target in result["targets"]:
        verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: "not judged in a quick run"}[target["passed"]]
        console.print(f"{escape(target['statement'])}: {target['measured']:.3g}, {verdict}", highlight=False)
