"""How much memory does an update of a large vocabulary need? V = 50,257, 64 captions of 64 words, 512 units.

Memory is the peak of one ``Trainer.step`` beyond weights, gradients and the averages of optimizer and trainer, in a
fresh process (``fresh_updates.py``). The logits of all words alone would have 0.82 GB. A process that wants more than
14 GB fails, which counts as 14 GB.
"""

from typing import NamedTuple

from rich.progress import Progress

from benchmarks.fresh_updates import MOST_MEMORY, FreshProcesses, Point, Update
from benchmarks.harness import Result, Target, Timing, figure
from benchmarks.speed_worker import SEED

GIGABYTE = 1e9


class Sizes(NamedTuple):
    vocab: int
    hidden: int
    rows: int
    length: int
    most: dict[str, float]  # gigabytes, by method


FULL = Sizes(50_257, 512, 64, 64, {"reinforce": 1.0, "rloo-8": 1.0, "arsm:budget=200": 2.0})
QUICK = FULL._replace(vocab=300, hidden=16, rows=8, length=5)


def point_of(method: str, sizes: Sizes) -> Point:
    """An update whose main trajectories are all rows, whatever the number of samples."""
    samples = 8 if method == "rloo-8" else 1
    return Point(method, sizes.vocab, sizes.hidden, sizes.rows // samples, sizes.length)


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    updates: dict[str, Update | None] = {}
    with FreshProcesses(quick) as processes:
        for method in progress.track(sizes.most, description="memory"):
            updates[method] = processes.measure(point_of(method, sizes), repetitions=2)
    peaks = {method: MOST_MEMORY if update is None else update.peak for method, update in updates.items()}
    timings = {method: Timing(method, 1, update.seconds) for method, update in updates.items() if update is not None}
    return {
        "benchmark": "memory",
        "quick": quick,
        "settings": {**sizes._asdict(), "dtype": "float32", "threads": 1},
        "seeds": {"weights and noise": SEED},
        "timings": [timing.record() for timing in timings.values()],
        "measurements": {"peak_bytes": peaks, "logits_bytes": 4 * sizes.rows * sizes.length * sizes.vocab},
        "targets": [
            Target(
                f"{method}: an update needs less than {most:g} GB beyond weights and gradients",
                peaks[method] / GIGABYTE,
                most,
                at_least=False,
                judged=not quick,
            ).record()
            for method, most in sizes.most.items()
        ],
        "table": [
            {
                "method": method,
                "contexts": str(point_of(method, sizes).contexts),
                "peak, GB": f"{peak / GIGABYTE:.2f}" if updates[method] else f"over {peak / GIGABYTE:.0f}",
                "s": figure(timings[method].median) if method in timings else "",
            }
            for method, peak in peaks.items()
        ],
    }
