"""Gradient estimates from start to end, against what autograd gives for plain formulas."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corollout.errors import InputError, PolicyError
from corollout.estimators import ContrastPlan, make_estimator
from corollout.noise import Noise
from corollout.policies import RecurrentPolicy
from corollout.rewards import Reward
from corollout.training import Estimate, estimate
from corollout.training.base import flat_gradient
from corollout.training.metrics import departure_rates, departures_by_step
from corollout.training.update_totals import UpdateTotals
from corollout.types import Sampler
from tests.support.small_task import (
    BOS,
    EOS,
    ESTIMATORS,
    estimated,
    likeness,
    make_data,
    make_engine,
    make_policy,
    part,
)


def gradients(policy: nn.Module) -> Tensor:
    return flat_gradient(policy.parameters())


def sources(sample: Estimate) -> list[tuple[int, list[int], bool]]:
    """Context, sequence and whether it ended by itself: of the main trajectories, then of the branches."""
    contexts = sample.trajectories.contexts
    owners = torch.cat([contexts, contexts[sample.plan.branches.parent]]).tolist()
    sequences = sample.trajectories.lists() + sample.completed.lists()
    finished = sample.trajectories.finished.tolist() + sample.completed.finished.tolist()
    return list(zip(owners, sequences, finished, strict=True))


# Gradients


def surrogate_gradient(policy: Any, sample: Estimate, context: Tensor, weight: Tensor) -> Tensor:
    """Autograd's gradient of −(1/B) Σ_rows weight · log p(sequence), one sequence at a time."""
    policy.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for row, tokens in enumerate(sample.trajectories.lists()):
        tokens = [*tokens, EOS] if sample.trajectories.finished[row] else tokens
        owner = int(sample.trajectories.contexts[row])
        logits = policy.score(policy.encode(context[owner : owner + 1]), torch.tensor([[BOS, *tokens[:-1]]]))
        log_p = logits.log_softmax(2)[0, torch.arange(len(tokens)), torch.tensor(tokens)].sum()
        loss = loss - weight[row] * log_p / sample.contexts
    loss.backward()
    return gradients(policy)


def leave_one_out(rewards: Tensor, contexts: Tensor, samples: int) -> Tensor:
    """RLOO's weights; a skipped reward is in no mean, and its sequence has no weight."""
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


def choosy(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float | None]:
    """Skips sequences that begin with 1 or 2."""
    values = likeness(sequences, target, finished)
    return [None if s and s[0] in (1, 2) else value for s, value in zip(sequences, values, strict=True)]


@pytest.mark.parametrize(("samples", "reward"), [(2, likeness), (4, likeness), (4, choosy)])
def test_rloo_is_the_gradient_of_its_surrogate_loss(samples: int, reward: Callable[..., Any]):
    policy, batch = make_policy(), make_data().batch(range(8))
    sample = estimated(policy, batch, f"rloo-{samples}", Reward(reward))
    gradient = gradients(policy)
    skipped = sample.rewards.isnan()
    assert reward is likeness or {0, 1} < set(skipped.view(8, 4).sum(1).tolist())
    weights = leave_one_out(sample.rewards, sample.trajectories.contexts, samples)
    expected = surrogate_gradient(policy, sample, batch.context, weights)
    assert float(expected.norm()) > 0.01
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    assert sample.mean_reward == pytest.approx(float(sample.rewards[~skipped].mean()))


