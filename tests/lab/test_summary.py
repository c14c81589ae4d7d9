"""Intervals and ratios, on numbers that were made up."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.lab import summarise
from corollout.lab.measurement import BLOCKS, Measurement, Reference
from corollout.lab.summary import COSTS, Interval, reference_error, squared_bias, squared_norm

DIMENSION = 60
TRUTH = np.ones(DIMENSION) / np.sqrt(DIMENSION)


def blocks(seed: int, noise: float = 0.3) -> np.ndarray:
    return TRUTH + noise * np.random.default_rng(seed).normal(size=(BLOCKS, DIMENSION)) / np.sqrt(DIMENSION)


def reference(noise: float = 0.3) -> Reference:
    return Reference(torch.tensor(blocks(0, noise), dtype=torch.float32), "rloo-8", 64)


def made(name: str, variance: float, tokens: int, seed: int = 1, calls: int = 8, seconds: float = 0.1) -> Measurement:
    draw = np.random.default_rng(seed)
    difference = blocks(seed) - reference().blocks.double().numpy()
    return Measurement(
        estimator=name,
        estimates=40,
        distances=(variance * draw.gamma(4.0, 0.25, 39)).tolist(),
        cosines=draw.uniform(0.5, 0.7, 40).tolist(),
        tokens=(tokens + draw.integers(-3, 4, 40)).tolist(),
        reward_calls=[calls] * 40,
        seconds=(seconds * np.array([1.0, 1.1, 0.9, 5.0, 1.0])).tolist(),  # the machine was slow in the fourth round
        bias_blocks=(difference @ difference.T).tolist(),
        mean_reward=0.5,
        rollouts_per_step=0.0,
        biased_by_design=False,
        definition=name,
    )


def test_a_row_has_means_and_ratios():
    base, other = made("rloo-8", 2.0, 1000), made("set-8", 1.0, 500, seed=2, calls=16, seconds=0.2)
    first, second = summarise([base, other], reference())
    assert first.variance.value == pytest.approx(np.mean(base.distances))
    assert second.costs["tokens"].value == pytest.approx(np.mean(other.tokens))
    assert second.costs["seconds"].value == pytest.approx(0.2)  # the median
    assert first.costs["calls"] == Interval(8.0, 8.0, 8.0)
    for cost in COSTS:
        assert first.ratio[cost] == Interval(1.0, 1.0, 1.0)
        assert second.variance_cost[cost].value == pytest.approx(second.variance.value * second.costs[cost].value)
        ratio = second.ratio[cost]
        assert ratio is not None
        assert ratio.value == pytest.approx(second.variance_cost[cost].value / first.variance_cost[cost].value)
    for row in (first, second):
        tables = (row.costs, row.variance_cost, row.ratio)
        for interval in (row.variance, row.cosine, *(entry for table in tables for entry in table.values())):
            assert interval is not None
            assert interval.low <= interval.value <= interval.high
        assert row.variance.low < row.variance.value < row.variance.high
        assert row.is_unbiased
    # Seconds are compared round by round: what slows both down is not seen.
    assert second.ratio["seconds"] == pytest.approx(second.ratio["calls"])
    assert summarise([base, other], reference(), "set-8")[0].ratio["tokens"] != Interval(1.0, 1.0, 1.0)
    assert summarise([base, other], reference()) == [first, second]
    with pytest.raises(InputError, match="the base 'sc' is not among the estimators: rloo-8"):
        summarise([base, other], reference(), "sc")


def test_intervals_by_bootstrap_cover_what_they_should():
    """Twice the variance at half the cost, many times over: the ratio of 1 is covered in about 95 of 100 cases."""
    hits = []
    for seed in range(0, 80, 2):
        ratio = summarise([made("a", 2.0, 500, seed), made("b", 1.0, 1000, seed + 1)], reference())[1].ratio["tokens"]
        assert ratio is not None
        hits.append(ratio.low <= 1 <= ratio.high)
    assert 0.83 <= np.mean(hits) <= 1.0


def test_the_interval_of_the_bias_is_cautious_without_bias_and_right_with_one():
    false, hits = [], []
    for seed in range(1, 301):
        truth = blocks(seed)
        for bias, found in ((0.0, false), (0.5, hits)):
            difference = blocks(1000 + seed) + bias * TRUTH - truth
            interval = squared_bias(difference @ difference.T, truth @ truth.T)
            assert interval is not None
            found.append(interval.low > 0 if bias == 0 else interval.low <= bias**2 <= interval.high)
    assert np.mean(false) < 0.05
    assert np.mean(hits) > 0.9


def test_biased_estimators_are_marked():
    own = made("grpo-8", 1.0, 100)
    far = blocks(1) + TRUTH - reference().blocks.double().numpy()
    (row,) = summarise([replace(own, bias_blocks=(far @ far.T).tolist())], reference())
    assert (row.biased, row.is_unbiased) == (True, False)
    assert row.bias is not None
    assert row.bias.value == pytest.approx(1.0, abs=0.2)
    (row,) = summarise([replace(own, biased_by_design=True)], reference())
    assert (row.biased, row.is_unbiased) == (False, False)


def test_what_is_not_known_is_none():
    still = replace(made("rloo-8", 1.0, 100), distances=[0.0] * 39)
    first, second = summarise([still, made("set-8", 1.0, 100)], reference())
    assert second.ratio == dict.fromkeys(COSTS)
    assert first.variance == Interval(0.0, 0.0, 0.0)
    # Almost always the same: in many resamples the base would not vary at all.
    rare = replace(still, distances=[1.0] + [0.0] * 38)
    assert summarise([rare, made("set-8", 1.0, 100)], reference())[1].ratio["tokens"] is None
    # The gradient is lost in noise.
    (row,) = summarise([replace(made("rloo-8", 1.0, 100), cosines=[])], reference(noise=30.0))
    assert (row.bias, row.cosine, row.biased) == (None, None, False)


def test_the_reference_is_judged_too():
    norm = squared_norm(reference())
    assert norm.low < 1 < norm.high
    assert reference_error(reference()) == pytest.approx(0.3**2 / BLOCKS, rel=0.3)
    lost = Reference(torch.eye(BLOCKS) - 1 / BLOCKS, "noise", 8)
    assert lost.squared_norm < 0
    assert reference_error(lost) is None
