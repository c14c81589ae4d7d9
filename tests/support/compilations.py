"""How often numba compiles or loads functions, and runs of which that is counted update by update."""

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import event

from corollout.training.finetuning import Trainer
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning, resume_run


class Counter(event.Listener):
    """Names of functions that numba begins to compile; loading from the cache has none."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, event: Any) -> None:
        self.names.append(str(event.data["dispatcher"]) if event.data else "")

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def counted(kind: str = "numba:compiler_lock") -> Generator[list[str], None, None]:
    """Inside, the list grows with each function that is compiled, or by default compiled or loaded."""
    counter = Counter()
    with event.install_listener(kind, counter):
        yield counter.names


def fine_tune(start: Path, out: Path, estimator: str) -> list[int]:
    """Fine-tune for three updates; how many functions were compiled or loaded in each."""
    settings = FinetuneSettings(
        estimator=estimator, batch_size=3, budget=3.0, evaluate_every=3.0, train_eval_examples=2, learning_rate=1e-3
    )
    create_finetuning(out, start, settings, MachineSettings())
    counts: list[int] = []
    step = Trainer.step

    def counting(self: Trainer) -> Any:
        with counted() as names:
            metrics = step(self)
        counts.append(len(names))
        return metrics

    Trainer.step = counting
    resume_run(out)
    return counts


def main(start: str, out: str, estimators: list[str]) -> dict[str, list[int]]:
    """The counts of each estimator, in a process of its own in which nothing has been compiled or loaded before."""
    counts: dict[str, list[int]] = {}
    for number, estimator in enumerate(estimators):
        path = Path(out) / str(number)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                path.with_suffix(".json").write_text(json.dumps(fine_tune(Path(start), path, estimator)))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, estimator
        counts[estimator] = json.loads(path.with_suffix(".json").read_text())
    return counts


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3:])))
