"""Maximum likelihood: the loss, decaying learning rates, scheduled sampling, averaged weights, and tree heads."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corollout.data import Columns
from corollout.errors import InputError
from corollout.noise import MAIN, race
from corollout.policies import RecurrentPolicy, TreeHead, evaluation_mode, read_out
from corollout.training import MLETrainer, evaluate, pretrain
from corollout.training.base import SCHEDULED_SAMPLING, flat_gradient
from corollout.training.likelihood import mean_loss
from corollout.training.mle import LearningRateDecay, ScheduledSampling
from corollout.trees import huffman_tree
from tests.support.head_reference import plain_log_prob, plain_walk
from tests.support.policy_cases import CASES, PolicyCase, WithoutHiddenStates, policy_case
from tests.support.small_task import (
    BOS,
    EOS,
    eval_weights,
    likeness,
    make_data,
    make_engine,
    make_mle_trainer,
    make_policy,
    make_tree_policy,
    weights,
)


def sgd(policy: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(policy.parameters(), lr=lr)


def tree_policy() -> tuple[RecurrentPolicy, TreeHead]:
    policy = make_tree_policy(huffman_tree(np.array([9, 3, 14, 5, 1, 4])))
    assert isinstance(policy.head, TreeHead)
    return policy, policy.head


@pytest.fixture
def repeated_warnings() -> Iterator[None]:
    """PyTorch repeats warnings that it would give once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("repeated_warnings")
@pytest.mark.parametrize("head", ["softmax", "tree"])
def test_pretraining_lowers_the_loss(head: str):
    policy = make_policy() if head == "softmax" else tree_policy()[0]
    engine, data = make_engine(policy), make_data(32)
    before = evaluate(engine, data, likeness)
    losses = list(pretrain(engine, data, torch.optim.Adam(policy.parameters(), lr=0.03), epochs=15, batch_size=8))
    assert len(losses) == 15 * 4
    assert sum(losses[-4:]) < 0.55 * sum(losses[:4])
    assert evaluate(engine, data, likeness) > before + 0.2


def test_the_loss_is_in_nats_per_token():
    policy, data = make_policy(), make_data(5)
    log_probs = []
    for context, target in zip(data.columns["context"], data.columns["target"], strict=True):
        tokens = torch.tensor([*target, EOS])
        logits = policy.score(policy.encode(context[None]), torch.tensor([[BOS, *target]]))
        log_probs += logits.log_softmax(2)[0, torch.arange(len(tokens)), tokens].tolist()
    (loss,) = pretrain(make_engine(policy), data, sgd(policy), batch_size=5)
    assert loss == pytest.approx(-sum(log_probs) / len(log_probs))


class ScoreOnly(nn.Module):
    """A policy with the four methods and no more."""

    def __init__(self, policy: Any):
        super().__init__()
        self.inner = policy
        self.encode, self.start, self.step, self.score = policy.encode, policy.start, policy.step, policy.score


def test_targets_are_cut_at_the_maximum_length():
    policy = ScoreOnly(make_policy())
    calls: list[tuple[Tensor, Tensor]] = []
    score = policy.score

    def recording(memory: Any, tokens: Tensor) -> Tensor:
        logits = score(memory, tokens)
        logits.register_hook(lambda gradient: calls.append((tokens, gradient)))
        return logits

    policy.score = recording
    targets = [[1, 2, 3, 4, 1], [1, 2], [], [3, 2, 1]]
    data = Columns(context=torch.ones(4, 2, dtype=torch.int64), target=targets, ids=range(4))
    list(pretrain(make_engine(policy, max_length=3), data, sgd(policy), batch_size=4))
    ((inputs, gradient),) = calls
    assert sorted(inputs.tolist()) == [[BOS, EOS, EOS], [BOS, 1, 2], [BOS, 1, 2], [BOS, 3, 2]]
    # The gradient is smallest at the target; beyond the end there is none.
    learned = [[int(step.argmin()) for step in row if bool((step != 0).any())] for row in gradient]
    assert sorted(learned) == [[EOS], [1, 2, EOS], [1, 2, 3], [3, 2, 1]]


def test_pretraining_uses_its_seed_and_dropout():
    def trained(seed: int, dropout: float = 0.0) -> Tensor:
        policy = make_policy(dropout=dropout).eval()
        list(pretrain(make_engine(policy), make_data(), sgd(policy), batch_size=3, seed=seed))
        assert policy.training
        return weights(policy)

    first, again, other, dropped = trained(1), trained(1), trained(2), trained(1, 0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, dropped)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "answer"}, "no column 'answer' to learn from; it has context, target"),
        *[
            ({"ema_decay": decay}, rf"ema_decay must be a number in \[0, 1\), not {decay}")
            for decay in (-0.1, 1.0, 1.5, np.nan)
        ],
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        make_mle_trainer(**options)


