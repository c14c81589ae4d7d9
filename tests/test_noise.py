"""Noise: two implementations of the same numbers, which depend only on their labels and have the right distributions.

The statistical tests use fixed seeds, so they always pass or always fail. With any other seed, correct noise would fail
one of them with probability below 1e-9.
"""

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corollout import noise as noise_module
from corollout.data import shuffled
from corollout.errors import InputError
from corollout.noise import (
    BRANCH,
    BUDGET,
    COPY,
    MAIN,
    ORDER,
    REDRAW,
    REFERENCES,
    Noise,
    bits,
    dirichlet,
    dirichlet_given,
    exponential,
    exponential_into,
    race,
    subsets,
    uniform,
)

WHOLE = st.integers(-(2**63), 2**63 - 1)
FLOATS = [torch.float32, torch.float64]


def keys_of(rows: int, seed: int = 0) -> Tensor:
    return Noise(seed).keys(torch.arange(rows), MAIN)


def zeros(rows: int) -> Tensor:
    return torch.zeros(rows, dtype=torch.int64)


def assert_chi_square(counts: Tensor, probabilities: Tensor, alarm: float = 1e-10) -> None:
    """Counts agree with probabilities: P(χ²_k > k + 2√(kx) + 2x) ≤ exp(−x) (Laurent and Massart 2000)."""
    expected = counts.sum() * probabilities.double()
    assert float(expected.min()) > 100  # so that the statistic has a χ² distribution
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom, x = len(counts) - 1, -math.log(alarm)
    assert statistic < freedom + 2 * math.sqrt(freedom * x) + 2 * x


def assert_uncorrelated(x: Tensor, y: Tensor) -> None:
    """|r| √n is standard normal for independent numbers: beyond 6.8 with probability 1e-11."""
    r = torch.corrcoef(torch.stack([x.double().flatten(), y.double().flatten()]))[0, 1]
    assert abs(float(r)) * math.sqrt(x.numel()) < 6.8


# Two implementations of the same numbers


@settings(deadline=None)
@given(st.lists(st.tuples(WHOLE, WHOLE), min_size=1, max_size=20), st.integers(0, 40))
def test_compiled_bits_are_the_torch_bits(rows: list[tuple[int, int]], width: int):
    keys, steps = torch.tensor(rows).unbind(1)
    assert torch.equal(bits(keys, steps, width), noise_module._bits_torch(keys, steps, width))


def test_all_53_bits_are_random():
    drawn = bits(keys_of(1000), zeros(1000), 100)
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < 2**53
    frequency = torch.stack([(drawn >> bit & 1).double().mean() for bit in range(53)])
    # A standard error is 0.5/√n; any of the 53 is off by 6.8 of them with probability 6e-10.
    assert float((frequency - 0.5).abs().max()) < 6.8 * 0.5 / math.sqrt(drawn.numel())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("vocab", "scale"), [(1, 1.0), (2, 1.0), (7, 3.0), (300, 1.0), (300, 30.0)])
def test_the_compiled_race_is_the_torch_race(dtype: torch.dtype, vocab: int, scale: float):
    rows = 3000
    logits = scale * torch.randn(rows, vocab, dtype=dtype, generator=torch.Generator().manual_seed(vocab))
    keys, steps = keys_of(rows), torch.arange(rows) % 5
    compiled, twin = race(logits, keys, steps), noise_module._race_torch(logits, keys, steps)
    differ = (compiled != twin).nonzero().squeeze(1)
    arrivals = (exponential(keys, steps, vocab, torch.float64).log() - logits.double()).exp()
    gap = arrivals[differ, compiled[differ]] / arrivals[differ, twin[differ]]
    assert bool(((gap - 1).abs() < 1e-5).all())
    assert len(differ) <= (0 if dtype == torch.float64 else 3)


