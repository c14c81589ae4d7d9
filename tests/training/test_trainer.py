"""The training loop, the variance of its gradients and evaluation, against plain formulas."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corollout.data import Columns
from corollout.errors import InputError, PolicyError, RewardError
from corollout.estimators import make_estimator
from corollout.noise import Noise
from corollout.policies import RecurrentPolicy, TokenEncoder
from corollout.rewards import Reward
from corollout.training import MLETrainer, Trainer, estimate, evaluate, probe_variance, running_variance
from corollout.training.base import flat_gradient
from corollout.training.running_variance import RunningVariance
from corollout.types import Sampler
from tests.support.small_task import (
    BOS,
    ESTIMATORS,
    LENGTH,
    VOCAB,
    likeness,
    make_data,
    make_engine,
    make_mle_trainer,
    make_policy,
    make_trainer,
    weights,
)


def same_start(sequences: list[list[int]], context: list[Tensor]) -> list[float]:
    """One for a sequence that begins with the context's first token."""
    return [float(bool(s) and s[0] == int(c[0])) for s, c in zip(sequences, context, strict=True)]


@pytest.mark.parametrize("name", ["arsm", "rloo-4"])
def test_a_trivial_task_is_learned(name: str):
    torch.manual_seed(0)
    encoder = TokenEncoder(VOCAB, 8)
    policy = RecurrentPolicy(encoder, encoder.width, VOCAB, hidden=16)
    options = {"engine": make_engine(policy, max_length=2), "reward": same_start, "batch_size": 32}
    trainer = make_trainer(name, policy, data=make_data(64), **options)
    rewards = torch.tensor([metrics.reward for metrics in trainer.run(updates=100)])
    first, last = rewards[:10], rewards[-10:]
    error = math.sqrt(float(first.var() + last.var()) / 10)
    assert float(last.mean() - first.mean()) > max(6.8 * error, 0.3)
    assert evaluate(trainer.engine, make_data(64), same_start) > 0.5


def test_metrics():
    trainer = make_trainer("arsm")
    metrics = list(trainer.run(updates=7))
    assert [(m.update, m.epoch) for m in metrics] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1), (7, 2)]
    assert all(before.tokens < after.tokens for before, after in pairwise(metrics))
    assert all(before.seconds < after.seconds for before, after in pairwise(metrics))
    assert metrics[-1].tokens == trainer.cost.tokens
    assert metrics[-1].reward_calls == trainer.cost.reward_calls
    assert all(m.rollouts_per_step > 0 and 1 <= m.mean_length <= LENGTH for m in metrics)
    assert metrics[0].gradient_variance == pytest.approx(0.0, abs=1e-12)
    assert metrics[-1].gradient_variance > 0.0
    batch, policy = next(trainer.data.epoch(5, trainer.noise.fold(0, 0))), make_policy()
    sample = estimate(make_engine(policy), batch, Reward(likeness), make_estimator("arsm"), Noise(0).fold(1, 0))
    sample.backward()
    assert metrics[0].reward == pytest.approx(sample.mean_reward)
    assert metrics[0].gradient_norm == pytest.approx(float(flat_gradient(policy.parameters()).norm()))


def test_a_run_stops_at_its_limit_and_continues():
    whole, trainer = make_trainer(), make_trainer()
    rewards = [metrics.reward for metrics in whole.run(updates=7)]
    assert [metrics.reward for metrics in trainer.run(updates=3)] == rewards[:3]
    assert list(trainer.run(updates=3)) == []
    assert [metrics.reward for metrics in trainer.run(seconds=1000.0, updates=7)] == rewards[3:]
    assert torch.equal(weights(trainer.policy), weights(whole.policy))
    other = make_trainer(seed=5)
    list(other.run(updates=7))
    assert not torch.equal(weights(other.policy), weights(whole.policy))
    limits: dict[str, Any] = {"tokens": 100, "seconds": 0.05, "epochs": 1}
    for name, limit in limits.items():
        trainer, before = make_trainer(), 0
        for _ in trainer.run(**{name: limit}):
            assert before < limit
            before = getattr(trainer, name)
        assert before >= limit
    with pytest.raises(InputError, match="updates, epochs, tokens or seconds"):
        next(trainer.run())


