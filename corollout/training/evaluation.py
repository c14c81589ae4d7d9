"""What a policy earns."""

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.data import Columns, take
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.types import Sampler


@torch.no_grad()
def greedy_rewards(
    engine: Engine, data: Columns, reward: Reward, *, batch_size: int = 256, device: torch.device | str = "cpu"
) -> Float[Tensor, " example"]:
    """The reward of the greedy sequence of every example; NaN where the reward function skipped it."""
    if len(data) == 0:
        raise InputError("there is no example to evaluate on")
    values = []
    for index in torch.arange(len(data)).split(batch_size):
        batch = data.batch(index, device)
        memory = engine.policy.encode(batch.context)
        greedy = engine.sample(memory, batch.examples, Sampler("greedy"), Noise(0)).trajectories
        columns = {name: take(column, torch.arange(len(batch))) for name, column in batch.columns.items()}
        values.append(reward(greedy.lists(), batch.examples.tolist(), columns, greedy.finished.tolist()).values)
    return torch.cat(values)


def evaluate(
    engine: Engine, data: Columns, reward: Reward, *, batch_size: int = 256, device: torch.device | str = "cpu"
) -> float:
    """The mean reward of the greedy sequences, skipped ones left out."""
    return float(greedy_rewards(engine, data, reward, batch_size=batch_size, device=device).nanmean())