def test_the_race_is_the_argmin_of_log_pi_minus_logits():
    logits = torch.randn(2000, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    keys, steps = keys_of(2000), zeros(2000)
    pi = dirichlet(keys, steps, 20, torch.float64)
    assert torch.equal(race(logits, keys, steps), (pi.log() - logits).argmin(1))
    half = logits.bfloat16()
    assert torch.equal(race(half, keys, steps), race(half.float(), keys, steps))


def test_a_number_is_the_same_label_as_a_column():
    example = torch.tensor([3, 1, 4])
    for label in (0, 1, -5, 2**40):
        column = torch.full_like(example, label)
        assert torch.equal(Noise(7).keys(example, label, MAIN), Noise(7).keys(example, column, MAIN))


# What the numbers depend on


def test_the_numbers_of_an_example_do_not_depend_on_the_batch():
    examples = torch.arange(64) * 17 - 40
    logits = torch.randn(64, 11, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))

    def draws(rows: Tensor) -> list[Tensor]:
        keys, steps = Noise(5).keys(examples[rows], MAIN, 2), torch.full_like(rows, 3)
        return [
            keys,
            bits(keys, steps, 11),
            dirichlet(keys, steps, 11),
            race(logits[rows], keys, steps),
            subsets(keys, steps, 11, 4),
            subsets(keys, steps, 200, 70),
        ]

    for rows in (order, order[:8], torch.tensor([63]), torch.tensor([5, 5, 9])):
        for part, whole in zip(draws(rows), draws(torch.arange(64)), strict=True):
            assert torch.equal(part, whole[rows])
    keys = keys_of(10)
    assert torch.equal(bits(keys, zeros(10), 5), bits(keys, zeros(10), 50)[:, :5])


def test_every_label_makes_a_difference():
    seeds, examples, streams = (0, 1, -1, 2**40), range(-2, 12), (MAIN, COPY, BRANCH, REFERENCES, BUDGET, ORDER)
    folds: list[tuple[int, ...]] = [(), (0,), (1,), (0, 0), (0, 1), (1, 0)]
    blocks = []
    for seed in seeds:
        for fold in folds:
            noise = Noise(seed).fold(*fold) if fold else Noise(seed)
            for stream in streams:
                keys = noise.keys(torch.tensor(list(examples)), stream)
                blocks += [bits(keys, torch.full_like(keys, step), 3) for step in range(3)]
    drawn = torch.stack(blocks)
    assert drawn.numel() == len(seeds) * len(folds) * len(examples) * len(streams) * 3 * 3
    # Two of 18144 random numbers of 53 bits coincide with probability 2e-8; with these seeds they do not.
    assert len(drawn.unique()) == drawn.numel()


def test_labels_are_ordered_and_children_do_not_share_keys_with_their_parent():
    noise, a, b, rows = Noise(3), torch.tensor([3]), torch.tensor([8]), torch.arange(50)
    pairs = [noise.keys(a, b), noise.keys(b, a), noise.keys(a), noise.keys(a, b, 0)]
    children = [noise.fold(i).keys(rows) for i in range(50)]
    parent = [noise.keys(rows, i) for i in range(60, 110)]
    keys = torch.cat([*pairs, *children, *parent, noise.keys(rows + 100)])
    assert len(keys.unique()) == len(keys)


def test_an_order_is_a_permutation_of_the_examples():
    ids = torch.arange(100) * 3
    order = shuffled(ids, Noise(1))
    assert torch.equal(order.sort().values, torch.arange(100))
    assert not torch.equal(order, torch.arange(100))
    backwards = ids.flip(0)
    assert torch.equal(backwards[shuffled(backwards, Noise(1))], ids[order])
    assert not torch.equal(shuffled(ids, Noise(2)), order)


# Seeds


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63, 2**64 - 1, 10**30, -(10**30)])
def test_any_whole_number_is_a_seed(seed: int):
    first, again, next_one = (Noise(s).keys(torch.arange(20)) for s in (seed, seed, seed + 1))
    assert torch.equal(first, again)
    assert not torch.isin(first, next_one).any()


@pytest.mark.parametrize("seed", [True, False, 1.0, "1", None])
def test_other_seeds_are_refused(seed: Any):
    make: Any = getattr(Noise.__init__, "__wrapped__", Noise.__init__)
    with pytest.raises(InputError, match=f"the seed must be a whole number, not {seed!r}"):
        make(Noise.__new__(Noise), seed)


