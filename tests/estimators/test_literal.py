"""Every estimator against its formula, written as plain loops."""

import pytest

from corollout.estimators import ARM, ARS, RLOO, BinaryTreeARSM, Estimator, SelfCritic, UnorderedSet, Vine
from corollout.estimators.plans import Fitting
from tests.support.literal import ESTIMATORS, ON_TREES, agrees


@pytest.mark.parametrize("skip", [0.0, 0.2])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_equals_its_formula(estimator: Estimator, skip: float):
    assert agrees(estimator, skip)


@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if not isinstance(e, ARM)], ids=str)
def test_equals_its_formula_with_a_masked_token(estimator: Estimator):
    assert agrees(estimator, masked=True)


@pytest.mark.parametrize("skip", [0.0, 0.2])
@pytest.mark.parametrize("estimator", ON_TREES, ids=str)
def test_equals_its_formula_on_a_tree(estimator: Estimator, skip: float):
    assert agrees(estimator, skip, on_tree=True)


@pytest.mark.parametrize("contexts", [1, 2, 3])
@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if isinstance(e, Fitting)], ids=str)
def test_equals_its_formula_with_few_contexts(estimator: Estimator, contexts: int):
    """Where a context has no other to listen to, only one, or two."""
    assert agrees(estimator, contexts=contexts)


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("literal.by_swapping", lambda logits, pi, references: references[:, :, None].repeat(1, 1, 4))
    assert not agrees(ARS())


@pytest.mark.parametrize("estimator", [BinaryTreeARSM(), SelfCritic()], ids=str)
def test_the_comparison_on_a_tree_can_fail(monkeypatch: pytest.MonkeyPatch, estimator: Estimator):
    monkeypatch.setattr("literal._TreeWorld.other", lambda world, node, bit: -1)
    assert not agrees(estimator, on_tree=True)


@pytest.mark.parametrize("estimator", [RLOO(2, "shrunk"), RLOO(3, "fitted"), UnorderedSet(3, "fitted")], ids=str)
def test_the_comparison_of_baselines_can_fail(monkeypatch: pytest.MonkeyPatch, estimator: Estimator):
    monkeypatch.setattr("literal.plain_shrunk", lambda contexts, i: contexts[i].own)
    monkeypatch.setattr("literal.plain_fitted", lambda contexts, i, past: contexts[i].own)
    assert not agrees(estimator)


def test_the_comparison_of_values_can_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("literal._World.branch", lambda world, *branch: float(world.table[0, 0, 0, 0, 0]))
    assert agrees(Vine(1))  # of both sides
    monkeypatch.setattr("literal._World.token", lambda world, row, step: 0)
    assert not agrees(Vine(1))
