"""Baselines that other contexts recommend: what they are, whom they may listen to, and that they help."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.estimators import (
    GRPO,
    RLOO,
    Adaptive,
    Estimator,
    Pairs,
    Reinforce,
    SetPlan,
    UnorderedSet,
    Vine,
    estimate_gradient,
)
from corollout.estimators.baselines import Evidence, Fit, inner_products, shrunk
from corollout.estimators.plans import Plan, by_context
from corollout.noise import Noise
from corollout.types import Sampler, Trajectories
from tests.support.baseline_reference import PAST, log_prob_gradients, logits_of, products_agree, shrunk_agrees
from tests.support.enumeration import Problem
from tests.support.tree_problems import words_of_five
from tests.support.unbiased_cases import LIMIT, masked, three_of_four, two_of_three

PROBLEMS = [three_of_four, masked, words_of_five]
NAMES = ["softmax", "masked", "tree"]
FITTED: list[Any] = [RLOO(3, "fitted"), UnorderedSet(3, "fitted"), Reinforce("fitted"), Reinforce("fitted", 2)]
SHRUNK: list[Estimator] = [RLOO(3, "shrunk"), Reinforce("shrunk")]


@dataclass(frozen=True)
class Drawn:
    """A batch: main trajectories, their plan, rewards and logits."""

    trajectories: Trajectories
    plan: Plan
    rewards: Tensor
    logits: Tensor

    @property
    def gradient(self) -> Tensor:
        return self.plan.gradient(self.rewards, self.logits)

    @property
    def fit(self) -> Fit:
        assert isinstance(self.plan, SetPlan)
        return self.plan._fit(*self.plan._compared(self.rewards), self.logits)

    def of(self, context: int) -> Tensor:
        """The gradient at the rows of a context."""
        return self.gradient[self.trajectories.contexts == context]

    def updated(self, estimator: Any) -> Any:
        return estimator.updated(self.plan, self.rewards, self.logits)


def drawn(problem: Problem, estimator: Estimator, examples: list[int], seed: int = 4) -> Drawn:
    """An example's draws are the same in every batch that it is in."""
    noise, engine, ids = Noise(seed), problem.engine(), torch.tensor(examples, dtype=torch.int64)
    mains = engine.sample(torch.zeros_like(ids), ids, estimator.sampler, noise)
    found, plan = mains.trajectories, estimator.plan(mains.trajectories, noise)
    done = engine.complete(mains, plan.branches, noise)
    rewards = torch.cat([problem.reward_of(found), problem.reward_of(done.sequences)])
    return Drawn(found, plan, rewards, logits_of(problem, found))


def coefficients(fit: Fit, past: Evidence | None = None) -> Tensor:
    """α and β − 1 of each context: what is taken off advantages whose variates are (1, 0) and (0, 1)."""
    unit = torch.eye(2, dtype=torch.float64).expand(len(fit.sound), -1, -1)
    return replace(fit, variates=unit).change(past)


# Inner products


def test_inner_products_are_those_of_the_gradients():
    assert products_agree()


@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
def test_inner_products_of_all_that_there_is(problem: Callable[[], Problem]):
    """Sequences that part at every step and every depth."""
    everything = len(problem().rewards)
    memory = torch.zeros(1, dtype=torch.int64)
    found = problem().engine().sample(memory, memory, Sampler("set", everything), Noise(0)).trajectories
    dense = log_prob_gradients(problem(), found)
    (products,) = inner_products(found, by_context(found, everything), logits_of(problem(), found))
    there = len(found.tokens)
    torch.testing.assert_close(products[:there, :there], dense @ dense.T, rtol=1e-10, atol=1e-12)
    assert not bool(products[there:].any() | products[:, there:].any())
    assert bool((products < 0).any())


# Whom a context listens to


@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
@pytest.mark.parametrize("estimator", [*FITTED, *SHRUNK], ids=str)
def test_a_context_alone_has_its_own_baseline(estimator: Any, problem: Callable[[], Problem]):
    twins: dict[str, Estimator] = {"RLOO": RLOO(3), "UnorderedSet": UnorderedSet(3), "Reinforce": Reinforce("none")}
    twin = RLOO(2) if estimator == Reinforce("fitted", 2) else twins[type(estimator).__name__]
    some = False
    for example in range(5):
        found = drawn(problem(), estimator, [example])
        assert isinstance(found.plan, SetPlan)
        own = replace(found.plan, baseline="own")
        assert torch.equal(found.gradient, own.gradient(found.rewards, found.logits))
        torch.testing.assert_close(found.gradient, drawn(problem(), twin, [example]).gradient)
        some |= bool(found.gradient.any())
    assert some


