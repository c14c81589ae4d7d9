"""The variance of the gradient that is really used, in two forms: along training, and at fixed parameters."""

import math
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from corollout.data import Batch
from corollout.errors import InputError
from corollout.estimators import Estimator
from corollout.noise import Noise
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.estimate import Estimate, estimate
from corollout.types import Cost

# Makes an estimate by an estimator with some noise, and its gradient as one vector.
Draw = Callable[[Estimator | str, Noise], tuple[Estimate, Tensor]]


class RunningVariance:
    """Exponential averages of the gradient and of its square, as the paper plots them:

        m ← β m + (1 − β) g,   s ← β s + (1 − β) g²,   variance = Σ_parameters (s − m²),

    m and s being corrected by 1 / (1 − β^t).

    It mixes noise with the drift of the mean gradient, so compare it only at equal decay; ``probe_variance`` does not.
    """

    def __init__(self, decay: float = 0.9):
        if not 0 <= decay < 1:
            raise InputError(f"the decay of the running variance must be in [0, 1), not {decay}")
        self.decay = decay
        self.count = 0
        self.mean: Tensor | None = None
        self.square: Tensor | None = None

    def add(self, gradient: Float[Tensor, " parameter"]) -> float:
        """Take in one gradient; return the variance so far (0 after the first)."""
        if self.mean is None or self.square is None:
            self.mean, self.square = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self.mean.lerp_(gradient, 1 - self.decay)
        self.square.lerp_(gradient**2, 1 - self.decay)
        self.count += 1
        correction = 1 - self.decay**self.count
        return float((self.square / correction - (self.mean / correction) ** 2).sum().clamp(min=0))


class Moments:
    """The mean and the variance of gradients, by Welford's algorithm: no difference of large numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor = torch.zeros(())
        self.squares = 0.0

    def add(self, gradient: Float[Tensor, " parameter"]) -> float:
        """Take in one gradient; return how much the sum of squared distances grew."""
        gradient = gradient.double()
        self.count += 1
        delta = gradient - self.mean
        self.mean = self.mean + delta / self.count
        grown = float((delta * (gradient - self.mean)).sum())
        self.squares += grown
        return grown

    @property
    def variance(self) -> float:
        """The sum over parameters of the unbiased sample variance."""
        return self.squares / (self.count - 1) if self.count > 1 else math.nan


@dataclass(frozen=True)
class Probe:
    """Independent gradient estimates at fixed parameters, summed up.

    ``variance`` is the trace of their covariance (the sum over parameters of the unbiased sample variance), with its
    standard error; costs and seconds are for one estimate. ``squares`` are the squared norms of the estimates: two
    estimators without bias that are probed with the same noise can be compared pair by pair.
    """

    estimates: int
    variance: float
    variance_error: float
    squared_norm: float  # of the mean gradient, with the noise of the mean taken out: may be slightly negative
    mean_reward: float
    rollouts_per_step: float
    tokens: float
    reward_calls: float
    seconds: float
    squares: tuple[float, ...]


def flat_gradient(parameters: Iterable[nn.Parameter]) -> Float[Tensor, " parameter"]:
    """The gradients of all parameters as one vector; a parameter without gradient counts with zeros."""
    parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    return torch.cat(parts) if parts else torch.zeros(0)


@contextmanager
def gradient_source(engine: Engine, batch: Batch, reward: Reward | RewardFunction) -> Generator[Draw, None, None]:
    """Inside, gradient estimates are drawn for a batch; afterwards the parameters have their own gradients back."""
    policy = engine.policy
    if not isinstance(policy, nn.Module):
        raise InputError("the variance of a gradient needs a policy with parameters: an nn.Module")
    parameters = [p for p in policy.parameters() if p.requires_grad]
    kept = [p.grad for p in parameters]

    def draw(estimator: Estimator | str, noise: Noise) -> tuple[Estimate, Tensor]:
        for p in parameters:
            p.grad = None
        sample = estimate(engine, batch, reward, estimator, noise)
        sample.backward()
        return sample, flat_gradient(parameters)

    try:
        yield draw
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad


def probe_variance(
    engine: Engine,
    batch: Batch,
    reward: Reward | RewardFunction,
    estimator: Estimator | str,
    count: int,
    noise: Noise,
    on_estimate: Callable[[], None] | None = None,
) -> Probe:
    """Draw ``count`` independent gradient estimates for the same batch at the same parameters.

    The parameters' own gradients are left as they were. ``on_estimate`` is called after each estimate.
    """
    if count < 2:
        raise InputError(f"a variance needs at least 2 estimates, not {count}")
    moments = Moments()
    norms: list[float] = []
    distances: list[float] = []  # squared distance to the running mean: for the error of the variance
    cost, total_reward, start = Cost(), 0.0, time.perf_counter()
    with gradient_source(engine, batch, reward) as draw:
        for i in range(count):
            sample, gradient = draw(estimator, noise.fold(i))
            norms.append(float((gradient.double() ** 2).sum()))
            distances.append(moments.add(gradient))
            cost, total_reward = cost + sample.cost, total_reward + sample.mean_reward
            if on_estimate is not None:
                on_estimate()
    seconds = (time.perf_counter() - start) / count
    spread = torch.tensor(distances[1:]).std().item() if count > 2 else math.nan
    return Probe(
        estimates=count,
        variance=moments.variance,
        variance_error=spread / math.sqrt(count - 1),
        squared_norm=float((moments.mean**2).sum()) - moments.variance / count,
        mean_reward=total_reward / count,
        rollouts_per_step=cost.rollouts / max(cost.main_tokens, 1),
        tokens=cost.tokens / count,
        reward_calls=cost.reward_calls / count,
        seconds=seconds,
        squares=tuple(norms),
    )
