"""Measurements in a few numbers, each with a 95 % interval.

Intervals of means and ratios are by bootstrap: estimates are resampled 2000 times, those of two estimators
independently of each other, and rounds of timing jointly for all estimators. The interval of the squared bias is by the
jackknife over blocks. For an unbiased estimator it covers zero in more than 95 of 100 cases, because the jackknife
overestimates the noise of products by a factor of about √2.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from corollout.errors import InputError
from corollout.lab.measurement import BatchVariance, Measurement, Products, Reference, between_blocks
from corollout.lab.settings import BLOCKS

CostName = Literal["tokens", "calls", "seconds"]
COSTS: tuple[CostName, ...] = ("tokens", "calls", "seconds")
Values = Float[np.ndarray, " value"]

_RESAMPLES = 2000
_T = 2.364624  # Student's t of a 95 % interval with BLOCKS − 1 degrees of freedom
_ROUNDS_SEED, _BATCHES_SEED = 1 << 20, 1 << 21  # larger than the number of any estimator


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Row:
    """An estimator in numbers. None: unknown, because the number to divide by is zero or too noisy."""

    estimator: str
    estimates: int
    variance: Interval  # trace of the covariance
    bias: Interval | None  # squared, over the squared norm of the true gradient
    biased: bool  # that interval lies above zero
    biased_by_design: bool
    cosine: Interval | None  # of an estimate to the true gradient
    costs: dict[CostName, Interval]  # of an estimate
    variance_cost: dict[CostName, Interval]  # variance × cost
    ratio: dict[CostName, Interval | None]  # variance × cost over that of the base
    training_ratio: dict[CostName, Interval | None]  # the same with new contexts each time; empty without other batches
    mean_reward: float
    rollouts_per_step: float

    @property
    def is_unbiased(self) -> bool:
        """Neither measured to be biased nor biased by design."""
        return not self.biased and not self.biased_by_design

    def to_json(self) -> dict[str, Any]:
        """The row under the names that reports have."""
        return {_KEYS.get(name, name): value for name, value in asdict(self).items()}


_KEYS = {"variance_cost": "products", "ratio": "relative", "training_ratio": "training"}


def summarise(
    measurements: Sequence[Measurement],
    reference: Reference,
    base: str | None = None,
    batch_variance: BatchVariance | None = None,
) -> list[Row]:
    """A row for each measurement, in their order; the base is the first by default."""
    names = [measurement.estimator for measurement in measurements]
    if base is not None and base not in names:
        raise InputError(f"the base {base!r} is not among the estimators: {', '.join(names)}")
    resampled = [_Resampled(measurement, number) for number, measurement in enumerate(measurements)]
    of_base = resampled[0 if base is None else names.index(base)]
    between = None
    if batch_variance is not None:
        distances = np.array(batch_variance.distances)
        samples = distances[_choices(_BATCHES_SEED, len(distances))].mean(1) - batch_variance.within
        between = _Mean(batch_variance.between, np.maximum(samples, 0.0))
    rows = []
    for each in resampled:
        own = each.measurement
        bias = squared_bias(np.array(own.bias_blocks), reference.products)
        row = Row(
            estimator=own.estimator,
            estimates=own.estimates,
            variance=each.variance.interval(),
            bias=bias,
            biased=bias is not None and bias.low > 0,
            biased_by_design=own.biased_by_design,
            cosine=None if each.cosine is None else each.cosine.interval(),
            costs={cost: each.costs[cost].interval() for cost in COSTS},
            variance_cost={cost: (each.variance * each.costs[cost]).interval() for cost in COSTS},
            ratio={cost: _ratio(each, of_base, cost) for cost in COSTS},
            training_ratio={} if between is None else {cost: _ratio(each, of_base, cost, between) for cost in COSTS},
            mean_reward=own.mean_reward,
            rollouts_per_step=own.rollouts_per_step,
        )
        rows.append(row)
    return rows


def squared_norm(reference: Reference) -> Interval:
    """‖g‖² of the true gradient, with an interval by the jackknife."""
    return _jackknifed(reference.squared_norm, [between_blocks(part) for part in _leave_one_out(reference.products)])


def reference_error(reference: Reference) -> float | None:
    """The expected squared error of the reference's mean over ‖g‖²; None if that is not above zero."""
    norm = reference.squared_norm
    return (float(np.trace(reference.products)) / BLOCKS - norm) / BLOCKS / norm if norm > 0 else None


