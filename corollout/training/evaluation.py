"""The reward that a policy earns on a data set."""

from collections.abc import Sequence
from typing import Literal

import torch

from corollout.arguments import require_count, require_instance
from corollout.data import Columns, Data, check_device
from corollout.divided_work import batches, divided
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.rewards import AnyReward, as_reward
from corollout.rollouts import Engine
from corollout.text import quoted
from corollout.types import Sampler


def evaluate(
    engine: Engine,
    data: Data,
    reward: AnyReward,
    *,
    mode: Literal["greedy", "sample"] = "greedy",
    seed: int = 0,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    reward_weights: Sequence[float | int] | None = None,
) -> float:
    """The mean reward of greedy sequences, or of sampled ones, over a data set; skipped ones are left out.

    Several rewards are added up, weighted by ``reward_weights``. The processes of a job divide the data; all of them
    make this call, and get the same number.
    """
    require_instance("engine", engine, Engine, "an Engine, as in Engine(policy, bos=1, eos=0, max_length=20)")
    data = Columns.of(data)
    if mode not in ("greedy", "sample"):
        raise InputError(f"mode must be 'greedy' or 'sample', not {quoted(mode)}")
    require_count("batch_size", batch_size)
    check_device(device)
    if len(data) == 0:
        raise InputError("there is no example to evaluate on")
    reward = as_reward(reward, reward_weights)
    parts = batches(len(data), batch_size)

    def rewards_of(number: int) -> list[float]:
        batch = data.batch(torch.tensor(parts[number]), device)
        drawn = engine.decode(batch.context, batch.examples, Sampler(mode), Noise(seed), "tokens").trajectories
        columns = batch.aligned(drawn.contexts)
        return reward(drawn.lists(), batch.examples.tolist(), columns, drawn.finished.tolist()).values.tolist()

    values = [value for part in divided(len(parts), rewards_of) for value in part]
    return float(torch.tensor(values, dtype=torch.float64).nanmean())
