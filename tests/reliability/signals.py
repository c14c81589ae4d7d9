"""Commands that are stopped by SIGINT, SIGTERM or SIGHUP: at random instants, twice, and while files are written.

A command that was told to ignore a signal, as nohup does, must go on to its end.
"""

import random
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.reliability.jobs import Bench, Job, deal, differences, last_line, shared_bench
from tests.reliability.launcher import Instant
from tests.reliability.suite import Finished, Outcome, Suite

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WAYS = ("at a time", "at a time", "at a change", "at a change", "twice", "twice at a change", "ignored")
STOPPABLE = ("pretrain", "finetune", "lab", "data karel", "reproduce table1")
EVERY_HEAVY = 12  # one of so many cases has workers, which take seconds to start
# Lines that are no messages: the share that is done, and parts of the work that are.
PROGRESS = re.compile(r"^warning: |: \d+ %|^(data|MLE|RLOO|variance)\b.*: ")
HOW = re.compile(r"[Cc]ontinue|same command|again")


@dataclass(frozen=True)
class Case:
    """A signal, how it is sent, and when: as a share of the seconds or of the changes of files that the work takes."""

    signal: signal.Signals
    way: str
    share: float
    gap: float  # seconds until a second signal
    after: bool  # the change, not before it
    group: bool  # also to children, as Ctrl-C is

    def __str__(self) -> str:
        return f"{self.signal.name} {self.way}, {self.share:.0%}"


def run(cases: int, seed: int) -> Iterator[Outcome]:
    chance, bench = random.Random(f"signals {seed}"), shared_bench()
    for number, job in zip(range(cases), deal(chance, EVERY_HEAVY, STOPPABLE), strict=False):
        way = chance.choice(WAYS)
        if job.has_workers and way == "ignored":
            way = "twice"  # ignoring costs as much as a whole sweep
        case = Case(
            SIGNALS[number % 3],
            way,
            chance.random(),
            0.1 * chance.random(),
            chance.random() < 0.5,
            chance.random() < 0.5,
        )
        yield Outcome(job.name, 1, tuple(f"{failure} ({case})" for failure in stop_and_finish(bench, job, case)))


def stop_and_finish(bench: Bench, job: Job, case: Case) -> list[str]:
    """Send a signal, check how the command ends, complete the work, and compare."""
    bench.reference(job)
    bench.prepare(job.needs)
    finished = stopped(bench, job, case)
    problem = wrong_end(bench, job, case, finished)
    failures = [problem] if problem else []
    if job.has_workers and bench.stop_workers():
        failures.append("workers outlive the command")
    return failures + list(bench.finish(job))


def stopped(bench: Bench, job: Job, case: Case) -> Finished:
    reference = bench.reference_of(job)
    if "at a change" in case.way:
        call = 1 + int(case.share * reference.changes)
        instant = Instant(call, case.signal, case.after, twice=case.way.startswith("twice"))
        return bench.run(job.command, instant=instant)
    process = bench.start(job.command, ignored=[case.signal] if case.way == "ignored" else [])
    time.sleep(case.share * reference.seconds)
    process.send(case.signal, case.group)
    if case.way == "twice":
        time.sleep(case.gap)
        process.send(case.signal, case.group)
    return bench.launcher.wait(process)


def wrong_end(bench: Bench, job: Job, case: Case, finished: Finished) -> str:
    """What is wrong with the way in which a command ended, or nothing."""
    code, said = finished.code, [line for line in finished.errors.splitlines() if line and not PROGRESS.search(line)]
    if finished.problem:
        return finished.problem
    is_complete = not differences(bench.reference_of(job).snapshot, bench.snapshot())
    if code == 0:
        return "" if is_complete else f"exit code 0, but the work is not done: {last_line(finished.errors)}"
    if case.way == "ignored":
        return f"a signal that was ignored ended the work: exit code {code}, {last_line(finished.errors)}"
    if code == -case.signal:
        # Nothing is begun yet, or all is done; a second signal may end it at any time.
        began = bench.snapshot() != bench.inputs_of(job)
        return "killed by the signal while it worked" if began and not is_complete and "twice" not in case.way else ""
    if code != 128 + case.signal:
        return f"exit code {code}, not {128 + case.signal}: {last_line(finished.errors)}"
    if "twice" in case.way and not said:
        return ""
    if len(said) != 1:
        return f"{len(said)} lines, not one sentence: {' / '.join(said)}"
    return "" if HOW.search(said[0]) else f"does not say how to continue: {said[0]}"


SUITE = Suite(
    "signals",
    "SIGINT, SIGTERM and SIGHUP save the work, say how to continue and exit with 128 + the signal, unless ignored",
    240,
    run,
)
