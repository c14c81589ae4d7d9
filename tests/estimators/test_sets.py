"""The unordered-set estimator: its weights against exact fractions, and sets of all sequences."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.estimators import RLOO, Estimator, SetPlan, UnorderedSet
from corollout.estimators.sets import set_weights
from corollout.noise import Noise
from corollout.types import Sampler, Trajectories
from tests.support.enumeration import Problem
from tests.support.set_reference import (
    ABOVE_ONE,
    SETS,
    difference,
    logarithm,
    of_weights,
    plain_mix,
    plain_weight,
    set_weights_agree,
    tables_agree,
    together,
)  # fmt: skip
from tests.support.tree_problems import UNBALANCED, TreeProblem, words_of_five
from tests.support.unbiased_cases import masked, three_of_four, two_of_three

# Weights


@pytest.mark.parametrize("name", SETS)
def test_weights_are_those_of_drawing_in_all_orders(name: str):
    """Also for sets with missing members."""
    p = SETS[name]
    for missing in (0, 3):
        weight, mix = set_weights(together([p], len(p) + missing))
        assert difference(p, weight[0], mix[0]) < 1e-12


def test_weights_of_many_sets_are_those_of_each():
    assert set_weights_agree()
    assert not difference(SETS["six"], *(part[0] for part in set_weights(together([SETS["six equal ones"]], 6)))) < 1e-2
    assert tables_agree()


def test_the_weights_of_a_set_add_up_to_one():
    """Some member is drawn first, and some member is drawn first among the others."""
    generator = torch.Generator().manual_seed(0)
    for size in (2, 17, 64):
        for scale in (0.1, 3.0, 30.0):
            logits = scale * torch.randn(5, size + 1, generator=generator, dtype=torch.float64)
            # Sets with nearly all to hardly any of the probability.
            logits[:, -1] = logits[:, :-1].logsumexp(1) + torch.linspace(-40, 40, 5)
            weight, mix = set_weights(logits.log_softmax(1)[:, :-1])
            torch.testing.assert_close(weight.sum(1), torch.ones(5).double(), rtol=0, atol=1e-7)
            torch.testing.assert_close(mix.sum(2), torch.ones(5, size).double(), rtol=0, atol=1e-7)
            assert min(float(weight.min()), float(mix.min())) >= 0


@pytest.mark.parametrize("rest", [Fraction(1, 10**6), 300, 10**40])
def test_weights_of_sets_of_64(rest: Fraction | int):
    """Members of two kinds, for which fractions can be computed."""
    p = of_weights([1] * 40 + [7] * 24, rest)
    weight, mix = (part[0] for part in set_weights(together([p], 64)))
    for s in (0, 63):
        assert float(weight[s]) == pytest.approx(plain_weight(p, s), rel=1e-7)
        for o in (1, 62):
            assert float(mix[s, o]) == pytest.approx(plain_mix(p, s, o), rel=1e-7)
    assert weight[:40].tolist() == pytest.approx([float(weight[0])] * 40)
    assert mix[:40, 40:].flatten().tolist() == pytest.approx([float(mix[0, 63])] * 960)


@pytest.mark.parametrize("size", [2, 8, 64])
@pytest.mark.parametrize("log_prob", [-40.0, -200.0, -700.0, -5000.0])
def test_sets_of_negligible_probability_are_weighted_like_independent_draws(size: int, log_prob: float):
    """P(S) → k! Π p, so p R(S, s) → 1/k and p' R(S, s' | s) → 1/(k − 1) for any p: RLOO."""
    spread = torch.linspace(-3, 3, size, dtype=torch.float64)
    weight, mix = set_weights(log_prob + torch.stack([spread, 0 * spread]))
    torch.testing.assert_close(weight, torch.full((2, size), 1 / size).double(), rtol=1e-7, atol=0)
    rloo = (1 - torch.eye(size, dtype=torch.float64)) / (size - 1)
    torch.testing.assert_close(mix, rloo.expand(2, -1, -1), rtol=1e-7, atol=1e-15)


def test_one_certain_member_among_improbable_ones():
    """The rest is lost in rounding; nothing is infinite, and the certain member has all the weight."""
    for others in (-50.0, -200.0, -5000.0):
        weight, mix = set_weights(torch.tensor([[0.0, others, others - 3, -torch.inf]], dtype=torch.float64))
        torch.testing.assert_close(weight, torch.tensor([[1.0, 0, 0, 0]]).double(), rtol=0, atol=1e-15)
        first = torch.tensor([[1.0, 0, 0, 0]] * 3 + [[0.0] * 4]).double()
        torch.testing.assert_close(mix[0], first, rtol=0, atol=1e-15)


def test_rounding_empty_sets_and_single_precision():
    p = torch.tensor([ABOVE_ONE], dtype=torch.float64)
    assert float(p.sum()) > 1
    weight, mix = set_weights(p.log())
    torch.testing.assert_close(weight, p, rtol=1e-14, atol=0)
    torch.testing.assert_close(mix, p[:, None].expand(-1, 3, -1), rtol=1e-14, atol=0)
    assert not any(bool(part.any()) for part in set_weights(torch.full((2, 3), -torch.inf)))
    assert [part.shape for part in set_weights(torch.empty(0, 3))] == [(0, 3), (0, 3, 3)]
    log_probs = torch.tensor([[logarithm(one) for one in SETS["six"]]], dtype=torch.float32)
    for one, other in zip(set_weights(log_probs), set_weights(log_probs.double()), strict=True):
        assert torch.equal(one, other)


# The estimator


@pytest.mark.parametrize("problem", [two_of_three, masked, words_of_five], ids=["softmax", "masked", "tree"])
def test_a_set_of_all_sequences_is_exact(problem: Callable[[], Problem]):
    """For every seed, and however much larger the set could be."""
    exact = problem().exact_gradient()
    for size in (len(problem().rewards), 64):
        g, trajectories = problem().estimates(UnorderedSet(size=size), 6, seed=size)
        assert len(trajectories.tokens) == 6 * len({tuple(row) for row in trajectories.tokens.tolist()})
        torch.testing.assert_close(g, exact.expand_as(g), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("on_tree", [False, True], ids=["softmax", "tree"])
def test_the_more_certain_the_policy_the_greater_the_advantage_over_rloo(on_tree: bool):
    """Independent draws are then mostly the same sequence; a set always has different ones."""

    def variance(estimator: Estimator) -> float:
        return float(problem.estimates(estimator, 2000, seed=9)[0].flatten(1).var(0).sum())

    ratios = []
    for scale in (1.0, 4.0, 12.0):
        if on_tree:
            problem = TreeProblem.of(UNBALANCED, length=2, scale=scale, seed=121)
        else:
            problem = Problem.make(vocab=4, length=2, scale=scale, seed=2)
        ratios.append(variance(UnorderedSet(size=4)) / variance(RLOO(samples=4)))
    assert 1 > ratios[0] > 2 * ratios[1] > 100 * ratios[2] > 0
    assert ratios[2] < 1e-3


def set_plan(problem: Problem, size: int, contexts: int) -> tuple[SetPlan, Tensor, Tensor]:
    """A plan, rewards and logits."""
    estimator, noise = UnorderedSet(size=size), Noise(4)
    assert estimator.sampler == Sampler("set", size)
    memory = torch.zeros(contexts, dtype=torch.int64)
    mains = problem.engine().sample(memory, torch.arange(contexts), estimator.sampler, noise).trajectories
    plan = estimator.plan(mains, noise)
    assert len(plan.branches) == 0
    return plan, problem.reward_of(mains), problem.logits_of(mains)


@pytest.mark.parametrize("problem", [three_of_four, masked, words_of_five], ids=["softmax", "masked", "tree"])
def test_a_context_with_a_skipped_reward_contributes_nothing(problem: Callable[[], Problem]):
    plan, rewards, logits = set_plan(problem(), 3, 5)
    whole = plan.gradient(rewards, logits)
    rewards[[4, 9, 11]] = torch.nan  # of context 1, and twice of 3
    g, contexts = plan.gradient(rewards, logits), plan.trajectories.contexts
    skipped = (contexts == 1) | (contexts == 3)
    assert not bool(g[skipped].any())
    assert torch.equal(g[~skipped], whole[~skipped])
    assert all(bool(whole[contexts == c].any()) for c in range(5))
    assert not bool(plan.gradient(torch.full_like(rewards, torch.nan), logits).any())


def test_equal_rewards_single_precision_padding_and_empty_batches():
    plan, rewards, logits = set_plan(three_of_four(), 6, 4)
    zero = plan.gradient(torch.full_like(rewards, 3.0), logits)
    torch.testing.assert_close(zero, torch.zeros_like(zero), rtol=0, atol=1e-9)
    exact, single = plan.gradient(rewards, logits), plan.gradient(rewards.float(), logits.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, exact.float(), rtol=1e-4, atol=1e-5)
    assert not bool(plan.trajectories.mask.all())
    assert not bool(exact[~plan.trajectories.mask].any())
    empty, rewards, logits = set_plan(three_of_four(), 4, 0)
    assert empty.gradient(rewards, logits).shape == logits.shape


def test_rows_may_come_in_any_order():
    """The index of a row within its context says which member it is."""
    plan, rewards, logits = set_plan(three_of_four(), 4, 6)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(0))
    rows: dict[str, Any] = {
        name: part[order] for name, part in vars(plan.trajectories).items() if isinstance(part, Tensor)
    }
    other = UnorderedSet(size=4).plan(Trajectories(**rows), Noise(4))
    torch.testing.assert_close(other.gradient(rewards[order], logits[order]), plan.gradient(rewards, logits)[order])