@pytest.mark.parametrize("past", [None, PAST], ids=["nothing", "something"])
@pytest.mark.parametrize("estimator", FITTED, ids=str)
def test_rewards_of_a_context_never_touch_its_own_coefficients(estimator: Any, past: Evidence | None):
    found = drawn(three_of_four(), replace(estimator, past=past), list(range(6)))
    rewards = found.rewards.clone()
    own = found.trajectories.contexts == 2
    rewards[own] = torch.tensor([30.0, -50.0, 7.0], dtype=torch.float64)[: int(own.sum())]
    other = replace(found, rewards=rewards)
    before, after = (coefficients(each.fit, past) for each in (found, other))
    assert torch.equal(after[2], before[2])
    moved = (after - before).abs().amax(1)
    assert bool((moved[[0, 1, 3, 4, 5]] > 1e-3).all())
    assert all(not torch.allclose(found.of(context), other.of(context)) for context in range(6))


@pytest.mark.parametrize("estimator", SHRUNK, ids=str)
def test_a_shrunk_baseline_does_not_know_its_own_reward(estimator: Any):
    found = drawn(three_of_four(), estimator, list(range(6)))
    assert isinstance(found.plan, SetPlan)
    reward, own, sound = found.plan._compared(found.rewards)
    before = shrunk(reward, own, sound)
    reward[2, 0] += 5.0
    own = (found.plan.other @ reward[:, :, None]).squeeze(2)
    after = shrunk(reward, own, sound)
    assert float(after[2, 0]) == pytest.approx(float(before[2, 0]), abs=1e-12)
    assert bool((after[[0, 1, 3, 4, 5]] != before[[0, 1, 3, 4, 5]]).all())
    # Of its context, the others have it in their mean.
    assert bool((after[2, 1:] != before[2, 1:]).all())


@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
@pytest.mark.parametrize("estimator", [*FITTED, *SHRUNK], ids=str)
def test_a_context_with_a_skipped_reward_is_as_if_it_were_not_there(estimator: Any, problem: Callable[[], Problem]):
    found, without = (drawn(problem(), estimator, examples) for examples in ([0, 1, 2, 3, 4], [0, 1, 3, 4]))
    place = int((found.trajectories.contexts == 2).nonzero()[-1])
    found.rewards[place] = torch.nan
    assert not bool(found.of(2).any())
    for context, in_others in ((0, 0), (1, 1), (3, 2), (4, 3)):
        a, b = found.of(context), without.of(in_others)
        steps = min(a.shape[1], b.shape[1])  # sheets are as wide as the longest sequence
        assert bool(b.any())
        torch.testing.assert_close(a[:, :steps], b[:, :steps], rtol=1e-9, atol=1e-12)
    whole = replace(found, rewards=torch.full_like(found.rewards, torch.nan))
    assert not bool(whole.gradient.any())


@pytest.mark.parametrize("estimator", FITTED, ids=str)
def test_there_may_be_no_contexts(estimator: Any):
    found = drawn(three_of_four(), estimator, [])
    assert found.gradient.shape == found.logits.shape
    assert len(found.rewards) == 0


@pytest.mark.parametrize("estimator", [*FITTED, *SHRUNK], ids=str)
def test_gradients_are_in_the_precision_of_the_logits(estimator: Any):
    found = drawn(three_of_four(), estimator, list(range(5)))
    single = found.plan.gradient(found.rewards, found.logits.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), found.gradient, rtol=1e-4, atol=1e-5)


# Equal rewards


@pytest.mark.parametrize(("contexts", "value", "batches"), [(1, 1e7, 2), (2, 1.0, 40), (6, -1.0, 2)])
@pytest.mark.parametrize("problem", PROBLEMS, ids=NAMES)
@pytest.mark.parametrize("estimator", FITTED, ids=str)
def test_equal_rewards_make_a_fit_that_exists(
    estimator: Any, problem: Callable[[], Problem], contexts: int, value: float, batches: int
):
    """Advantages are zero but for rounding, so the data say nothing about the noise; also not over and over again."""
    for _ in range(batches):
        found = drawn(problem(), estimator, list(range(contexts)))
        found.rewards.fill_(value)
        assert bool(found.gradient.isfinite().all())
        if isinstance(estimator, RLOO):
            assert float(found.gradient.abs().max()) < 1e-6 * abs(value)
        estimator = found.updated(estimator)
        assert all(bool(tensor.isfinite().all()) for tensor in estimator.state_dict().values())


