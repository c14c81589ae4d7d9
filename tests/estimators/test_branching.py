"""Branches of ARS and of the tree estimators: where they are, how a budget limits them, and their options."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from corollout import estimate_gradient
from corollout.errors import InputError
from corollout.estimators import (
    ARM,
    ARS,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    Branching,
    DisARM,
    Estimator,
    MonteCarlo,
    Pairs,
    Vine,
    make_estimator,
    single,
)  # fmt: skip
from corollout.estimators.estimator import options_of
from corollout.noise import Noise, uniform
from corollout.rollouts import Mains
from corollout.trees import Tree
from corollout.types import Branches
from tests.support.enumeration import Problem
from tests.support.tree_problems import UNBALANCED, TreeProblem, words_of_five

KINDS: list[type[Branching]] = [ARS, BinaryTreeARSM, BinaryTreeDisARM]
TREES: list[type[BinaryTreeARSM]] = [BinaryTreeARSM, BinaryTreeDisARM]


def problem_of(kind: type[Branching]) -> Problem:
    return (
        Problem.make(vocab=6, length=4, seed=2)
        if kind in (ARS, Pairs)
        else TreeProblem.of(UNBALANCED, length=4, seed=5)
    )


def planned(estimator: Branching, problem: Problem | None = None, batch: int = 30, seed: int = 2) -> tuple[Mains, Any]:
    engine = (problem or problem_of(type(estimator))).engine()
    mains = engine.sample(torch.zeros(batch, dtype=torch.int64), torch.arange(batch), estimator.sampler, Noise(seed))
    return mains, estimator.plan(mains.trajectories, Noise(seed))


def codes(branches: Branches) -> list[tuple[int, ...]]:
    columns = (branches.parent, branches.step, branches.token, branches.copy)
    return [*zip(*(column.tolist() for column in columns), strict=True)]


# Budgets


@pytest.mark.parametrize("budget", [1, 2, 17, 40])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(ARS, {}), (ARS, {"references": 2, "samples": 3}), (BinaryTreeARSM, {}), (BinaryTreeARSM, {"samples": 3})],
)
def test_a_plan_has_exactly_the_branches_of_its_budget(kind: Any, budget: int, options: dict[str, Any]):
    for seed in range(3):
        free = codes(planned(kind(**options), seed=seed)[1].branches)
        kept = codes(planned(kind(**options, budget=budget), seed=seed)[1].branches)
        assert len(free) > 40
        assert len(kept) == len(set(kept)) == budget
        assert set(kept) < set(free)


@pytest.mark.parametrize("budget", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_per_example_is_independent_of_the_batch(kind: type[Branching], budget: int):
    estimator = kind(budget=budget, budget_per="example")
    free, (mains, plan) = codes(planned(kind())[1].branches), planned(estimator)
    contexts = mains.trajectories.contexts
    counts, free_counts = (
        contexts[rows].bincount(minlength=30) for rows in (plan.branches.parent, [r for r, *_ in free])
    )
    assert counts.tolist() == free_counts.clamp(max=budget).tolist()
    assert set(codes(plan.branches)) <= set(free)
    small = codes(planned(estimator, batch=7)[1].branches)
    assert small == [code for code in codes(plan.branches) if contexts[code[0]] < 7]


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_that_is_just_sufficient_changes_nothing(kind: type[Branching]):
    _, free = planned(kind())
    for budget in (len(free.branches), 10**6):
        _, same = planned(kind(budget=budget))
        assert codes(same.branches) == codes(free.branches)
        assert torch.equal(same.weight, free.weight)
    assert len(planned(kind(budget=len(free.branches) - 1))[1].branches) == len(free.branches) - 1


@pytest.mark.parametrize("budget_per", ["update", "example"])
@pytest.mark.parametrize("options", [{}, {"references": 2, "samples": 2}, {"completions": 2}])
def test_estimates_with_a_sufficient_budget(budget_per: Any, options: dict[str, Any]):
    problem, estimator = Problem.make(vocab=4, length=3, seed=1), ARS(**options)
    limited = replace(estimator, budget=10**6, budget_per=budget_per)
    for share_noise in (True, False):
        free, same = (problem.estimates(e, 50, seed=3, share_noise=share_noise)[0] for e in (estimator, limited))
        assert bool(free.any())
        assert torch.equal(free, same)


def test_kept_branches_are_reweighted():
    """The mean over the random choices of a budget is the estimate without a budget."""
    logits, table = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    trajectories = single._one_step(logits, ARS(), Noise(0))

    def gradient(estimator: ARS, budget_seed: int) -> Tensor:
        plan = estimator.plan(trajectories, Noise(budget_seed))
        tokens = torch.cat([trajectories.tokens[:, 0], plan.branches.token])
        owners = torch.cat([trajectories.contexts, plan.branches.parent])
        return plan.gradient(table[owners, tokens], logits[:, None])[:, 0]

    kept = torch.stack([gradient(ARS(budget=2), seed) for seed in range(300)])
    assert len(ARS().plan(trajectories, Noise(0)).branches) > 2
    # 18 comparisons, each beyond 6.8 standard errors with probability 1e-11.
    error = kept.std(0) / 300**0.5
    assert bool(((kept.mean(0) - gradient(ARS(), 0)).abs() <= 6.8 * error + 1e-12).all())


# Options


@pytest.mark.parametrize("kind", KINDS)
def test_completions_repeat_every_branch(kind: type[Branching]):
    once, thrice = (codes(planned(kind(completions=n))[1].branches) for n in (1, 3))
    assert thrice == [(*code[:3], copy) for copy in range(3) for code in once]


def test_completions_of_a_single_variable_are_all_the_same():
    logits, table = torch.randn(2, 40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, three = (estimate_gradient(logits, lambda a, o: table[o, a], ARS(completions=n)) for n in (1, 3))
    torch.testing.assert_close(three, one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"main": "greedy"}, {"pseudo": "greedy"}])
def test_greedy_options_are_obeyed(kind: type[Branching], options: dict[str, Any]):
    estimator = kind(**options)
    mains, plan = planned(estimator)
    trajectories = mains.trajectories
    if trajectories.decisions is None:
        follows = (trajectories.tokens == trajectories.logits.argmax(-1))[trajectories.mask]
    else:
        valid = trajectories.decisions.valid & trajectories.mask[:, :, None]
        follows = (trajectories.decisions.bits == (trajectories.logits > 0))[valid]
    assert bool(follows.all()) == (estimator.main == "greedy")
    assert bool((plan.branches.greedy == (estimator.pseudo == "greedy")).all())
    assert len(plan.branches) > 0
    assert estimator.is_biased == bool(options)


BRANCHING: list[tuple[Estimator, Problem]] = [
    (ARS(), Problem.make(vocab=4, length=4, seed=2)),
    (ARS(references=2, completions=2, samples=2), Problem.make(vocab=4, length=4, seed=2)),
    (Pairs(per_step=5), Problem.make(vocab=4, length=4, seed=2)),
    (MonteCarlo(completions=2), Problem.make(vocab=4, length=4, seed=2)),
    (Vine(completions=2), Problem.make(vocab=4, length=4, seed=2)),
    (ARM(), Problem.make(vocab=2, length=4, seed=2)),
    (DisARM(), Problem.make(vocab=2, length=4, seed=2)),
    (BinaryTreeARSM(completions=2), TreeProblem.of(UNBALANCED, length=3, seed=5)),
    (BinaryTreeDisARM(), TreeProblem.of(UNBALANCED, length=3, seed=5)),
]


@pytest.mark.parametrize(("estimator", "problem"), BRANCHING, ids=lambda value: getattr(value, "label", ""))
def test_own_noise_is_chosen_by_the_estimator(estimator: Any, problem: Problem):
    """As by an engine that shares none, number for number; and the same branches as with shared noise."""
    own = replace(estimator, noise="own")
    assert own.label != estimator.label
    assert own.label == make_estimator(f"{_name(estimator)}noise=own").label
    (chosen, _), (engine_wide, _) = (
        problem.estimates(own, 60, seed=4),
        problem.estimates(estimator, 60, seed=4, share_noise=False),
    )
    assert torch.equal(chosen, engine_wide)
    assert not torch.equal(chosen, problem.estimates(estimator, 60, seed=4)[0])
    plans = []
    for one in (estimator, own):
        mains = problem.engine().sample(torch.zeros(60).long(), torch.arange(60), one.sampler, Noise(4)).trajectories
        plans.append(one.plan(mains, Noise(4)).branches)
    assert codes(plans[0]) == codes(plans[1])


def _name(estimator: Any) -> str:
    """The estimator's name with its options, open for another."""
    options = {o: v for o in options_of(type(estimator)) if (v := getattr(estimator, o)) not in (None, "shared")}
    return f"{estimator.names[0]}:" + "".join(f"{option}={value}," for option, value in options.items())


