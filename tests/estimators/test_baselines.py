"""Shrunk and fitted baselines: what they are, which rewards they depend on, and that they reduce the variance."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators import (
    GRPO,
    RLOO,
    Adaptive,
    Auto,
    Estimator,
    Pairs,
    Reinforce,
    SetPlan,
    UnorderedSet,
    Vine,
    estimate_gradient,
)  # fmt: skip
from corollout.estimators.baselines import Evidence, evidence_for_each, inner_products, shrunk_baseline
from corollout.estimators.plans import Plan, rows_by_context
from corollout.noise import Noise
from corollout.types import Sampler, Trajectories
from tests.support.baseline_reference import (
    PAST,
    PAST_ALONE,
    fits_are_scale_free,
    log_prob_gradients,
    products_agree,
    shrunk_agrees,
)  # fmt: skip
from tests.support.enumeration import Problem
from tests.support.tree_problems import words_of_five
from tests.support.unbiased_cases import LIMIT, masked, three_of_four, two_of_three

on_every_problem = pytest.mark.parametrize(
    "problem", [three_of_four, masked, words_of_five], ids=["softmax", "masked", "tree"]
)
FITTED: list[Any] = [RLOO(3, "fitted"), UnorderedSet(3, "fitted"), Reinforce("fitted"), Reinforce("fitted", 2)]
SHRUNK: list[Any] = [RLOO(3, "shrunk"), Reinforce("shrunk")]
fitted = pytest.mark.parametrize("estimator", FITTED, ids=str)
shrunk = pytest.mark.parametrize("estimator", SHRUNK, ids=str)
both = pytest.mark.parametrize("estimator", [*FITTED, *SHRUNK], ids=str)


@dataclass(frozen=True)
class Batch:
    """Main trajectories, their plan, rewards and logits."""

    trajectories: Trajectories
    plan: Plan
    rewards: Tensor
    logits: Tensor

    @property
    def gradient(self) -> Tensor:
        return self.plan.gradient(self.rewards, self.logits)

    def coefficients(self, past: Evidence | None = None) -> Tensor:
        """c, α and γ of each context."""
        assert isinstance(self.plan, SetPlan)
        others = evidence_for_each(self.plan._by_context(*self.plan._baselines(self.rewards), self.logits), past)
        return torch.cat([others.mean[:, None], others.coefficients()], 1)

    def of(self, context: int, steps: int | None = None) -> Tensor:
        """The gradient at the rows of a context."""
        return self.gradient[self.trajectories.contexts == context][:, :steps]

    def updated(self, estimator: Any) -> Any:
        return estimator.updated(self.plan, self.rewards, self.logits)


def draw(problem: Problem, estimator: Estimator, examples: list[int]) -> Batch:
    """A batch; the samples of an example are the same in all batches."""
    noise, engine, ids = Noise(4), problem.engine(), torch.tensor(examples, dtype=torch.int64)
    mains = engine.sample(torch.zeros_like(ids), ids, estimator.sampler, noise)
    plan = estimator.plan(mains.trajectories, noise)
    done = engine.complete(mains, plan.branches, noise)
    rewards = torch.cat([problem.reward_of(mains.trajectories), problem.reward_of(done.sequences)])
    return Batch(mains.trajectories, plan, rewards, problem.logits_of(mains.trajectories))


def assert_same_context(a: Batch, context: int, b: Batch, context_b: int) -> None:
    steps = min(a.logits.shape[1], b.logits.shape[1])  # batches are as wide as their longest sequences
    assert bool(b.of(context_b).any())
    torch.testing.assert_close(a.of(context, steps), b.of(context_b, steps), rtol=1e-9, atol=1e-12)


# Inner products


def test_inner_products_are_those_of_dense_gradients():
    assert products_agree()


@on_every_problem
def test_inner_products_of_all_sequences(problem: Callable[[], Problem]):
    """Sequences that part at every step and every depth."""
    size, memory = len(problem().rewards), torch.zeros(1, dtype=torch.int64)
    trajectories = problem().engine().sample(memory, memory, Sampler("set", size), Noise(0)).trajectories
    dense = log_prob_gradients(problem(), trajectories)
    (products,) = inner_products(trajectories, rows_by_context(trajectories, size), problem().logits_of(trajectories))
    count = len(trajectories.tokens)
    torch.testing.assert_close(products[:count, :count], dense @ dense.T, rtol=1e-10, atol=1e-12)
    assert not bool(products[count:].any() | products[:, count:].any())
    assert bool((products < 0).any())


# Which contexts count


@on_every_problem
@both
def test_a_single_context_has_its_plain_baseline(estimator: Any, problem: Callable[[], Problem]):
    twins: dict[str, Estimator] = {"RLOO": RLOO(3), "UnorderedSet": UnorderedSet(3), "Reinforce": Reinforce("none")}
    twin = RLOO(2) if estimator == Reinforce("fitted", 2) else twins[type(estimator).__name__]
    nonzero = False
    for example in range(5):
        batch = draw(problem(), estimator, [example])
        assert isinstance(batch.plan, SetPlan)
        plain = replace(batch.plan, baseline="plain")
        assert torch.equal(batch.gradient, plain.gradient(batch.rewards, batch.logits))
        torch.testing.assert_close(batch.gradient, draw(problem(), twin, [example]).gradient)
        nonzero |= bool(batch.gradient.any())
    assert nonzero


@pytest.mark.parametrize("has_past", [False, True], ids=["no past", "past"])
@fitted
def test_the_rewards_of_a_context_do_not_change_its_coefficients(estimator: Any, has_past: bool):
    past = (PAST_ALONE if estimator.sampler.count == 1 else PAST) if has_past else None
    batch = draw(three_of_four(), replace(estimator, past=past), list(range(6)))
    rewards = batch.rewards.clone()
    changed = batch.trajectories.contexts == 2
    rewards[changed] = torch.tensor([30.0, -50.0, 7.0], dtype=torch.float64)[: int(changed.sum())]
    other = replace(batch, rewards=rewards)
    before, after = (each.coefficients(past) for each in (batch, other))
    assert torch.equal(after[2], before[2])
    assert bool(((after - before).abs().amax(1)[[0, 1, 3, 4, 5]] > 1e-3).all())
    assert all(not torch.allclose(batch.of(context), other.of(context)) for context in range(6))


@shrunk
def test_a_shrunk_baseline_does_not_depend_on_its_own_reward(estimator: Any):
    batch = draw(three_of_four(), estimator, list(range(6)))
    assert isinstance(batch.plan, SetPlan)
    reward, mean, valid = batch.plan._baselines(batch.rewards)
    before = shrunk_baseline(reward, mean, valid)
    reward[2, 0] += 5.0
    after = shrunk_baseline(reward, (batch.plan.mix @ reward[:, :, None]).squeeze(2), valid)
    assert float(after[2, 0]) == pytest.approx(float(before[2, 0]), abs=1e-12)
    # Those of other contexts do.
    assert bool((after != before)[[0, 1, 3, 4, 5]].all())


@on_every_problem
@both
def test_a_context_with_a_skipped_reward_is_ignored(estimator: Any, problem: Callable[[], Problem]):
    batch, without = (draw(problem(), estimator, examples) for examples in ([0, 1, 2, 3, 4], [0, 1, 3, 4]))
    batch.rewards[int((batch.trajectories.contexts == 2).nonzero()[-1])] = torch.nan
    assert not bool(batch.of(2).any())
    for context, other in ((0, 0), (1, 1), (3, 2), (4, 3)):
        assert_same_context(batch, context, without, other)
    for name, tensor in batch.updated(estimator).state_dict().items():
        torch.testing.assert_close(tensor, without.updated(estimator).state_dict()[name], rtol=1e-9, atol=1e-12)
    assert not bool(replace(batch, rewards=torch.full_like(batch.rewards, torch.nan)).gradient.any())


@both
def test_empty_batches_and_single_precision(estimator: Any):
    batch = draw(three_of_four(), estimator, list(range(5)))
    if estimator.baseline == "fitted":
        empty = draw(three_of_four(), estimator, [])
        assert empty.gradient.shape == empty.logits.shape
    single = batch.plan.gradient(batch.rewards, batch.logits.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), batch.gradient, rtol=1e-4, atol=1e-5)


# Equal rewards


@pytest.mark.parametrize(("contexts", "value", "batches"), [(1, 1e7, 2), (2, 1.0, 40), (6, -1.0, 2)])
@on_every_problem
@fitted
def test_equal_rewards_can_be_fitted(
    estimator: Any, problem: Callable[[], Problem], contexts: int, value: float, batches: int
):
    """Advantages are zero up to rounding, in one batch and in many."""
    batch = draw(problem(), estimator, list(range(contexts)))
    batch.rewards.fill_(value)
    for _ in range(batches):
        if isinstance(batch.plan, SetPlan):
            batch = replace(batch, plan=replace(batch.plan, past=estimator.past))
        assert bool(batch.gradient.isfinite().all())
        if isinstance(estimator, RLOO):
            assert float(batch.gradient.abs().max()) < 1e-6 * abs(value)
        estimator = batch.updated(estimator)
        assert all(bool(tensor.isfinite().all()) for tensor in estimator.state_dict().values())


@fitted
def test_rare_rewards_can_be_fitted(estimator: Any):
    """Nearly all rewards are −1, few are +1."""
    for index in range(15):
        batch = draw(three_of_four(), estimator, [8 * index + i for i in range(8)])
        batch.rewards.fill_(-1.0)
        if index % 7 == 0:
            batch.rewards[0] = 1.0
        assert bool(batch.gradient.isfinite().all())
        estimator = batch.updated(estimator)


# Shift and scale of rewards


CANDIDATES: dict[str, Estimator] = {"set": UnorderedSet(2, "fitted"), "rloo": RLOO(4, "fitted")}
AUTO: list[Any] = [Auto(candidates=CANDIDATES, chosen=name) for name in CANDIDATES]


@pytest.mark.parametrize("problem", [three_of_four, words_of_five], ids=["softmax", "tree"])
@pytest.mark.parametrize("estimator", [*FITTED, *SHRUNK, *AUTO], ids=str)
def test_gradients_follow_the_rewards(estimator: Any, problem: Callable[[], Problem]):
    """Rewards a r + b have a times the gradient, also after several batches, one of them with a single context."""
    changes = [(1.0, 0.0), (-1.0, 0.0), (1e30, 0.0), (1e-6, 1.0), (1e-6, -10.0), (1.0, 1e7), (1e6, -1e13)]
    trained: list[Any] = [estimator] * len(changes)
    for index in range(6):
        contexts = 1 if index % 5 == 4 else 6
        first = draw(problem(), trained[0], [7 * index + i for i in range(contexts)])
        plans = [each.plan(first.trajectories, Noise(4)) for each in trained]
        batches = [
            replace(first, plan=plan, rewards=a * first.rewards + b)
            for plan, (a, b) in zip(plans, changes, strict=True)
        ]
        for batch, (a, b) in zip(batches, changes, strict=True):
            error = float((batch.gradient / a - first.gradient).abs().max() / first.rewards.abs().max())
            # The only reward of a batch has nothing to be compared with, unless there is a past.
            assert error <= 1e-10 + 1e-14 * abs(b / a) or (contexts == 1 and estimator == Reinforce("shrunk")), (a, b)
        trained = [batch.updated(each) for batch, each in zip(batches, trained, strict=True)]


@pytest.mark.parametrize("value", [0.1, -1e30])
@both
def test_a_rare_reward_after_many_equal_ones(estimator: Any, value: float):
    """Hundreds of equal rewards leave nothing behind: then one sequence has another."""
    batch = draw(three_of_four(), estimator, list(range(4)))
    equal = torch.full_like(batch.rewards, value)
    estimator = replace(batch, rewards=equal).updated(estimator)
    new = estimator.past
    for _ in range(450 if new else 0):
        estimator = replace(estimator, past=estimator.past.updated(new))
    batch = replace(draw(three_of_four(), estimator, list(range(4))), rewards=equal.clone())
    assert float(batch.gradient.abs().max()) <= 1e-15 * abs(value)
    batch.rewards[1] += abs(value)
    size = float(batch.gradient.abs().max())
    assert 0.01 * abs(value) < size < 2 * abs(value)
    assert all(bool(tensor.isfinite().all()) for tensor in batch.updated(estimator).state_dict().values())


@fitted
def test_certain_contexts_are_no_evidence(estimator: Any):
    """Gradients of zero, in this batch and in all before."""
    batch = draw(three_of_four(), estimator, list(range(4)))
    sure = torch.full_like(batch.logits, -1e4).scatter_(2, batch.trajectories.tokens[:, :, None], 1e4)
    for scale in (1.0, 1e30, 1e-30):
        certain = replace(batch, rewards=scale * batch.rewards, logits=sure)
        assert not bool(certain.gradient.any())
        past = certain.updated(certain.updated(estimator)).past
        plan = replace(certain.plan, past=past)  # pyright: ignore[reportArgumentType]
        later = replace(certain, plan=plan, logits=batch.logits).gradient
        assert bool(later.isfinite().all())
        assert bool(later.any())


# State


def test_fits_do_not_depend_on_the_scale_of_gradients():
    assert fits_are_scale_free()


def test_evidence_decays():
    """As if each context of the past had a weight of 0.9."""
    old = Evidence(0.9 * PAST.weight, PAST.mean, 0.9 * PAST.spread, 0.9 * PAST.products)
    new = Evidence(PAST.weight + 3, PAST.mean - 2, 5 * PAST.spread, 7 * PAST.products)
    for name in (field.name for field in fields(Evidence)):
        torch.testing.assert_close(getattr(PAST.updated(new), name), getattr(old.merged(new), name))
    merged = PAST.updated(new)
    assert float(merged.weight) == pytest.approx(0.9 * 5 + 8)
    assert float(merged.mean) == pytest.approx((4.5 * 0.4 + 8 * -1.6) / 12.5)
    assert float(merged.spread) == pytest.approx(0.9 * 6 + 30 + 4.5 * 8 / 12.5 * 4)


@fitted
def test_earlier_batches_count_like_contexts_of_the_batch(estimator: Any):
    problem = three_of_four()
    past = draw(problem, estimator, [10, 11, 12])
    later = draw(problem, past.updated(estimator), [1, 2, 3])
    joined = draw(problem, estimator, [1, 2, 3, 10, 11, 12])
    evidence = past.updated(estimator).past
    torch.testing.assert_close(later.coefficients(evidence), joined.coefficients()[:3], rtol=1e-9, atol=1e-12)
    for context in range(3):
        assert_same_context(later, context, joined, context)


@pytest.mark.parametrize("estimator", [*FITTED, Pairs(per_step=0.5)], ids=str)
def test_a_state_dict_restores_an_estimator(estimator: Any):
    problem, trained = three_of_four(), estimator
    assert trained.state_dict() == {}
    for examples in ([5, 6, 7], [8, 9]):
        trained = draw(problem, trained, examples).updated(trained)
    state = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    restored = estimator.load_state_dict(state)
    assert restored == trained == estimator  # state is not compared
    gradients = [draw(problem, each, [1, 2, 3, 4]).gradient for each in (trained, restored, estimator)]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])
    reset = restored.load_state_dict({})
    assert reset.state_dict() == {}
    assert torch.equal(draw(problem, reset, [1, 2, 3, 4]).gradient, gradients[2])


@pytest.mark.parametrize("estimator", FITTED, ids=str)
def test_the_state_of_another_version_is_refused(estimator: Any):
    old = dict.fromkeys(("matrix", "right", "contexts", "length", "reward"), torch.zeros(()))
    other = dict(vars(PAST if estimator.sampler.count == 1 else PAST_ALONE))
    for state in (old, other):
        with pytest.raises(InputError, match="from another version of corollout or another estimator: start the"):
            estimator.load_state_dict(state)


@pytest.mark.parametrize("estimator", [RLOO(3), RLOO(3, "shrunk"), Reinforce(), UnorderedSet(3)], ids=str)
def test_other_baselines_have_no_state(estimator: Any):
    assert isinstance(estimator, Adaptive)
    assert draw(three_of_four(), estimator, [1, 2]).updated(estimator) is estimator
    assert estimator.state_dict() == {}
    assert not any(isinstance(other, Adaptive) for other in (GRPO(), Vine()))


# Shrunk baselines


def shrink(rewards: list[list[float]], means: list[list[float]], valid: list[bool] | None = None) -> list[list[float]]:
    reward, mean = (torch.tensor(x, dtype=torch.float64) for x in (rewards, means))
    return shrunk_baseline(reward, mean, torch.tensor(valid or [True] * len(reward))).tolist()


def test_shrunk_baselines_are_those_of_plain_means():
    assert shrunk_agrees()


def test_a_shrunk_baseline_by_hand():
    """For the first context, the others have the means 4 and 9, so c = 13/2; the variance of a reward is (8 + 2)/2 = 5
    and the variance of the means 25/2, of which 5/2 is noise; so β = 10 / (10 + 5).
    """
    reward, mean = [[1.0, 3.0], [2.0, 6.0], [8.0, 10.0]], [[3.0, 1.0], [6.0, 2.0], [10.0, 8.0]]
    first, second, _ = shrink(reward, mean)
    assert first == pytest.approx([6.5 + 2 / 3 * (3 - 6.5), 6.5 + 2 / 3 * (1 - 6.5)])
    # For the second, means of 2 and 9 and variances of 2 and 2; β = (49/2 − 1) / (49/2 − 1 + 2).
    keep = 23.5 / 25.5
    assert second == pytest.approx([5.5 + keep * (6 - 5.5), 5.5 + keep * (2 - 5.5)])
    # If the first is skipped, the second has one other only.
    assert shrink(reward, mean, [False, True, True])[1] == [6.0, 2.0]


def test_baselines_of_similar_contexts_are_the_mean_of_the_others():
    """The means differ by less than their noise; and single sequences."""
    shrunk = shrink([[0.0, 4.0], [1.0, 3.0], [0.0, 4.1]], [[4.0, 0.0], [3.0, 1.0], [4.1, 0.0]])
    assert shrunk == [pytest.approx([c, c]) for c in (2.025, 2.025, 2.0)]
    single, zeros = [[1.0], [2.0], [6.0]], [[0.0]] * 3
    assert shrink(single, zeros) == [[4.0], [3.5], [1.5]]
    assert shrink(single, zeros, [True, False, True])[::2] == [[6.0], [1.0]]
    assert shrink(single[:1], zeros[:1]) == [[0.0]]


@pytest.mark.parametrize("shape", [(5, 3), (5, 1), (2, 3), (2, 1), (1, 3), (1, 1)])
def test_equal_rewards_are_their_own_shrunk_baseline(shape: tuple[int, int]):
    reward = [[0.75] * shape[1]] * shape[0]
    zeros = [[0.0] * shape[1]] * shape[0]
    assert shrink(reward, reward if shape[1] > 1 else zeros) == (zeros if shape == (1, 1) else reward)


# Variance


@pytest.mark.parametrize(
    ("plain", "better", "problem"),
    [
        (RLOO(2), RLOO(2, "fitted"), three_of_four),
        (RLOO(4), RLOO(4, "fitted"), words_of_five),
        (UnorderedSet(2), UnorderedSet(2, "fitted"), three_of_four),
        (RLOO(2), RLOO(2, "shrunk"), two_of_three),
    ],
    ids=["rloo-2-fitted", "rloo-4-fitted-tree", "set-2-fitted", "rloo-2-shrunk"],
)
def test_shrunk_and_fitted_baselines_have_less_variance(plain: Estimator, better: Estimator, problem: Any):
    """Paired: the same sequences in batches of 20 contexts, without bias, so that squares can be compared."""
    a, b = (problem().estimates(e, 4000, 1, split)[0].flatten(1) for e, split in ((plain, 0), (better, 20)))
    excess = ((a**2).sum(1) - (b**2).sum(1)).unflatten(0, (-1, 20)).mean(1)
    assert excess.mean() > LIMIT * excess.std() / len(excess) ** 0.5


@pytest.mark.prove
def test_earlier_batches_reduce_the_variance_of_single_contexts():
    problem, estimator = two_of_three(), RLOO(2, "fitted")
    trained: Any = estimator
    for start in range(10_000, 10_200, 20):
        trained = draw(problem, trained, list(range(start, start + 20))).updated(trained)
    plain, better = (problem.estimates(each, 800, 1, 1)[0].flatten(1) for each in (estimator, trained))
    excess = (plain**2).sum(1) - (better**2).sum(1)
    assert excess.mean() > LIMIT * excess.std() / len(excess) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [20.0, 100.0])
def test_certain_contexts_do_not_mislead_an_uncertain_one(scale: float, dtype: torch.dtype):
    """Their sets have nearly all of the probability, so that their baseline hardly matters."""
    squares = {"set": 0.0, "fitted": 0.0}
    for seed in range(20):
        logits, table = torch.randn(2, 16, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        logits[1:] *= scale
        for baseline in squares:
            name = f"set-4:baseline={baseline}"
            g = estimate_gradient(logits.to(dtype), lambda a, rows, table=table: table[rows, a], name, seed=seed)
            squares[baseline] += float((g.double() ** 2).sum())
    assert 0.5 < squares["fitted"] / squares["set"] < 1.5


# GRPO


def test_normalised_advantages_do_not_depend_on_the_scale_of_rewards():
    batch = draw(three_of_four(), GRPO(4), list(range(5)))
    large, larger = (batch.plan.gradient(scale * batch.rewards, batch.logits) for scale in (1e3, 1e6))
    assert bool(large.any())
    torch.testing.assert_close(larger, large, rtol=1e-5, atol=1e-7)
    for value in (0.0, 3.0, 1e6):
        assert not bool(replace(batch, rewards=torch.full_like(batch.rewards, value)).gradient.any())
