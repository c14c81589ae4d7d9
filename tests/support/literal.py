"""Estimators with their options, and the comparison of their plans with the formulas."""

import torch

from corollout.estimators import (
    ARM,
    ARS,
    GRPO,
    RLOO,
    BeamExpectation,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    DisARM,
    Estimator,
    MonteCarlo,
    Pairs,
    Reinforce,
    SelfCritic,
    UnorderedSet,
    Vine,
)  # fmt: skip
from corollout.noise import Noise
from tests.support.baseline_reference import PAST, PAST_ALONE
from tests.support.enumeration import Problem
from tests.support.literal_formulas import FORMULAS
from tests.support.literal_world import TreeWorld, World
from tests.support.pairs_reference import GAPS
from tests.support.tree_problems import UNBALANCED, TreeProblem

ESTIMATORS: list[Estimator] = [
    ARS(),
    ARS(references=1),
    ARS(references=2, completions=2),
    ARS(references=3, samples=2),
    ARS(references=2, shared_references=True),
    ARS(main="greedy"),
    ARS(pseudo="greedy"),
    ARS(budget=3, budget_per="example"),
    ARS(budget=20, completions=2, samples=2),
    ARS(draws=3),
    ARS(references=2, completions=2, noise="own"),
    ARS(references=2, draws=2, samples=2, budget=2, budget_per="example"),
    ARM(samples=2),
    DisARM(samples=2),
    DisARM(noise="own"),
    Reinforce(),
    Reinforce(samples=3),
    Reinforce(baseline="batch"),
    Reinforce(baseline="none", samples=2),
    RLOO(samples=3),
    BeamExpectation(size=5),
    SelfCritic(),
    SelfCritic(samples=2),
    MonteCarlo(completions=0),
    MonteCarlo(completions=1, samples=2),
    MonteCarlo(completions=3),
    MonteCarlo(completions=1, noise="own"),
    Pairs(),
    Pairs(per_step=100, samples=2, completions=2),
    Pairs(budget=2, budget_per="example"),
    Pairs(per_step=0.6, samples=2, gaps=GAPS),
    Pairs(per_step=2.18, budget_per="example"),
    UnorderedSet(size=2),
    UnorderedSet(size=5),
    UnorderedSet(size=3, baseline="fitted"),
    Reinforce(baseline="shrunk"),
    Reinforce(baseline="fitted"),
    Reinforce(baseline="fitted", samples=2),
    RLOO(samples=2, baseline="shrunk"),
    RLOO(samples=3, baseline="fitted"),
    RLOO(samples=2, baseline="fitted", past=PAST),
    Reinforce(baseline="fitted", past=PAST_ALONE),
    GRPO(samples=3),
    Vine(completions=1),
    Vine(completions=2, samples=3),
    Vine(completions=1, noise="own"),
]
ON_TREES: list[Estimator] = [
    BinaryTreeARSM(),
    BinaryTreeARSM(samples=2, completions=2),
    BinaryTreeARSM(main="greedy"),
    BinaryTreeARSM(pseudo="greedy"),
    BinaryTreeARSM(budget=2, budget_per="example"),
    BinaryTreeARSM(budget=20, completions=2, samples=2),
    BinaryTreeDisARM(),
    BinaryTreeDisARM(samples=3, completions=2),
    BinaryTreeDisARM(budget=15, noise="own"),
    Reinforce(samples=2),
    RLOO(samples=3),
    BeamExpectation(size=5),
    SelfCritic(),
    SelfCritic(samples=2),
    MonteCarlo(completions=0),
    MonteCarlo(completions=2, samples=2),
    Pairs(per_step=0.001),
    Pairs(budget=3, budget_per="example", samples=2, completions=2, gaps=GAPS),
    UnorderedSet(size=2),
    UnorderedSet(size=5),
    UnorderedSet(size=3, baseline="fitted"),
    Reinforce(baseline="fitted"),
    RLOO(samples=3, baseline="shrunk"),
    RLOO(samples=3, baseline="fitted"),
    GRPO(samples=2),
    Vine(completions=1, samples=3),
    Vine(completions=2),
]


def agrees(
    estimator: Estimator, skip: float = 0.0, masked: bool = False, on_tree: bool = False, contexts: int = 12
) -> bool:
    """Whether the plan's gradient equals the formula, with random rewards for all branches, and its sampled branches
    have noise as the estimator says.

    ``skip`` is the fraction of rewards that are skipped (NaN).
    """
    vocab = 2 if isinstance(estimator, ARM) else 4
    problem = TreeProblem.of(UNBALANCED, 3, seed=11) if on_tree else Problem.make(vocab, 3, seed=11, masked=masked)
    noise = Noise(5)
    memory = torch.zeros(contexts, dtype=torch.int64)
    trajectories = problem.engine().sample(memory, torch.arange(contexts), estimator.sampler, noise).trajectories
    plan = estimator.plan(trajectories, noise)
    world = (TreeWorld if on_tree else World)(problem, trajectories, skip)
    branches = zip(
        *(vars(plan.branches)[name].tolist() for name in ("parent", "step", "token", "copy", "greedy")), strict=True
    )
    branch_rewards = [world.branch(*branch) for branch in branches]
    rewards = torch.cat([world.mains, torch.tensor(branch_rewards, dtype=torch.float64)])
    formula = next(f for kind, f in FORMULAS if isinstance(estimator, kind))
    gradient = plan.gradient(rewards, world.logits)
    own_noise = plan.branches.own_noise[~plan.branches.greedy]
    noise_agrees = bool((own_noise == (getattr(estimator, "noise", "shared") == "own")).all())
    return noise_agrees and torch.allclose(gradient, formula(estimator, world, noise), rtol=1e-6, atol=1e-8)