@pytest.mark.parametrize("kind", [*KINDS, Pairs])
@pytest.mark.parametrize("completions", [1, 2])
def test_own_noise_is_independent_of_the_parents(kind: type[Branching], completions: int):
    """With a policy to which prefixes make no difference, a branch with its parent's noise has its parent's tokens from
    then on; one with its own agrees with them, and with other branches, as often as chance has it.
    """
    problem, batch = problem_of(kind), 300
    with torch.no_grad():
        problem.policy.table.copy_(problem.policy.table[0].clone())
        if not issubclass(kind, BinaryTreeARSM):
            problem.policy.table[:, 0] = -1e9  # no sequence ends
    for noise in ("shared", "own"):
        mains, plan = planned(kind(noise=noise, completions=completions), problem, batch)
        branches = plan.branches
        parents = mains.trajectories
        done = problem.engine().complete(mains, branches, Noise(2)).sequences
        last = problem.policy.length - 1
        same_step = (branches.step < last) & (branches.copy == 0)
        both = same_step & (done.lengths > last) & (parents.lengths[branches.parent] > last)
        ours, theirs = done.tokens[both, last], parents.tokens[branches.parent[both], last]
        agreed = (ours == theirs).double()
        if noise == "shared":
            assert bool(agreed.all())
            continue
        # The tokens of a parent's branches may agree by chance only: so may those of two of its branches.
        chance = (ours.bincount() / len(ours)).square().sum()
        assert len(ours) > 200
        assert abs(agreed.mean() - chance) < 0.1
        first, second = ours[:-1], ours[1:]
        assert abs((first == second).double().mean() - chance) < 0.1


