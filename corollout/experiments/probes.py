"""The variance of each method's gradient at the weights from which all of them start."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from corollout.errors import InputError
from corollout.estimators import make_estimator
from corollout.experiments import jobs
from corollout.experiments.table1 import METHODS, Plan
from corollout.noise import Noise
from corollout.training import probe_variance
from corollout.training.checkpoints import replace_file

PROBES = "probes.json"


def read_probes(plan: Plan) -> dict[str, dict[str, Any]]:
    """What has been measured so far, by method."""
    path = plan.out / PROBES
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; remove it to have it measured again") from error


def probe_methods(
    plan: Plan, on_estimate: Callable[[str, int], None] = lambda method, done: None
) -> dict[str, dict[str, Any]]:
    """Measure every method that has not been measured yet, on the same tasks; each one is kept when it is done.

    ``on_estimate`` is told the method and how many of its estimates are made.
    """
    if plan.probes < 3:
        raise InputError(f"a variance with its error needs at least 3 estimates, not {plan.probes}")
    known = read_probes(plan)
    missing = [method for method in plan.methods if method not in known]
    if not missing:
        return known
    seed = plan.seeds[0]
    task, engine = jobs.open_run(plan.mle(seed))
    batch = task.train.columns.batch(range(min(plan.finetune.batch_size, len(task.train))), task.device)
    reward = task.reward(plan.finetune.reward)
    for method in missing:
        made = 0

        def count(method: str = method) -> None:
            nonlocal made
            made += 1
            on_estimate(method, made)

        probe = probe_variance(
            engine, batch, reward, make_estimator(METHODS[method]), plan.probes, Noise(seed), on_estimate=count
        )
        known[method] = asdict(probe)
        replace_file(plan.out / PROBES, (json.dumps(known, indent=2) + "\n").encode())
    return known
