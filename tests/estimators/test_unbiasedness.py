"""The expectation of every estimator, against the exact gradient by enumeration.

Every case runs with an eighth of its sample; ``-m prove`` runs the full samples.
"""

from collections.abc import Callable

import pytest
import torch

from corollout.estimators import (
    ARM,
    ARS,
    GRPO,
    BeamExpectation,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    DisARM,
    Estimator,
    Reinforce,
    baselines,
)  # fmt: skip
from corollout.estimators.baselines import Evidence
from tests.support.enumeration import Problem
from tests.support.tree_problems import confident_words, words_of_five
from tests.support.unbiased_cases import (
    BY_NAME,
    CASES,
    LIMIT,
    MOST_COMPARISONS,
    Case,
    bits,
    three_of_four,
    two_of_three,
)  # fmt: skip

samples = pytest.mark.parametrize(
    "full", [pytest.param(False, id="short"), pytest.param(True, id="full", marks=pytest.mark.prove)]
)


def test_the_false_alarm_rate_is_as_stated():
    comparisons = 2 * sum(case.problem().policy.table.numel() + 1 for case in CASES)
    assert comparisons < MOST_COMPARISONS
    two_sided = torch.special.erfc(torch.tensor(LIMIT / 2**0.5, dtype=torch.float64))
    assert comparisons * two_sided < 1e-6


def test_the_exact_gradient_is_exact():
    """Enumeration and automatic differentiation, against finite differences."""
    problem = two_of_three()
    exact, table = problem.exact_gradient(), problem.policy.table
    for index in [(0, 0), (0, 1), (0, 2), (2, 0), (3, 1)]:
        values = []
        for shift in (1e-6, -1e-6):
            with torch.no_grad():
                table[index] += shift
                values.append(float(problem.expected_reward()))
                table[index] -= shift
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(exact[index]), abs=1e-7)


@samples
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unbiased(case: Case, full: bool):
    assert (case if full else case.short()).deviations().max() < LIMIT


@samples
@pytest.mark.parametrize(
    "case",
    [
        Case("greedy-main", ARS(main="greedy"), three_of_four),
        Case("greedy-pseudo", ARS(pseudo="greedy"), three_of_four),
        Case("greedy-both", ARS(main="greedy", pseudo="greedy"), three_of_four),
        Case("batch-mean", Reinforce(baseline="batch"), two_of_three, 40_000, group=2, split=True),
        Case("beam", BeamExpectation(size=8), three_of_four, 32),
        Case("normalised", GRPO(samples=4), three_of_four),
        Case("tree-greedy-main", BinaryTreeARSM(main="greedy"), words_of_five),
        Case("tree-greedy-pseudo", BinaryTreeDisARM(pseudo="greedy"), words_of_five),
    ],
    ids=lambda case: case.name,
)
def test_biased_as_documented(case: Case, full: bool):
    assert case.estimator.is_biased
    assert (case if full else case.short()).deviations().max() > (2 * LIMIT if full else LIMIT)


@pytest.mark.parametrize("name", ["rloo-3-fitted", "reinforce-fitted"])
def test_a_fit_that_includes_the_context_itself_is_biased(name: str, monkeypatch: pytest.MonkeyPatch):
    def with_itself(contexts: Evidence) -> Evidence:
        whole = vars(baselines.over_all(contexts)).values()
        return Evidence(*(x.expand(len(contexts.weight), *x.shape) for x in whole))

    monkeypatch.setattr(baselines, "over_others", with_itself)
    assert BY_NAME[name].deviations().max() > LIMIT


def test_the_batch_mean_shrinks_the_gradient():
    """E[g] = (1 − 1/B) ∇, here with B = 2."""
    g = Case("", Reinforce(baseline="batch"), two_of_three, 40_000, group=2, split=True).draw().flatten(1)
    exact = two_of_three().exact_gradient().flatten()
    ratio = (g @ exact).mean() / exact.norm() ** 2
    error = (g @ exact).std() / len(g) ** 0.5 / exact.norm() ** 2
    assert abs(ratio - 0.5) < LIMIT * error
    assert error < 0.02


@pytest.mark.parametrize("problem", [three_of_four(), words_of_five()], ids=["softmax", "tree"])
def test_a_beam_of_all_sequences_is_exact(problem: Problem):
    (g,), _ = problem.estimates(BeamExpectation(size=len(problem.rewards)), 1, seed=0)
    torch.testing.assert_close(g, problem.exact_gradient(), rtol=1e-9, atol=1e-12)


@samples
@pytest.mark.parametrize(
    ("arm", "disarm", "problem"),
    [
        (ARM(), DisARM(), bits),
        (BinaryTreeARSM(), BinaryTreeDisARM(), words_of_five),
        (BinaryTreeARSM(), BinaryTreeDisARM(), confident_words),
    ],
)
def test_disarm_has_less_variance_than_arm(
    arm: Estimator, disarm: Estimator, problem: Callable[[], Problem], full: bool
):
    """Paired: the same noise and rewards, so the difference of squares is sharp."""
    one, other = (Case("", e, problem, 40_000 if full else 10_000).draw().flatten(1) for e in (arm, disarm))
    excess = (one**2).sum(1) - (other**2).sum(1)
    assert excess.mean() > LIMIT * excess.std() / len(excess) ** 0.5