def test_the_learning_rate_decays_also_after_resuming():
    whole, first, second = (make_mle_trainer(decay=LearningRateDecay(0.5, every=2)) for _ in range(3))
    rates = [whole.optimizer.param_groups[0]["lr"] for _ in whole.run(epochs=6)]
    assert rates[::3] == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    list(first.run(updates=8))
    second.load_state(first.state())
    list(second.run(epochs=6))
    assert torch.equal(weights(whole.policy), weights(second.policy))


# Scheduled sampling


def sampled_inputs(probability: float, policy: RecurrentPolicy | None = None) -> tuple[MLETrainer, Tensor, Tensor]:
    """A trainer, inputs of token 2 with some of them sampled instead, and the noise keys."""
    trainer = make_mle_trainer(policy)
    batch = trainer.data.batch(range(12))
    inputs = torch.full((12, 5), 2)
    inputs[:, 0] = BOS
    sampled = trainer._sample_inputs(trainer.engine.policy.encode(batch.context), inputs, batch.examples, probability)
    return trainer, sampled, trainer.noise.fold(SCHEDULED_SAMPLING, 0).keys(batch.examples, MAIN)


@torch.no_grad()
@pytest.mark.parametrize("tree", [False, True])
def test_sampled_inputs_are_the_policys_own_draws(tree: bool):
    """Every token after the first is drawn by the policy after those before it."""
    policy = tree_policy()[0] if tree else make_policy()
    trainer, inputs, keys = sampled_inputs(1.0, policy)
    outputs = policy.score(policy.encode(trainer.data.batch(range(12)).context), inputs)
    assert inputs[:, 0].tolist() == [BOS] * 12
    for t in range(4):
        if isinstance(policy.head if tree else None, TreeHead):
            expected = [plain_walk(policy.head, outputs[r, t], 0, keys[r], t, False)[0] for r in range(12)]  # pyright: ignore[reportArgumentType]
        else:
            expected = race(outputs[:, t], keys, torch.full_like(keys, t)).tolist()
        assert inputs[:, t + 1].tolist() == expected
    assert len(inputs.unique()) > 2


def test_the_share_of_sampled_inputs():
    sampled = [int((sampled_inputs(p)[1][:, 1:] != 2).sum()) for p in (0.0, 0.3, 1.0)]
    assert sampled[0] == 0
    assert 0.1 < sampled[1] / sampled[2] < 0.5
    schedule = ScheduledSampling(0.12, every=3)
    assert [schedule.at(epoch) for epoch in (0, 2, 3, 6, 9, 99)] == pytest.approx([0, 0, 0.05, 0.1, 0.12, 0.12])


def test_scheduled_sampling_changes_training_and_repeats_with_the_seed():
    losses = []
    for sampling in (ScheduledSampling(), ScheduledSampling(0.5, every=1), ScheduledSampling(0.5, every=1)):
        losses.append([m.loss for m in make_mle_trainer(scheduled_sampling=sampling).run(epochs=4)])
    assert losses[0][:3] == losses[1][:3]  # nothing is sampled in the first epoch
    assert losses[0][3:] != losses[1][3:]
    assert losses[1] == losses[2]


# Tree heads


def test_the_loss_of_a_tree_is_the_cross_entropy_of_all_its_tokens():
    policy, head = tree_policy()
    trainer = make_mle_trainer(policy, batch_size=12, max_grad_norm=None)
    trainer.optimizer.param_groups[0]["lr"] = trainer._learning_rates[0] = 0.0
    metrics = trainer.step()
    batch = trainer.data.batch(range(12))
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    targets = torch.tensor([[*target, EOS] for target in batch.columns["target"]])
    inputs = torch.cat([torch.full((12, 1), BOS), targets[:, :-1]], 1)
    outputs = policy.score(policy.encode(batch.context), inputs)
    expected = torch.nn.functional.nll_loss(head.all_log_probs(outputs.flatten(0, 1)), targets.flatten())
    expected.backward()
    assert metrics.tokens == targets.numel()
    assert metrics.loss == pytest.approx(expected.item())
    for name, p in policy.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad)


# Hidden states


def gradient_of(case: PolicyCase, policy: Any, targets: list[list[int]]) -> tuple[float, Tensor]:
    """The loss of a batch, and its gradient."""
    case.policy.zero_grad()
    data = Columns(context=case.context, target=targets)
    trainer = MLETrainer(case.engine(case.policy), data, sgd(case.policy, lr=0.0), batch_size=6, max_grad_norm=None)
    trainer.engine = case.engine(policy)
    loss = trainer.step().loss
    return loss, flat_gradient(case.policy.parameters())


