"""The variance of each method's gradient at the weights from which all of them start."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from corollout.data import Batch
from corollout.errors import InputError
from corollout.estimators import BinaryTreeARSM, make_estimator
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.sweeps.sweep import Analysis, Sweep
from corollout.training import probe_variance
from corollout.training import start as jobs

_MORE = 6  # times as many estimates where a small difference is to be seen


def _begin(sweep: Sweep, times: int = 1) -> Callable[[str, Callable[[float], None]], dict[str, Any]]:
    """Every method is measured on the same examples, at the weights that it starts from with the first seed."""
    if sweep.probes < 3:
        raise InputError(f"a variance with its error needs at least 3 estimates, not {sweep.probes}")
    seed = sweep.seeds[0]
    count = times * sweep.probes

    @cache
    def opened(model: str) -> tuple[Engine, Batch, Reward]:
        task, engine = jobs.open_run(sweep.mle(seed, model))
        batch = task.train.columns.batch(range(min(sweep.finetune.batch_size, len(task.train))), task.device)
        return engine, batch, task.reward(sweep.finetune.reward)

    def measure(method: str, tell: Callable[[float], None]) -> dict[str, Any]:
        made = 0

        def advance() -> None:
            nonlocal made
            made += 1
            tell(made / count)

        engine, batch, reward = opened(sweep.start(method))
        estimator = make_estimator(sweep.estimator(method))
        return asdict(probe_variance(engine, batch, reward, estimator, count, Noise(seed), on_estimate=advance))

    return measure


def _tree_methods(sweep: Sweep) -> list[str]:
    """Methods with the same rollouts, whose variances differ by little."""
    return [method for method in sweep.methods if isinstance(make_estimator(sweep.estimator(method)), BinaryTreeARSM)]


VARIANCE = Analysis("variance", "probes.json", lambda sweep: sweep.methods, _begin)
PAIRS = Analysis("variance at equal rollouts", "pairs.json", _tree_methods, partial(_begin, times=_MORE))