# Trees


def test_there_is_a_branch_exactly_where_the_pseudo_bit_differs():
    mains, plan = planned(BinaryTreeARSM())
    expected, agreed = [], 0
    trajectories = mains.trajectories
    for row, step in trajectories.mask.nonzero().tolist():
        pi = uniform(trajectories.keys[row : row + 1], torch.tensor([step]), UNBALANCED.depth, torch.float64)[0]
        for depth, (node, bit) in enumerate(UNBALANCED.path(int(trajectories.tokens[row, step]))):
            if (pi[depth] > torch.sigmoid(-trajectories.logits[row, step, depth])) != bit:
                expected.append((row, step, -1 - int(UNBALANCED.children[node, int(not bit)]), 0))
            else:
                agreed += 1
    assert codes(plan.branches) == expected
    assert min(agreed, len(expected)) > 40


@pytest.mark.parametrize("kind", TREES)
def test_where_all_pseudo_bits_agree_there_is_no_branch_and_no_gradient(kind: type[BinaryTreeARSM]):
    """Logits so large that no bit can change."""
    problem = TreeProblem.of(UNBALANCED, length=3, scale=1e4, seed=5)
    mains, plan = planned(kind(), problem)
    assert len(plan.branches) == 0
    done = problem.engine().complete(mains, plan.branches, Noise(2))
    assert len(done.sequences.tokens) == done.tokens == 0
    assert not bool(plan.gradient(torch.arange(30).double(), mains.trajectories.logits).any())
    assert len(kind(budget=3).plan(mains.trajectories, Noise(2)).branches) == 0


