"""The benchmark of CIDEr-D at a tiny size: contestants agree, and a wrong one is noticed. No timing."""

import numpy as np
import pytest

from benchmarks import cider

pytest.importorskip("pycocoevalcap")


@pytest.fixture(scope="module")
def problem() -> cider.Problem:
    return cider.make_problem(cider.QUICK)


def test_all_compute_the_same_values(problem: cider.Problem):
    assert cider.check(problem) < 1e-12
    assert len(problem.lists) == len(problem.images) == 200
    assert len(problem.texts) == 100
    large = cider.score_with_large_collection(problem)
    assert large.shape == (200,)
    assert not np.allclose(large, cider.score_lists(problem))  # rare words are rarer


def test_a_wrong_value_is_noticed(problem: cider.Problem, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(cider.CONTESTANTS, cider.LISTS, lambda problem: cider.score_array(problem) + 1e-6)
    with pytest.raises(AssertionError, match="differ by up to 1"):
        cider.check(problem)


@pytest.mark.prove
def test_the_rollouts_of_an_update_are_scored_alike():
    problem = cider.make_problem(cider.QUICK, cider.rolled_out)
    assert len(problem.lists) % cider.IMAGES == 0
    assert len(problem.lists) > cider.IMAGES
    assert np.abs(cider.score_lists(problem)[: len(problem.texts)] - cider.score_plainly(problem)).max() < 1e-12
