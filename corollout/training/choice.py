"""Light probes along training: what an estimator's variance and cost are now, and which of some is best."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from corollout.data import Batch
from corollout.estimators import Auto, Estimator
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.training.variance import Moments, gradient_source
from corollout.types import Cost

LEARNING = 1  # batches of which an estimator only learns, before those that count
_ENOUGH = 3  # estimates that show who is far behind
_BEHIND = 1.5  # times the least variance × seconds


@dataclass(frozen=True)
class Glance:
    """A few estimates by one estimator: the variance of their gradients, and what one of them costs."""

    estimator: str
    estimates: int
    variance: float
    tokens: float
    reward_calls: float
    seconds: float

    @property
    def product(self) -> float:
        """Variance × seconds: what a step of a given precision takes."""
        return self.variance * self.seconds


def glance(
    engine: Engine,
    batches: Iterable[Batch],
    reward: Reward,
    estimators: Mapping[str, Estimator],
    noise: Noise,
    now: Callable[[], float],
    behind: float = math.inf,
) -> tuple[list[Glance], dict[str, Estimator], Cost]:
    """One estimate by each estimator on each batch; return what was seen of them, the estimators with what they
    learned, and the cost. Those whose variance × seconds is more than ``behind`` times the least after a few estimates
    make no more.

    Batches are different ones, as in training: their choice is a part of the variance, which no number of sequences
    for each context makes smaller. Estimators take turns, so that whatever else the machine does hits all of them
    alike. The first batches only teach.
    """
    taught = dict(estimators)
    sums = {name: _Sums() for name in estimators}
    going, spent = list(estimators), Cost()
    for turn, batch in enumerate(batches):
        with gradient_source(engine, batch, reward) as draw:
            for name in going:
                start = now()
                sample, gradient = draw(taught[name], noise.fold(turn))
                if turn >= LEARNING:
                    sums[name].add(gradient, sample.cost, now() - start)
                taught[name] = sample.updated(taught[name])
                spent += sample.cost
        if turn + 1 == LEARNING + _ENOUGH:
            products = {name: sums[name].glance(name).product for name in going}
            limit = behind * min(products.values())
            going = [name for name in going if not products[name] > limit]
    return [total.glance(name) for name, total in sums.items()], taught, spent


class _Sums:
    """Running sums over the estimates of one estimator."""

    def __init__(self) -> None:
        self.gradients, self.seconds, self.cost = Moments(), 0.0, Cost()

    def add(self, gradient: Float[Tensor, " parameter"], cost: Cost, seconds: float) -> None:
        self.gradients.add(gradient)
        self.cost += cost
        self.seconds += seconds

    def glance(self, name: str) -> Glance:
        n = self.gradients.count
        return Glance(
            name, n, self.gradients.variance, self.cost.tokens / n, self.cost.reward_calls / n, self.seconds / n
        )


@dataclass(frozen=True)
class Choice:
    """Which candidate was picked after some updates, and what was seen of each."""

    update: int
    picked: str
    seen: list[Glance]

    @property
    def reason(self) -> str:
        """The choice in a sentence."""
        best = next(seen for seen in self.seen if seen.estimator == self.picked)
        others = sorted((seen for seen in self.seen if seen is not best), key=_rank)
        if not others:
            return f"auto takes {self.picked}, the only candidate"
        if not others[0].product > 0:
            return f"auto takes {self.picked}: estimates do not vary, so there is nothing to choose by"
        return (
            f"auto takes {self.picked}: its variance × seconds is {best.product / others[0].product:.2f} of that of "
            f"{others[0].estimator}, the next best of {len(self.seen)}, over {best.estimates} estimates"
        )


def _rank(seen: Glance) -> tuple[int, float]:
    """Those that were not far behind come first."""
    return -seen.estimates, seen.product


def choose(
    auto: Auto,
    engine: Engine,
    batches: Iterable[Batch],
    reward: Reward,
    noise: Noise,
    updates: int,
    now: Callable[[], float],
) -> tuple[Auto, Choice, Cost]:
    """Probe all candidates and take the one with the least variance × seconds."""
    seen, taught, cost = glance(engine, batches, reward, auto.candidates, noise, now, _BEHIND)
    # With nothing to choose by, what was in use stays in use.
    best = min(seen, key=lambda each: (*_rank(each), each.estimator != auto.name))
    return replace(auto, candidates=taught, chosen=best.estimator), Choice(updates, best.estimator, seen), cost
