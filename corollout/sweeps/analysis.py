"""Analyses of a sweep: the variance of each method's gradient where it starts, and the rollouts it wants where it ends.

Each is a job for one method, described by plain arguments; see :func:`corollout.sweeps.sweep.run_analysis`.
"""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from corollout.data import Columns
from corollout.estimators import Branching, Estimator, make_estimator
from corollout.events import Callback, Progress, ignore
from corollout.noise import FREE, Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.sweeps.sweep import Analysis, Sweep, best_rates
from corollout.training import probe_variance
from corollout.training.start import open_run

EXAMPLES = 2_000  # training examples whose rollouts are counted, or all if there are fewer


def measure_variance(
    run: str, estimator: str, reward: str, batch_size: int, estimates: int, seed: int, on_event: Callback = ignore
) -> dict[str, Any]:
    """The variance of a method's gradient at a run's best weights, for the first training examples."""
    task, engine = open_run(Path(run))
    batch = task.train.columns.batch(range(min(batch_size, len(task.train))), task.device)
    source = task.reward(reward or task.rewards[0])
    return asdict(probe_variance(engine, batch, source, make_estimator(estimator), estimates, Noise(seed), on_event))


def measure_rollouts(
    run: str, estimator: str, reward: str, batch_size: int, seed: int, on_event: Callback = ignore
) -> dict[str, Any]:
    """How many rollouts a method that branches wants for which sequence, and at which step, at a run's best weights.

    A budget is left out: what counts is how many rollouts the method wants, not how many it is given.
    """
    task, engine = open_run(Path(run))
    data, source = task.train.first(EXAMPLES).columns, task.reward(reward or task.rewards[0])
    unlimited, noise = replace(branching(estimator), budget=None), Noise(seed).fold(FREE)
    return count_rollouts(engine, data, source, unlimited, noise, batch_size, task.device, on_event)


@torch.no_grad()
def count_rollouts(
    engine: Engine,
    data: Columns,
    reward: Reward,
    estimator: Estimator,
    noise: Noise,
    batch_size: int,
    device: str = "cpu",
    on_event: Callback = ignore,
) -> dict[str, Any]:
    """For each main trajectory its score, length and number of rollouts.

    Branches are planned before any reward is known, so none is completed: main trajectories are sampled, planned for
    and scored. ``by_step`` has the mean number of rollouts at each step over the trajectories that reach it,
    ``reaching`` the number of these. Trajectories that the reward skips are left out of the first three.
    """
    judged: dict[str, list[Any]] = {"scores": [], "lengths": [], "rollouts": []}
    departing, reaching = torch.zeros(2, engine.max_length, dtype=torch.int64)
    progress = Progress(on_event, "rollouts", len(data))
    for batch in data.epoch(batch_size, noise, device):
        mains = engine.decode(batch.context, batch.examples, estimator.sampler, noise).trajectories
        branches = estimator.plan(mains, noise).branches
        columns, finished = batch.aligned(mains.contexts), mains.finished.tolist()
        values = reward(mains.lists(), mains.examples.tolist(), columns, finished).values
        valid, lengths = ~values.isnan(), mains.lengths.cpu()
        judged["scores"] += [round(value, 5) for value in values[valid].tolist()]
        judged["lengths"] += lengths[valid].tolist()
        judged["rollouts"] += torch.bincount(branches.parent, minlength=len(lengths)).cpu()[valid].tolist()
        departing += torch.bincount(branches.step, minlength=engine.max_length).cpu()
        reaching += (lengths[:, None] > torch.arange(engine.max_length)).sum(0)
        progress.advance(len(batch))
    steps = int((reaching > 0).sum())
    by_step = (departing[:steps] / reaching[:steps]).tolist()
    return {**judged, "by_step": by_step, "reaching": reaching[:steps].tolist()}


def branching_methods(sweep: Sweep) -> list[str]:
    """The methods whose number of rollouts adapts to the policy: ARS-K, ARSM and those for trees."""
    return [m for m in sweep.grid.methods if make_estimator(sweep.estimator(m)).adapts_rollouts]


def branching(name: str) -> Branching:
    """The estimator of such a method."""
    estimator = make_estimator(name)
    assert isinstance(estimator, Branching)
    return estimator


def _tree_methods(sweep: Sweep) -> list[str]:
    """Methods for trees only that share noise: they have the same rollouts, and variances that differ by little."""
    named = {method: make_estimator(sweep.estimator(method)) for method in sweep.grid.methods}
    trees = {method: one for method, one in named.items() if isinstance(one, Branching) and one.heads == ("tree",)}
    return [method for method, one in trees.items() if one.noise == "shared"]


def _arguments(sweep: Sweep, method: str, run: Path, **more: Any) -> dict[str, Any]:
    """Every method is measured with the first seed, on the same examples."""
    tuning = {"reward": sweep.finetune.reward, "batch_size": sweep.finetune.batch_size}
    estimator = sweep.estimator(method)
    return {"run": str(run), "estimator": estimator, "seed": sweep.grid.seeds[0], **tuning, **more}


def _variance_arguments(sweep: Sweep, method: str, times: int = 1) -> dict[str, Any]:
    """At the weights that the method starts from."""
    start = sweep.mle(sweep.grid.seeds[0], sweep.spec.start(method))
    return _arguments(sweep, method, start, estimates=times * sweep.grid.probes)


def _rollout_arguments(sweep: Sweep, method: str) -> dict[str, Any]:
    """At the best weights of the run with the best learning rate."""
    return _arguments(sweep, method, sweep.run(sweep.grid.seeds[0], method, best_rates(sweep)[method]))


_VARIANCE, _ROLLOUTS = (f"corollout.sweeps.analysis:measure_{name}" for name in ("variance", "rollouts"))
_pair_arguments = partial(_variance_arguments, times=6)  # more estimates, as the difference is small
VARIANCE = Analysis("variance", "probes.json", _VARIANCE, lambda sweep: sweep.grid.methods, _variance_arguments)
PAIRS = Analysis("variance at equal rollouts", "pairs.json", _VARIANCE, _tree_methods, _pair_arguments)
ROLLOUTS = Analysis("rollouts", "rollouts.json", _ROLLOUTS, branching_methods, _rollout_arguments)
