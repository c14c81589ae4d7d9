"""A task that trains in milliseconds per update, with several rewards, for runs of thousands of updates."""

from dataclasses import dataclass

import torch

from corollout.config import option
from corollout.data import Columns, Split
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.tasks.task import Task, TaskSpec
from tests.support.small_task import VOCAB, likeness, make_engine, make_policy

EXAMPLES = 32  # of each split


@dataclass(frozen=True)
class ModelSettings:
    seed: int = option(0, "Seed of the weights.")


class Repeat(Task):
    """Contexts of three tokens, and targets that repeat them."""

    rewards = ("likeness", "constant", "workers")

    def split(self, name: str) -> Split:
        generator = torch.Generator().manual_seed(len(name))
        context = torch.randint(1, VOCAB, (EXAMPLES, 3), generator=generator)
        return Split(Columns(context=context, target=[[*row, *row][:4] for row in context.tolist()]))

    def engine(self, seed: int = 0) -> Engine:
        return make_engine(make_policy(seed))

    def reward(self, name: str, split: Split | None = None) -> Reward:
        if name == "constant":
            return Reward(constant)
        return Reward(likeness, workers=1 if name == "workers" else 0)


def constant(sequences: list[list[int]]) -> list[float]:
    return [0.1] * len(sequences)


TASK = TaskSpec("repeat", Repeat, ModelSettings)
