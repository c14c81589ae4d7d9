"""Estimates from start to end, training loops and diagnostics, against what autograd and plain formulas give."""

import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corollout.data import Columns
from corollout.errors import InputError, PolicyError
from corollout.estimators import ContrastPlan, make_estimator
from corollout.noise import Noise
from corollout.policies import RecurrentPolicy, TokenEncoder, TransformerPolicy
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.training import (
    Estimate,
    Metrics,
    RunningVariance,
    Trainer,
    estimate,
    evaluate,
    flat_gradient,
    pretrain,
    probe_variance,
    rewards_of,
)
from corollout.training.finetuning import rollouts_by_step
from corollout.types import Sampler
from tests.support.small_task import (
    BOS,
    EOS,
    LENGTH,
    VOCAB,
    estimated,
    likeness,
    make_data,
    make_engine,
    make_policy,
    part,
)

ANY = [
    "arsm",
    "ars-2",
    "reinforce",
    "rloo-3",
    "rloo-3:baseline=shrunk",
    "rloo-3:baseline=fitted",
    "grpo-3",
    "sc",
    "mc-0",
    "mc-2",
    "vine-2",
    "rl-beam-4",
    "set-3",
    "set-3:baseline=fitted",
    "pairs",
    "auto:estimates=2",
]
SEARCHING = ("rl-beam", "set")  # what they compute is not what they keep


def gradients(policy: nn.Module) -> Tensor:
    return flat_gradient(policy.parameters())


def parameters(policy: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


# Estimates


def surrogate_gradient(policy: Any, sample: Estimate, context: Tensor, weight: Tensor) -> Tensor:
    """Autograd's gradient of −(1/B) Σ_rows weight · log p(sequence), one sequence at a time."""
    policy.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for row, tokens in enumerate(sample.trajectories.lists()):
        words = [*tokens, EOS] if sample.trajectories.finished[row] else tokens
        owner = int(sample.trajectories.contexts[row])
        logits = policy.score(policy.encode(context[owner : owner + 1]), torch.tensor([[BOS, *words[:-1]]]))
        log_p = logits.log_softmax(2)[0, torch.arange(len(words)), torch.tensor(words)].sum()
        loss = loss - weight[row] * log_p / sample.contexts
    loss.backward()
    return gradients(policy)


def leave_one_out(rewards: Tensor, contexts: Tensor, samples: int) -> Tensor:
    """RLOO's weights, plainly; a skipped reward is in nobody's mean, and its own sequence has no weight."""
    weights = torch.zeros_like(rewards)
    for row in range(len(rewards)):
        others = [
            float(rewards[i])
            for i in range(len(rewards))
            if i != row and contexts[i] == contexts[row] and not rewards[i].isnan()
        ]
        if not rewards[row].isnan():
            weights[row] = (float(rewards[row]) - (sum(others) / len(others) if others else 0.0)) / samples
    return weights


@pytest.mark.parametrize("samples", [2, 4])
def test_rloo_is_the_gradient_of_its_surrogate_loss(samples: int):
    policy, batch = make_policy(), make_data().batch(range(6))
    sample = estimated(policy, batch, f"rloo-{samples}")
    gradient = gradients(policy)
    weights = leave_one_out(sample.rewards, sample.trajectories.contexts, samples)
    expected = surrogate_gradient(policy, sample, batch.context, weights)
    assert float(expected.norm()) > 0.01
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 3])
def test_self_critic_is_the_gradient_of_its_surrogate_loss(samples: int):
    policy, data = make_policy(), make_data()
    batch = data.batch(range(6))
    sample = estimated(policy, batch, f"sc-{samples}")
    gradient = gradients(policy)
    greedy = rewards_of(make_engine(policy), data, Reward(likeness))[:6]
    contexts = sample.trajectories.contexts
    weights = (sample.rewards[: len(contexts)] - greedy[contexts]) / samples
    expected = surrogate_gradient(policy, sample, batch.context, weights)
    assert float(expected.norm()) > 0.01
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ANY)
def test_the_gradient_of_the_logits_goes_through_the_graph(name: str):
    policy, batch = make_policy(), make_data().batch(range(5))
    sample = estimated(policy, batch, name)
    gradient = gradients(policy)
    policy.zero_grad()
    contexts = sample.trajectories.contexts
    logits = policy.score(policy.encode(batch.context[contexts]), make_engine(policy).score_inputs(sample.trajectories))
    (-(logits * sample.gradient).sum() / 5).backward()
    torch.testing.assert_close(gradient, gradients(policy), rtol=1e-9, atol=1e-12)
    assert bool((sample.gradient[~sample.trajectories.mask] == 0).all())
    assert float(gradient.norm()) > 1e-4


