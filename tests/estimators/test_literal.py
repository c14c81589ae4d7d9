"""Every estimator against its formula, written as loops."""

import pytest

from corollout.estimators import ARM, ARS, RLOO, BinaryTreeARSM, Estimator, SelfCritic, UnorderedSet, Vine
from corollout.estimators.estimator import FittedBaseline
from tests.support.literal import ESTIMATORS, ON_TREES, agrees

FORMULAS = "tests.support.literal_formulas"
WORLD = "tests.support.literal_world"


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_equals_its_formula(estimator: Estimator):
    """Also with skipped rewards, and with a masked token."""
    assert agrees(estimator)
    assert agrees(estimator, skip=0.2)
    assert isinstance(estimator, ARM) or agrees(estimator, masked=True)


@pytest.mark.parametrize("estimator", ON_TREES, ids=str)
def test_equals_its_formula_on_a_tree(estimator: Estimator):
    assert agrees(estimator, on_tree=True)
    assert agrees(estimator, skip=0.2, on_tree=True)


@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if isinstance(e, FittedBaseline)], ids=str)
def test_equals_its_formula_with_few_contexts(estimator: Estimator):
    """A context with no others, one other and two others."""
    assert all(agrees(estimator, contexts=contexts) for contexts in (1, 2, 3))


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch):
    wrong = lambda logits, pi, references: references[:, :, None].repeat(1, 1, 4)  # noqa: E731
    monkeypatch.setattr(f"{FORMULAS}.by_swapping", wrong)
    assert not agrees(ARS())


@pytest.mark.parametrize("estimator", [BinaryTreeARSM(), SelfCritic()], ids=str)
def test_the_comparison_on_a_tree_can_fail(monkeypatch: pytest.MonkeyPatch, estimator: Estimator):
    monkeypatch.setattr(f"{WORLD}.TreeWorld.other", lambda world, node, bit: -1)
    assert not agrees(estimator, on_tree=True)


@pytest.mark.parametrize("estimator", [RLOO(2, "shrunk"), RLOO(3, "fitted"), UnorderedSet(3, "fitted")], ids=str)
def test_the_comparison_of_baselines_can_fail(monkeypatch: pytest.MonkeyPatch, estimator: Estimator):
    monkeypatch.setattr(f"{FORMULAS}.plain_shrunk", lambda contexts, i: contexts[i].baselines)
    monkeypatch.setattr(f"{FORMULAS}.plain_fitted", lambda contexts, i, past: contexts[i].baselines)
    assert not agrees(estimator)


def test_the_comparison_of_values_can_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{WORLD}.World.token", lambda world, row, step: 0)
    assert not agrees(Vine(1))
