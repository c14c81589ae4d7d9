"""The settings of one fine-tuning run, and the methods that are compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Clock = Literal["cpu", "wall"]
ProblemName = Literal["e2e", "words"]


class Method(NamedTuple):
    """``library`` is "trl" or "ours"; ``estimator`` is the trainer's name in TRL, or the estimator in ours."""

    library: str
    estimator: str


METHODS = {
    "TRL RLOO": Method("trl", "rloo"),
    "TRL GRPO": Method("trl", "grpo"),
    "RLOO": Method("ours", "rloo-4"),
    "SET": Method("ours", "set-4:baseline=fitted"),
    "ARSM": Method("ours", "arsm:budget=64"),
    "auto": Method("ours", "auto"),
}
LEARNING_RATES = (5e-5, 1.5e-4, 5e-4)
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides a run; all methods share all but ``method`` and ``learning_rate``."""

    method: str
    learning_rate: float
    seed: int
    seconds: float  # of training: sampling, rewards and updates, without evaluations
    model: Path  # a folder with weights and tokenizer
    train: Path | None = None  # files of the problem, if it has any
    dev: Path | None = None
    problem: ProblemName = "e2e"
    clock: Clock = "cpu"  # CPU time of the process, so that other programs do not matter, or wall-clock time
    prompts: int = 8  # in an update
    completions: int = 4  # of each prompt, for methods that draw a fixed number
    max_completion_length: int = 64
    max_grad_norm: float = 1.0
    evaluations: int = 6  # at equal distances in seconds, besides the one before the first update
    dev_examples: int = 200
    most_updates: int = 1_000_000

    @property
    def rows(self) -> int:
        """Completions in an update."""
        return self.prompts * self.completions