@pytest.mark.parametrize("name", ANY)
def test_costs_are_counted(name: str):
    sample = estimated(make_policy(), make_data().batch(range(5)), name)
    branches = sample.plan.branches
    generated = sample.completed.lengths - branches.step - 1
    assert sample.cost.rollouts == len(branches) == len(sample.completed.tokens)
    assert sample.cost.tokens == sample.cost.main_tokens + int(generated.sum())
    if not name.startswith(SEARCHING):
        assert sample.cost.main_tokens == int(sample.trajectories.lengths.sum())
    owners = torch.cat([sample.trajectories.contexts, sample.trajectories.contexts[branches.parent]]).tolist()
    rows = sample.trajectories.lists() + sample.completed.lists()
    done = sample.trajectories.finished.tolist() + sample.completed.finished.tolist()
    assert sample.cost.reward_calls == len({(o, *r, f) for o, r, f in zip(owners, rows, done, strict=True)})
    assert sample.cost.reward_calls <= len(sample.rewards) == len(rows)
    assert {"sample", "plan", "complete", "reward", "score", "backward"} <= set(sample.seconds)
    mains = len(sample.trajectories.tokens)
    assert sample.mean_reward == pytest.approx(float(sample.rewards[:mains].mean()))


def test_self_critic_rolls_out_each_greedy_sequence_once():
    """From where the sample first leaves it, and not at all if it never does."""
    policy = make_policy()
    sample = estimated(policy, make_data().batch(range(8)), "sc-4")
    branches, trajectories = sample.plan.branches, sample.trajectories
    leaves = trajectories.mask & (trajectories.logits.argmax(2) != trajectories.tokens)
    rows = leaves.any(1).nonzero().squeeze(1)
    assert branches.parent.tolist() == rows.tolist()
    assert branches.step.tolist() == leaves[rows].long().argmax(1).tolist()
    assert int(leaves.sum()) > len(rows)


def test_rewards_belong_to_their_sequences():
    policy, data = make_policy(), make_data()
    batch = data.batch([6, 1, 4])
    sample = estimated(policy, batch, "arsm")
    owners = torch.cat(
        [sample.trajectories.contexts, sample.trajectories.contexts[sample.plan.branches.parent]]
    ).tolist()
    rows = sample.trajectories.lists() + sample.completed.lists()
    done = sample.trajectories.finished.tolist() + sample.completed.finished.tolist()
    targets = [batch.columns["target"][owner] for owner in owners]
    assert sample.rewards.tolist() == likeness(rows, targets, done)


@pytest.mark.parametrize("name", ["arsm", "rloo-3", "sc"])
def test_an_empty_batch_is_refused(name: str):
    with pytest.raises(InputError, match="the batch is empty"):
        estimated(make_policy(), make_data().batch([]), name)


class Shifted(RecurrentPolicy):
    """Its score is right up to a number that is added to all logits of a step, which changes nothing."""

    def score(self, memory: Any, tokens: Tensor) -> Tensor:
        return super().score(memory, tokens) + torch.arange(tokens.shape[1])[:, None]


class Late(RecurrentPolicy):
    """Its score is one step late."""

    def score(self, memory: Any, tokens: Tensor) -> Tensor:
        return super().score(memory, tokens).roll(1, 1)


class Warm(RecurrentPolicy):
    """Its score has another temperature."""

    def score(self, memory: Any, tokens: Tensor) -> Tensor:
        return super().score(memory, tokens) / 1.1


class Undefined(RecurrentPolicy):
    """Its score is not a number."""

    def score(self, memory: Any, tokens: Tensor) -> Tensor:
        return super().score(memory, tokens) * torch.nan


class Short(RecurrentPolicy):
    """Its score lacks the last step."""

    def score(self, memory: Any, tokens: Tensor) -> Tensor:
        return super().score(memory, tokens)[:, :-1]


def of_kind(kind: type[RecurrentPolicy]) -> RecurrentPolicy:
    torch.manual_seed(0)
    encoder = TokenEncoder(VOCAB, 4)
    policy = kind(encoder, encoder.width, VOCAB, hidden=8).double()
    with torch.no_grad():
        policy.output.weight *= 3
    return policy


def checked(kind: type[RecurrentPolicy], name: str = "rloo-2") -> Estimate:
    policy, batch = of_kind(kind), make_data().batch(range(6))
    return estimate(make_engine(policy), batch, Reward(likeness), make_estimator(name), Noise(0), check_score=True)


@pytest.mark.parametrize("kind", [Late, Warm, Undefined])
def test_a_wrong_score_is_found(kind: type[RecurrentPolicy]):
    message = r"policy.score and policy.step disagree: for example 10\d the log-probability of the token of step \d"
    with pytest.raises(PolicyError, match=message):
        checked(kind)


def test_a_score_of_another_shape_is_found():
    with pytest.raises(PolicyError, match=r"policy.score returned logits of shape \[12, 4, 6\] where policy.step gave"):
        checked(Short)


