"""What a policy earns."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.data import Columns
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.policies import evaluation_mode
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.estimate import as_reward
from corollout.types import Sampler


@torch.no_grad()
def rewards_of(
    engine: Engine,
    data: Columns,
    reward: Reward | RewardFunction,
    *,
    mode: Literal["greedy", "sample"] = "greedy",
    seed: int = 0,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> Float[Tensor, " example"]:
    """The reward of the greedy sequence, or of one sampled, of every example; NaN where the function skipped it."""
    if len(data) == 0:
        raise InputError("there is no example to evaluate on")
    judge = as_reward(reward)
    values = []
    for index in torch.arange(len(data)).split(batch_size):
        batch = data.batch(index, device)
        with evaluation_mode(engine.policy):
            memory = engine.policy.encode(batch.context)
        drawn = engine.sample(memory, batch.examples, Sampler(mode), Noise(seed)).trajectories
        columns = batch.aligned(drawn.contexts)
        values.append(judge(drawn.lists(), batch.examples.tolist(), columns, drawn.finished.tolist()).values)
    return torch.cat(values)


def evaluate(
    engine: Engine,
    data: Columns,
    reward: Reward | RewardFunction,
    *,
    mode: Literal["greedy", "sample"] = "greedy",
    seed: int = 0,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> float:
    """The mean reward of greedy sequences, or of sampled ones, over a data set; skipped ones are left out."""
    values = rewards_of(engine, data, reward, mode=mode, seed=seed, batch_size=batch_size, device=device)
    return float(values.nanmean())
