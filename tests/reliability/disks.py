"""Commands whose disk is full: at some byte, or because there are too many files, and that go on when there is room.

The disk is a small file system in memory, which only root may mount.
"""

import os
import random
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from tests.reliability.jobs import Bench, Job, deal, last_line, shared_bench
from tests.reliability.suite import Outcome, Suite

PAGE = 4096
ROOM = "size=1g,nr_inodes=1m"
EVERY_HEAVY = 10  # one of so many cases has workers, which take seconds to start
_needed: dict[str, list[int]] = {}  # pages and files that jobs need


@contextmanager
def small_disk(folder: Path) -> Generator[None, None, None]:
    """Inside, a folder is a disk of its own, with a lot of room at first."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", ROOM, "none", folder], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def resize(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def used(folder: Path) -> tuple[int, int]:
    """Pages and files of a disk that are in use."""
    disk = os.statvfs(folder)
    return disk.f_blocks - disk.f_bfree, disk.f_files - disk.f_ffree


def run(cases: int, seed: int) -> Iterator[Outcome]:
    chance, bench = random.Random(f"disks {seed}"), shared_bench()
    for job in islice(deal(chance, EVERY_HEAVY), cases):
        bench.reference(job)
        bench.clear()
        try:
            with small_disk(bench.folder):
                yield Outcome(job.name, 1, fill_and_finish(bench, job, chance))
        except subprocess.CalledProcessError as error:
            yield Outcome("mount", 1, (f"cannot mount a small disk, which only root can: {error.stderr!r}",))


def fill_and_finish(bench: Bench, job: Job, chance: random.Random) -> tuple[str, ...]:
    """Run a job with too little room, then with enough; what is wrong."""
    bench.prepare(job.needs)
    before = used(bench.folder)
    inputs = bench.snapshot()
    if job.name not in _needed:
        bench.run(job.command)
        _needed[job.name] = [after - start for after, start in zip(used(bench.folder), before, strict=True)]
        bench.prepare(job.needs)
    needed = _needed[job.name]
    if chance.random() < 0.75:
        pages = chance.randrange(max(1, needed[0]))
        resize(bench.folder, f"size={(used(bench.folder)[0] + pages) * PAGE}")
        room = f"room for {pages} of {needed[0]} pages"
    else:
        files = chance.randrange(max(1, needed[1]))
        resize(bench.folder, f"nr_inodes={used(bench.folder)[1] + files}")
        room = f"room for {files} of {needed[1]} files"
    done = bench.run(job.command)
    failures: list[str] = []
    if done.problem:
        failures.append(done.problem)
    elif done.code != 1 and (done.code or bench.snapshot() != bench.reference_of(job).snapshot):
        failures.append(f"exit code {done.code} with a full disk: {last_line(done.errors)}")
    elif done.code == 1 and not last_line(done.errors).startswith("error: "):
        failures.append(f"not a sentence: {last_line(done.errors)}")
    after = bench.snapshot()
    changed = [name for name, digest in inputs.items() if name != "out/runs.json" and after.get(name) != digest]
    if changed:
        failures.append(f"changed what existed: {', '.join(changed)}")
    resize(bench.folder, ROOM)
    failures += bench.finish(job)
    if bench.stop_workers():
        failures.append("workers outlive the command")
    return tuple(f"{failure} ({room})" for failure in failures)


SUITE = Suite(
    "disks",
    "A disk that is full at any point costs nothing that existed: one sentence, and with room again the same result",
    60,
    run,
)