class RecordingSGD(torch.optim.SGD):
    """Records the norm of every gradient that it is given."""

    def __init__(self, policy: nn.Module):
        super().__init__(policy.parameters(), lr=0.01)
        self.policy, self.norms = policy, []

    def step(self, closure: Any = None) -> Any:
        self.norms.append(float(flat_gradient(self.policy.parameters()).norm()))
        return super().step(closure)


@pytest.mark.parametrize("name", [*ESTIMATORS, "arm", "disarm"])
def test_gradients_of_every_estimator_are_clipped(name: str):
    vocab, bos = (2, 1) if name in ("arm", "disarm") else (VOCAB, BOS)
    for clip in (1e-3, None):
        policy = make_policy(vocab=vocab)
        optimizer = RecordingSGD(policy)
        options = {"optimizer": optimizer, "engine": make_engine(policy, bos=bos), "max_grad_norm": clip}
        trainer = make_trainer(make_estimator(name), policy, data=make_data(8, vocab), batch_size=4, **options)
        before = torch.tensor([metrics.gradient_norm for metrics in trainer.run(updates=4)])
        after = torch.tensor(optimizer.norms)
        assert float(before.max()) > 1e-3
        if clip is None:
            torch.testing.assert_close(after, before)
        else:
            assert float(after.max()) <= clip
            torch.testing.assert_close(after, before.clamp(max=clip), rtol=1e-2, atol=0)


def test_samples_depend_only_on_the_example_and_the_epoch():
    def samples_by_epoch(batch_size: int) -> list[dict[int, list[list[int]]]]:
        """For each epoch, what was drawn for each example, by a policy that does not change."""
        epochs: list[dict[int, list[list[int]]]] = [{}, {}]
        calls: list[dict[int, list[list[int]]]] = []

        def record(sequences: list[list[int]], examples: list[int]) -> list[float]:
            calls.append({})
            for example, sequence in zip(examples, sequences, strict=True):
                calls[-1].setdefault(example, []).append(sequence)
            return [0.5] * len(sequences)

        trainer = make_trainer("rloo-3", lr=0.0, reward=record, batch_size=batch_size)
        for metrics in trainer.run(epochs=2):
            epochs[metrics.epoch].update(calls[-1])
        return epochs

    one, other = samples_by_epoch(3), samples_by_epoch(12)
    assert one == other
    assert set(one[0]) == set(one[1]) == set(range(100, 112))
    assert one[0] != one[1]


def test_a_gradient_that_is_not_finite_changes_nothing():
    trainer = make_trainer()
    trainer.step()
    before, cost = weights(trainer.policy), trainer.cost
    trainer.policy.get_parameter("output.weight").register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(PolicyError, match="gradient of update 2 is not finite"):
        trainer.step()
    assert torch.equal(weights(trainer.policy), before)
    assert (trainer.updates, trainer.cost) == (1, cost)


@pytest.mark.parametrize("make", [make_trainer, make_mle_trainer])
def test_an_update_that_makes_weights_infinite_is_an_error(make: Callable[..., Any]):
    trainer = make()
    trainer.step()
    for group in trainer.optimizer.param_groups:
        group["lr"] = math.inf
    trainer._learning_rates = [math.inf]
    with pytest.raises(
        PolicyError, match="after update 2 some weights are infinite or NaN; no checkpoint of them was written"
    ):
        trainer.step()
    assert trainer.updates == 1


@pytest.mark.parametrize("make", [Trainer, MLETrainer])
def test_an_optimizer_whose_eps_is_zero_in_half_precision_is_refused(make: Any):
    policy = make_policy().half()
    arguments = {"engine": make_engine(policy), "data": make_data()}
    arguments |= {"reward": likeness, "estimator": "rloo-2"} if make is Trainer else {}
    for adam in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        with pytest.raises(InputError, match=r"eps = 1e-08 is zero in torch.float16, .* give it eps=1e-4, or use"):
            make(optimizer=adam(policy.parameters()), **arguments)
    for dtype, eps in ((torch.float16, 1e-4), (torch.bfloat16, 1e-8), (torch.float32, 1e-8)):
        policy.to(dtype)
        trainer = make(optimizer=torch.optim.Adam(policy.parameters(), eps=eps), **arguments)
        for _ in range(3):
            trainer.step()
        assert bool(weights(policy).isfinite().all())