@pytest.mark.parametrize("kind", [RecurrentPolicy, Shifted])
@pytest.mark.parametrize("name", ["arsm", "rl-beam-3"])
def test_a_right_score_is_accepted(kind: type[RecurrentPolicy], name: str):
    assert bool(checked(kind, name).gradient.isfinite().all())


@pytest.mark.parametrize("name", ["arsm", "rloo-2", "sc"])
def test_dropout_does_not_touch_the_gradient(name: str):
    policy, batch = make_policy(dropout=0.5), make_data().batch(range(5))
    policy.train()
    modes = [module.training for module in policy.modules()]
    first = estimated(policy, batch, name, check_score=True)
    assert [module.training for module in policy.modules()] == modes
    assert policy.dropout.training
    in_training = gradients(policy)
    policy.zero_grad()
    policy.eval()
    second = estimated(policy, batch, name)
    assert torch.equal(first.rewards, second.rewards)
    assert torch.equal(in_training, gradients(policy))
    assert not policy.training


# Skipped rewards


def choosy(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float | None]:
    """Does not judge sequences that begin with 1 or 2."""
    values = likeness(sequences, target, finished)
    return [None if s and s[0] in (1, 2) else value for s, value in zip(sequences, values, strict=True)]


def test_rloo_leaves_skipped_samples_out():
    policy, batch = make_policy(), make_data().batch(range(8))
    sample = estimated(policy, batch, "rloo-4", Reward(choosy))
    gradient = gradients(policy)
    skipped = sample.rewards.isnan().view(8, 4).sum(1)
    assert {0, 1} < set(skipped.tolist())
    weights = leave_one_out(sample.rewards, sample.trajectories.contexts, 4)
    expected = surrogate_gradient(policy, sample, batch.context, weights)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    assert sample.mean_reward == pytest.approx(float(sample.rewards[~sample.rewards.isnan()].mean()))


def test_rloo_with_a_skipped_sample_is_rloo_over_the_others():
    """Up to the weight, which stays 1/n: three of four are worth 3/4 of RLOO over three."""
    sample = estimated(make_policy(), make_data().batch(range(4)), "rloo-4")
    rewards = sample.rewards.clone()
    rewards[::4] = torch.nan
    logits = sample.logits.detach()
    g = sample.plan.gradient(rewards, logits)
    assert bool((g[::4] == 0).all())
    kept = [i for i in range(16) if i % 4]
    trajectories = replace(
        sample.trajectories,
        **{
            name: getattr(sample.trajectories, name)[kept]
            for name in (
                "tokens",
                "lengths",
                "finished",
                "contexts",
                "examples",
                "samples",
                "keys",
                "log_probs",
                "logits",
            )
        },
    )
    three = make_estimator("rloo-3").plan(trajectories, Noise(0)).gradient(rewards[kept], logits[kept])
    torch.testing.assert_close(g[kept], 0.75 * three)
    assert float(three.abs().max()) > 0.01


@pytest.mark.parametrize("name", ["arsm", "ars-2", "sc", "mc-2"])
def test_a_contrast_with_a_skipped_side_is_left_out(name: str):
    sample = estimated(make_policy(), make_data().batch(range(6)), name)
    plan, logits = sample.plan, sample.logits.detach()
    assert isinstance(plan, ContrastPlan)
    rewards = sample.rewards.clone()
    rewards[1], rewards[len(rewards) - 1] = torch.nan, torch.nan
    skipped = rewards[plan.plus].isnan() | rewards[plan.minus].isnan()
    assert 0 < int(skipped.sum()) < len(skipped)
    kept = (~skipped).nonzero().squeeze(1)
    names = ("row", "step", "token", "plus", "minus", "weight")
    rest = replace(plan, **{field: getattr(plan, field)[kept] for field in names})
    torch.testing.assert_close(plan.gradient(rewards, logits), rest.gradient(sample.rewards, logits))


@pytest.mark.parametrize("name", ANY)
def test_a_reward_that_judges_nothing_gives_no_gradient(name: str):
    policy = make_policy()
    sample = estimated(policy, make_data().batch(range(4)), name, Reward(lambda sequences: [None] * len(sequences)))
    assert bool(sample.rewards.isnan().all())
    assert bool((sample.gradient == 0).all())
    assert float(gradients(policy).norm()) == 0.0


# One process or several