@pytest.mark.parametrize("estimator", FITTED, ids=str)
def test_rare_rewards_make_a_fit_that_exists(estimator: Any):
    """Rewards of ±1, nearly all of them −1: most contexts show nothing."""
    problem = three_of_four()
    for batch in range(15):
        found = drawn(problem, estimator, [8 * batch + i for i in range(8)])
        found.rewards.fill_(-1.0)
        if batch % 7 == 0:
            found.rewards[0] = 1.0
        assert bool(found.gradient.isfinite().all())
        estimator = found.updated(estimator)


# What is remembered


def test_evidence_decays():
    one = PAST
    two = Evidence(PAST.matrix + 1, 2 * PAST.right, PAST.contexts + 3, 5 * PAST.length, PAST.reward + 7)
    for name in (field.name for field in fields(Evidence)):
        wanted = 0.9 * getattr(one, name) + getattr(two, name)
        torch.testing.assert_close(getattr(one.then(two), name), wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("estimator", FITTED, ids=str)
def test_what_was_learned_counts_as_contexts_in_the_batch(estimator: Any):
    """A batch that was seen just before, and the same contexts in one batch with the others."""
    problem = three_of_four()
    past = drawn(problem, estimator, [10, 11, 12])
    later = drawn(problem, past.updated(estimator), [1, 2, 3])
    joined = drawn(problem, estimator, [1, 2, 3, 10, 11, 12])
    torch.testing.assert_close(
        coefficients(later.fit, past.fit.evidence), coefficients(joined.fit)[:3], rtol=1e-9, atol=1e-12
    )
    for context in range(3):
        a, b = later.of(context), joined.of(context)
        steps = min(a.shape[1], b.shape[1])
        torch.testing.assert_close(a[:, :steps], b[:, :steps], rtol=1e-9, atol=1e-12)


def test_skipped_contexts_teach_nothing():
    estimator = RLOO(3, "fitted")
    found, without = (drawn(three_of_four(), estimator, examples) for examples in ([0, 1, 2], [0, 2]))
    found.rewards[4] = torch.nan
    one, other = (each.updated(estimator).state_dict() for each in (found, without))
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("estimator", [*FITTED, Pairs(per_step=0.5)], ids=str)
def test_a_memory_makes_the_same_estimator_again(estimator: Any):
    problem, learned = three_of_four(), estimator
    assert learned.state_dict() == {}
    for examples in ([5, 6, 7], [8, 9]):
        learned = drawn(problem, learned, examples).updated(learned)
    memory = {name: tensor.clone() for name, tensor in learned.state_dict().items()}
    again = estimator.load_state_dict(memory)
    assert again == learned == estimator  # but for what is remembered
    gradients = [drawn(problem, each, [1, 2, 3, 4]).gradient for each in (learned, again, estimator)]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])
    nothing = again.load_state_dict({})
    assert nothing.state_dict() == {}
    assert torch.equal(drawn(problem, nothing, [1, 2, 3, 4]).gradient, gradients[2])


@pytest.mark.parametrize("estimator", [RLOO(3), RLOO(3, "shrunk"), Reinforce(), UnorderedSet(3)], ids=str)
def test_without_a_fit_there_is_nothing_to_learn(estimator: Any):
    assert isinstance(estimator, Adaptive)
    learned = drawn(three_of_four(), estimator, [1, 2]).updated(estimator)
    assert learned is estimator
    assert learned.state_dict() == {}


def test_others_do_not_learn():
    assert not any(isinstance(estimator, Adaptive) for estimator in (GRPO(), Vine()))


# Shrunk baselines


def test_shrunk_baselines_are_moved_as_plain_means_say():
    assert shrunk_agrees()


def test_a_shrunk_baseline_by_hand():
    """For the first context: means 4 and 9 of the others, so c = 13/2; the noise of a reward is (8 + 2)/2 = 5, the
    spread of means 25/2, 5/2 of it noise; so β = 10 / (10 + 5).
    """
    reward = torch.tensor([[1.0, 3.0], [2.0, 6.0], [8.0, 10.0]], dtype=torch.float64)
    found = shrunk(reward, reward.flip(1), torch.ones(3, dtype=torch.bool))
    assert found[0].tolist() == pytest.approx([6.5 + 2 / 3 * (3 - 6.5), 6.5 + 2 / 3 * (1 - 6.5)])
    # For the second: means 2 and 9, noise 2 and 2; β = (49/2 − 1) / (49/2 − 1 + 2).
    keep = 23.5 / 25.5
    assert found[1].tolist() == pytest.approx([5.5 + keep * (6 - 5.5), 5.5 + keep * (2 - 5.5)])
    # With the first one skipped, the second has but one other.
    found = shrunk(reward, reward.flip(1), torch.tensor([False, True, True]))
    assert found[1].tolist() == [6.0, 2.0]


