"""How much faster are two processes? Jobs of one and of two processes make the same updates, in turn.

Contestants are programs of their own, as users start them: two processes under ``torchrun`` with one thread each, one
process with one thread, and one with two. They wait while another has its turn. All draw the same sequences for the
same global batch, so they do the same work; the learning rate is so small that the policy stays what it is.

``waiting`` is the mean share of an update's time in which processes wait for others. What one process with one thread
takes for half of the batch, which no exchange can beat, is measured beside: small batches use a core less well.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from benchmarks import speed_problems
from benchmarks.harness import Result, Target, Timing, milliseconds
from benchmarks.speed_problems import CAPTIONS, KAREL
from benchmarks.speed_worker import SEED

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("distributed_worker.py")
TWO, ONE, THREADS = "2 processes", "1 process", "1 process, 2 threads"
HALF = "half a batch"
LEAST = {ONE: 1.7, THREADS: 1.2}


class Work(NamedTuple):
    problem: str
    method: str
    half: str  # the same for half of the batch
    updates: int  # in a turn
    judged: bool


class Sizes(NamedTuple):
    problems: speed_problems.Sizes
    work: tuple[Work, ...]
    rounds: int


def full_sizes() -> Sizes:
    work = (
        Work(KAREL, "arsm", "arsm", 8, True),
        Work(KAREL, "rloo-8", "rloo-8", 8, False),
        Work(CAPTIONS, "arsm:budget=2000", "arsm:budget=1000", 1, True),
        Work(CAPTIONS, "rloo-5", "rloo-5", 1, False),
    )
    return Sizes(speed_problems.full_sizes(), work, 12)


QUICK = Sizes(
    speed_problems.QUICK,
    (Work(KAREL, "arsm:budget=20", "arsm:budget=10", 2, True), Work(CAPTIONS, "rloo-2", "rloo-2", 2, True)),
    2,
)


class Job:
    """A program of one or more processes that makes updates when it is asked to."""

    def __init__(self, processes: int, threads: int, folder: Path):
        self.folder = folder
        folder.mkdir()
        self._requests, self._answers = folder / "requests", folder / "answers"
        for path in (self._requests, self._answers):
            os.mkfifo(path)
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        start = run if processes > 1 else []
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *start, str(WORKER), str(folder), str(threads)],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer of the first process."""
        self._requests.write_text(json.dumps(request))
        answer = json.loads(self._answers.read_text())
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{(self.folder / 'log').read_text()}")
        return answer

    def end(self) -> None:
        if self._process.poll() is None:
            self.ask(do="end")
        self._process.wait()


@contextmanager
def jobs(folder: Path) -> Generator[dict[str, Job]]:
    """One of each kind."""
    made: dict[str, Job] = {}
    try:
        for number, (name, processes, threads) in enumerate(((TWO, 2, 1), (ONE, 1, 1), (THREADS, 1, 2))):
            made[name] = Job(processes, threads, folder / f"job-{number}")
        yield made
    finally:
        for job in made.values():
            job.end()


def measure(
    contestants: dict[str, Job], folder: Path, work: Work, rounds: int, progress: Progress
) -> tuple[list[Timing], dict[str, float]]:
    """Timings of an update, and what else is known of the two processes."""
    turns = {**contestants, HALF: contestants[ONE]}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    parts: dict[str, list[float]] = {}
    counts = set()
    for name, job in turns.items():
        method, share = (work.half, 2) if name == HALF else (work.method, 1)
        job.ask(do="start", name=name, folder=str(folder / work.problem), method=method, share=share)
    task = progress.add_task(f"{work.problem}, {work.method}", total=(rounds + 1) * len(turns))
    for turn in range(rounds + 1):
        counts.clear()
        order = list(turns.items())
        for name, job in order[:: -1 if turn % 2 else 1]:
            answer = job.ask(do="update", name=name, updates=work.updates)
            count = answer.pop("tokens"), answer.pop("reward_calls")
            if name != HALF:
                counts.add(count)
            taken = answer.pop("seconds")
            if turn:
                seconds[name].append(taken / work.updates)
                if name == TWO:
                    for part, value in answer.items():
                        parts.setdefault(part, []).append(value)
            progress.advance(task)
        if len(counts) != 1:
            raise RuntimeError(f"contestants have generated different numbers of tokens: {sorted(counts)}")
    progress.remove_task(task)
    timings = [Timing(name, 2 if name == THREADS else 1, taken) for name, taken in seconds.items()]
    return timings, {part: statistics.median(values) for part, values in parts.items()}


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else full_sizes()
    timings: dict[Work, list[Timing]] = {}
    parts: dict[Work, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        speed_problems.write_problems(folder, sizes.problems, folder if quick else None)
        with jobs(folder) as contestants:
            for work in sizes.work:
                timings[work], parts[work] = measure(contestants, folder, work, sizes.rounds, progress)
    ratios = {work: {other: _ratio(all_, other, TWO) for other in LEAST} for work, all_ in timings.items()}
    return {
        "benchmark": "distributed",
        "quick": quick,
        "settings": {"rounds": sizes.rounds, "work": [work._asdict() for work in sizes.work], "dtype": "float32"},
        "seeds": {"data, weights and noise": SEED},
        "timings": [
            {"problem": work.problem, "method": work.method, **timing.record()}
            for work, all_ in timings.items()
            for timing in all_
        ],
        "measurements": {
            "of_two_processes": [
                {"problem": work.problem, "method": work.method, "speed": ratios[work], **parts[work]}
                for work in sizes.work
            ]
        },
        "targets": [
            Target(
                f"two processes are at least {least} times as fast as {other} ({work.problem}, {work.method})",
                ratios[work][other],
                least,
                at_least=True,
                judged=not quick,
            ).record()
            for work in sizes.work
            if work.judged
            for other, least in LEAST.items()
        ],
        "table": [
            {
                "problem": work.problem,
                "method": work.method,
                **{f"{timing.name}, ms": milliseconds(timing) for timing in timings[work]},
                "times as fast as 1, as 2 threads": " / ".join(f"{ratio:.2f}" for ratio in ratios[work].values()),
                "without exchanges": " / ".join(f"{_ratio(timings[work], other, HALF):.2f}" for other in LEAST),
                "waiting": f"{parts[work]['waiting']:.1%}",
            }
            for work in sizes.work
        ],
    }


def _ratio(timings: list[Timing], slower: str, faster: str) -> float:
    medians = {timing.name: timing.median for timing in timings}
    return medians[slower] / medians[faster]