def test_two_processes_do_what_one_does():
    """Half a batch each: the same sequences and rewards, and gradients that add up."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for name in ("arsm", "rloo-3", "sc"):
            halves = [pool.submit(part, list(places), name) for places in (range(4), range(4, 8))]
            rows, rewards, gradient = part(list(range(8)), name)
            (rows_1, rewards_1, gradient_1), (rows_2, rewards_2, gradient_2) = (half.result() for half in halves)
            mains = 8 * (3 if name == "rloo-3" else 1)
            half = mains // 2
            assert rows == rows_1[:half] + rows_2[:half] + rows_1[half:] + rows_2[half:]
            assert rewards == rewards_1[:half] + rewards_2[:half] + rewards_1[half:] + rewards_2[half:]
            whole, sum_ = torch.tensor(gradient), torch.tensor(gradient_1) + torch.tensor(gradient_2)
            assert float(whole.norm()) > 0.01
            assert float((whole - sum_).norm()) < 1e-6 * float(whole.norm())


def test_rewards_do_not_depend_on_worker_processes():
    batch = make_data().batch(range(8))
    expected = estimated(make_policy(), batch, "arsm")
    for workers in (1, 2):
        with Reward(likeness, workers=workers) as reward:
            sample = estimated(make_policy(), batch, "arsm", reward)
        assert torch.equal(sample.rewards, expected.rewards)
        assert torch.equal(sample.gradient, expected.gradient)
        assert sample.cost == expected.cost


# Training


def trainer(policy: Any, name: str = "rloo-2", data: Columns | None = None, **options: Any) -> Trainer:
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(policy.parameters(), lr=options.pop("lr", 0.1))
    reward = options.pop("reward", None) or Reward(likeness)
    engine = options.pop("engine", None) or make_engine(policy)
    options = {"batch_size": 4, **options}
    return Trainer(engine, data or make_data(), reward, make_estimator(name), optimizer, **options)


def same_start(sequences: list[list[int]], context: list[Tensor]) -> list[float]:
    """One for a sequence that begins with the context's first token."""
    return [float(bool(s) and s[0] == int(c[0])) for s, c in zip(sequences, context, strict=True)]


@pytest.mark.parametrize("name", ["arsm", "rloo-4"])
def test_a_trivial_task_is_learned(name: str):
    torch.manual_seed(0)
    encoder = TokenEncoder(VOCAB, 8)
    policy = RecurrentPolicy(encoder, encoder.width, VOCAB, hidden=16)
    learner = trainer(
        policy,
        name,
        make_data(64),
        reward=Reward(same_start),
        engine=make_engine(policy, max_length=2),
        optimizer=torch.optim.Adam(policy.parameters(), lr=0.01),
        batch_size=32,
    )
    rewards = torch.tensor([metrics.reward for metrics in learner.run(updates=100)])
    first, last = rewards[:10], rewards[-10:]
    error = math.sqrt(float(first.var() + last.var()) / 10)
    assert float(last.mean() - first.mean()) > max(6.8 * error, 0.3)
    assert evaluate(learner.engine, make_data(64), Reward(same_start)) > 0.5


def test_updates_and_epochs_are_counted():
    seen = list(trainer(make_policy()).run(updates=5))
    assert [metrics.update for metrics in seen] == [1, 2, 3, 4, 5]
    assert [metrics.epoch for metrics in seen] == [0, 0, 1, 1, 2]


def test_metrics_say_what_happened():
    learner = trainer(make_policy(), "arsm")
    seen: list[Metrics] = list(learner.run(updates=4))
    assert all(before.tokens < after.tokens for before, after in pairwise(seen))
    assert all(before.seconds < after.seconds for before, after in pairwise(seen))
    assert seen[-1].tokens == learner.cost.tokens
    assert seen[-1].reward_calls == learner.cost.reward_calls
    assert all(metrics.rollouts_per_step > 0 for metrics in seen)
    assert all(1 <= metrics.mean_length <= LENGTH for metrics in seen)
    assert seen[0].gradient_variance == pytest.approx(0.0, abs=1e-12)
    assert seen[-1].gradient_variance > 0.0
    first = trainer(make_policy(), "arsm")
    batch = next(first.data.epoch(4, first.noise.fold(0, 0)))
    policy = make_policy()
    sample = estimate(make_engine(policy), batch, Reward(likeness), make_estimator("arsm"), Noise(0).fold(1, 0))
    sample.backward()
    assert seen[0].reward == pytest.approx(sample.mean_reward)
    assert seen[0].gradient_norm == pytest.approx(float(gradients(policy).norm()))


def test_rollouts_are_counted_by_their_steps():
    sample = estimated(make_policy(), make_data().batch(range(8)), "arsm")
    lengths, steps = sample.trajectories.lengths.tolist(), sample.plan.branches.step.tolist()
    wanted = [steps.count(t) / sum(length > t for length in lengths) for t in range(max(lengths))]
    assert rollouts_by_step(sample) == pytest.approx(wanted, abs=1e-4)
    assert sum(wanted) > 0


def test_a_run_stops_after_its_updates():
    learner = trainer(make_policy())
    assert len(list(learner.run(updates=3))) == 3
    assert list(learner.run(updates=3)) == []
    assert len(list(learner.run(updates=0))) == 0


def test_a_run_stops_after_its_tokens():
    seen = list(trainer(make_policy()).run(tokens=100))
    assert seen[-1].tokens >= 100 > seen[-2].tokens


