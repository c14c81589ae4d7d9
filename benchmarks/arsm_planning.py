"""What does planning full ARSM (K = V) with a budget cost, next to the logits that it is planned from?

``ARS.plan`` includes the notes, the search through the logits of every token. Flat logits have V − 1 branches a token,
those of 1 nat of entropy few. All on one thread. Times are the least CPU time of several rounds: other programs on the
machine add to all others. Memory is the growth of the high-water mark during one plan, in a fresh process.
"""

import ctypes
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import Progress
from torch import Tensor

from benchmarks.arsm_scaling import high_water_mark
from benchmarks.harness import Result, Target, Timing, figure
from corollout.estimators import ARS, single
from corollout.estimators.estimator import notes_of
from corollout.noise import Noise
from corollout.types import Trajectories

SEED = 0
NATS = {"1 nat": 1.0, "flat": None}
MOST_MILLISECONDS = 1.0  # a token, of 1 nat
MOST_READ_OUTS = 2.0  # flat


class Sizes(NamedTuple):
    vocabularies: tuple[int, ...]
    tokens: int
    budget: int
    hidden: int
    repetitions: int


FULL = Sizes((50_000, 150_000), tokens=32, budget=25, hidden=512, repetitions=7)
QUICK = Sizes((300, 600), tokens=4, budget=5, hidden=16, repetitions=2)


def entropy(logits: Tensor) -> float:
    """The mean entropy of the rows, in nats."""
    log_p = logits.double().log_softmax(1)
    return float(-(log_p.exp() * log_p).sum(1).mean())


def draw_logits(tokens: int, vocab: int, nats: float | None) -> Tensor:
    """Normal numbers, scaled to a mean entropy; zeros if that is None."""
    normal = torch.randn(tokens, vocab, generator=torch.Generator().manual_seed(SEED))
    if nats is None:
        return torch.zeros_like(normal)
    low, high = 0.0, 100.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(middle * normal) > nats else (low, middle)
    return high * normal


def trajectories_of(sizes: Sizes, vocab: int, nats: float | None) -> tuple[ARS, Trajectories]:
    estimator = ARS(budget=sizes.budget)
    logits = draw_logits(sizes.tokens, vocab, nats)
    return estimator, single._one_step(logits, estimator, Noise(SEED))  # pyright: ignore[reportPrivateUsage]


def peak_memory(sizes: Sizes, vocab: int, nats: float | None) -> int:
    """The bytes by which one plan raises this process's high-water mark. To be run in a fresh process."""
    torch.set_num_threads(1)
    estimator, small = trajectories_of(QUICK, 50, 1.0)
    estimator.plan(small, Noise(SEED))  # compiled code is loaded before
    estimator, trajectories = trajectories_of(sizes, vocab, nats)
    ctypes.CDLL(None).malloc_trim(0)  # what drawing the logits has used
    Path("/proc/self/clear_refs").write_text("5")  # the mark starts anew from what is in use
    before = high_water_mark()
    estimator.plan(trajectories, Noise(SEED))
    return high_water_mark() - before


def parts_of(sizes: Sizes, vocab: int, nats: float | None) -> dict[str, Callable[[], object]]:
    """The calls that are timed."""
    estimator, trajectories = trajectories_of(sizes, vocab, nats)
    noise = Noise(SEED)
    noted = replace(trajectories, notes=tuple(notes_of(estimator, trajectories, noise)))
    generator = torch.Generator().manual_seed(SEED)
    hidden, weight = (torch.randn(n, sizes.hidden, generator=generator) for n in (sizes.tokens, vocab))
    bias = torch.zeros(vocab)
    return {
        "plan": lambda: estimator.plan(trajectories, noise),
        "notes": lambda: notes_of(estimator, trajectories, noise),
        "rest": lambda: estimator.plan(noted, noise),
        "read-out": lambda: torch.addmm(bias, hidden, weight.t()),
    }


def time_parts(calls: dict[str, Callable[[], object]], repetitions: int, name: str) -> dict[str, Timing]:
    """CPU seconds of all calls, taken in turns; the first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {part: [] for part in calls}
    for turn in range(repetitions + 1):
        for part, call in calls.items():
            start = time.process_time()
            call()
            end = time.process_time()
            if turn:
                seconds[part].append(end - start)
    return {part: Timing(f"{part}, {name}", 1, taken) for part, taken in seconds.items()}


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    points = [(kind, vocab) for kind in NATS for vocab in sizes.vocabularies]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    measurements: list[dict[str, Any]] = []
    timings: list[Timing] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ProcessPoolExecutor(max_workers=1, mp_context=context, max_tasks_per_child=1) as pool:
            for kind, vocab in progress.track(points, description="arsm_planning"):
                peak = pool.submit(peak_memory, sizes, vocab, NATS[kind]).result()
                timed = time_parts(parts_of(sizes, vocab, NATS[kind]), sizes.repetitions, f"{kind}, V = {vocab}")
                timings += timed.values()
                per_token = {part: min(timing.seconds) / sizes.tokens * 1e3 for part, timing in timed.items()}
                measurements.append({"kind": kind, "V": vocab, "cpu_ms_per_token": per_token, "peak_bytes": peak})
    finally:
        torch.set_num_threads(threads)
    targets: list[Target] = []
    for point in measurements:
        cost = point["cpu_ms_per_token"]
        if point["kind"] == "flat":
            statement = f"a plan costs at most {MOST_READ_OUTS:g} rows of the read-out, flat logits, V = {point['V']}"
            targets.append(
                Target(statement, cost["plan"] / cost["read-out"], MOST_READ_OUTS, at_least=False, judged=not quick)
            )
        else:
            statement = f"a plan costs at most {MOST_MILLISECONDS:g} ms a token, 1 nat, V = {point['V']}"
            targets.append(Target(statement, cost["plan"], MOST_MILLISECONDS, at_least=False, judged=not quick))
    return {
        "benchmark": "arsm_planning",
        "quick": quick,
        "settings": {**sizes._asdict(), "dtype": "float32", "threads": 1, "nats": NATS},
        "seeds": {"logits and noise": SEED},
        "timings": [timing.record() for timing in timings],
        "measurements": {"points": measurements},
        "targets": [target.record() for target in targets],
        "table": [
            {
                "logits": point["kind"],
                "V": str(point["V"]),
                "plan, ms/token": figure(point["cpu_ms_per_token"]["plan"]),
                "of it notes": figure(point["cpu_ms_per_token"]["notes"]),
                "the rest": figure(point["cpu_ms_per_token"]["rest"]),
                "a row of the read-out": figure(point["cpu_ms_per_token"]["read-out"]),
                "peak, MB": figure(point["peak_bytes"] / 1e6),
            }
            for point in measurements
        ],
    }
