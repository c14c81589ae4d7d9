"""Two processes that write the same at the same time, and many that write and read one file.

Of two commands, one does the work and the other is refused; or a later one replaces a complete result or adds to it.
The result is always one that the winner alone could have made.
"""

import json
import random
import time
from collections.abc import Iterator

from tests.reliability.jobs import Bench, Job, deal, differences, last_line, shared_bench
from tests.reliability.suite import Finished, Outcome, Suite

EVERY_HEAVY = 20  # one of so many races is between commands with workers, which take seconds to start
EVERY_FILE = 10  # one of so many races is for one file
WRITERS, READERS, TURNS = 3, 2, 40
APART = 0.3  # the most seconds between two starts, in half of the races; in the others they are simultaneous


def run(cases: int, seed: int) -> Iterator[Outcome]:
    chance, bench = random.Random(f"writers {seed}"), shared_bench()
    for number, job in zip(range(cases), deal(chance, EVERY_HEAVY), strict=False):
        if number % EVERY_FILE == EVERY_FILE // 2:
            yield Outcome("one file", 1, race_for_a_file(bench))
            continue
        with_rival = bool(job.rival) and chance.random() < 0.6
        apart = APART * chance.random() if chance.random() < 0.5 else 0.0
        what = f"{'with other settings' if with_rival else 'the same'}, {apart:.3f} s apart"
        failures = race(bench, job, [job.command, job.rival if with_rival else job.command], apart)
        yield Outcome(job.name, 1, tuple(f"{failure} ({what})" for failure in failures))


def race(bench: Bench, job: Job, commands: list[str], apart: float) -> list[str]:
    """Start two commands at once and compare the result with that of each alone."""
    references = [bench.reference(job, command).snapshot for command in commands]
    bench.prepare(job.needs)
    begin = time.monotonic() + 0.1
    started = [bench.start(command, at=begin + number * apart) for number, command in enumerate(commands)]
    ends = [bench.launcher.wait(process) for process in started]
    failures = [f"{problem}, {last_line(end.errors)}" for end in ends if (problem := end.problem)]
    failures += [problem for end in ends if (problem := wrong_refusal(end))]
    winners = [number for number, end in enumerate(ends) if end.code == 0]
    if not winners:
        failures.append(f"both fail: {' / '.join(last_line(end.errors) for end in ends)}")
    if bench.stop_workers():
        failures.append("workers outlive the command")
    if failures:
        return failures
    if job.adds and commands[0] != commands[1]:
        return lost_measurements(bench, [commands[number] for number in winners])
    if len(winners) == 2 and references[0] != references[1] and not job.replaces:
        failures.append("both did the work")
    got = bench.snapshot()
    wrong = [differences(references[number], got) for number in winners]
    return failures if () in wrong else [*failures, *wrong[0]]


def wrong_refusal(end: Finished) -> str:
    """What is wrong with a command that was refused, or nothing."""
    errors = [line for line in end.errors.splitlines() if line.startswith("error: ")]
    if end.problem or end.code == 0 or (end.code == 1 and len(errors) == 1):
        return ""
    return f"refused with exit code {end.code} and {len(errors)} errors: {last_line(end.errors)}"


def lost_measurements(bench: Bench, commands: list[str]) -> list[str]:
    """Estimators of labs that ended well, but are not in the file."""
    (path,) = bench.folder.glob("out/points/*/measurements.json")
    kept = json.loads(path.read_text())["measurements"]
    wanted = [name for command in commands for name in command.partition("--estimators ")[2].split()[0].split(",")]
    lost = [name for name in wanted if name not in kept]
    return [f"lost the measurements of {', '.join(lost)}"] if lost else []


def race_for_a_file(bench: Bench) -> tuple[str, ...]:
    """Several processes replace a file while others read it: every reader sees all that one of the writers wrote."""
    bench.clear()
    program = "-m tests.reliability.programs"
    bench.run(f"{program} write file.json 0 1")
    begin = time.monotonic() + 0.2
    commands = [f"{program} write file.json {number} {TURNS}" for number in range(WRITERS)]
    commands += [f"{program} read file.json {5 * TURNS}"] * READERS
    started = [bench.start(command, at=begin) for command in commands]
    ends = [bench.launcher.wait(process) for process in started]
    failures = [end.problem or last_line(end.errors) for end in ends if end.code]
    if not failures and (extra := sorted(path.name for path in bench.folder.iterdir() if path.name != "file.json")):
        failures.append(f"left over: {', '.join(extra)}")
    return tuple(dict.fromkeys(failures))


SUITE = Suite(
    "writers",
    "Of two processes that write the same, one does the work and the other is refused; no reader sees half a file",
    128,
    run,
)
