"""A training in Python, as users write it: ``fit_script.py OUT UPDATES``, in one process or under torchrun."""

import sys
from pathlib import Path

from corollout.training import Schedule, evaluate, fit
from tests.support.small_task import likeness, make_data, make_trainer


def main(out: Path, updates: int) -> None:
    trainer = make_trainer("grpo-3", batch_size=5)

    def score() -> dict[str, float]:
        return {"reward": evaluate(trainer.engine, make_data(12), likeness, batch_size=5)}

    summary = fit(trainer, out, Schedule("updates", total=updates, every=5), score, "reward")
    print(summary["best_reward"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
