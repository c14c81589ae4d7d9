"""The task of repeating, with a reward that makes trouble in one process of a job after so many calls.

``COROLLOUT_TROUBLE`` says in which rank, after how many calls, and what: "1 20 hang".
"""

import os
import time

from corollout.data import Split
from corollout.rewards import Reward
from corollout.tasks.spec import NoSettings
from corollout.tasks.task import TaskSpec
from tests.support.repeat_task import Repeat
from tests.support.small_task import likeness

VARIABLE = "COROLLOUT_TROUBLE"
_calls = 0


def troubled(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
    global _calls
    _calls += 1
    rank, calls, what = os.environ.get(VARIABLE, "-1 0 none").split()
    if os.environ.get("RANK", "0") == rank and _calls > int(calls):
        if what == "raise":
            raise ValueError("there is trouble")
        if what == "slow":
            time.sleep(0.05)
        while what == "hang":
            time.sleep(1)
    return likeness(sequences, target, finished)


class Troubled(Repeat):
    def reward(self, name: str, split: Split | None = None) -> Reward:
        return Reward(troubled)


TASK = TaskSpec("troubled", Troubled, NoSettings)
