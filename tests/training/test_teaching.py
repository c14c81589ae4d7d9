"""Maximum likelihood with a decaying learning rate and scheduled sampling."""

from typing import Any

import pytest
import torch
from small_task import BOS, make_data, make_engine, make_policy

from corollout.noise import MAIN, race
from corollout.training.learner import LESSONS
from corollout.training.mle import Decay, Sampling, TeacherForcing


def taught(**options: Any) -> TeacherForcing:
    policy = make_policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    return TeacherForcing(make_engine(policy), make_data(12), optimizer, batch_size=4, **options)


def test_the_rate_decays_in_steps():
    learner = taught(decay=Decay(0.5, every=2))
    rates = []
    for _ in learner.run(epochs=6):
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates[::3] == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_a_decayed_rate_goes_on_from_a_state():
    whole, first, second = (taught(decay=Decay(0.5)) for _ in range(3))
    list(whole.run(updates=8))
    list(first.run(updates=5))
    second.restore(first.state())
    list(second.run(updates=8))
    for a, b in zip(whole.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("epoch", "probability"), [(0, 0.0), (2, 0.0), (3, 0.05), (6, 0.1), (9, 0.12), (99, 0.12)])
def test_the_probability_grows_up_to_its_most(epoch: int, probability: float):
    assert Sampling(0.12, every=3).at(epoch) == pytest.approx(probability)


def mixed(probability: float) -> tuple[TeacherForcing, torch.Tensor, torch.Tensor, torch.Tensor]:
    learner = taught()
    batch = learner.data.batch(range(12))
    inputs = torch.full((12, 5), 2)
    inputs[:, 0] = BOS
    memory = learner.engine.policy.encode(batch.context)
    return learner, inputs, learner._mixed(memory, inputs, batch.examples, probability), batch.examples


def test_without_probability_the_inputs_stay():
    _, inputs, found, _ = mixed(0.0)
    assert torch.equal(found, inputs)


def test_with_certainty_the_policy_feeds_itself():
    """Every token after the first is the policy's own draw after what it was fed."""
    learner, inputs, found, examples = mixed(1.0)
    policy, keys = learner.engine.policy, learner.noise.fold(LESSONS, 0).keys(examples, MAIN)
    assert torch.equal(found[:, 0], inputs[:, 0])
    with torch.no_grad():
        batch = learner.data.batch(range(12))
        logits = policy.score(policy.encode(batch.context), found)
    for t in range(4):
        assert torch.equal(found[:, t + 1], race(logits[:, t], keys, torch.full_like(keys, t)))
    assert len(found.unique()) > 2


def test_about_as_many_tokens_are_fed_as_said():
    torch.manual_seed(0)
    changed = sum(int((mixed(p)[2][:, 1:] != 2).sum()) for p in (0.3, 0.3))
    certain = sum(int((mixed(1.0)[2][:, 1:] != 2).sum()) for _ in range(2))
    assert 0.1 < changed / certain < 0.5


def test_sampled_inputs_change_what_is_learnt_and_repeat_with_the_seed():
    losses = []
    for sampling in (Sampling(), Sampling(0.5, every=1), Sampling(0.5, every=1)):
        learner = taught(sampling=sampling)
        losses.append([metrics.loss for metrics in learner.run(epochs=4)])
    assert losses[0][:3] == losses[1][:3]  # nothing is sampled in the first epoch
    assert losses[0][3:] != losses[1][3:]
    assert losses[1] == losses[2]