def squared_bias(bias_blocks: Products, products: Products) -> Interval | None:
    """‖bias‖² / ‖g‖², both from products of different blocks; None if ‖g‖² is not above zero in all jackknife samples.

    The jackknife leaves out one block of the estimator and of the reference at a time.
    """
    norms = [between_blocks(part) for part in _leave_one_out(products)]
    if min(norms) <= 0 or between_blocks(products) <= 0:
        return None
    without = [between_blocks(part) / norm for part, norm in zip(_leave_one_out(bias_blocks), norms, strict=True)]
    interval = _jackknifed(between_blocks(bias_blocks) / between_blocks(products), without)
    return replace(interval, high=max(interval.high, 0.0))  # a square is not below zero


def _jackknifed(value: float, without: Sequence[float]) -> Interval:
    count = len(without)
    error = float(np.sqrt((count - 1) / count * np.square(np.array(without) - np.mean(without)).sum()))
    return Interval(value, value - _T * error, value + _T * error)


def _leave_one_out(products: Products) -> list[np.ndarray]:
    """The products without each block in turn."""
    return [np.delete(np.delete(products, block, 0), block, 1) for block in range(len(products))]


@dataclass(frozen=True)
class _Mean:
    """A mean, and its values in bootstrap samples."""

    value: float
    samples: Values

    def __add__(self, other: "_Mean") -> "_Mean":
        return _Mean(self.value + other.value, self.samples + other.samples)

    def __mul__(self, other: "_Mean") -> "_Mean":
        return _Mean(self.value * other.value, self.samples * other.samples)

    def __truediv__(self, other: "_Mean") -> "_Mean":
        return _Mean(self.value / other.value, self.samples / other.samples)

    def interval(self) -> Interval:
        low, high = np.percentile(self.samples, (2.5, 97.5))
        return Interval(self.value, float(low), float(high))


class _Resampled:
    """A measurement, and its means in bootstrap samples."""

    def __init__(self, measurement: Measurement, seed: int):
        count = measurement.estimates
        times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
        later = times[:, 1:]  # the first estimate has no distance

        def mean(values: Sequence[float | int]) -> _Mean:
            return _Mean(float(np.mean(values)), times @ np.array(values) / count)

        distances = np.array(measurement.distances)
        self.measurement = measurement
        self.variance = _Mean(float(np.mean(distances)), later @ distances / np.maximum(later.sum(1), 1))
        self.cosine = mean(measurement.cosines) if measurement.cosines else None
        self.costs: dict[CostName, _Mean] = {
            "tokens": mean(measurement.tokens),
            "calls": mean(measurement.reward_calls),
            "seconds": _median(np.array(measurement.seconds)),
        }


def _median(rounds: Values) -> _Mean:
    """The median of seconds, because other work of the machine does not move it; resampled rounds are the same ones
    for all estimators."""
    return _Mean(float(np.median(rounds)), np.median(rounds[_choices(_ROUNDS_SEED, len(rounds))], 1))


def _choices(seed: int, count: int) -> np.ndarray:
    """Which of some values are in each bootstrap sample."""
    return np.random.default_rng(seed).integers(0, count, (_RESAMPLES, count))


_NONE = _Mean(0.0, np.zeros(_RESAMPLES))


def _ratio(own: _Resampled, base: _Resampled, cost: CostName, common: _Mean = _NONE) -> Interval | None:
    """Variance × cost over that of the base, both with a common variance added; None if the base's is zero, as
    measured or in a bootstrap sample."""
    base_variance = base.variance + common
    if base.costs[cost].value == 0 or base_variance.value == 0:
        return None
    if own is base:
        return Interval(1.0, 1.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if cost == "seconds":
            # Round by round: a slow minute is in both.
            pairs = np.array(list(zip(own.measurement.seconds, base.measurement.seconds, strict=False)))
            costs = _median(pairs[:, 0] / pairs[:, 1])
        else:
            costs = own.costs[cost] / base.costs[cost]
        ratio = (own.variance + common) / base_variance * costs
    return ratio.interval() if np.isfinite(ratio.samples).all() else None