def test_gradients_are_clipped_whatever_their_size():
    """Also where their squares overflow in single precision."""
    policy = make_policy().float()
    trainer = make_trainer(policy=policy, reward=lambda sequences: [1e30 * len(s) for s in sequences], lr=0.1)
    metrics = [trainer.step() for _ in range(3)]
    assert all(1e25 < m.gradient_norm < 1e35 for m in metrics)
    assert float(flat_gradient(policy.parameters()).norm()) == pytest.approx(1.0, rel=1e-5)


def test_the_score_is_checked_at_the_first_update():
    policy = make_policy()
    score = policy.score
    policy.score = lambda memory, tokens: score(memory, tokens).roll(1, 1)
    with pytest.raises(PolicyError, match="disagree"):
        make_trainer(policy=policy).step()


def test_modes_and_frozen_parameters_stay():
    for mode in (True, False):
        policy = make_policy(dropout=0.3).train(mode)
        policy.encoder.requires_grad_(False)
        frozen, others = weights(policy.encoder), weights(policy)
        list(make_trainer("arsm", policy).run(updates=2))
        assert policy.training is policy.dropout.training is mode
        assert torch.equal(weights(policy.encoder), frozen)
        assert not torch.equal(weights(policy), others)


class WithoutParameters:
    """A policy that is not a module."""

    def encode(self, context: Any) -> Any: ...

    def start(self, memory: Any) -> Any: ...

    def step(self, state: Any, tokens: Tensor) -> Any: ...

    def score(self, memory: Any, tokens: Tensor) -> Any: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number and at least 1, not 0"),
        (
            {"data": Columns(context=torch.zeros(0, 3, dtype=torch.int64))},
            "at least one example, but the data set is empty",
        ),
        ({"max_grad_norm": 0.0}, "max_grad_norm .*, not 0.0"),
        ({"max_grad_value": 0.0}, "max_grad_value .*, not 0.0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm .*, not -1.0"),
        ({"max_grad_norm": math.nan}, "max_grad_norm .*, not nan"),
        ({"seed": True}, "the seed must be a whole number"),
        ({"engine": make_engine(WithoutParameters())}, "an nn.Module"),
        *[({"variance_decay": decay}, rf"in \[0, 1\), not {decay}") for decay in (-0.1, 1.0, 2.0, math.nan)],
    ],
)
def test_options_of_a_trainer_that_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        make_trainer("arsm", **options)


