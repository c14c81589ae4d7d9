"""Every estimator against its formula, written as plain loops."""

import pytest
from literal import ESTIMATORS, ON_TREES, agrees

from corollout.estimators import ARM, ARS, BinaryTreeARSM, Estimator, SelfCritic


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


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("literal.by_swapping", lambda logits, pi, references: references[:, :, None].repeat(1, 1, 4))
    assert not agrees(ARS())


@pytest.mark.parametrize("estimator", [BinaryTreeARSM(), SelfCritic()], ids=str)
def test_the_comparison_on_a_tree_can_fail(monkeypatch: pytest.MonkeyPatch, estimator: Estimator):
    monkeypatch.setattr("literal._TreeWorld.other", lambda world, node, bit: -1)
    assert not agrees(estimator, on_tree=True)
