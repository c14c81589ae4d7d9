"""Measurements in a few numbers, each with a 95 % interval.

Intervals of means and of ratios are by bootstrap: estimates are drawn again, 2000 times, those of two estimators
independently of each other, and rounds of timing for all estimators together. The interval of the squared bias is by
the jackknife over blocks. Of an estimator without bias it covers zero more often than in 95 of 100 cases: the jackknife
overrates the noise of products by a factor of about √2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from corollout.errors import InputError
from corollout.lab.measure import BLOCKS, Measurement, Reference, between_blocks
from corollout.lab.spread import Spread

Kind = Literal["tokens", "calls", "seconds"]
KINDS: tuple[Kind, ...] = ("tokens", "calls", "seconds")

_RESAMPLES = 2000
_T = 2.364624  # of a 95 % interval with BLOCKS − 1 degrees of freedom
_ROUNDS_SEED, _SPREAD_SEED = 1 << 20, 1 << 21  # no estimator has these numbers


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def meets(self, other: "Interval") -> bool:
        """Whether two intervals have something in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Row:
    """An estimator in numbers. None: not known, because something to divide by was zero, or too noisy."""

    estimator: str
    estimates: int
    variance: Interval  # trace of the covariance
    bias: Interval | None  # squared, over the squared norm of the true gradient
    biased: bool  # that interval lies above zero
    biased_by_design: bool
    cosine: Interval | None  # of an estimate to the true gradient
    costs: dict[Kind, Interval]  # of an estimate
    products: dict[Kind, Interval]  # variance × cost
    relative: dict[Kind, Interval | None]  # the same over that of the base
    training: dict[Kind, Interval | None]  # the same with contexts drawn anew; nothing if there were no other batches
    mean_reward: float
    rollouts_per_step: float

    @property
    def sound(self) -> bool:
        """Neither seen to be biased nor known to be."""
        return not self.biased and not self.biased_by_design


def summarise(
    measurements: Sequence[Measurement], reference: Reference, base: str | None = None, spread: Spread | None = None
) -> list[Row]:
    """A row for each measurement, in their order; the base is the first, unless another is named."""
    names = [one.estimator for one in measurements]
    if base is not None and base not in names:
        raise InputError(f"the base {base!r} is not among the estimators: {', '.join(names)}")
    drawn = [_Drawn.of(one, number) for number, one in enumerate(measurements)]
    first = names.index(base) if base is not None else 0
    between = None if spread is None else _Between.of(spread)
    return [_row(one, drawn[first], reference, between) for one in drawn]


def squared_norm(reference: Reference) -> Interval:
    """Of the true gradient, with an interval by the jackknife."""
    return _jackknifed(reference.squared_norm, [between_blocks(_without(reference.products, j)) for j in range(BLOCKS)])


def reference_error(reference: Reference) -> float | None:
    """The expected squared error of the reference's mean over the squared norm of the gradient, if that is known."""
    norm = reference.squared_norm
    return (float(np.trace(reference.products)) / BLOCKS - norm) / BLOCKS / norm if norm > 0 else None


def squared_bias(
    bias_blocks: Float[np.ndarray, "block block"], products: Float[np.ndarray, "block block"]
) -> Interval | None:
    """‖bias‖² / ‖g‖², both from products of different blocks; None where ‖g‖² is not above zero, whatever is left out.

    The jackknife leaves out a block of the estimator and of the reference at a time.
    """
    parts = [(_without(bias_blocks, j), _without(products, j)) for j in range(len(products))]
    norms = [between_blocks(norm) for _, norm in parts]
    if min(norms) <= 0 or between_blocks(products) <= 0:
        return None
    without = [between_blocks(bias) / norm for (bias, _), norm in zip(parts, norms, strict=True)]
    found = _jackknifed(between_blocks(bias_blocks) / between_blocks(products), without)
    return replace(found, high=max(found.high, 0.0))  # no square is below zero


def _jackknifed(value: float, without: Sequence[float]) -> Interval:
    count = len(without)
    error = float(np.sqrt((count - 1) / count * np.square(np.array(without) - np.mean(without)).sum()))
    return Interval(value, value - _T * error, value + _T * error)


def _without(products: np.ndarray, block: int) -> np.ndarray:
    return np.delete(np.delete(products, block, 0), block, 1)


