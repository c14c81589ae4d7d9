"""The rollout budget: probabilities that add up to it, and samples of exactly as many branches."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from corollout.estimators.budget import keep_probabilities, systematic_sample

SIZES = st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1e12)), min_size=1, max_size=40)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Probabilities


def test_probabilities_are_proportional_to_the_sizes():
    s = keep_probabilities(vector(1.0, 2.0, 3.0, 4.0), 2)
    torch.testing.assert_close(s, vector(0.2, 0.4, 0.6, 0.8))


def test_large_branches_are_certain_and_the_others_share_the_rest():
    # Of 3, the sizes 10 and 5 take one each; one is left for 1 + 1 + 2.
    s = keep_probabilities(vector(1.0, 10.0, 1.0, 5.0, 2.0), 3)
    torch.testing.assert_close(s, vector(0.25, 1.0, 0.25, 1.0, 0.5))


def test_branches_of_size_zero_are_as_likely_as_the_smallest():
    s = keep_probabilities(vector(0.0, 2.0, 4.0, 0.0), 2)
    torch.testing.assert_close(s, vector(0.4, 0.4, 0.8, 0.4))
    torch.testing.assert_close(keep_probabilities(vector(0.0, 0.0, 0.0, 0.0), 1), torch.full((4,), 0.25).double())


def test_a_sufficient_budget_keeps_everything():
    for count in (4, 5, 1000):
        assert keep_probabilities(vector(0.0, 1.0, 1e6, 2.0), count).tolist() == [1.0] * 4
        assert keep_probabilities(vector(), count).tolist() == []


def test_float32_sizes_give_exact_probabilities():
    s = keep_probabilities(torch.rand(1000, generator=torch.Generator().manual_seed(0)), 137)
    assert s.dtype == torch.float64
    assert abs(float(s.sum()) - 137) < 1e-9


@settings(deadline=None, max_examples=200)
@given(SIZES, st.integers(1, 45))
@example([1.0, 1.0, 1.0], 2)
@example([1e12, 1.0, 1.0], 2)
@example([1e12, 1e12, 1e-12], 2)
def test_probabilities_for_any_sizes(sizes: list[float], count: int):
    s = keep_probabilities(vector(*sizes), count)
    assert bool((s > 0).all())
    assert bool((s <= 1).all())
    assert abs(float(s.sum()) - min(count, len(sizes))) < 1e-6
    positive = [size for size in sizes if size > 0]
    effective = vector(*(size if size > 0 else min(positive, default=1.0) for size in sizes))
    ratio = s / effective
    below = s < 1
    if bool(below.any()):
        # One constant below the cap; capped branches would have reached it.
        torch.testing.assert_close(ratio[below], ratio[below][:1].expand(int(below.sum())), rtol=1e-6, atol=0)
        assert bool((effective[~below] * ratio[below][0] >= 1 - 1e-6).all())


# Samples


def starts(count: int) -> list[float]:
    """Midpoints of a fine grid on (0, 1), and both ends."""
    return [1e-17, *((i + 0.5) / count for i in range(count)), 1 - 2.0**-53]


@pytest.mark.parametrize(("branches", "count"), [(2, 1), (5, 1), (5, 4), (30, 7), (30, 29), (200, 50)])
def test_every_start_keeps_exactly_the_budget(branches: int, count: int):
    sizes = torch.rand(branches, generator=torch.Generator().manual_seed(branches + count)).double() ** 3
    s = keep_probabilities(sizes, count)
    for start in starts(200):
        kept = systematic_sample(s, number(start))
        assert len(kept) == count
        assert bool((kept.diff() > 0).all())
        assert bool(((kept >= 0) & (kept < branches)).all())


@pytest.mark.parametrize("certain", [0, 2])
def test_inclusion_frequencies_are_the_probabilities(certain: int):
    """With probabilities that are multiples of 1/1000 a grid of 1000 starts gives them exactly."""
    thousandths = torch.tensor([125, 250, 375, 1, 999, 250, 500, 500] + [1000] * certain)
    order = torch.randperm(len(thousandths), generator=torch.Generator().manual_seed(certain))
    s = thousandths[order].double() / 1000
    counts = torch.zeros(len(s), dtype=torch.int64)
    for i in range(1000):
        counts[systematic_sample(s, number((i + 0.5) / 1000))] += 1
    assert counts.tolist() == thousandths[order].tolist()


def test_none_and_all_can_be_kept():
    assert systematic_sample(vector(), number(0.3)).tolist() == []
    assert systematic_sample(vector(1.0, 1.0, 1.0), number(0.3)).tolist() == [0, 1, 2]


@settings(deadline=None, max_examples=200)
@given(SIZES, st.integers(1, 45), st.floats(0, 1, exclude_min=True, exclude_max=True))
@example([1.0] * 10, 9, 1 - 2.0**-53)
@example([0.1] * 10, 3, 1e-300)
@example([1e12] * 20 + [1e-12] * 20, 20, 0.5)
@example([1e12] * 20 + [1e-12] * 20, 21, 1 - 2.0**-53)
def test_samples_for_any_sizes(sizes: list[float], count: int, start: float):
    kept = systematic_sample(keep_probabilities(vector(*sizes), count), number(start)).tolist()
    assert len(kept) == min(count, len(sizes))
    assert kept == sorted(set(kept))
    assert set(kept) <= set(range(len(sizes)))