def test_a_run_stops_after_its_seconds():
    learner = trainer(make_policy())
    seen = list(learner.run(seconds=0.05))
    assert seen[-1].seconds >= 0.05
    assert all(metrics.seconds < 0.05 for metrics in seen[:-1])
    assert len(list(trainer(make_policy()).run(seconds=1000.0, updates=2))) == 2


def test_a_run_without_an_end_is_refused():
    with pytest.raises(InputError, match="say when to stop: updates, epochs, tokens or seconds"):
        next(trainer(make_policy()).run())


def test_a_run_in_two_parts_is_the_same_run():
    whole, parts = make_policy(), make_policy()
    learner = trainer(whole)
    seen = [metrics.reward for metrics in learner.run(updates=7)]
    learner = trainer(parts)
    again = [metrics.reward for metrics in learner.run(updates=3)]
    again += [metrics.reward for metrics in learner.run(updates=7)]
    assert again == seen
    assert torch.equal(parameters(parts), parameters(whole))


class Recording(torch.optim.SGD):
    """Notes the norm of every gradient that it is given."""

    def __init__(self, policy: nn.Module, lr: float = 0.01):
        super().__init__(policy.parameters(), lr=lr)
        self.policy, self.norms = policy, []

    def step(self, closure: Any = None) -> Any:
        self.norms.append(float(gradients(self.policy).norm()))
        return super().step(closure)


@pytest.mark.parametrize("name", [*ANY, "arm", "disarm"])
def test_every_estimator_is_clipped_alike(name: str):
    vocab, bos = (2, 1) if name in ("arm", "disarm") else (VOCAB, BOS)
    for clip in (1e-3, None):
        policy = make_policy(vocab=vocab)
        recording = Recording(policy)
        engine = make_engine(policy, bos=bos)
        seen = list(
            trainer(policy, name, make_data(8, vocab), optimizer=recording, engine=engine, clip=clip).run(updates=4)
        )
        before = torch.tensor([metrics.gradient_norm for metrics in seen])
        after = torch.tensor(recording.norms)
        assert float(before.max()) > 1e-3
        if clip is None:
            torch.testing.assert_close(after, before)
        else:
            assert float(after.max()) <= clip
            torch.testing.assert_close(after, before.clamp(max=clip), rtol=1e-2, atol=0)


def test_a_seed_fixes_the_parameters():
    trained = []
    for seed in (4, 4, 5):
        policy = make_policy()
        for _ in trainer(policy, "arsm", seed=seed).run(updates=5):
            pass
        trained.append(parameters(policy))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])
    assert not torch.equal(trained[0], parameters(make_policy()))


def test_draws_depend_on_the_example_and_the_epoch_alone():
    def sequences_of(batch_size: int) -> list[dict[int, list[list[int]]]]:
        """For each epoch, what was drawn for each example, by a policy that does not change."""
        epochs: list[dict[int, list[list[int]]]] = [{}, {}]
        calls: list[dict[int, list[list[int]]]] = []

        def note(sequences: list[list[int]], examples: list[int]) -> list[float]:
            calls.append({})
            for example, sequence in zip(examples, sequences, strict=True):
                calls[-1].setdefault(example, []).append(sequence)
            return [0.5] * len(sequences)

        learner = trainer(make_policy(), "rloo-3", lr=0.0, reward=Reward(note), batch_size=batch_size)
        for metrics in learner.run(updates=2 * math.ceil(8 / batch_size)):
            epochs[metrics.epoch].update(calls[-1])
        return epochs

    one, other = sequences_of(3), sequences_of(8)
    assert one == other
    assert set(one[0]) == set(one[1]) == set(range(100, 108))
    assert one[0] != one[1]


def test_a_gradient_that_is_not_finite_changes_nothing():
    policy = make_policy()
    learner = trainer(policy)
    run = learner.run(updates=5)
    next(run)
    before, cost = parameters(policy), learner.cost
    policy.output.weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(
        PolicyError, match="the gradient of update 2 is not finite; the parameters were left as they were"
    ):
        next(run)
    assert torch.equal(parameters(policy), before)
    assert learner.updates == 1
    assert learner.cost == cost


def test_the_score_is_checked_at_the_first_update():
    with pytest.raises(PolicyError, match=r"policy.score and policy.step disagree"):
        next(trainer(of_kind(Late)).run(updates=1))


def test_training_leaves_the_policy_in_its_mode():
    for mode in (True, False):
        policy = make_policy(dropout=0.3).train(mode)
        next(trainer(policy).run(updates=1))
        assert policy.training is mode
        assert policy.dropout.training is mode


def test_frozen_parameters_stay_as_they_are():
    policy = make_policy()
    policy.encoder.requires_grad_(False)
    frozen, others = parameters(policy.encoder), parameters(policy)
    list(trainer(policy, "arsm").run(updates=2))
    assert torch.equal(parameters(policy.encoder), frozen)
    assert not torch.equal(parameters(policy), others)


