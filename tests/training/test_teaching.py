"""Maximum likelihood: a decaying learning rate, scheduled sampling, averaged weights, and tokens down a tree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.noise import MAIN, race
from corollout.policies import RecurrentPolicy, TreeHead
from corollout.training.base import LESSONS
from corollout.training.checkpoints import newest_checkpoint, write_checkpoint
from corollout.training.mle import Decay, MLETrainer, Sampling
from corollout.trees import huffman_tree
from tests.support.head_reference import plain_log_prob, plain_walk
from tests.support.small_task import BOS, EOS, VOCAB, make_data, make_engine, make_policy, make_tree_policy


def updated(policy: RecurrentPolicy | None = None, **options: Any) -> MLETrainer:
    policy = policy or make_policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    return MLETrainer(make_engine(policy), make_data(12), optimizer, batch_size=4, **options)


def treed() -> tuple[RecurrentPolicy, TreeHead]:
    policy = make_tree_policy(huffman_tree(np.array([9, 3, 14, 5, 1, 4])))
    head = policy.head
    assert isinstance(head, TreeHead)
    assert head.tree.size == VOCAB
    return policy, head


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


def mixed(
    probability: float, policy: RecurrentPolicy | None = None
) -> tuple[MLETrainer, torch.Tensor, torch.Tensor, torch.Tensor]:
    learner = taught(policy)
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


# Tokens that are walks down a tree


def test_the_loss_of_a_tree_is_the_cross_entropy_of_all_its_tokens():
    policy, head = treed()
    learner = taught(policy)
    batch = learner.data.batch(range(12))
    loss, _, tokens = learner.learn(batch)
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    assert sorted(found) == sorted(name for name, _ in policy.named_parameters())
    policy.zero_grad()
    wanted = [[*target, EOS] for target in batch.columns["target"]]
    assert tokens == sum(map(len, wanted))
    inputs = torch.tensor([[BOS, *target[:-1]] for target in wanted])
    outputs = policy.score(policy.encode(batch.context), inputs)
    log_probs = head.all_log_probs(outputs.flatten(0, 1))
    expected = torch.nn.functional.nll_loss(log_probs, torch.tensor(wanted).flatten())
    expected.backward()
    assert loss == pytest.approx(expected.item())
    plain = [plain_log_prob(head, x, z) for x, z in zip(outputs[3].detach(), wanted[3], strict=True)]
    assert log_probs.unflatten(0, (12, -1))[3].gather(1, torch.tensor(wanted[3])[:, None]).sum().item() == (
        pytest.approx(sum(plain))
    )
    for name, p in policy.named_parameters():
        torch.testing.assert_close(found[name], p.grad)


def test_targets_of_different_lengths_count_by_their_tokens():
    """Where nothing is wanted, nothing is learnt."""
    policy, head = treed()
    learner = taught(policy)
    outputs = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1)).double()
    wanted = torch.tensor([[1, 2, 0, -1], [0, -1, -1, -1], [3, 3, 5, 4]])
    expected = [
        plain_log_prob(head, outputs[row, step], int(wanted[row, step]))
        for row, step in (wanted >= 0).nonzero().tolist()
    ]
    assert learner._loss(outputs, wanted).item() == pytest.approx(-sum(expected) / 8)


def test_a_tree_learns_its_targets():
    policy, _ = treed()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    learner = MLETrainer(make_engine(policy), make_data(12), optimizer, batch_size=12)
    losses = [metrics.loss for metrics in learner.run(updates=60)]
    assert losses[-1] < 0.5 * losses[0]


def test_with_certainty_a_tree_feeds_itself():
    policy, head = treed()
    learner, _, found, examples = mixed(1.0, policy)
    keys = learner.noise.fold(LESSONS, 0).keys(examples, MAIN)
    with torch.no_grad():
        outputs = policy.score(policy.encode(learner.data.batch(range(12)).context), found)
    expected = [
        [BOS, *(plain_walk(head, outputs[row, t], 0, keys[row], t, False)[0] for t in range(4))] for row in range(12)
    ]
    assert found.tolist() == expected
    assert len(found.unique()) > 2


# Averaged weights


def weights(learner: MLETrainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.policy.parameters()]


def shown(learner: MLETrainer) -> list[torch.Tensor]:
    with learner.shown():
        return weights(learner)


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("average", [0.5, 0.9])
def test_what_is_shown_is_the_exponential_average(average: float):
    """a ← d a + (1 − d) w, with d = min(average, (1 + n) / (10 + n)) after update n."""
    learner, plain = taught(average=average), taught()
    expected = weights(learner)
    assert equal(shown(learner), expected)
    for n in range(1, 16):
        assert learner.next().loss == plain.next().loss  # the updates are what they are without an average
        own = weights(learner)
        assert equal(own, weights(plain))
        d = min(average, (1 + n) / (10 + n))
        expected = [d * a + (1 - d) * w for a, w in zip(expected, own, strict=True)]
        for found, a in zip(shown(learner), expected, strict=True):
            torch.testing.assert_close(found, a, rtol=1e-12, atol=1e-14)
        assert equal(weights(learner), own)
    assert not equal(shown(learner), weights(learner))


def test_without_an_average_the_own_weights_are_shown():
    learner = taught()
    list(learner.run(updates=3))
    assert equal(shown(learner), weights(learner))
    assert not any(name.startswith("own/") for name in learner.state().tensors)


@pytest.mark.parametrize("updates", [0, 1, 5])
def test_an_average_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, updates: int):
    whole, first, second = (taught(average=0.8) for _ in range(3))
    list(whole.run(updates=9))
    list(first.run(updates=updates))
    kept = shown(first)
    write_checkpoint(tmp_path, updates, first.state())
    list(first.run(updates=updates + 2))  # what was stored is a copy
    read = newest_checkpoint(tmp_path, pytest.fail)
    assert read is not None
    list(second.run(updates=2))  # what it had is forgotten
    second.restore(read[1])
    assert equal(shown(second), kept)
    list(second.run(updates=9))
    assert equal(weights(second), weights(whole))
    assert equal(shown(second), shown(whole))


def test_an_evaluation_that_fails_leaves_the_own_weights():
    learner = taught(average=0.9)
    list(learner.run(updates=4))
    own = weights(learner)

    def fail() -> None:
        with learner.shown():
            assert not equal(weights(learner), own)
            raise RuntimeError("no evaluation")

    with pytest.raises(RuntimeError, match="no evaluation"):
        fail()
    assert equal(weights(learner), own)


@pytest.mark.parametrize("average", [-0.1, 1.0, 1.5, float("nan")])
def test_a_decay_that_is_none_is_refused(average: float):
    with pytest.raises(InputError, match=rf"the decay of the average of weights must be in \[0, 1\), not {average}"):
        taught(average=average)


def test_states_with_and_without_an_average_do_not_mix():
    averaging, plain = taught(average=0.9), taught()
    with pytest.raises(
        InputError, match=r"training that averages its weights: this one's decay of the average is 0\.0"
    ):
        plain.restore(averaging.state())
    with pytest.raises(InputError, match=r"training that does not average its weights: this one's decay .* is 0\.9"):
        averaging.restore(plain.state())
