"""The rollout budget: probabilities that add up to it, and samples of exactly as many branches."""

import tracemalloc
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from corollout.estimators import budget
from corollout.estimators.budget import choose, keep_probabilities, systematic_sample
from tests.support.budget_reference import choices_agree

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


# Both at once, by compiled loops


def assert_same_choice(sizes: Tensor, count: int, start: float) -> int:
    """The number of certain branches, if the twin chooses the same branches with the same probabilities."""
    s = keep_probabilities(sizes, count)
    expected = systematic_sample(s, number(start))
    kept, probabilities = choose(sizes, count, number(start))
    assert kept.dtype == torch.int64
    assert kept.tolist() == expected.tolist()
    torch.testing.assert_close(probabilities, s[expected], rtol=1e-12, atol=0)
    return int((probabilities == 1).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("power", [0, 1, 4, 30])
@pytest.mark.parametrize(("branches", "count"), [(2, 1), (127, 5), (128, 127), (129, 40), (5000, 1), (5000, 300)])
def test_the_choice_is_that_of_the_two_functions(branches: int, count: int, power: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(branches + count)
    certain = 0
    for start in torch.rand(20, generator=generator, dtype=torch.float64).tolist():
        sizes = (0.01 + torch.rand(branches, generator=generator, dtype=torch.float64)) ** power
        certain = max(certain, assert_same_choice(sizes.to(dtype), count, start))
    if power == 30 and count > 1:
        assert certain > 0


def test_the_choice_with_the_largest_branches_anywhere():
    """In ascending and descending order and among equal ones, and so large that all the others are lost in a sum."""
    for sizes in (torch.arange(1.0, 2001.0), torch.arange(2000.0, 0.0, -1.0), torch.ones(2000)):
        for count in (1, 7, 1999):
            assert_same_choice(sizes, count, 0.37)
            assert_same_choice(sizes**5, count, 0.37)
    spread = torch.ones(3000, dtype=torch.float64)
    spread[[5, 128, 2999]] = vector(1e17, 1e16, 1e15)
    assert assert_same_choice(spread, 10, 0.37) == 3
    spread[2999] = 1e6
    assert assert_same_choice(spread, 3, 0.37) == 2


def test_a_plain_walk_chooses_the_same():
    assert choices_agree()
    with patch.object(budget, "_CERTAIN", 1.5):  # the comparison can fail
        assert not choices_agree()


def test_sizes_of_zero_are_chosen_as_by_the_two_functions():
    sizes = torch.rand(500, generator=torch.Generator().manual_seed(0))
    sizes[::3] = 0
    assert_same_choice(sizes, 60, 0.2)
    assert_same_choice(torch.zeros(500), 60, 0.2)
    assert_same_choice(sizes, 600, 0.2)
    kept, probabilities = choose(vector(), 3, number(0.2))
    assert (kept.tolist(), probabilities.tolist()) == ([], [])


@settings(deadline=None, max_examples=200)
@given(SIZES, st.integers(1, 45), st.floats(0, 1, exclude_min=True, exclude_max=True))
@example([1.0] * 10, 9, 1 - 2.0**-53)
@example([1e12] * 20 + [1e-12] * 20, 21, 1 - 2.0**-53)
@example([0.1] * 10, 3, 1 - 2.0**-53)
def test_choices_for_any_sizes(sizes: list[float], count: int, start: float):
    kept, probabilities = choose(vector(*sizes), count, number(start))
    assert len(kept) == len(probabilities) == min(count, len(sizes))
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert set(kept.tolist()) <= set(range(len(sizes)))
    torch.testing.assert_close(probabilities, keep_probabilities(vector(*sizes), count)[kept], rtol=1e-8, atol=0)


def test_ticks_that_rounding_leaves_over_go_to_the_last_branches():
    """As if the sum of the probabilities were much less than it should be."""
    sizes = torch.ones(5, dtype=torch.float64).numpy()
    for hits, expected in [(1, [0, 4]), (2, [0, 3, 4]), (4, [0, 1, 2, 3, 4])]:
        kept, s = budget._sample(sizes, 0.2, hits + 1, 0.1, hits + 1)
        assert kept.tolist() == expected
        assert s.tolist() == [0.2] * len(expected)


def test_the_choice_writes_no_list_of_all_branches():
    """A list of all probabilities would have 24 MB."""
    sizes = torch.rand(3_000_000, generator=torch.Generator().manual_seed(0))
    choose(sizes[:1000], 10, number(0.5))
    tracemalloc.start()
    try:
        kept, _ = choose(sizes, 1000, number(0.5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == 1000
    assert peak < 1_000_000
