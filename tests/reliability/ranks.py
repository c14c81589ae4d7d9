"""Fine-tunings by two processes, of which one or the other is killed at random instants.

``torchrun --max-restarts`` starts the job again each time. In the end it has the weights, to the bit, of two processes
that nobody has disturbed, and no process is left of it: neither a rank nor a worker of its reward.
"""

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import torch

from corollout.training.metrics import TIMED
from corollout.training.runs import Run
from tests.reliability.suite import Outcome, Suite
from tests.support.torchrun import Job, torchrun

MOST = 4  # kills of one job
UPDATES, EVERY = 1200, 20  # between evaluations, and so between checkpoints
SPREAD = 0.002  # seconds for each update, over which kills are spread after the first update of a start
START_UP = 4.0  # the same for kills before it
TASK = "tests.support.repeat_job"
LIMIT = 90.0  # seconds in which a job must get from a kill to its next start, and from the last one to its end


@dataclass(frozen=True)
class Bench:
    """The run that all jobs start from, and what comes of it undisturbed."""

    folder: Path
    updates: int = UPDATES

    def command(self, out: Path, reward: str) -> list[object]:
        options = f"--estimator set-2:baseline=fitted --budget {self.updates} --evaluate-every {EVERY} --batch-size 7"
        options += f" --learning-rate 0.01 --samples-every 50 --reward {reward}"
        return ["-m", "corollout", "finetune", self.folder / "start", "--out", out, *options.split()]

    def prepare(self) -> "Bench":
        options = "--epochs 2 --batch-size 8 --learning-rate 0.01"
        start = ["-m", "corollout", "pretrain", TASK, "--out", self.folder / "start", *options.split()]
        for size, command in ((1, start), (2, self.command(self.folder / "reference", "likeness"))):
            done = torchrun(size, *command)
            assert done.returncode == 0, done.stderr
        return self


def run(cases: int, seed: int) -> Iterator[Outcome]:
    chance, done = random.Random(f"ranks {seed}"), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder)).prepare()
        while done < cases:
            kills = min(MOST, cases - done)
            reward = "workers" if done and chance.random() < 0.4 else "likeness"
            failures = kill_and_compare(bench, kills, reward, chance)
            done += kills
            yield Outcome(f"finetune, reward {reward}", kills, tuple(failures))


def kill_and_compare(bench: Bench, kills: int, reward: str, chance: random.Random) -> list[str]:
    """Run a job that is killed so often; what is wrong with its end."""
    out = Path(tempfile.mkdtemp(dir=bench.folder)) / "run"
    moments: list[str] = []
    with Job(2, bench.command(out, reward), restarts=kills) as job:
        try:
            for start in range(kills):
                moments.append(kill_a_rank(job, start, out, bench, chance))
            done = job.wait(LIMIT)
        except (TimeoutError, TimeoutExpired) as error:
            return [f"hang: {error} (killed {', '.join(moments)})"]
        failures = []
        if done.returncode:
            failures.append(f"exit code {done.returncode}: {last_words(done.stderr)}")
        elif difference := different(bench.folder / "reference", out):
            failures.append(difference)
        if left := job.orphans():
            failures.append(f"{len(left)} processes outlive the job")
    return [f"{failure} (killed {', '.join(moments)})" for failure in failures]


def kill_a_rank(job: Job, start: int, out: Path, bench: Bench, chance: random.Random) -> str:
    """Kill a rank of the job's start of this number; say when."""
    end = time.monotonic() + LIMIT
    while len(ranks := job.ranks(start)) != 2:
        if time.monotonic() > end or job.process.poll() is not None:
            raise TimeoutError(f"start {start} has not begun after {LIMIT:g} s")
        time.sleep(0.05)
    rank, metrics = chance.randrange(2), out / "metrics.jsonl"
    if chance.random() < 0.3:
        delay = START_UP * chance.random()
        when = f"rank {rank} after {delay:.2f} s of start {start}"
    else:
        before = time.time()
        while not metrics.exists() or metrics.stat().st_mtime < before:
            if time.monotonic() > end:
                raise TimeoutError(f"start {start} has made no update after {LIMIT:g} s")
            time.sleep(0.02)
        delay = SPREAD * bench.updates * chance.random()
        when = f"rank {rank} {delay:.2f} s after an update of start {start}"
    time.sleep(delay)
    with suppress(ProcessLookupError):
        os.kill(ranks[rank], signal.SIGKILL)
    return when


def different(one: Path, other: Path) -> str:
    """In what two runs differ but for times: last state, best weights, and what was measured."""
    states = [Run.open(path).load() for path in (one, other)]
    if states[0] is None or states[1] is None or states[0][0] != states[1][0]:
        return "the last checkpoints are of different updates"
    first, second = (state[1].tensors for state in states if state is not None)
    if first.keys() != second.keys() or not all(torch.equal(tensor, second[name]) for name, tensor in first.items()):
        return "the last checkpoints differ"
    if (one / "best.safetensors").read_bytes() != (other / "best.safetensors").read_bytes():
        return "the best weights differ"
    if _measured(one) != _measured(other):
        return "the metrics differ"
    left = [path.name for path in other.rglob("*") if ".temporary-" in path.name or path.name == ".lock"]
    return f"the run has {left[0]}" if left else ""


def _measured(run: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if key not in TIMED} for one in Run.open(run).records()]


def last_words(errors: str) -> str:
    """The errors of the job itself, without the report of torchrun."""
    return "; ".join(line for line in errors.splitlines() if line.startswith("error:")) or errors[-1000:]


SUITE = Suite(
    "ranks",
    "A rank may be killed at any instant: started again, the job ends with the weights of one that was not disturbed",
    20,
    run,
)
