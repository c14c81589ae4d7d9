"""Budgeted branching: what it learns about branches, and how it spends its budget for it."""

import pytest
import torch

from corollout.errors import InputError
from corollout.estimators import Pairs
from corollout.noise import Noise
from tests.support.pairs_reference import SEEN, kinds_agree, learning_agrees
from tests.support.unbiased_cases import three_of_four


def test_branches_are_of_the_kinds_that_their_probability_and_step_say():
    assert kinds_agree()


def test_differences_are_added_up_by_kind_and_forgotten_slowly():
    assert learning_agrees()


def test_what_was_learned_is_remembered():
    assert Pairs().state_dict() == {}
    assert Pairs().load_state_dict({}).gaps is None
    memory = Pairs(gaps=SEEN).state_dict()
    assert torch.equal(memory["gaps"], SEEN)
    assert Pairs(per_step=2).load_state_dict(memory) == Pairs(per_step=2, gaps=SEEN)
    assert torch.equal(Pairs(per_step=2).load_state_dict(memory).state_dict()["gaps"], SEEN)


@pytest.mark.parametrize(("per_step", "wanted"), [(0.001, 1), (0.5, 17), (0.51, 18), (1, 34), (100, 3 * 34)])
def test_there_are_as_many_branches_for_each_token_as_are_asked_for(per_step: float, wanted: int):
    """Of 34 tokens, with three other actions each."""
    noise, memory = Noise(1), torch.zeros(14, dtype=torch.int64)
    found = three_of_four().engine().sample(memory, torch.arange(14), Pairs().sampler, noise).trajectories
    assert int(found.lengths.sum()) == 34
    branches = Pairs(per_step=per_step).plan(found, noise).branches
    assert len(branches) == wanted
    assert not bool((branches.token == found.tokens[branches.parent, branches.step]).any())


def test_nothing_for_each_token_is_refused():
    for per_step in (0, -1.0):
        with pytest.raises(InputError, match=rf"^budgeted branching needs per_step > 0, not {per_step}$"):
            Pairs(per_step=per_step)