# Extremes


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [0, 1, 2**52, 2**53 - 2, 2**53 - 1])
def test_extreme_bits_give_valid_numbers(dtype: torch.dtype, value: int, monkeypatch: pytest.MonkeyPatch):
    def constant(keys: Tensor, steps: Tensor, width: int) -> Tensor:
        return torch.full((len(keys), width), value)

    keys = keys_of(2)
    ordinary = exponential(keys, zeros(2), 3, dtype)
    monkeypatch.setattr(noise_module, "bits", constant)
    u = uniform(keys, zeros(2), 3, dtype)
    e = exponential(keys, zeros(2), 3, dtype)
    pi = dirichlet(keys, zeros(2), 3, dtype)
    assert u.dtype == e.dtype == pi.dtype == dtype
    assert bool(((u > 0) & (u < 1) & (e > 0) & e.isfinite()).all())
    torch.testing.assert_close(pi, torch.full_like(pi, 1 / 3))
    # Next to ordinary numbers, the smallest and the largest still give a valid π.
    mixed = torch.cat([e, ordinary], 1)
    pi = mixed / mixed.sum(1, keepdim=True)
    assert bool(((pi > 0) & pi.log().isfinite()).all())


def test_small_uniform_numbers_keep_their_precision(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(noise_module, "bits", lambda keys, steps, width: torch.arange(4).expand(len(keys), 4))
    for dtype in FLOATS:
        e = exponential(keys_of(1), zeros(1), 4, dtype)[0].double()
        torch.testing.assert_close(e, (torch.arange(4).double() + 0.5) * 2.0**-53, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 2, 9488])
def test_dirichlet_draws_sum_to_one(dtype: torch.dtype, width: int):
    pi = dirichlet(keys_of(20), zeros(20), width, dtype)
    assert bool((pi > 0).all())
    torch.testing.assert_close(pi.double().sum(1), torch.ones(20).double(), rtol=0, atol=1e-5)


def test_masked_actions_are_never_drawn():
    logits = torch.tensor([-torch.inf, -80.0, -torch.inf, -81.0, -torch.inf]).repeat(20_000, 1)
    for draw in (race, noise_module._race_torch):
        actions = draw(logits, keys_of(20_000), zeros(20_000))
        assert set(actions.tolist()) == {1, 3}


@pytest.mark.parametrize("dtype", FLOATS)
def test_logits_of_any_size_can_be_raced(dtype: torch.dtype):
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e30, -1e30, -torch.inf], [0.0, 3e38, -3e38]], dtype=dtype)
    actions = race(logits, keys_of(3), zeros(3)).tolist()
    assert actions[0] == 0
    assert actions[1] in (0, 1)
    assert actions[2] == 1


def test_an_empty_batch():
    assert bits(zeros(0), zeros(0), 3).shape == (0, 3)
    assert race(torch.zeros(0, 3), zeros(0), zeros(0)).shape == (0,)
    assert subsets(zeros(0), zeros(0), 5, 2).shape == (0, 2)


# Distributions


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_race_draws_from_the_softmax(dtype: torch.dtype):
    rows = 200_000
    logits = torch.tensor([0.3, -2.0, 1.5, 0.0, -0.7, -3.5], dtype=dtype)
    for keys, steps in ((keys_of(rows), zeros(rows)), (keys_of(1).expand(rows).contiguous(), torch.arange(rows))):
        actions = race(logits.expand(rows, -1), keys, steps)
        assert_chi_square(actions.bincount(minlength=6), logits.softmax(0), alarm=2e-10)


def test_successive_draws_of_a_row_are_independent():
    rows = 200_000
    logits = torch.tensor([0.5, 0.0, -0.5])
    first, second = (race(logits.expand(rows, -1), keys_of(rows), zeros(rows) + step) for step in (0, 1))
    p = logits.double().softmax(0)
    assert_chi_square((3 * first + second).bincount(minlength=9), (p[:, None] * p).flatten())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 17, 40_000])
