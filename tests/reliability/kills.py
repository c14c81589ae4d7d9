"""Commands that are killed: at random instants, and right before and after every kind of change of a file.

Half of the kills come from outside at a random time; the others the process sends itself at one of the changes of files
that the whole work takes. The same work may be killed several times before it is completed and compared with an
undisturbed one.
"""

import random
import signal
import time
from collections.abc import Iterator

from tests.reliability.jobs import IS_DONE, Bench, Job, deal, shared_bench
from tests.reliability.launcher import Instant
from tests.reliability.suite import Finished, Outcome, Suite

MOST = 4  # kills of the same work
EVERY_HEAVY = 20  # one of so many works has workers, which take seconds to start


def run(cases: int, seed: int) -> Iterator[Outcome]:
    chance, bench, done = random.Random(f"kills {seed}"), shared_bench(), 0
    for job in deal(chance, EVERY_HEAVY):
        if done >= cases:
            return
        outcome = kill_and_finish(bench, job, min(chance.randint(1, MOST), cases - done), chance)
        done += outcome.cases
        yield outcome


def kill_and_finish(bench: Bench, job: Job, kills: int, chance: random.Random) -> Outcome:
    """Kill the work of a job several times, complete it, and compare."""
    bench.reference(job)
    bench.prepare(job.needs)
    done, moments = 0, []
    while done < kills:
        finished, moment = killed(bench, job, chance)
        if finished.code != -signal.SIGKILL:
            is_refused = IS_DONE.search(finished.errors) or (job.resume and "--resume" in finished.errors)
            if finished.problem or (finished.code and not is_refused):
                failure = finished.problem or f"exit code {finished.code}: {finished.errors.strip()}"
                bench.stop_workers()
                return Outcome(job.name, done or 1, (f"{failure} (killed {', '.join(moments) or 'never'})",))
            break
        done += 1
        moments.append(moment)
    failures = bench.finish(job)
    if bench.stop_workers():
        failures += ("workers outlive the command",)
    return Outcome(job.name, done, tuple(f"{failure} (killed {', '.join(moments)})" for failure in failures))


def killed(bench: Bench, job: Job, chance: random.Random) -> tuple[Finished, str]:
    """Start or continue a job and kill it at some instant that may be after its end; say when."""
    reference = bench.reference_of(job)
    command = job.next_command(bench.folder)
    if chance.random() < 0.5:
        delay = chance.random() * reference.seconds
        process = bench.start(command)
        time.sleep(delay)
        process.send(signal.SIGKILL)
        return bench.launcher.wait(process), f"after {delay:.3f} s"
    instant = Instant(chance.randint(1, reference.changes), after=chance.random() < 0.5)
    return bench.run(command, instant=instant), f"{'after' if instant.after else 'before'} change {instant.call}"


SUITE = Suite(
    "kills",
    "Every command that writes can be killed at any instant; repeated, it ends with the same result and leaves nothing",
    200,
    run,
)