@dataclass(frozen=True)
class _Drawn:
    """A measurement, and what its means would have been in samples that are drawn from it anew."""

    own: Measurement
    variance: np.ndarray
    cosine: np.ndarray | None
    costs: dict[Kind, np.ndarray]

    @classmethod
    def of(cls, own: Measurement, number: int) -> "_Drawn":
        count = own.estimates
        generator = np.random.default_rng(number)
        times = generator.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)  # each estimate is drawn
        later = times[:, 1:]  # the first has no distance
        return cls(
            own,
            variance=later @ np.array(own.distances) / np.maximum(later.sum(1), 1),
            cosine=times @ np.array(own.cosines) / count if own.cosines else None,
            costs={
                "tokens": times @ np.array(own.tokens) / count,
                "calls": times @ np.array(own.reward_calls) / count,
                "seconds": _medians(np.array(own.seconds)),
            },
        )

    def mean(self, kind: Kind) -> float:
        """Cost of an estimate; of seconds the median, which a machine's moments of other work do not move."""
        if kind == "seconds":
            return float(np.median(self.own.seconds))
        return float(np.mean(self.own.tokens if kind == "tokens" else self.own.reward_calls))

    @property
    def mean_variance(self) -> float:
        return float(np.mean(self.own.distances))


@dataclass(frozen=True)
class _Between:
    """A variance that all estimators have in common, and what it would have been in other samples."""

    value: float
    drawn: np.ndarray

    @classmethod
    def of(cls, spread: Spread) -> "_Between":
        distances = np.array(spread.distances)
        chosen = np.random.default_rng(_SPREAD_SEED).integers(0, len(distances), (_RESAMPLES, len(distances)))
        return cls(spread.between, np.maximum(distances[chosen].mean(1) - spread.within, 0.0))


_NOTHING = _Between(0.0, np.zeros(_RESAMPLES))


def _medians(rounds: Float[np.ndarray, " round"]) -> Float[np.ndarray, " resample"]:
    """In resamples of the rounds, the same ones for all estimators."""
    chosen = np.random.default_rng(_ROUNDS_SEED).integers(0, len(rounds), (_RESAMPLES, len(rounds)))
    return np.median(rounds[chosen], 1)


def _row(drawn: _Drawn, base: _Drawn, reference: Reference, between: _Between | None) -> Row:
    own = drawn.own
    bias = squared_bias(np.array(own.bias_blocks), reference.products)
    variance = drawn.mean_variance
    costs: dict[Kind, Interval] = {kind: _interval(drawn.mean(kind), drawn.costs[kind]) for kind in KINDS}
    products: dict[Kind, Interval] = {
        kind: _interval(variance * drawn.mean(kind), drawn.variance * drawn.costs[kind]) for kind in KINDS
    }
    return Row(
        estimator=own.estimator,
        estimates=own.estimates,
        variance=_interval(variance, drawn.variance),
        bias=bias,
        biased=bias is not None and bias.low > 0,
        biased_by_design=own.biased_by_design,
        cosine=None if drawn.cosine is None else _interval(float(np.mean(own.cosines)), drawn.cosine),
        costs=costs,
        products=products,
        relative={kind: _relative(drawn, base, kind, _NOTHING) for kind in KINDS},
        training={} if between is None else {kind: _relative(drawn, base, kind, between) for kind in KINDS},
        mean_reward=own.mean_reward,
        rollouts_per_step=own.rollouts_per_step,
    )


def _relative(drawn: _Drawn, base: _Drawn, kind: Kind, between: _Between) -> Interval | None:
    """Variance × cost over that of the base, both with the variance that they have in common; None if the base's is
    zero, in the sample or in a resample."""
    if kind == "seconds":
        # Round by round: a slow minute is in both.
        both = min(len(drawn.own.seconds), len(base.own.seconds))
        ratios = np.array(drawn.own.seconds[:both]) / np.array(base.own.seconds[:both])
        cost, costs = float(np.median(ratios)), _medians(ratios)
    else:
        if base.mean(kind) == 0:
            return None
        cost, costs = drawn.mean(kind) / base.mean(kind), drawn.costs[kind] / base.costs[kind]
    whole = base.mean_variance + between.value
    if whole == 0:
        return None
    if drawn is base:
        return Interval(1.0, 1.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        samples = (drawn.variance + between.drawn) / (base.variance + between.drawn) * costs
    if not np.isfinite(samples).all():
        return None
    return _interval((drawn.mean_variance + between.value) / whole * cost, samples)


def _interval(value: float, samples: Float[np.ndarray, " resample"]) -> Interval:
    low, high = np.percentile(samples, (2.5, 97.5))
    return Interval(value, float(low), float(high))
