"""How many rollouts methods that branch want for which sentence, and where, at the best weights of their runs.

Branches are known before any reward is, so nothing is completed: main trajectories are drawn, planned for and scored.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from corollout.data import Columns
from corollout.estimators import Branching, Estimator, make_estimator
from corollout.noise import FREE, Noise
from corollout.policies import evaluation_mode
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.sweeps.sweep import Analysis, Sweep, chosen_rates
from corollout.training import start as jobs

EXAMPLES = 2_000  # training examples that are looked at, or all if there are fewer


def branching_methods(sweep: Sweep) -> list[str]:
    """The methods whose number of rollouts adapts to what the policy is sure of: ARS-K, ARSM and those for trees."""
    return [method for method in sweep.methods if isinstance(make_estimator(sweep.estimator(method)), Branching)]


def branching(name: str) -> Branching:
    """The estimator of such a method."""
    estimator = make_estimator(name)
    assert isinstance(estimator, Branching)
    return estimator


@torch.no_grad()
def count_rollouts(
    engine: Engine,
    data: Columns,
    reward: Reward,
    estimator: Estimator,
    noise: Noise,
    *,
    batch_size: int,
    device: str = "cpu",
    tell: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """For each main trajectory its score, length and number of rollouts, one example after another in any order.

    ``by_step`` has the mean number of rollouts at each step over the trajectories that have it, ``reaching`` how many
    those are. A trajectory that the reward skips is left out of the first three.
    """
    scores: list[float] = []
    lengths: list[int] = []
    rollouts: list[int] = []
    departing = torch.zeros(engine.max_length, dtype=torch.int64)
    reaching = torch.zeros(engine.max_length, dtype=torch.int64)
    seen = 0
    for batch in data.epoch(batch_size, noise, device):
        with evaluation_mode(engine.policy):
            memory = engine.policy.encode(batch.context)
        mains = engine.sample(memory, batch.examples, estimator.sampler, noise).trajectories
        branches = estimator.sweep(mains, noise).branches
        values = reward(
            mains.lists(), mains.examples.tolist(), batch.aligned(mains.contexts), mains.finished.tolist()
        ).values
        judged = ~values.isnan()
        own = torch.bincount(branches.parent, minlength=len(mains.lengths)).cpu()
        scores += [round(value, 5) for value in values[judged].tolist()]
        lengths += mains.lengths.cpu()[judged].tolist()
        rollouts += own[judged].tolist()
        departing += torch.bincount(branches.step, minlength=engine.max_length).cpu()
        reaching += (mains.lengths.cpu()[:, None] > torch.arange(engine.max_length)).sum(0)
        seen += len(batch)
        tell(seen / len(data))
    steps = int((reaching > 0).sum())
    return {
        "scores": scores,
        "lengths": lengths,
        "rollouts": rollouts,
        "by_step": (departing[:steps] / reaching[:steps]).tolist(),
        "reaching": reaching[:steps].tolist(),
    }


def _begin(sweep: Sweep) -> Callable[[str, Callable[[float], None]], dict[str, Any]]:
    """Every method is looked at with the first seed and the learning rate that suited it, on the same examples.

    A budget is left out: what counts is how many rollouts the method wants, not how many it is given.
    """
    seed, rates = sweep.seeds[0], chosen_rates(sweep)

    def measure(method: str, tell: Callable[[float], None]) -> dict[str, Any]:
        task, engine = jobs.open_run(sweep.run(seed, method, rates[method]))
        return count_rollouts(
            engine,
            task.train.first(EXAMPLES).columns,
            task.reward(sweep.finetune.reward),
            replace(branching(sweep.estimator(method)), budget=None),
            Noise(seed).fold(FREE),
            batch_size=sweep.finetune.batch_size,
            device=task.device,
            tell=tell,
        )

    return measure


ROLLOUTS = Analysis("rollouts", "rollouts.json", branching_methods, _begin)
