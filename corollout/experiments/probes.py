"""The variance of each method's gradient at the weights from which all of them start."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import Any

from corollout.errors import InputError
from corollout.estimators import make_estimator
from corollout.experiments import jobs
from corollout.experiments.table import Plan, Study
from corollout.noise import Noise
from corollout.training import probe_variance


def _begin(plan: Plan) -> Callable[[str, Callable[[float], None]], dict[str, Any]]:
    """Every method is measured on the same examples, at the weights that it starts from with the first seed."""
    if plan.probes < 3:
        raise InputError(f"a variance with its error needs at least 3 estimates, not {plan.probes}")
    seed = plan.seeds[0]
    opened = cache(lambda model: jobs.open_run(plan.mle(seed, model)))

    def measure(method: str, tell: Callable[[float], None]) -> dict[str, Any]:
        made = 0

        def count() -> None:
            nonlocal made
            made += 1
            tell(made / plan.probes)

        task, engine = opened(plan.start(method))
        batch = task.train.columns.batch(range(min(plan.finetune.batch_size, len(task.train))), task.device)
        reward = task.reward(plan.finetune.reward)
        estimator = make_estimator(plan.estimator(method))
        return asdict(probe_variance(engine, batch, reward, estimator, plan.probes, Noise(seed), on_estimate=count))

    return measure


VARIANCE = Study("variance", "probes.json", lambda plan: plan.methods, _begin)