def test_exponential_numbers_in_a_buffer_are_the_same(dtype: torch.dtype, width: int):
    out, steps = torch.empty(3, width, dtype=dtype), torch.tensor([0, 5, 2**40])
    exponential_into(out.numpy(), keys_of(3).numpy(), steps.numpy())
    assert torch.equal(out, exponential(keys_of(3), steps, width, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_numbers_are_exponential(dtype: torch.dtype):
    e = exponential(keys_of(1000), zeros(1000), 300, dtype).flatten().double().sort().values
    n = len(e)
    below = 1 - (-e).exp()
    rank = torch.arange(n).double()
    distance = max(float((below - rank / n).max()), float(((rank + 1) / n - below).max()))
    # Dvoretzky, Kiefer, Wolfowitz, Massart: P(distance > d) ≤ 2 exp(−2nd²).
    assert distance < math.sqrt(math.log(2 / 1e-10) / (2 * n))


def test_dirichlet_coordinates_have_their_distribution():
    pi = dirichlet(keys_of(200_000), zeros(200_000), 4, torch.float64)
    # P(π_i > x) = (1 − x)^3, so (1 − π_i)^3 is uniform.
    for i in range(4):
        tenth = ((1 - pi[:, i]) ** 3 * 10).long().clamp(max=9)
        assert_chi_square(tenth.bincount(minlength=10), torch.full((10,), 0.1), alarm=2e-11)


@pytest.mark.parametrize("masked", [False, True])
def test_dirichlet_draws_given_the_winner_are_dirichlet_draws_with_this_winner(masked: bool):
    """Together, the two determine the conditional distribution."""
    rows = 200_000
    logits = torch.tensor([0.3, -1.0, -torch.inf if masked else 1.5, 0.0], dtype=torch.float64).expand(rows, -1)
    winners = race(logits, keys_of(rows), zeros(rows))
    keys = Noise(0).keys(torch.arange(rows), REDRAW)
    pi = dirichlet_given(winners, logits, keys, zeros(rows))
    assert torch.equal((pi.log() - logits).argmin(1), winners)
    tenth = torch.full((10,), 0.1)
    for i in range(4):
        assert_chi_square(((1 - pi[:, i]) ** 3 * 10).long().bincount(minlength=10), tenth, alarm=2e-11)
        share = pi[:, i] / (pi[:, i] + pi[:, i - 1])  # uniform
        assert_chi_square((share * 10).long().bincount(minlength=10), tenth, alarm=2e-11)
    # A new draw, not the one that chose the winner.
    before = dirichlet(keys_of(rows), zeros(rows), 4, torch.float64)
    assert float((pi - before).abs().amax(1).min()) > 0


def test_dirichlet_draws_given_a_winner_are_those_of_rejection_sampling():
    """Unconditional draws with this winner have the same means and mean squares."""
    rows = 100_000
    logits = torch.tensor([0.5, -0.3, 1.2], dtype=torch.float64).expand(rows, -1)
    free = dirichlet(keys_of(rows), zeros(rows), 3, torch.float64)
    winner = (free.log() - logits).argmin(1)
    for z in range(3):
        kept = free[winner == z]
        drawn = dirichlet_given(torch.full_like(winner, z), logits, keys_of(rows, seed=1), zeros(rows))
        for power in (1, 2):
            a, b = kept**power, drawn**power
            error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
            assert float(((a.mean(0) - b.mean(0)) / error).abs().max()) < 6.8
        # Without the condition, the mean is another one.
        assert float((kept.mean(0) - 1 / 3).abs().max()) > 0.05


@pytest.mark.parametrize("dtype", FLOATS)
def test_dirichlet_draws_given_a_winner_with_logits_of_any_size(dtype: torch.dtype):
    logits = [[1e4, 0.0, -1e4], [-1e30, -1e30, -torch.inf], [0.0, 3e38, -3e38], [-3e38, -torch.inf, 3e38]]
    pi = dirichlet_given(torch.tensor([0, 1, 1, 2]), torch.tensor(logits, dtype=dtype), keys_of(4), zeros(4))
    assert bool((pi > 0).all())
    torch.testing.assert_close(pi.sum(1), torch.ones(4, dtype=dtype))
    assert dirichlet_given(zeros(2), torch.zeros(2, 1, dtype=dtype), keys_of(2), zeros(2)).tolist() == [[1.0], [1.0]]


def test_neighbours_are_uncorrelated():
    u = torch.stack([uniform(keys_of(2000), zeros(2000) + step, 40, torch.float64) for step in range(3)])
    assert_uncorrelated(u[:, 1:], u[:, :-1])  # neighbouring keys
    assert_uncorrelated(u[1:], u[:-1])  # neighbouring steps
    assert_uncorrelated(u[:, :, 1:], u[:, :, :-1])  # neighbouring positions
    assert_uncorrelated(u[1:, :, 1:], u[:-1, :, :-1])  # and across
    assert_uncorrelated(u[:, 1:, :-1], u[:, :-1, 1:])
    for other in (Noise(1).keys(torch.arange(2000), MAIN), Noise(0).fold(0).keys(torch.arange(2000), MAIN)):
        assert_uncorrelated(u[0], uniform(other, zeros(2000), 40, torch.float64))
    for stream in (COPY, BRANCH, REFERENCES, BUDGET, ORDER, REDRAW):
        other = Noise(0).keys(torch.arange(2000), stream)
        assert_uncorrelated(u[0], uniform(other, zeros(2000), 40, torch.float64))


# Subsets


@pytest.mark.parametrize(
    ("population", "size"), [(1, 1), (5, 0), (5, 1), (5, 4), (5, 5), (64, 64), (9488, 20), (65, 65), (300, 65)]
)
def test_subsets_are_distinct_and_in_range(population: int, size: int):
    chosen = subsets(keys_of(300), torch.arange(300) % 4, population, size)
    assert chosen.shape == (300, size)
    assert bool(((chosen >= 0) & (chosen < population)).all())
    assert bool((chosen.sort(1).values.diff(dim=1) > 0).all())


@pytest.mark.parametrize(("population", "size"), [(5, 1), (5, 2), (5, 3), (5, 4), (6, 3)])
def test_small_subsets_are_equally_likely(population: int, size: int):
    rows = 100_000
    chosen = subsets(keys_of(rows), zeros(rows), population, size)
    number = {subset: i for i, subset in enumerate(combinations(range(population), size))}
    counts = torch.tensor([number[tuple(row)] for row in chosen.sort(1).values.tolist()]).bincount()
    assert len(counts) == len(number)
    assert_chi_square(counts, torch.full((len(number),), 1 / len(number)))


def test_large_subsets_are_equally_likely():
    """Subsets of 65 and 64 of 66 numbers, by the numbers that are missing."""
    rows = 40_000
    for size, missing in ((65, 1), (64, 2)):
        chosen = subsets(keys_of(rows), zeros(rows), 66, size)
        left_out = torch.ones(rows, 66).scatter_(1, chosen, 0.0).sum(0)
        assert int(left_out.sum()) == rows * missing
        if missing == 1:
            assert_chi_square(left_out, torch.full((66,), 1 / 66))
        else:
            spread = math.sqrt(rows * (2 / 66) * (64 / 66))
            assert float((left_out - rows * 2 / 66).abs().max()) < 7.5 * spread  # 66 times P(|z| > 7.5) < 1e-11


@pytest.mark.parametrize("size", [-1, 6])
def test_impossible_subsets_are_refused(size: int):
    with pytest.raises(InputError, match=f"cannot draw {size} distinct numbers from 5"):
        subsets(keys_of(2), zeros(2), 5, size)


def test_a_batch_has_its_own_key():
    noise, examples = Noise(0), torch.arange(10)
    key = noise.shared_key(examples, REFERENCES)
    assert key.shape == (1,)
    assert torch.equal(key, noise.shared_key(examples.flip(0), REFERENCES))
    others = [
        noise.shared_key(examples[:-1], REFERENCES),
        noise.shared_key(examples + 1, REFERENCES),
        noise.shared_key(examples, REFERENCES + 1),
        noise.fold(1).shared_key(examples, REFERENCES),
    ]
    assert len({int(k) for k in (key, *others)}) == 5
