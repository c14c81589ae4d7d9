"""Estimators for tokens that are walks down a tree: their branches, their budget, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.estimators import ARM, ARS, BinaryTreeARSM, BinaryTreeDisARM, ContrastPlan, DisARM, Estimator
from corollout.noise import Noise, uniform
from corollout.rollouts import Engine, Mains
from corollout.trees import Tree
from corollout.types import Branches
from tests.support.enumeration import Problem
from tests.support.tree_problems import UNBALANCED, TreeProblem, words_of_five

BOTH = [BinaryTreeARSM, BinaryTreeDisARM]


def planned(
    estimator: BinaryTreeARSM, problem: Problem | None = None, batch: int = 60
) -> tuple[Engine, Mains, ContrastPlan]:
    engine = (problem or TreeProblem.of(UNBALANCED, length=4, seed=5)).engine()
    mains = engine.sample(torch.zeros(batch, dtype=torch.int64), torch.arange(batch), estimator.sampler, Noise(2))
    return engine, mains, estimator.plan(mains.trajectories, Noise(2))


def codes(branches: Branches) -> list[tuple[int, ...]]:
    columns = (branches.parent, branches.step, branches.token, branches.copy)
    return [*zip(*(column.tolist() for column in columns), strict=True)]


def test_there_is_a_branch_where_the_pseudo_bit_differs_and_nowhere_else():
    """By plain loops; a tie between the bits and their number is impossible."""
    _, mains, plan = planned(BinaryTreeARSM())
    found, agreed = [], 0
    trajectories = mains.trajectories
    for row, step in trajectories.mask.nonzero().tolist():
        pi = uniform(trajectories.keys[row : row + 1], torch.tensor([step]), UNBALANCED.depth, torch.float64)[0]
        for depth, (node, bit) in enumerate(UNBALANCED.path(int(trajectories.tokens[row, step]))):
            phi = trajectories.logits[row, step, depth]
            if (pi[depth] > torch.sigmoid(-phi)) != bit:
                found.append((row, step, -1 - int(UNBALANCED.children[node, int(not bit)]), 0))
            else:
                agreed += 1
    assert codes(plan.branches) == found
    assert agreed > 50
    assert len(found) > 50


@pytest.mark.parametrize("kind", BOTH)
def test_where_all_pseudo_bits_agree_there_is_no_branch_and_no_gradient(kind: type[BinaryTreeARSM]):
    """Logits so large that no bit could have been another."""
    problem = TreeProblem.of(UNBALANCED, length=3, scale=1e4, seed=5)
    engine, mains, plan = planned(kind(), problem)
    assert len(plan.branches) == 0
    done = engine.complete(mains, plan.branches, Noise(2))
    assert len(done.sequences.tokens) == done.tokens == 0
    rewards = torch.arange(60).double()
    assert bool((plan.gradient(rewards, mains.trajectories.logits) == 0).all())
    limited = kind(budget=3).plan(mains.trajectories, Noise(2))
    assert len(limited.branches) == 0


@pytest.mark.parametrize("share_noise", [True, False])
def test_words_of_branches_at_one_step_are_all_different(share_noise: bool):
    problem = TreeProblem.of(UNBALANCED, length=4, scale=0.3, seed=5)
    engine = problem.engine(share_noise=share_noise)
    mains = engine.sample(torch.zeros(99, dtype=torch.int64), torch.arange(99), BinaryTreeARSM().sampler, Noise(2))
    plan = BinaryTreeARSM().plan(mains.trajectories, Noise(2))
    words = engine.complete(mains, plan.branches, Noise(2)).sequences.tokens
    places: dict[tuple[int, int], list[int]] = {}
    for i, (row, step, _, _) in enumerate(codes(plan.branches)):
        places.setdefault((row, step), [int(mains.trajectories.tokens[row, step])]).append(int(words[i, step]))
    assert max(map(len, places.values())) == 5  # the deepest tokens, with every bit turned
    assert all(len(set(found)) == len(found) for found in places.values())


@pytest.mark.parametrize("kind", BOTH)
def test_a_tree_of_two_tokens_has_the_formulas_of_arm_and_disarm(kind: type[BinaryTreeARSM]):
    problem = TreeProblem.of(Tree(np.array([[-1, -2]], np.int32)), length=3, seed=1)
    engine, mains, plan = planned(kind(), problem, batch=400)
    trajectories = mains.trajectories
    done = engine.complete(mains, plan.branches, Noise(2))
    rewards = torch.cat([problem.reward_of(trajectories), problem.reward_of(done.sequences)])
    found = plan.gradient(rewards, trajectories.logits)
    assert found.shape == (400, 3, 1)
    expected = torch.zeros(400, 3, dtype=torch.float64)
    sources = {place[:2]: float(r) for place, r in zip(codes(plan.branches), rewards[400:], strict=True)}
    for row, step in trajectories.mask.nonzero().tolist():
        phi = trajectories.logits[row, step, 0]
        pi = uniform(trajectories.keys[row : row + 1], torch.tensor([step]), 1, torch.float64)[0, 0]
        true, pseudo = int(pi < phi.sigmoid()), int(pi > (-phi).sigmoid())
        assert true == int(trajectories.tokens[row, step])
        assert ((row, step) in sources) == (true != pseudo)
        gap = float(rewards[row]) - sources.get((row, step), float(rewards[row]))
        arm, disarm = gap * (0.5 - pi), 0.5 * gap * (-1) ** pseudo * phi.abs().sigmoid()
        expected[row, step] = disarm if kind is BinaryTreeDisARM else arm
    torch.testing.assert_close(found[:, :, 0], expected)
    assert bool((expected != 0).any())


@pytest.mark.parametrize("budget", [1, 7, 40])
@pytest.mark.parametrize("options", [{}, {"samples": 3}])
def test_a_plan_has_exactly_the_branches_of_its_budget(budget: int, options: dict[str, Any]):
    free = codes(planned(BinaryTreeARSM(**options))[2].branches)
    plan = planned(BinaryTreeARSM(budget=budget, **options))[2]
    assert len(free) > 40
    assert len(plan.branches) == len(set(codes(plan.branches))) == budget
    assert set(codes(plan.branches)) < set(free)
    same = planned(BinaryTreeARSM(budget=len(free), **options))[2]
    assert codes(same.branches) == free
    own = planned(BinaryTreeARSM(budget=2, budget_per="example", **options))
    contexts = own[1].trajectories.contexts
    count = contexts[own[2].branches.parent].bincount(minlength=60)
    assert count.tolist() == contexts[[row for row, *_ in free]].bincount(minlength=60).clamp(max=2).tolist()


def test_completions_repeat_every_branch():
    once, thrice = (codes(planned(BinaryTreeARSM(completions=n))[2].branches) for n in (1, 3))
    assert thrice == [(*code[:3], copy) for copy in range(3) for code in once]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("options", [{}, {"main": "greedy"}, {"pseudo": "greedy"}])
def test_greedy_options_are_obeyed(kind: type[BinaryTreeARSM], options: dict[str, Any]):
    estimator = kind(**options)
    _, mains, plan = planned(estimator)
    made = mains.trajectories.decisions
    assert made is not None
    there = made.there & mains.trajectories.mask[:, :, None]
    follows = (made.bits == (mains.trajectories.logits > 0))[there]
    assert bool(follows.all()) == (estimator.main == "greedy")
    assert bool((plan.branches.greedy == (estimator.pseudo == "greedy")).all())
    assert len(plan.branches) > 0


# What is refused


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (ARS(), "ARS compares all tokens of a softmax; for a policy whose head is a tree there is bt-arsm"),
        (ARS(references=2), "ARS compares all tokens of a softmax; for a policy whose head is a tree there is bt-arsm"),
        (ARM(), "ARM is for a softmax over two tokens; a tree has bt-arsm and bt-disarm"),
        (DisARM(), "DisARM is for a softmax over two tokens; a tree has bt-arsm and bt-disarm"),
    ],
)
def test_estimators_of_a_softmax_refuse_a_tree(estimator: Estimator, message: str):
    with pytest.raises(InputError, match=f"^{message}$"):
        words_of_five().estimates(estimator, 3, seed=0)


@pytest.mark.parametrize("kind", BOTH)
def test_estimators_of_a_tree_refuse_a_softmax(kind: type[BinaryTreeARSM]):
    message = "is for a policy whose head is a binary tree; for a softmax over all tokens there are arsm and ars-K$"
    with pytest.raises(InputError, match=f"^{kind.called} {message}"):
        Problem.make(vocab=4, length=3).estimates(kind(), 3, seed=0)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "needs samples ≥ 1, not 0"),
        ({"completions": 0}, "needs completions ≥ 1, not 0"),
        ({"budget": -2}, "needs budget ≥ 1, not -2"),
    ],
)
def test_counts_that_are_too_small_are_refused(kind: type[BinaryTreeARSM], options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=f"^{kind.called} {message}$"):
        kind(**options)