def test_where_contexts_do_not_differ_the_baseline_is_the_others_mean():
    """Means differ by less than their noise."""
    reward = torch.tensor([[0.0, 4.0], [1.0, 3.0], [0.0, 4.1]], dtype=torch.float64)
    found = shrunk(reward, reward.flip(1), torch.ones(3, dtype=torch.bool))
    assert found.tolist() == [pytest.approx([c, c]) for c in (2.025, 2.025, 2.0)]


@pytest.mark.parametrize("shape", [(5, 3), (5, 1), (2, 3), (2, 1), (1, 3), (1, 1)])
def test_equal_rewards_are_their_own_shrunk_baseline(shape: tuple[int, int]):
    reward = torch.full(shape, 0.75, dtype=torch.float64)
    own = reward if shape[1] > 1 else torch.zeros_like(reward)
    found = shrunk(reward, own, torch.ones(shape[0], dtype=torch.bool))
    assert torch.equal(found, torch.zeros_like(reward) if shape == (1, 1) else reward)


def test_single_sequences_have_the_mean_of_the_others():
    reward = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64)
    nothing = torch.zeros_like(reward)
    assert shrunk(reward, nothing, torch.ones(3, dtype=torch.bool)).flatten().tolist() == [4.0, 3.5, 1.5]
    assert shrunk(reward, nothing, torch.tensor([True, False, True])).flatten().tolist()[::2] == [6.0, 1.0]
    assert shrunk(reward[:1], nothing[:1], torch.ones(1, dtype=torch.bool)).tolist() == [[0.0]]


# Variance


@pytest.mark.parametrize(
    ("own", "recommended", "problem"),
    [
        (RLOO(2), RLOO(2, "fitted"), three_of_four),
        (RLOO(4), RLOO(4, "fitted"), words_of_five),
        (UnorderedSet(2), UnorderedSet(2, "fitted"), three_of_four),
        (RLOO(2), RLOO(2, "shrunk"), two_of_three),
    ],
    ids=["rloo-2-fitted", "rloo-4-fitted-tree", "set-2-fitted", "rloo-2-shrunk"],
)
def test_what_others_recommend_has_less_variance(own: Estimator, recommended: Estimator, problem: Any):
    """Paired: the same sequences in batches of 20 contexts, and no bias, so that squares can be compared."""
    plain = problem().estimates(own, 4000, 1)[0].flatten(1)
    better = problem().estimates(recommended, 4000, 1, 20)[0].flatten(1)
    excess = ((plain**2).sum(1) - (better**2).sum(1)).unflatten(0, (-1, 20)).mean(1)
    assert excess.mean() > LIMIT * excess.std() / len(excess) ** 0.5


def test_the_past_helps_where_the_batch_has_nothing_to_say():
    """Single contexts: their own baseline at first, one that is fitted after some batches."""
    problem, estimator = two_of_three(), RLOO(2, "fitted")
    learned: Any = estimator
    for start in range(0, 200, 20):
        learned = drawn(problem, learned, list(range(10_000 + start, 10_020 + start))).updated(learned)
    plain, better = (problem.estimates(each, 800, 1, 1)[0].flatten(1) for each in (estimator, learned))
    excess = (plain**2).sum(1) - (better**2).sum(1)
    assert excess.mean() > LIMIT * excess.std() / len(excess) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [20.0, 100.0])
def test_sure_contexts_do_not_lead_an_unsure_one_astray(scale: float, dtype: torch.dtype):
    """Their sets hold nearly everything, so that hardly any baseline matters to them; to the unsure one it does."""
    own = fitted = 0.0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        logits, table = torch.randn(2, 16, 50, generator=generator, dtype=torch.float64)
        logits[1:] *= scale
        for baseline in ("set", "fitted"):
            estimator = UnorderedSet(4, baseline)
            g = estimate_gradient(logits.to(dtype), lambda a, rows, table=table: table[rows, a], estimator, seed=seed)
            square = float((g.double() ** 2).sum())
            own, fitted = (own + square, fitted) if baseline == "set" else (own, fitted + square)
    assert 0.5 * own < fitted < 1.5 * own


# GRPO


def test_normalised_advantages_do_not_know_the_scale_of_rewards():
    found = drawn(three_of_four(), GRPO(4), list(range(5)))
    large, larger = (found.plan.gradient(scale * found.rewards, found.logits) for scale in (1e3, 1e6))
    assert bool(large.any())
    torch.testing.assert_close(larger, large, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("value", [0.0, 3.0, 1e6])
def test_groups_of_equal_rewards_are_divided_by_something(value: float):
    found = drawn(three_of_four(), GRPO(4), list(range(5)))
    same = replace(found, rewards=torch.full_like(found.rewards, value))
    assert not bool(same.gradient.any())
