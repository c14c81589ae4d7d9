"""How much a gradient varies because contexts are drawn: the part that no estimator makes smaller.

A lab measures on one batch. Training has another batch at each update, and the variance of its gradient is that of the
estimator on a batch plus that of the true gradient between batches. More sequences for each context lower the first
part only, so what is best on one batch may be too much of a good thing in training.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from corollout.data import Batch
from corollout.estimators import Estimator
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.training.variance import gradient_source


@dataclass(frozen=True)
class Spread:
    """Estimates for different batches of one size.

    ``distances`` are as in a measurement, with the batches' differences in them; ``within`` is the variance that the
    estimator has on one batch.
    """

    distances: list[float]
    within: float

    @property
    def between(self) -> float:
        """The variance of the true gradient between batches."""
        return max(0.0, float(np.mean(self.distances)) - self.within)


def measure_spread(
    engine: Engine,
    batches: Iterable[Batch],
    reward: Reward,
    estimator: Estimator,
    within: float,
    noise: Noise,
    on_estimate: Callable[[], None],
) -> Spread:
    """One estimate for each batch."""
    distances: list[float] = []
    mean = torch.zeros(())
    for place, batch in enumerate(batches):
        with gradient_source(engine, batch, reward) as draw:
            gradient = draw(estimator, noise.fold(place))[1].double()
        delta = gradient - mean
        mean = mean + delta / (place + 1)
        distances.append(float((delta * (gradient - mean)).sum()))
        on_estimate()
    return Spread(distances[1:], within)  # the first is a distance to nothing