@pytest.mark.parametrize("name", [name for name in CASES if "grammar" not in name])
@pytest.mark.parametrize("chunk", [1 << 22, 100])
def test_hidden_states_give_the_loss_and_gradient_of_whole_sequences(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(read_out, "CHUNK", chunk)
    case = policy_case(name)
    vocab = 50 if name == "karel" else 5
    generator = torch.Generator().manual_seed(1)
    targets = [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in (0, 3, 9, 1, 5, 3)]
    loss, gradient = gradient_of(case, case.policy, targets)
    expected_loss, expected = gradient_of(case, WithoutHiddenStates(case.policy), targets)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    assert float(expected.abs().max()) > 1e-3


@pytest.mark.parametrize("with_hidden_states", [True, False])
def test_targets_of_different_lengths_count_by_their_tokens(with_hidden_states: bool):
    case = policy_case("captions by a tree")
    targets = [[1, 2], [], [3, 3, 5, 4], [8], [7, 7], [1]]
    log_probs = []
    for row, target in enumerate(targets):
        memory = case.policy.encode(case.context[row : row + 1])
        outputs = case.policy.score(memory, torch.tensor([[case.bos, *target]]))[0].detach()
        tokens = [*target, case.eos]
        log_probs += [plain_log_prob(case.policy.head, x, token) for x, token in zip(outputs, tokens, strict=True)]
    policy = case.policy if with_hidden_states else WithoutHiddenStates(case.policy)
    assert gradient_of(case, policy, targets)[0] == pytest.approx(-sum(log_probs) / 16)
    assert len(log_probs) == 16


# Averaged weights


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_evaluated_weights_are_the_exponential_average(decay: float):
    """a ← d a + (1 − d) w, with d = min(decay, (1 + n) / (10 + n)) after update n."""
    trainer, plain = make_mle_trainer(ema_decay=decay), make_mle_trainer()
    average = weights(trainer.policy)
    for n in range(1, 16):
        assert trainer.step().loss == plain.step().loss  # averaging does not change the updates
        current = weights(trainer.policy)
        assert torch.equal(current, eval_weights(plain))
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * current
        torch.testing.assert_close(eval_weights(trainer), average, rtol=1e-12, atol=1e-14)
        assert torch.equal(weights(trainer.policy), current)
    assert not torch.equal(eval_weights(trainer), weights(trainer.policy))
    assert not any(name.startswith("own/") for name in plain.state().tensors)


def test_an_evaluation_that_fails_restores_the_weights():
    trainer = make_mle_trainer(ema_decay=0.9)
    list(trainer.run(updates=4))
    current = weights(trainer.policy)

    def fail() -> None:
        with trainer.eval_weights():
            assert not torch.equal(weights(trainer.policy), current)
            raise RuntimeError("no evaluation")

    with pytest.raises(RuntimeError, match="no evaluation"):
        fail()
    assert torch.equal(weights(trainer.policy), current)


def test_states_with_and_without_an_average_do_not_mix():
    averaging, plain = make_mle_trainer(ema_decay=0.9), make_mle_trainer()
    with pytest.raises(InputError, match=r"with a moving average .* ema_decay is 0\.0"):
        plain.load_state(averaging.state())
    with pytest.raises(InputError, match=r"without a moving average .* ema_decay is 0\.9"):
        averaging.load_state(plain.state())


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_a_data_set_is_the_mean_over_its_tokens(name: str):
    """Token by token, in evaluation mode; with no gradient, and for batches of any size."""
    case = policy_case(name)
    engine, policy = case.engine(), case.policy
    targets = [[1, 2, 3], [], [4, 4], [2] * 20, [3], [1, 1, 4]]
    data = Columns(context=case.context, target=targets)
    policy.train()
    total, count = 0.0, 0
    for i, target in enumerate(targets):
        tokens = torch.tensor([[*target, case.eos][: case.length]])
        inputs = torch.cat([torch.tensor([[case.bos]]), tokens[:, :-1]], 1)
        with torch.no_grad(), evaluation_mode(policy):
            outputs = policy.score(policy.encode(case.context[i : i + 1]), inputs)
            total -= float(engine.head.log_probs(engine.head.logits(outputs, tokens), tokens).sum())
        count += tokens.shape[1]
    for batch_size in (1, 4, 100):
        assert mean_loss(engine, data, "target", batch_size, "cpu") == pytest.approx(total / count, rel=1e-9)
    assert policy.training
    assert all(p.grad is None for p in policy.parameters())
