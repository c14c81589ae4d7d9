"""A contestant of ``benchmarks.distributed``: one or more processes that make the updates they are asked for.

``distributed_worker.py FOLDER THREADS`` reads requests, a JSON object each, from the pipe FOLDER/requests, and answers
through FOLDER/answers; of several processes, the first does, and tells the others.
"""

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed_worker import SEED, Problem, make_optimizer, prepare_process
from corollout import Trainer
from corollout.events import ignore
from corollout.processes import Processes, joined


class Contestant:
    def __init__(self, group: Processes):
        self.group = group
        self.trainers: dict[str, Trainer] = {}

    def do_start(self, name: str, folder: str, method: str, share: int) -> dict[str, Any]:
        problem = Problem(Path(folder))
        optimizer = make_optimizer(problem.engine.policy)
        self.trainers[name] = Trainer(
            problem.engine,
            problem.data,
            problem.reward,
            method,
            optimizer,
            batch_size=problem.batch_size // share,
            seed=SEED,
            on_event=ignore,
        )
        return {}

    def do_update(self, name: str, updates: int) -> dict[str, Any]:
        trainer, waiting = self.trainers[name], []
        self.group.gather_values(0)  # all begin together
        started = time.perf_counter()
        for _ in range(updates):
            metrics = trainer.step()
            waiting.append(metrics.waiting)
        seconds = time.perf_counter() - started
        cost = trainer.cost
        return {
            "seconds": seconds,
            "waiting": sum(waiting) / updates,
            "tokens": cost.main_tokens,
            "reward_calls": cost.reward_calls,
        }


def main() -> None:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    prepare_process()
    torch.set_num_threads(threads)
    with joined() as group:
        contestant = Contestant(group)
        while True:
            text = (folder / "requests").read_text() if group.is_first else ""
            request = json.loads(group.from_first(text))
            do = request.pop("do")
            answer: dict[str, Any] = {}
            try:
                answer = {} if do == "end" else getattr(contestant, f"do_{do}")(**request)
            except Exception as error:
                traceback.print_exc()
                answer = {"error": repr(error)}
            if group.is_first:
                (folder / "answers").write_text(json.dumps(answer))
            if do == "end":
                return


if __name__ == "__main__":
    main()
