"""Probes: how noisy and how costly gradient estimates are, at fixed weights."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from corollout.arguments import require_instance
from corollout.compilation import wall_time
from corollout.data import Batch
from corollout.errors import InputError
from corollout.estimators import Auto, Estimator
from corollout.events import Callback, Progress, ignore
from corollout.noise import Noise
from corollout.rewards import AnyReward
from corollout.rollouts import Engine
from corollout.text import quoted
from corollout.training.agreement import add_gradients
from corollout.training.base import GradientStatistics, flat_gradient, policy_module
from corollout.training.estimates import Estimate, estimate
from corollout.training.metrics import RewardNumbers
from corollout.training.regularisation import Regulariser
from corollout.training.running_variance import GradientSketch
from corollout.types import Cost

Now = Callable[[], float]
# Makes an estimate by an estimator with some noise, and its gradient as one vector.
Draw = Callable[[Estimator | str, Noise], tuple[Estimate, Tensor]]

WARM_UP_BATCHES = 1  # from which adaptive estimators only learn
PROBE_ESTIMATES = 6
_ENOUGH = 3  # estimates that show which estimator is far behind
_FAR_BEHIND = 1.5  # times the smallest variance × seconds


@dataclass(frozen=True)
class Probe:
    """Independent gradient estimates by one estimator.

    ``variance`` is the trace of their covariance, with its standard error; costs and seconds are per estimate.
    ``squares`` are the squared norms of the estimates: two unbiased estimators that are probed with the same noise can
    be compared pair by pair.
    """

    estimates: int
    variance: float
    variance_error: float
    squared_norm: float  # of the mean gradient, without the noise of the mean: may be slightly negative
    mean_reward: float
    rollouts_per_step: float
    tokens: float
    reward_calls: float
    seconds: float
    squares: tuple[float, ...]

    @property
    def cost(self) -> float:
        """Variance × seconds: what a step of a given precision takes."""
        return self.variance * self.seconds

    def record(self, name: str) -> dict[str, Any]:
        """What metrics.jsonl keeps of it."""
        keys = ("estimates", "variance", "tokens", "reward_calls", "seconds")
        return {"estimator": name, **{key: getattr(self, key) for key in keys}}


@dataclass(frozen=True)
class Made:
    """What an estimate was and took, in all processes that have a part of its batch."""

    cost: Cost
    mean_reward: float
    seconds: float  # of the process that took longest

    @classmethod
    def of(cls, sample: Estimate, seconds: float) -> "Made":
        if sample.division is None:
            return cls(sample.cost, sample.mean_reward, seconds)
        rewards = sample.own_rewards[: len(sample.trajectories.tokens)].tolist()
        mine = [list(vars(sample.cost).values()), rewards, seconds]
        costs, rewards, seconds_of_all = zip(*sample.division.processes.gather_values(mine), strict=True)
        mean = RewardNumbers.of([reward for part in rewards for reward in part]).mean
        return cls(sum((Cost(*cost) for cost in costs), Cost()), mean, max(seconds_of_all))


class Recorder:
    """Collects estimates for a probe."""

    def __init__(self) -> None:
        self.gradients = GradientStatistics()
        self.costs: list[Cost] = []
        self.rewards: list[float] = []
        self.seconds: list[float] = []
        self.squares: list[float] = []

    def add(self, made: "Made", gradient: Tensor) -> None:
        self.gradients.add(gradient)
        self.costs.append(made.cost)
        self.rewards.append(made.mean_reward)
        self.seconds.append(made.seconds)
        self.squares.append(float((gradient.double() ** 2).sum()))

    def probe(self) -> Probe:
        n, total = self.gradients.count, sum(self.costs, Cost())
        return Probe(
            estimates=n,
            variance=self.gradients.variance,
            variance_error=self.gradients.variance_error,
            squared_norm=self.gradients.squared_norm,
            mean_reward=sum(self.rewards) / n,
            rollouts_per_step=total.rollouts / max(total.main_tokens, 1),
            tokens=total.tokens / n,
            reward_calls=total.reward_calls / n,
            seconds=sum(self.seconds) / n,
            squares=tuple(self.squares),
        )


@contextmanager
def gradient_source(
    engine: Engine,
    batch: Batch,
    reward: AnyReward,
    regulariser: Regulariser | None = None,
    width: int | None = None,
) -> Generator[Draw, None, None]:
    """Inside, gradient estimates are drawn for a batch; afterwards the parameters have their own gradients back.

    Of gradients that are longer than ``width`` a sketch of that length is drawn, which has the same variance.
    """
    policy = policy_module(engine, "the variance of a gradient")
    parameters = [p for p in policy.parameters() if p.requires_grad]
    kept = [p.grad for p in parameters]
    sketch = None if width is None else GradientSketch(parameters, width)

    def draw(estimator: Estimator | str, noise: Noise) -> tuple[Estimate, Tensor]:
        for p in parameters:
            p.grad = None
        sample = estimate(engine, batch, reward, estimator, noise, regulariser=regulariser)
        sample.backward()
        if batch.division is not None:
            add_gradients(parameters, batch.division.processes)
        return sample, flat_gradient(parameters) if sketch is None or sketch.is_exact else sketch()

    try:
        yield draw
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad


def probe_variance(
    engine: Engine,
    batch: Batch,
    reward: AnyReward,
    estimator: Estimator | str,
    count: int,
    noise: Noise,
    on_event: Callback = ignore,
) -> Probe:
    """Draw ``count`` independent gradient estimates for the same batch at the same parameters.

    The parameters' own gradients are left as they were.
    """
    if type(count) is not int or count < 2:
        raise InputError(f"a variance needs at least 2 estimates, not {quoted(count)}")
    require_instance("noise", noise, Noise, "a Noise, as in Noise(seed)")
    recorder, progress = Recorder(), Progress(on_event, "estimates", count)
    with gradient_source(engine, batch, reward) as draw:
        for i in range(count):
            started = wall_time()
            sample, gradient = draw(estimator, noise.fold(i))
            recorder.add(Made.of(sample, wall_time() - started), gradient)
            progress.advance()
    return recorder.probe()


def probe_estimators(
    engine: Engine,
    batches: Iterable[Batch],
    reward: AnyReward,
    estimators: Mapping[str, Estimator],
    noise: Noise,
    now: Now,
    give_up_at: float = math.inf,
    regulariser: Regulariser | None = None,
) -> tuple[dict[str, Probe], dict[str, Estimator], Cost]:
    """One estimate by each estimator on each batch; return the probes, the estimators with what they learned, and the
    cost. An estimator whose variance × seconds is more than ``give_up_at`` times the smallest after a few estimates
    makes no more.

    The batches differ, as in training: the choice of contexts is a part of the variance that no number of sequences per
    context reduces. Estimators take turns, so that other work on the machine affects all of them alike. The first
    batches only teach.
    """
    updated, total = dict(estimators), Cost()
    recorders = {name: Recorder() for name in estimators}
    active = list(estimators)
    for turn, batch in enumerate(batches):
        with gradient_source(engine, batch, reward, regulariser) as draw:
            for name in active:
                started = now()
                sample, gradient = draw(updated[name], noise.fold(turn))
                made = Made.of(sample, now() - started if turn >= WARM_UP_BATCHES else 0.0)
                if turn >= WARM_UP_BATCHES:
                    recorders[name].add(made, gradient)
                updated[name] = sample.updated(updated[name])
                total += made.cost
        if turn + 1 == WARM_UP_BATCHES + _ENOUGH:
            costs = {name: recorders[name].probe().cost for name in active}
            limit = give_up_at * min(costs.values())
            active = [name for name in active if not costs[name] > limit]
    return {name: recorder.probe() for name, recorder in recorders.items()}, updated, total


@dataclass(frozen=True)
class Choice:
    """Which candidate "auto" uses after some updates, and the probes of all of them."""

    estimator: Auto
    update: int
    probes: dict[str, Probe]
    cost: Cost

    @property
    def reason(self) -> str:
        name = self.estimator.name
        best = self.probes[name]
        others = sorted((item for item in self.probes.items() if item[0] != name), key=lambda item: _rank(item[1]))
        if not others:
            return f"auto uses {name}, the only candidate"
        second, probe = others[0]
        if not probe.cost > 0:
            return f"auto uses {name}: the estimates do not vary, so nothing distinguishes the candidates"
        return (
            f"auto uses {name}: its variance × seconds is {best.cost / probe.cost:.2f} of that of {second}, the second "
            f"best of {len(self.probes)}, over {best.estimates} estimates"
        )

    def record(self) -> dict[str, Any]:
        """What metrics.jsonl keeps of it."""
        seen = [probe.record(name) for name, probe in self.probes.items()]
        return {"update": self.update, "picked": self.estimator.name, "seen": seen, "reason": self.reason}


def _rank(probe: Probe) -> tuple[int, float]:
    """Candidates that were not given up come first."""
    return -probe.estimates, probe.cost


def choose_estimator(
    auto: Auto,
    engine: Engine,
    batches: Iterable[Batch],
    reward: AnyReward,
    noise: Noise,
    updates: int,
    now: Now,
    regulariser: Regulariser | None = None,
) -> Choice:
    """Probe all candidates of "auto" and use the one with the smallest variance × seconds."""
    probes, updated, cost = probe_estimators(
        engine, batches, reward, auto.candidates, noise, now, _FAR_BEHIND, regulariser
    )
    # If nothing distinguishes them, the current one stays in use.
    best = min(probes, key=lambda name: (*_rank(probes[name]), name != auto.name))
    return Choice(replace(auto, candidates=updated, chosen=best), updates, probes, cost)
