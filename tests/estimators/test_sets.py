"""The unordered-set estimator: its ratios against fractions, and what becomes of it where sets hold everything."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators import RLOO, Estimator, SetPlan, UnorderedSet
from corollout.estimators.sets import ratios
from corollout.noise import Noise
from corollout.types import Sampler, Trajectories
from tests.support.enumeration import Problem
from tests.support.set_reference import (
    ABOVE_ONE,
    SETS,
    difference,
    logarithm,
    of_weights,
    plain_other,
    plain_weight,
    ratios_agree,
    tables_agree,
    together,
)
from tests.support.tree_problems import UNBALANCED, TreeProblem, words_of_five
from tests.support.unbiased_cases import masked, three_of_four, two_of_three

# Ratios


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("places", [0, 3])
def test_ratios_are_those_of_drawing_in_all_orders(name: str, places: int):
    """With some places more than the set has members."""
    p = SETS[name]
    weight, other = ratios(together([p], len(p) + places))
    assert difference(p, weight[0], other[0]) < 1e-12


def test_ratios_of_many_sets_are_those_of_each():
    assert ratios_agree()
    assert not difference(SETS["six"], *(part[0] for part in ratios(together([SETS["six equal ones"]], 6)))) < 1e-2


def test_all_weights_of_a_set_add_up_to_one():
    """Somebody is drawn first; and among the others, somebody is drawn first of them."""
    generator = torch.Generator().manual_seed(0)
    for size in (2, 17, 64):
        for scale in (0.1, 3.0, 30.0):
            logits = scale * torch.randn(5, size + 1, generator=generator, dtype=torch.float64)
            # From nearly everything to hardly anything is left over.
            logits[:, -1] = logits[:, :-1].logsumexp(1) + torch.linspace(-40, 40, 5)
            weight, other = ratios(logits.log_softmax(1)[:, :-1])
            torch.testing.assert_close(weight.sum(1), torch.ones(5).double(), rtol=0, atol=1e-7)
            torch.testing.assert_close(other.sum(2), torch.ones(5, size).double(), rtol=0, atol=1e-7)
            assert float(weight.min()) >= 0
            assert float(other.min()) >= 0


@pytest.mark.parametrize("rest", [Fraction(1, 10**6), 300, 10**40])
def test_sets_of_64_have_the_ratios_of_drawing_in_all_orders(rest: Fraction | int):
    """Members of two kinds, so that fractions can be had."""
    p = of_weights([1] * 40 + [7] * 24, rest)
    weight, other = (part[0] for part in ratios(together([p], 64)))
    for s in (0, 63):
        assert float(weight[s]) == pytest.approx(plain_weight(p, s), rel=1e-7)
        for o in (1, 62):
            assert float(other[s, o]) == pytest.approx(plain_other(p, s, o), rel=1e-7)
    assert weight[:40].tolist() == pytest.approx([float(weight[0])] * 40)
    assert other[:40, 40:].flatten().tolist() == pytest.approx([float(other[0, 63])] * 960)


@pytest.mark.parametrize("size", [2, 8, 64])
@pytest.mark.parametrize("log_prob", [-40.0, -200.0, -700.0, -5000.0])
def test_sets_that_hold_nothing_to_speak_of_are_weighted_as_independent_draws(size: int, log_prob: float):
    """P(S) → k! Π p. So p R(S, s) → 1/k, and p' R(S, s' | s) → 1/(k − 1), whatever p is: RLOO, which leaves s out."""
    spread = torch.linspace(-3, 3, size, dtype=torch.float64)
    weight, other = ratios(log_prob + torch.stack([spread, 0 * spread]))
    torch.testing.assert_close(weight, torch.full((2, size), 1 / size).double(), rtol=1e-7, atol=0)
    rloo = (1 - torch.eye(size, dtype=torch.float64)) / (size - 1)
    torch.testing.assert_close(other, rloo.expand(2, -1, -1), rtol=1e-7, atol=1e-15)


def test_one_certain_member_among_hopeless_ones():
    """What is left over is lost in rounding; nothing becomes infinite, and the certain one has all the weight."""
    for others in (-50.0, -200.0, -5000.0):
        log_probs = torch.tensor([[0.0, others, others - 3, -torch.inf]], dtype=torch.float64)
        weight, other = ratios(log_probs)
        torch.testing.assert_close(weight, torch.tensor([[1.0, 0, 0, 0]]).double(), rtol=0, atol=1e-15)
        first = torch.tensor([[1.0, 0, 0, 0]] * 3 + [[0.0] * 4]).double()
        torch.testing.assert_close(other[0], first, rtol=0, atol=1e-15)


def test_rounding_above_one_is_no_trouble():
    p = torch.tensor([ABOVE_ONE], dtype=torch.float64)
    assert float(p.sum()) > 1
    weight, other = ratios(p.log())
    torch.testing.assert_close(weight, p, rtol=1e-14, atol=0)
    torch.testing.assert_close(other, p[:, None].expand(-1, 3, -1), rtol=1e-14, atol=0)


def test_there_may_be_no_sets_and_sets_of_nothing():
    weight, other = ratios(torch.full((2, 3), -torch.inf))
    assert not bool(weight.any() | other.any())
    weight, other = ratios(torch.empty(0, 3))
    assert weight.shape == (0, 3)
    assert other.shape == (0, 3, 3)


def test_single_precision_is_computed_in_double():
    p = SETS["six"]
    log_probs = torch.tensor([[logarithm(one) for one in p]], dtype=torch.float32)
    for one, other in zip(ratios(log_probs), ratios(log_probs.double()), strict=True):
        assert torch.equal(one, other)


# The estimator


@pytest.mark.parametrize("problem", [two_of_three, masked, words_of_five], ids=["softmax", "masked", "tree"])
def test_a_set_that_holds_everything_is_exact(problem: Callable[[], Problem]):
    """For every seed, and however much larger the set could be."""
    exact = problem().exact_gradient()
    for size in (len(problem().rewards), 64):
        g, found = problem().estimates(UnorderedSet(size=size), 6, seed=size)
        assert len(found.tokens) == 6 * len({tuple(row) for row in found.tokens.tolist()})
        for one in g:
            torch.testing.assert_close(one, exact, rtol=1e-9, atol=1e-9)


def total_variance(problem: Problem, estimator: Estimator) -> float:
    g = problem.estimates(estimator, 2000, seed=9)[0].flatten(1)
    return float(g.var(0).sum())


@pytest.mark.parametrize("on_tree", [False, True], ids=["softmax", "tree"])
def test_the_surer_the_policy_the_less_variance_is_left_compared_with_rloo(on_tree: bool):
    """Four independent draws are four times the same then; the set still tells what the others are worth."""
    shares = []
    for scale in (1.0, 4.0, 12.0):
        if on_tree:
            problem = TreeProblem.of(UNBALANCED, length=2, scale=scale, seed=121)
        else:
            problem = Problem.make(vocab=4, length=2, scale=scale, seed=2)
        own, rloo = (total_variance(problem, e) for e in (UnorderedSet(size=4), RLOO(samples=4)))
        assert 0 < own < rloo
        shares.append(own / rloo)
    assert shares[0] > 2 * shares[1] > 100 * shares[2]
    assert shares[2] < 1e-3


def set_plan(problem: Problem, size: int, contexts: int) -> tuple[SetPlan, Tensor, Tensor]:
    """A plan, rewards and logits."""
    estimator, noise = UnorderedSet(size=size), Noise(4)
    assert estimator.sampler == Sampler("set", size)
    memory = torch.zeros(contexts, dtype=torch.int64)
    engine = problem.engine()
    found = engine.sample(memory, torch.arange(contexts), estimator.sampler, noise).trajectories
    plan = estimator.plan(found, noise)
    assert isinstance(plan, SetPlan)
    assert len(plan.branches) == 0
    with torch.no_grad():
        prefixes = problem.policy.prefix_numbers(found.tokens).clamp(max=len(problem.policy.table) - 1)
        logits = engine.head.logits(problem.policy.table[prefixes], found.tokens)
    return plan, problem.reward_of(found), logits


@pytest.mark.parametrize("problem", [three_of_four, masked, words_of_five], ids=["softmax", "masked", "tree"])
def test_a_context_with_a_skipped_reward_contributes_nothing_and_leaves_the_others_as_they_are(
    problem: Callable[[], Problem],
):
    plan, rewards, logits = set_plan(problem(), 3, 5)
    whole = plan.gradient(rewards, logits)
    skipped = rewards.clone()
    skipped[[4, 9, 11]] = torch.nan  # of contexts 1, and twice of 3
    found = plan.gradient(skipped, logits)
    of_context = plan.trajectories.contexts
    silent = (of_context == 1) | (of_context == 3)
    assert not bool(found[silent].any())
    assert torch.equal(found[~silent], whole[~silent])
    assert all(bool(whole[of_context == c].any()) for c in range(5))
    assert not bool(plan.gradient(torch.full_like(rewards, torch.nan), logits).any())


def test_rewards_that_are_all_the_same_say_nothing():
    plan, rewards, logits = set_plan(three_of_four(), 5, 7)
    found = plan.gradient(torch.full_like(rewards, 3.0), logits)
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-9)


def test_gradients_are_in_the_precision_of_the_logits_and_zero_where_there_is_no_token():
    plan, rewards, logits = set_plan(three_of_four(), 6, 4)
    exact, found = plan.gradient(rewards, logits), plan.gradient(rewards.float(), logits.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-5)
    mask = plan.trajectories.mask
    assert not bool(mask.all())
    assert not bool(exact[~mask].any())


def test_rows_are_found_by_their_contexts_and_numbers():
    assert tables_agree()


def test_rows_may_come_in_any_order():
    """A row's number among its context's says which member it is."""
    plan, rewards, logits = set_plan(three_of_four(), 4, 6)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(0))
    rows: dict[str, Any] = {
        name: part[order] for name, part in vars(plan.trajectories).items() if isinstance(part, Tensor)
    }
    other = UnorderedSet(size=4).plan(Trajectories(**rows), Noise(4))
    found = other.gradient(rewards[order], logits[order])
    torch.testing.assert_close(found, plan.gradient(rewards, logits)[order])


def test_there_may_be_no_contexts():
    plan, rewards, logits = set_plan(three_of_four(), 4, 0)
    assert plan.gradient(rewards, logits).shape == logits.shape
    assert len(rewards) == 0


@pytest.mark.parametrize("size", [-1, 0, 1, 65])
def test_sets_that_are_too_small_or_too_large_are_refused(size: int):
    with pytest.raises(InputError, match=rf"^a set has 2 to 64 sequences, not {size}$"):
        UnorderedSet(size=size)
    with pytest.raises(InputError, match="a set has 2 to 64 sequences"):
        replace(UnorderedSet(), size=size)
