"""Budgeted branching: the differences of its branches, and how it spends its budget."""

import pytest
import torch

from corollout.estimators import Pairs
from corollout.noise import Noise
from tests.support.pairs_reference import GAPS, kinds_agree, updates_agree
from tests.support.unbiased_cases import three_of_four


def test_kinds_of_branches_and_updates():
    assert kinds_agree()
    assert updates_agree()


def test_the_state_is_that_of_earlier_versions():
    assert Pairs(gaps=GAPS).state_dict().keys() == {"gaps"}
    assert torch.equal(Pairs(per_step=2).load_state_dict({"gaps": GAPS}).state_dict()["gaps"], GAPS)


@pytest.mark.parametrize(("per_step", "wanted"), [(0.001, 1), (0.5, 17), (0.51, 18), (1, 34), (100, 3 * 34)])
def test_the_number_of_branches_per_token(per_step: float, wanted: int):
    """Of 34 tokens, with three other actions each."""
    noise, memory = Noise(1), torch.zeros(14, dtype=torch.int64)
    mains = three_of_four().engine().sample(memory, torch.arange(14), Pairs().sampler, noise).trajectories
    assert int(mains.lengths.sum()) == 34
    branches = Pairs(per_step=per_step).plan(mains, noise).branches
    assert len(branches) == wanted
    assert not bool((branches.token == mains.tokens[branches.parent, branches.step]).any())


def test_differences_of_long_ago_are_forgotten():
    """Decayed for thousands of batches, they are too small to divide by."""
    gaps = torch.ones(2, 64, dtype=torch.float64)
    gaps[1] = 0.0
    gaps[1, 3] = 2e-323
    assert Pairs(gaps=gaps)._gap(torch.arange(64)).tolist() == [1.0] * 64