@pytest.mark.parametrize("samples", [1, 3])
def test_self_critic_is_the_gradient_of_its_surrogate_loss(samples: int):
    policy, batch = make_policy(), make_data().batch(range(6))
    sample = estimated(policy, batch, f"sc-{samples}")
    gradient = gradients(policy)
    greedy = make_engine(policy).decode(batch.context, batch.examples, Sampler("greedy"), Noise(0)).trajectories
    rewards = likeness(greedy.lists(), batch.columns["target"], greedy.finished.tolist())
    baseline = torch.tensor(rewards, dtype=torch.float64)
    contexts = sample.trajectories.contexts
    weights = (sample.rewards[: len(contexts)] - baseline[contexts]) / samples
    expected = surrogate_gradient(policy, sample, batch.context, weights)
    assert float(expected.norm()) > 0.01
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_gradient_costs_and_rewards_of_every_estimator(name: str):
    policy, batch = make_policy(), make_data().batch([6, 1, 4, 0, 3])
    sample = estimated(policy, batch, name)
    gradient = gradients(policy)
    policy.zero_grad()
    trajectories, branches = sample.trajectories, sample.plan.branches
    inputs = make_engine(policy).score_inputs(trajectories)
    logits = policy.score(policy.encode(batch.context[trajectories.contexts]), inputs)
    (-(logits * sample.gradient).sum() / 5).backward()
    torch.testing.assert_close(gradient, gradients(policy), rtol=1e-9, atol=1e-12)
    assert bool((sample.gradient[~trajectories.mask] == 0).all())
    assert float(gradient.norm()) > 1e-4
    # Costs
    cost, generated = sample.cost, int((sample.completed.lengths - branches.step - 1).sum())
    assert cost.rollouts == len(branches) == len(sample.completed.tokens)
    assert cost.main_tokens == int(trajectories.lengths.sum())
    prefixes = {
        (context, *tokens[:t])
        for context, tokens, length in zip(
            trajectories.contexts.tolist(), trajectories.tokens.tolist(), trajectories.lengths.tolist(), strict=True
        )
        for t in range(length)
    }
    assert 0 < cost.scored_tokens <= len(prefixes)  # without those that no gradient comes from
    if name.startswith(("rl-beam", "set")):  # what a search computes may be more than it keeps
        assert cost.tokens >= len(prefixes)
    else:
        assert len(prefixes) <= cost.tokens <= len(prefixes) + generated
        assert cost.saved_tokens == 2 * cost.main_tokens + generated - cost.tokens - cost.scored_tokens
    if name.startswith(("ars", "reinforce", "pairs")) and "samples" not in name:
        assert cost.tokens == cost.main_tokens + generated  # one sample: nothing is shared
    rows = sources(sample)
    assert sample.cost.reward_calls == len({(owner, *tokens, finished) for owner, tokens, finished in rows})
    assert {"sample", "plan", "complete", "reward", "score", "backward"} <= set(sample.seconds)
    # Rewards belong to their sequences.
    targets = [batch.columns["target"][owner] for owner, _, _ in rows]
    assert sample.rewards.tolist() == likeness([row[1] for row in rows], targets, [row[2] for row in rows])
    assert sample.mean_reward == pytest.approx(float(sample.rewards[: len(trajectories.tokens)].mean()))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_reward_that_skips_everything_gives_no_gradient(name: str):
    policy = make_policy()
    sample = estimated(policy, make_data().batch(range(4)), name, Reward(lambda sequences: [None] * len(sequences)))
    assert bool(sample.rewards.isnan().all())
    assert bool((sample.gradient == 0).all())
    assert float(gradients(policy).norm()) == 0.0


def test_rloo_with_a_skipped_sample_is_rloo_over_the_others():
    """Up to the weight, which stays 1/n: three of four count 3/4 of RLOO over three."""
    sample = estimated(make_policy(), make_data().batch(range(4)), "rloo-4")
    rewards = sample.rewards.clone()
    rewards[::4] = torch.nan
    logits = sample.logits.detach()
    g = sample.plan.gradient(rewards, logits)
    assert bool((g[::4] == 0).all())
    kept = [i for i in range(16) if i % 4]
    rows = {name: x[kept] for name, x in vars(sample.trajectories).items() if isinstance(x, Tensor)}
    three = make_estimator("rloo-3").plan(replace(sample.trajectories, **rows), Noise(0))
    torch.testing.assert_close(g[kept], 0.75 * three.gradient(rewards[kept], logits[kept]))
    assert float(g.abs().max()) > 0.01