# The variance of gradients


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.99])
def test_the_running_variance_is_that_of_a_weighted_sample(
    decay: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(running_variance, "can_loop", lambda tensors: compiled)
    history = torch.randn(30, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1
    running = RunningVariance(decay)
    for t in range(1, 31):
        value = running.add(history[t - 1])
        factors = decay ** torch.arange(t - 1, -1, -1, dtype=torch.float64)
        factors = (factors / factors.sum())[:, None]
        mean = (factors * history[:t]).sum(0)
        expected = (factors * (history[:t] - mean) ** 2).sum()
        assert value == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
        assert value >= 0
    assert running.count == 30
    single = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert RunningVariance(decay).add(single) == pytest.approx(0.0, abs=1e-3)


def test_a_missing_gradient_counts_as_zeros():
    a, b, c = (nn.Parameter(torch.ones(shape)) for shape in [(2, 2), (3,), (1,)])
    a.grad, c.grad = torch.arange(4.0).view(2, 2), torch.tensor([9.0])
    assert flat_gradient([a, b, c]).tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 9.0]
    assert flat_gradient([]).tolist() == []


@pytest.mark.parametrize("name", ["arsm", "rloo-2", "sc"])
def test_a_probe_measures_the_sample_variance(name: str):
    policy, batch, count = make_policy(), make_data().batch(range(4)), 6
    engine, reward, estimator = make_engine(policy), Reward(likeness), make_estimator(name)
    kept = policy.output.weight.grad = torch.full_like(policy.output.weight, 7.0)
    done: list[int] = []
    probe = probe_variance(
        engine, batch, reward, estimator, count, Noise(2), lambda event: done.append(event.record["done"])
    )
    assert done == list(range(1, count + 1))
    assert policy.output.weight.grad is kept
    assert all(p.grad is None for p in policy.parameters() if p is not policy.output.weight)
    drawn, samples = [], []
    for i in range(count):
        policy.zero_grad()
        samples.append(estimate(engine, batch, reward, estimator, Noise(2).fold(i)))
        samples[-1].backward()
        drawn.append(flat_gradient(policy.parameters()))
    g = torch.stack(drawn)
    variance = float(g.var(0).sum())
    assert variance > 0
    assert probe.estimates == count
    assert probe.variance == pytest.approx(variance, rel=1e-9)
    assert probe.squared_norm == pytest.approx(float((g.mean(0) ** 2).sum()) - variance / count, rel=1e-9)
    assert probe.mean_reward == pytest.approx(sum(sample.mean_reward for sample in samples) / count)
    totals = {field: sum(getattr(s.cost, field) for s in samples) for field in vars(samples[0].cost)}
    assert (probe.tokens, probe.reward_calls) == (totals["tokens"] / count, totals["reward_calls"] / count)
    assert probe.rollouts_per_step == pytest.approx(totals["rollouts"] / totals["main_tokens"])
    assert probe.variance_error > 0
    assert probe.seconds > 0


def test_a_probe_restores_gradients_after_an_error():
    policy = make_policy()
    policy.output.bias.grad = kept = torch.ones_like(policy.output.bias)

    def broken(sequences: list[list[int]]) -> list[float]:
        raise LookupError

    with pytest.raises(RewardError, match="LookupError"):
        probe_variance(make_engine(policy), make_data().batch([0]), broken, "rloo", 2, Noise(0))
    assert policy.output.bias.grad is kept


@pytest.mark.parametrize(
    ("policy", "count", "message"),
    [*[(make_policy(), count, f"at least 2 estimates, not {count}") for count in (1, 0, -1)],
     (WithoutParameters(), 2, "needs a policy with parameters")],
)  # fmt: skip
def test_probes_that_are_refused(policy: Any, count: int, message: str):
    with pytest.raises(InputError, match=message):
        probe_variance(make_engine(policy), make_data().batch([0]), likeness, "sc", count, Noise(0))


# Evaluation


@pytest.mark.parametrize(("mode", "seed"), [("greedy", 0), ("sample", 3), ("sample", 4)])
def test_evaluation_is_the_mean_reward(mode: Any, seed: int):
    """Whatever the batch size, and without dropout."""
    policy, data = make_policy(dropout=0.5), make_data(11)
    engine, batch = make_engine(policy), data.batch(range(11))
    drawn = engine.decode(batch.context, data.ids, Sampler(mode), Noise(seed)).trajectories
    expected = likeness(drawn.lists(), batch.columns["target"], drawn.finished.tolist())
    for batch_size in (1, 4, 256):
        value = evaluate(engine, data, likeness, mode=mode, seed=seed, batch_size=batch_size)
        assert value == pytest.approx(sum(expected) / 11)
    policy.eval()
    assert evaluate(engine, data, likeness, mode=mode, seed=seed) == value
    assert len(set(expected)) > 2
    other = evaluate(engine, data, likeness, mode=mode, seed=seed + 1)
    assert (other == value) == (mode == "greedy")


def test_evaluation_leaves_skipped_examples_out_and_refuses_an_empty_data_set():
    def odd(sequences: list[list[int]], examples: list[int]) -> list[float | None]:
        return [float(example) if example % 2 else None for example in examples]

    engine = make_engine(make_policy())
    assert evaluate(engine, make_data(), odd) == 104.0
    with pytest.raises(InputError, match="no example"):
        evaluate(engine, Columns(context=torch.zeros(0, 3, dtype=torch.int64), target=[]), likeness)