class NoModule:
    """A policy without parameters."""

    def encode(self, context: Any) -> Any:
        return context

    start = encode

    def step(self, state: Any, tokens: Tensor) -> Any: ...

    def score(self, memory: Any, tokens: Tensor) -> Any: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "at least one example and a batch size ≥ 1, not 8 and 0"),
        ({"data": Columns(context=torch.zeros(0, 3, dtype=torch.int64))}, "at least one example .* not 0 and 4"),
        ({"clip": 0.0}, "clip must be a positive norm or None, not 0.0"),
        ({"clip": -1.0}, "clip must be a positive norm or None, not -1.0"),
        ({"clip": math.nan}, "clip must be a positive norm or None, not nan"),
        ({"variance_decay": 1.0}, r"the decay of the running variance must be in \[0, 1\), not 1.0"),
        ({"seed": True}, "the seed must be a whole number, not True"),
        ({"engine": make_engine(NoModule())}, "training needs a policy with parameters: an nn.Module"),
    ],
)
def test_a_trainer_that_could_not_work_is_refused(options: dict[str, Any], message: str):
    optimizer = torch.optim.SGD(make_policy().parameters(), lr=0.1)
    arguments: dict[str, Any] = {"engine": make_engine(make_policy()), "data": make_data(), "batch_size": 4, **options}
    with pytest.raises(InputError, match=message):
        Trainer(reward=Reward(likeness), estimator=make_estimator("arsm"), optimizer=optimizer, **arguments)


# Diagnostics


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.99])
def test_the_running_variance_is_that_of_a_weighted_sample(decay: float):
    history = torch.randn(30, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1
    running = RunningVariance(decay)
    for t in range(1, 31):
        value = running.add(history[t - 1])
        weights = decay ** torch.arange(t - 1, -1, -1, dtype=torch.float64)
        weights = (weights / weights.sum())[:, None]
        mean = (weights * history[:t]).sum(0)
        expected = (weights * (history[:t] - mean) ** 2).sum()
        assert value == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
        assert value >= 0
    assert running.count == 30


def test_the_first_variance_is_nought():
    for dtype in (torch.float32, torch.float64):
        value = RunningVariance().add(torch.randn(1000, dtype=dtype, generator=torch.Generator().manual_seed(0)))
        assert value == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0, math.nan])
def test_a_decay_that_is_none_is_refused(decay: float):
    with pytest.raises(InputError, match=r"must be in \[0, 1\)"):
        RunningVariance(decay)


def test_flat_gradients_count_missing_ones_as_zeros():
    a, b, c = (nn.Parameter(torch.ones(shape)) for shape in [(2, 2), (3,), (1,)])
    a.grad, c.grad = torch.arange(4.0).view(2, 2), torch.tensor([9.0])
    assert flat_gradient([a, b, c]).tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 9.0]
    assert flat_gradient([]).tolist() == []


@pytest.mark.parametrize("name", ["arsm", "rloo-2", "sc"])
def test_a_probe_is_the_sample_variance(name: str):
    policy, batch, count = make_policy(), make_data().batch(range(4)), 6
    engine, reward, estimator = make_engine(policy), Reward(likeness), make_estimator(name)
    policy.output.weight.grad = torch.full_like(policy.output.weight, 7.0)
    called: list[int] = []
    probe = probe_variance(engine, batch, reward, estimator, count, Noise(2), lambda: called.append(1))
    assert len(called) == probe.estimates == count
    for parameter_name, parameter in policy.named_parameters():
        if parameter_name == "output.weight":
            assert parameter.grad is not None
            assert bool((parameter.grad == 7.0).all())
        else:
            assert parameter.grad is None
    drawn, samples = [], []
    for i in range(count):
        policy.zero_grad()
        sample = estimate(engine, batch, reward, estimator, Noise(2).fold(i))
        sample.backward()
        drawn.append(gradients(policy))
        samples.append(sample)
    g = torch.stack(drawn)
    variance = float(g.var(0).sum())
    assert variance > 0
    assert probe.variance == pytest.approx(variance, rel=1e-9)
    assert probe.squared_norm == pytest.approx(float((g.mean(0) ** 2).sum()) - variance / count, rel=1e-9)
    assert probe.tokens == sum(sample.cost.tokens for sample in samples) / count
    assert probe.reward_calls == sum(sample.cost.reward_calls for sample in samples) / count
    assert probe.mean_reward == pytest.approx(sum(sample.mean_reward for sample in samples) / count)
    rollouts, main_tokens = (sum(getattr(s.cost, field) for s in samples) for field in ("rollouts", "main_tokens"))
    assert probe.rollouts_per_step == pytest.approx(rollouts / main_tokens)
    assert probe.variance_error > 0
    assert probe.seconds > 0


