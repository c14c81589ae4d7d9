"""Long runs: memory, open files and threads stay what they were after the first few hundred updates."""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corollout.events import Event
from corollout.training.settings import FinetuneSettings, MachineSettings, PretrainSettings
from corollout.training.start import create_finetuning, create_pretraining, resume_run
from tests.reliability import suite
from tests.reliability.suite import Outcome, Suite
from tests.support.repeat_task import EXAMPLES, ModelSettings

UPDATES = 2_000  # of each configuration
WARM_UP = 0.15  # of the updates, in which caches fill and code is compiled
LEAST_UPDATES = 200
MEGABYTES = 4.0  # by which the memory may grow: an allocator's noise
SECONDS = 600.0
BATCH = 8
TASK = "tests.support.repeat_task:TASK"


@dataclass(frozen=True)
class Configuration:
    estimator: str  # "" for pre-training
    reward: str = "likeness"

    @property
    def what(self) -> str:
        return f"{self.estimator} ({self.reward})" if self.estimator else "pre-training"


CONFIGURATIONS = [
    Configuration("set-2:baseline=fitted"),
    Configuration("arsm"),
    Configuration("auto:every=200,estimates=2"),
    Configuration("rloo-4"),
    Configuration("rloo-4:baseline=fitted", "constant"),
    Configuration("pairs", "constant"),
    Configuration("rloo-4", "workers"),
    Configuration(""),
]


class Meter:
    """Megabytes, open files and threads of this process after each update."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, int, int]] = []

    def read(self, event: Event) -> None:
        if event.kind == "update":
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
            self.readings.append((pages * os.sysconf("SC_PAGE_SIZE") / 2**20, files, threads))


def train(configuration: Configuration, updates: int, folder: Path) -> Meter:
    """Train in a run directory, as the commands do."""
    meter, machine = Meter(), MachineSettings(threads=1)
    start, per_epoch = folder / "start", EXAMPLES // BATCH
    epochs = 1 if configuration.estimator else updates // per_epoch
    every = max(1, epochs // 4)
    mle = PretrainSettings(batch_size=BATCH, epochs=epochs, evaluate_every=every, patience=updates, ema_decay=0.9)
    create_pretraining(start, TASK, None, ModelSettings(), mle, machine)
    if not configuration.estimator:
        resume_run(start, meter.read)
        return meter
    resume_run(start)
    settings = FinetuneSettings(
        estimator=configuration.estimator, reward=configuration.reward, batch_size=BATCH, budget=float(updates),
        evaluate_every=updates / 4, train_eval_examples=BATCH, probe_every=updates // 4, learning_rate=1e-3,
    )  # fmt: skip
    create_finetuning(folder / "run", start, settings, machine)
    resume_run(folder / "run", meter.read)
    return meter


def problems(readings: list[list[float]], updates: int) -> list[str]:
    """What is wrong with the readings of a run."""
    if len(readings) != updates:
        return [f"wrong: {len(readings)} updates instead of {updates}"]
    later = readings[int(WARM_UP * updates) :]
    window = len(later) // 8
    before, after = (statistics.median(reading[0] for reading in part) for part in (later[:window], later[-window:]))
    found = []
    if after - before > MEGABYTES:
        found.append(f"memory: grew from {before:.1f} to {after:.1f} MB")
    for column, name in ((1, "open files"), (2, "threads")):
        counts = sorted({int(reading[column]) for reading in later})
        if len(counts) > 1:
            found.append(f"wrong: between {counts[0]} and {counts[-1]} {name}")
    return found


def run(cases: int, seed: int) -> Iterator[Outcome]:
    """A case is an update. With few cases, runs are shorter, and then fewer."""
    updates = max(LEAST_UPDATES, cases // len(CONFIGURATIONS))
    count = min(len(CONFIGURATIONS), -(-cases // updates))
    first = seed % len(CONFIGURATIONS)
    for index in range(first, first + count):
        number = index % len(CONFIGURATIONS)
        command = [sys.executable, "-m", "tests.reliability.endurance", str(number), str(updates)]
        finished = suite.run(command, seconds=SECONDS)
        what = CONFIGURATIONS[number].what
        if finished.code != 0:
            yield Outcome(what, updates, (finished.problem or f"exit code {finished.code}: {finished.errors[-200:]}",))
            continue
        found = problems(json.loads(finished.output.splitlines()[-1]), updates)
        yield Outcome(what, updates, tuple(found))


def main() -> None:
    number, updates = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        meter = train(CONFIGURATIONS[number], updates, Path(folder))
    print(json.dumps(meter.readings))


SUITE = Suite(
    "endurance",
    f"Trainings of {UPDATES:,} updates have constant memory, open files and threads",
    UPDATES * len(CONFIGURATIONS),
    run,
)

if __name__ == "__main__":
    main()