@pytest.mark.parametrize("name", ["arsm", "ars-2", "sc", "mc-2"])
def test_a_contrast_with_a_skipped_side_is_left_out(name: str):
    sample = estimated(make_policy(), make_data().batch(range(6)), name)
    plan, logits = sample.plan, sample.logits.detach()
    assert isinstance(plan, ContrastPlan)
    rewards = sample.rewards.clone()
    rewards[1], rewards[len(rewards) - 1] = torch.nan, torch.nan
    skipped = rewards[plan.plus].isnan() | rewards[plan.minus].isnan()
    assert 0 < int(skipped.sum()) < len(skipped)
    names = ("row", "step", "token", "plus", "minus", "weight")
    rest = replace(plan, **{field: getattr(plan, field)[~skipped] for field in names})
    torch.testing.assert_close(plan.gradient(rewards, logits), rest.gradient(sample.rewards, logits))


def test_rollouts():
    """Self-critic completes the greedy sequence of a context once, from where the last sample leaves it, if all do."""
    batch = make_data().batch(range(8))
    sample = estimated(make_policy(), batch, "sc-4")
    branches, trajectories = sample.plan.branches, sample.trajectories
    leaves = trajectories.mask & (sample.logits.argmax(2) != trajectories.tokens)
    step = [row.index(True) if any(row) else None for row in leaves.tolist()]
    expected = []
    for context in range(8):
        rows = range(4 * context, 4 * context + 4)
        if all(step[row] is not None for row in rows):
            last = max(rows, key=lambda row: step[row] or 0)
            expected.append((last, step[last]))
    assert list(zip(branches.parent.tolist(), branches.step.tolist(), strict=True)) == expected
    assert len(branches) == len(expected) < int(leaves.any(1).sum())  # most samples leave it
    # Rollouts are counted by step.
    sample = estimated(make_policy(), batch, "arsm")
    lengths, steps = sample.trajectories.lengths.tolist(), sample.plan.branches.step.tolist()
    expected = [steps.count(t) / sum(length > t for length in lengths) for t in range(max(lengths))]
    counts = departures_by_step(sample.trajectories.lengths, sample.plan.branches.step, max(lengths))
    assert departure_rates([counts, counts]) == pytest.approx(expected, abs=1e-4)
    assert sum(expected) > 0


def test_rollouts_by_step_of_estimates_with_and_without_branches():
    batch = make_data().batch(list(range(8)))
    samples = [estimated(make_policy(), batch, name) for name in ("reinforce", "arsm", "reinforce")]
    lengths = [length for sample in samples for length in sample.trajectories.lengths.tolist()]
    steps = [step for sample in samples for step in sample.plan.branches.step.tolist()]
    expected = [steps.count(t) / sum(length > t for length in lengths) for t in range(max(lengths))]
    totals = UpdateTotals()
    totals.add(samples[0])
    longest = int(samples[0].trajectories.lengths.max())
    assert (totals.rollouts_by_step, totals.rollouts_by_depth) == ([0.0] * longest, [])
    for sample in samples[1:]:
        totals.add(sample)
    assert totals.rollouts_by_step == pytest.approx(expected, abs=1e-4)
    assert totals.cost.rollouts == len(steps) > 0
    assert totals.cost.tokens == sum(sample.cost.tokens for sample in samples)


def test_an_empty_batch_is_refused():
    with pytest.raises(InputError, match="the batch is empty"):
        estimated(make_policy(), make_data().batch([]), "arsm")


# The check of score against step


