"""How many threads to compute with: measured, because a second one may gain a half or cost ten times as much."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from corollout.launch import ranks_here

WORTH_IT = 1.15  # more threads must be so many times as fast: on a busy machine they lose much more than they gain
_SECONDS = 0.25  # to measure for
_ROUNDS = 15


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads, and why."""

    threads: int
    reason: str
    measured: bool = False


def choose_threads(work: Callable[[], object] | None = None) -> ThreadChoice:
    """As many threads as cores if ``work`` is clearly faster with them, otherwise one.

    ``work`` is a few milliseconds of what is to be computed, by default a step of a small LSTM. It is timed with one
    thread and with all in turns, for a quarter of a second in all. OMP_NUM_THREADS, if it is set, decides instead. The
    processes of a job that are on this machine share its cores.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if given.isdecimal() and int(given) > 0:
        return ThreadChoice(int(given), f"{_count(int(given))}: OMP_NUM_THREADS says so")
    cores = available_cores()
    if cores == 1:
        return ThreadChoice(1, f"1 thread: there is one core{' for each process' if ranks_here() > 1 else ''}")
    gain = _speed_up(work or _small_step(), cores)
    if gain > WORTH_IT:
        return ThreadChoice(cores, f"{_count(cores)}: measured {gain:.2f} × as fast as 1", measured=True)
    reason = f"1 thread: {_count(cores)} would be {gain:.2f} × as fast, and {WORTH_IT} × is worth it"
    return ThreadChoice(1, reason, measured=True)


def use_threads(threads: int | None) -> None:
    """Compute with this number of threads; None: with the number that is chosen. The processes of a job on one machine
    take no more than their share of its cores.
    """
    if threads is not None and ranks_here() > 1:
        threads = min(threads, available_cores())
    torch.set_num_threads(choose_threads().threads if threads is None else threads)


def available_cores() -> int:
    """The cores that this process may use: its share, if it is one of several of a job."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // ranks_here())


def _count(threads: int) -> str:
    return f"{threads} thread{'' if threads == 1 else 's'}"


def _speed_up(work: Callable[[], object], cores: int) -> float:
    """How many times as fast the work is with all cores as with one."""
    seconds: dict[int, list[float]] = {1: [], cores: []}
    before, end = torch.get_num_threads(), time.perf_counter() + _SECONDS
    try:
        for number in range(_ROUNDS):
            for threads, taken in seconds.items():
                torch.set_num_threads(threads)
                if number == 0:
                    work()  # starts the threads, and fills caches
                started = time.perf_counter()
                work()
                taken.append(time.perf_counter() - started)
            if time.perf_counter() > end:
                break
    finally:
        torch.set_num_threads(before)
    return statistics.median(seconds[1]) / max(statistics.median(seconds[cores]), 1e-9)


def _small_step() -> Callable[[], object]:
    """64 rows of an LSTM of 256 units."""
    x, weight = torch.ones(64, 512), torch.full((512, 1024), 0.01)
    return lambda: (x @ weight).sigmoid()
