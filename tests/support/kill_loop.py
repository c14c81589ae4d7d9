"""Resume a run again and again, killing it at random instants: ``kill_loop.py RUN KILLS SEED LONGEST``.

Everything is imported once, and each attempt is a fork of this process: a kill costs milliseconds instead of the
seconds that Python needs to start. After KILLS kills the run may finish. LONGEST is the most that an attempt may
take. Prints how often the run was killed, and at which updates.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from corollout.tasks.karel import World, machine
from corollout.tasks.karel.grids import pack
from corollout.training.runs import Run
from corollout.training.start import resume_run


def attempt(directory: Path, delay: float | None) -> bool:
    """Resume a run in a fork and kill it after a delay; return whether it finished first."""
    child = os.fork()
    if child == 0:
        try:
            resume_run(directory)
        except BaseException as error:
            print(f"failed: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("the run failed by itself")
    return not os.WIFSIGNALED(status)


def main(directory: Path, kills: int, seed: int, longest: float) -> None:
    world = pack([World(2, 2, (0, 0, 0))], side=4)[None]
    machine.judge(machine.Programs.pack([[]]), np.zeros(1, np.int64), world, world)  # compiled before the first fork
    chance = random.Random(seed)
    done, updates = 0, []
    while done < kills:
        if attempt(directory, longest * chance.random()):
            break
        done += 1
        records = Run.open(directory).records()
        updates.append(records[-1]["update"] if records else -1)
    else:
        attempt(directory, None)
    print(f"{done} kills, at updates {updates}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