def policy_with_score(change: Callable[[Tensor], Tensor]) -> RecurrentPolicy:
    """A policy whose ``score`` is changed."""
    policy = make_policy()
    score = policy.score
    policy.score = lambda memory, tokens: change(score(memory, tokens))
    return policy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits: logits.roll(1, 1), r"disagree: for example 10\d .* token at step \d"),
        (lambda logits: logits / 1.1, "disagree"),
        (lambda logits: logits * torch.nan, "disagree"),
        (lambda logits: logits[:, :-1], r"logits of shape \[12, 4, 6\]"),
    ],
    ids=["late", "other temperature", "NaN", "short"],
)
def test_a_wrong_score_is_refused(change: Callable[[Tensor], Tensor], message: str):
    with pytest.raises(PolicyError, match=message):
        estimated(policy_with_score(change), make_data().batch(range(6)), "rloo-2", check_score=True)


@pytest.mark.parametrize("name", ["arsm", "rl-beam-3"])
def test_a_correct_score_is_accepted(name: str):
    """A number that is added to all logits of a step changes nothing."""
    for change in (lambda logits: logits, lambda logits: logits + torch.arange(logits.shape[1])[:, None]):
        sample = estimated(policy_with_score(change), make_data().batch(range(6)), name, check_score=True)
        assert bool(sample.gradient.isfinite().all())


def test_a_policy_that_changes_its_states_in_place_is_refused():
    policy = make_policy()
    step = policy.step

    def in_place(state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        logits, after = step(state, tokens)
        for old, new in zip(state[1], after[1], strict=True):
            old.copy_(new)
        return logits, state

    policy.step = in_place
    with torch.no_grad():
        policy.output.bias[EOS] = -50.0  # no row is dropped, so the states that are kept are the ones overwritten
    with pytest.raises(PolicyError, match="changes its state in place"):
        estimate(make_engine(policy), make_data().batch([0, 1]), likeness, "arsm", Noise(0), check_score=True)


# Modes and precision


@pytest.mark.parametrize("name", ["arsm", "rloo-2", "sc"])
def test_dropout_does_not_affect_the_gradient(name: str):
    policy, batch = make_policy(dropout=0.5), make_data().batch(range(5))
    policy.train()
    modes = [module.training for module in policy.modules()]
    first = estimated(policy, batch, name, check_score=True)
    assert [module.training for module in policy.modules()] == modes
    in_training = gradients(policy)
    policy.zero_grad()
    policy.eval()
    second = estimated(policy, batch, name)
    assert torch.equal(first.rewards, second.rewards)
    assert torch.equal(in_training, gradients(policy))
    assert not policy.training


@pytest.mark.parametrize("name", ["arsm", "rloo-3", "sc"])
def test_a_policy_in_half_precision_can_be_trained(name: str):
    policy = make_policy().to(torch.bfloat16)
    sample = estimated(policy, make_data().batch(range(8)), name, check_score=True)
    assert (sample.logits.dtype, sample.gradient.dtype) == (torch.bfloat16, torch.float32)
    assert bool(gradients(policy).isfinite().all())
    assert float(gradients(policy).norm()) > 0


# One process or several


def test_two_processes_do_what_one_does():
    """Half a batch each: the same sequences and rewards, and gradients that add up."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in ("arsm", "rloo-3", "sc"):
            halves = [pool.submit(part, list(index), name) for index in (range(4), range(4, 8))]
            rows, rewards, gradient = part(list(range(8)), name)
            (rows_1, rewards_1, gradient_1), (rows_2, rewards_2, gradient_2) = (half.result() for half in halves)
            mains = 4 * (3 if name == "rloo-3" else 1)
            assert rows == rows_1[:mains] + rows_2[:mains] + rows_1[mains:] + rows_2[mains:]
            assert rewards == rewards_1[:mains] + rewards_2[:mains] + rewards_1[mains:] + rewards_2[mains:]
            whole, sum_ = torch.tensor(gradient), torch.tensor(gradient_1) + torch.tensor(gradient_2)
            assert float(whole.norm()) > 0.01
            assert float((whole - sum_).norm()) < 1e-6 * float(whole.norm())