@pytest.mark.parametrize("share_noise", [True, False])
def test_tokens_of_branches_at_one_step_are_distinct(share_noise: bool):
    engine = TreeProblem.of(UNBALANCED, length=4, scale=0.3, seed=5).engine(share_noise=share_noise)
    mains = engine.sample(torch.zeros(99, dtype=torch.int64), torch.arange(99), BinaryTreeARSM().sampler, Noise(2))
    plan = BinaryTreeARSM().plan(mains.trajectories, Noise(2))
    tokens = engine.complete(mains, plan.branches, Noise(2)).sequences.tokens
    cells: dict[tuple[int, int], list[int]] = {}
    for i, (row, step, _, _) in enumerate(codes(plan.branches)):
        cells.setdefault((row, step), [int(mains.trajectories.tokens[row, step])]).append(int(tokens[i, step]))
    assert max(map(len, cells.values())) == 5  # the deepest tokens, with every bit changed
    assert all(len(set(cell)) == len(cell) for cell in cells.values())


@pytest.mark.parametrize("kind", TREES)
def test_a_tree_of_two_tokens_has_the_formulas_of_arm_and_disarm(kind: type[BinaryTreeARSM]):
    problem = TreeProblem.of(Tree(np.array([[-1, -2]], np.int32)), length=3, seed=1)
    mains, plan = planned(kind(), problem, batch=400)
    trajectories = mains.trajectories
    done = problem.engine().complete(mains, plan.branches, Noise(2))
    rewards = torch.cat([problem.reward_of(trajectories), problem.reward_of(done.sequences)])
    expected = torch.zeros(400, 3, 1, dtype=torch.float64)
    branch_rewards = {code[:2]: float(r) for code, r in zip(codes(plan.branches), rewards[400:], strict=True)}
    for row, step in trajectories.mask.nonzero().tolist():
        phi = trajectories.logits[row, step, 0]
        pi = uniform(trajectories.keys[row : row + 1], torch.tensor([step]), 1, torch.float64)[0, 0]
        true, pseudo = int(pi < phi.sigmoid()), int(pi > (-phi).sigmoid())
        assert true == int(trajectories.tokens[row, step])
        assert ((row, step) in branch_rewards) == (true != pseudo)
        gap = float(rewards[row]) - branch_rewards.get((row, step), float(rewards[row]))
        arm, disarm = gap * (0.5 - pi), 0.5 * gap * (-1) ** pseudo * phi.abs().sigmoid()
        expected[row, step] = disarm if kind is BinaryTreeDisARM else arm
    torch.testing.assert_close(plan.gradient(rewards, trajectories.logits), expected)
    assert bool(expected.any())


# Heads


@pytest.mark.parametrize("estimator", [ARS(), ARS(references=2), ARM(), DisARM()], ids=str)
def test_estimators_for_a_softmax_refuse_a_tree(estimator: Estimator):
    message = f"^{estimator.label} needs a softmax head, but .* a tree head: choose one of bt-arsm, bt-disarm, "
    with pytest.raises(InputError, match=message):
        words_of_five().estimates(estimator, 3, seed=0)
    estimator.check_head("softmax")


@pytest.mark.parametrize("kind", TREES)
def test_estimators_for_a_tree_refuse_a_softmax(kind: type[BinaryTreeARSM]):
    message = f"^{kind.title} needs a tree head, but .* a softmax head: choose one of arsm, arm, disarm, "
    with pytest.raises(InputError, match=message):
        Problem.make(vocab=4, length=3).estimates(kind(), 3, seed=0)
    kind().check_head("tree")
