"""How does full ARSM (K = V) grow with the vocabulary? Time and memory for a row of pseudo-actions.

The dense table has V² entries a row. ``corollout.pseudo_actions`` lists those that depart from a default, which
should cost O(V log V). Memory is the growth of the process's high-water mark during one call, in a fresh process
for each size; its inputs are made before. (The mark is ``VmHWM``: ``ru_maxrss`` of a process starts from that of
the process which started it.)
"""

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress

import corollout
from benchmarks import pseudo_actions
from benchmarks.harness import (
    Contestant,
    Result,
    Target,
    Timing,
    best,
    figure,
    milliseconds,
    time_alternately,
    with_threads,
)
from benchmarks.pseudo_actions import KINDS, SEED, draw

MOST_GROWTH = 1.6
CHECKED_ROWS = 4  # compared with the dense table at the smallest V


class Sizes(NamedTuple):
    vocabularies: tuple[int, ...]
    base: int  # the growth of time is measured from this V …
    top: int  # … to this one
    numbers: int  # rows × V
    repetitions: int


FULL = Sizes((1000, 3000, 9488, 20000, 50257, 100000), base=9488, top=50257, numbers=1_000_000, repetitions=7)
QUICK = Sizes((100, 200), base=100, top=200, numbers=2000, repetitions=2)


def rows_for(vocab: int, numbers: int) -> int:
    return max(1, numbers // vocab)


def v_log_v(vocab: int) -> float:
    return vocab * math.log(vocab)


def exponent(vocabularies: tuple[int, ...], seconds: list[float]) -> float:
    """The b of seconds = c · V^b, by least squares on logarithms."""
    return float(np.polyfit(np.log(vocabularies), np.log(seconds), 1)[0])


def peak_memory(vocab: int, rows: int, scale: float) -> int:
    """The bytes by which one call raises this process's high-water mark. To be run in a fresh process."""
    corollout.pseudo_actions(*draw(2, 16, 1.0), torch.arange(16))  # compiled code is loaded before
    logits, pi = draw(rows, vocab, scale)
    references = torch.arange(vocab)
    Path("/proc/self/clear_refs").write_text("5")  # the mark starts anew from what is in use
    before = high_water_mark()
    corollout.pseudo_actions(logits, pi, references)
    return high_water_mark() - before


def high_water_mark() -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure_memory(sizes: Sizes, progress: Progress) -> dict[str, dict[int, int]]:
    """Peak bytes of every kind of logits and V."""
    # A server imports this module once and then forks a fresh process for each call.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    peaks: dict[str, dict[int, int]] = {}
    with ProcessPoolExecutor(max_workers=1, mp_context=context, max_tasks_per_child=1) as pool:
        jobs = {
            (kind, v): pool.submit(peak_memory, v, rows_for(v, sizes.numbers), scale)
            for kind, scale in KINDS.items()
            for v in sizes.vocabularies
        }
        for (kind, v), job in progress.track(jobs.items(), description="arsm_scaling: memory"):
            peaks.setdefault(kind, {})[v] = job.result()
    return peaks


def measure_time(sizes: Sizes, progress: Progress) -> tuple[list[Timing], dict[str, dict[int, int]]]:
    """The time of every kind of logits and V, taken in turns, and the entries that depart from their default."""
    contestants: list[Contestant] = []
    entries: dict[str, dict[int, int]] = {kind: {} for kind in KINDS}
    for kind, scale in KINDS.items():
        for vocab in sizes.vocabularies:
            logits, pi = draw(rows_for(vocab, sizes.numbers), vocab, scale)
            references = torch.arange(vocab)
            entries[kind][vocab] = len(corollout.pseudo_actions(logits, pi, references).row)
            contestants += with_threads(
                f"{kind}, V = {vocab}",
                lambda logits=logits, pi=pi, references=references: corollout.pseudo_actions(logits, pi, references),
            )
    return time_alternately(contestants, sizes.repetitions, progress, "arsm_scaling: time"), entries


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    smallest = min(sizes.vocabularies)
    for scale in KINDS.values():
        pseudo_actions.check(*draw(CHECKED_ROWS, smallest, scale), torch.arange(smallest))
    timings, entries = measure_time(sizes, progress)
    peaks = measure_memory(sizes, progress)

    measurements: dict[str, Any] = {}
    targets: list[Target] = []
    table: list[dict[str, str]] = []
    for kind in KINDS:
        of_kind = {v: best(timings, f"{kind}, V = {v}") for v in sizes.vocabularies}
        rows = {v: rows_for(v, sizes.numbers) for v in sizes.vocabularies}
        per_row = {v: of_kind[v].median / rows[v] for v in sizes.vocabularies}
        relative = {v: per_row[v] / per_row[sizes.base] * v_log_v(sizes.base) / v_log_v(v) for v in sizes.vocabularies}
        fitted = exponent(sizes.vocabularies, list(per_row.values()))
        measurements[kind] = {
            "exponent": fitted,
            "sizes": [
                {
                    "V": v,
                    "rows": rows[v],
                    "threads": of_kind[v].threads,
                    "seconds_per_row": per_row[v],
                    "relative_to_v_log_v": relative[v],
                    "departing_entries_per_row": entries[kind][v] / rows[v],
                    "peak_bytes": peaks[kind][v],
                    "peak_bytes_per_row": peaks[kind][v] / rows[v],
                    "dense_bytes_per_row": 8 * v * v,
                }
                for v in sizes.vocabularies
            ],
        }
        targets.append(
            Target(
                f"time per row / (V log V) grows at most {MOST_GROWTH:g} times from V = {sizes.base} to {sizes.top}, "
                f"{kind} logits",
                relative[sizes.top],
                MOST_GROWTH,
                at_least=False,
                judged=not quick,
            )
        )
        table += [
            {
                "logits": kind,
                "V": str(v),
                "ms/row (quartiles)": milliseconds(of_kind[v], rows[v]),
                f"/(V log V), {sizes.base} = 1": f"{relative[v]:.2f}",
                "fit": f"V^{fitted:.2f}",
                "entries/V": f"{entries[kind][v] / rows[v] / v:.2f}",
                "MB/row": figure(peaks[kind][v] / rows[v] / 1e6),
                "dense table": figure(8 * v * v / 1e6),
            }
            for v in sizes.vocabularies
        ]
    return {
        "benchmark": "arsm_scaling",
        "quick": quick,
        "settings": {**sizes._asdict(), "dtype": "float32", "kinds": KINDS},
        "seeds": {"logits and pi": SEED},
        "timings": [timing.record() for timing in timings],
        "measurements": measurements,
        "targets": [target.record() for target in targets],
        "table": table,
    }