def test_a_probe_gives_gradients_back_after_an_error():
    policy = make_policy()
    kept = torch.ones_like(policy.output.bias)
    policy.output.bias.grad = kept

    def broken(sequences: list[list[int]]) -> list[float]:
        raise LookupError

    with pytest.raises(Exception, match="LookupError"):
        probe_variance(make_engine(policy), make_data().batch([0]), Reward(broken), make_estimator("rloo"), 2, Noise(0))
    assert policy.output.bias.grad is kept


def test_a_probe_of_fewer_than_two_is_refused():
    policy = make_policy()
    for count in (1, 0, -1):
        with pytest.raises(InputError, match=f"a variance needs at least 2 estimates, not {count}"):
            probe_variance(
                make_engine(policy), make_data().batch([0]), Reward(likeness), make_estimator("sc"), count, Noise(0)
            )
    with pytest.raises(InputError, match="needs a policy with parameters"):
        probe_variance(
            make_engine(NoModule()), make_data().batch([0]), Reward(likeness), make_estimator("sc"), 2, Noise(0)
        )


# Teacher forcing


@pytest.fixture
def every_warning() -> Iterator[None]:
    """PyTorch repeats warnings that it would give once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("every_warning")
def test_pretraining_lowers_the_loss():
    torch.manual_seed(0)
    policy = make_policy()
    engine, data = make_engine(policy), make_data(32)
    before = evaluate(engine, data, Reward(likeness))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.03)
    losses = list(pretrain(engine, data, optimizer, epochs=15, batch_size=8))
    assert len(losses) == 15 * 4
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    assert evaluate(engine, data, Reward(likeness)) > before + 0.3


def test_the_loss_is_in_nats_per_token():
    policy, data = make_policy(), make_data(5)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with torch.no_grad():
        total, count = 0.0, 0
        for context, target in zip(data.columns["context"], data.columns["target"], strict=True):
            words = [*target, EOS]
            logits = policy.score(policy.encode(context[None]), torch.tensor([[BOS, *target]]))
            log_p = logits.log_softmax(2)[0, torch.arange(len(words)), torch.tensor(words)]
            total, count = total - float(log_p.sum()), count + len(words)
    (loss,) = pretrain(make_engine(policy), data, optimizer, batch_size=5)
    assert loss == pytest.approx(total / count)


def test_targets_are_cut_at_the_maximal_length():
    policy = make_policy()
    seen: list[tuple[Tensor, Tensor]] = []
    score = policy.score

    def watching(memory: Any, tokens: Tensor) -> Tensor:
        logits = score(memory, tokens)
        logits.register_hook(lambda gradient: seen.append((tokens, gradient)))
        return logits

    policy.score = watching
    targets = [[1, 2, 3, 4, 1], [1, 2], [], [3, 2, 1]]
    data = Columns(context=torch.ones(4, 2, dtype=torch.int64), target=targets, ids=range(4))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    list(pretrain(make_engine(policy, max_length=3), data, optimizer, batch_size=4))
    ((inputs, gradient),) = seen
    assert sorted(inputs.tolist()) == [[BOS, EOS, EOS], [BOS, 1, 2], [BOS, 1, 2], [BOS, 3, 2]]
    # The gradient is least, and below zero, at the token that is wanted; beyond the end nothing is wanted.
    wanted = [[int(step.argmin()) for step in row if bool((step != 0).any())] for row in gradient]
    assert sorted(wanted) == [[EOS], [1, 2, EOS], [1, 2, 3], [3, 2, 1]]


def test_pretraining_obeys_seed_and_clip():
    def trained(seed: int, clip: float | None = 1.0) -> tuple[Tensor, list[float]]:
        policy = make_policy()
        recording = Recording(policy)
        list(pretrain(make_engine(policy), make_data(), recording, batch_size=3, seed=seed, clip=clip))
        return parameters(policy), recording.norms

    first, again, other = (trained(seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert max(trained(1, clip=1e-3)[1]) <= 1e-3
    assert max(trained(1, clip=None)[1]) > 1e-3


def test_pretraining_uses_dropout():
    policy = make_policy(dropout=0.5).eval()
    (loss,) = pretrain(make_engine(policy), make_data(), torch.optim.SGD(policy.parameters(), lr=0.0))
    exact = make_policy(dropout=0.0)
    (without,) = pretrain(make_engine(exact), make_data(), torch.optim.SGD(exact.parameters(), lr=0.0))
    assert policy.training
    assert loss != pytest.approx(without)


def test_pretraining_that_could_not_work_is_refused():
    policy = make_policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"the data set has no column 'answer' to learn from; it has context, target"):
        next(pretrain(make_engine(policy), make_data(), optimizer, target="answer"))
    with pytest.raises(InputError, match="training needs a policy with parameters"):
        next(pretrain(make_engine(NoModule()), make_data(), optimizer))


# Evaluation


def test_evaluation_is_the_mean_reward_of_greedy_sequences():
    policy, data = make_policy(), make_data(11)
    engine = make_engine(policy)
    with torch.no_grad():
        memory = policy.encode(data.columns["context"])
        greedy = engine.sample(memory, data.ids, Sampler("greedy"), Noise(0)).trajectories
    expected = likeness(greedy.lists(), data.batch(range(11)).columns["target"], greedy.finished.tolist())
    for batch_size in (1, 4, 256):
        assert rewards_of(engine, data, Reward(likeness), batch_size=batch_size).tolist() == expected
    assert evaluate(engine, data, Reward(likeness)) == pytest.approx(sum(expected) / 11)
    assert len(set(expected)) > 2


def test_evaluation_may_sample():
    policy, data = make_policy(), make_data(11)
    engine = make_engine(policy)
    batch = data.batch(range(11))
    drawn = []
    for seed in (3, 4):
        with torch.no_grad():
            memory = policy.encode(batch.context)
            trajectories = engine.sample(memory, data.ids, Sampler("sample"), Noise(seed)).trajectories
        expected = likeness(trajectories.lists(), batch.columns["target"], trajectories.finished.tolist())
        for batch_size in (4, 256):
            values = rewards_of(engine, data, Reward(likeness), mode="sample", seed=seed, batch_size=batch_size)
            assert values.tolist() == expected
        assert evaluate(engine, data, Reward(likeness), mode="sample", seed=seed) == pytest.approx(sum(expected) / 11)
        drawn.append(expected)
    assert drawn[0] != drawn[1]


def test_evaluation_leaves_skipped_examples_out():
    def odd(sequences: list[list[int]], examples: list[int]) -> list[float | None]:
        return [float(example) if example % 2 else None for example in examples]

    engine = make_engine(make_policy())
    values = rewards_of(engine, make_data(), Reward(odd))
    assert values.isnan().tolist() == [True, False] * 4
    assert evaluate(engine, make_data(), Reward(odd)) == 104.0


def dropping_transformer() -> TransformerPolicy:
    torch.manual_seed(0)
    return TransformerPolicy(VOCAB, VOCAB, max_positions=16, width=16, heads=2, layers=2, dropout=0.5)


def dropping_encoder() -> RecurrentPolicy:
    torch.manual_seed(0)
    encoder = nn.Sequential(TokenEncoder(VOCAB, 8), nn.Dropout(0.5))
    return RecurrentPolicy(encoder, 16, VOCAB, hidden=16)


@pytest.mark.parametrize("make", [dropping_transformer, dropping_encoder])
def test_evaluation_is_without_dropout(make: Callable[[], nn.Module]):
    policy: Any = make()
    with torch.no_grad():
        policy.output.weight *= 5
    engine = Engine(policy, bos=BOS, eos=EOS, max_length=LENGTH)
    data = make_data(40)
    policy.eval()
    expected = rewards_of(engine, data, Reward(likeness)).tolist()
    policy.train()
    assert rewards_of(engine, data, Reward(likeness)).tolist() == expected
    assert policy.training


def test_nothing_cannot_be_evaluated():
    data = Columns(context=torch.zeros(0, 3, dtype=torch.int64), target=[])
    with pytest.raises(InputError, match="there is no example to evaluate on"):
        evaluate(make_engine(make_policy()), data, Reward(likeness))


class InPlace(RecurrentPolicy):
    """Its step writes the new state over the old one."""

    def step(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        logits, after = super().step(state, tokens)
        for old, new in zip(state[1], after[1], strict=True):
            old.copy_(new)
        return logits, state


def test_a_policy_that_changes_its_states_in_place_is_refused():
    torch.manual_seed(0)
    encoder = TokenEncoder(VOCAB, 4)
    policy = InPlace(encoder, encoder.width, VOCAB, hidden=8)
    engine = make_engine(policy)
    # Nothing is dropped, so the states that are kept are the ones written over.
    with torch.no_grad():
        policy.output.bias[EOS] = -50.0
    with pytest.raises(PolicyError, match="changes its state in place"):
        estimate(engine, make_data().batch([0, 1]), likeness, "arsm", Noise(0), check_score=True)


@pytest.mark.parametrize("name", ["arsm", "rloo-3", "sc"])
def test_a_policy_in_half_precision_can_be_trained(name: str):
    policy = make_policy().to(torch.bfloat16)
    sample = estimated(policy, make_data().batch(range(8)), name, check_score=True)
    assert sample.logits.dtype == torch.bfloat16
    assert sample.gradient.dtype == torch.float32
    gradient = gradients(policy)
    assert bool(gradient.isfinite().all())
    assert float(gradient.norm()) > 0


def test_plain_functions_and_names_will_do():
    policies = [make_policy(), make_policy()]
    for policy, reward, estimator in zip(
        policies, (likeness, Reward(likeness)), ("rloo-3", make_estimator("rloo-3")), strict=True
    ):
        sample = estimate(make_engine(policy), make_data().batch(range(8)), reward, estimator, Noise(3))
        sample.backward()
    assert torch.equal(*map(gradients, policies))
