"""Gradients for a single categorical variable (a discrete VAE, a bandit) instead of a sequence."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.arguments import require_callable, require_instance
from corollout.errors import InputError, RewardError
from corollout.estimators.binary import ARM
from corollout.estimators.estimator import Estimator, make_estimator
from corollout.noise import MAIN, SET, Noise, exponential, race
from corollout.text import quoted
from corollout.types import Trajectories, full_precision

VariableReward = Callable[[Int64[Tensor, " n"], Int64[Tensor, " n"]], Tensor]


def estimate_gradient(
    logits: Float[Tensor, "row vocab"],
    reward: VariableReward,
    estimator: str | Estimator = "arsm",
    k: int | None = None,
    seed: int = 0,
) -> Float[Tensor, "row vocab"]:
    """One estimate of d E[reward] / d logits for each row, by any estimator.

    ``reward(actions, rows)`` returns the reward of each action in its row. It is called once, with all the actions that
    the estimate needs. ``k`` is the estimator's number: references of ARS (None for all V, which is ARSM), samples of
    RLOO, size of a beam or of a set. ``arm`` and ``disarm`` take two columns, or one: the logit of action 1 relative to
    action 0.

    The same seed gives the same estimate; use different seeds for independent ones.
    """
    _check_logits(logits)
    require_callable("reward", reward, "a function of actions and rows")
    require_instance("estimator", estimator, (Estimator, str), "an Estimator or the name of one, such as 'arsm'")
    if k is not None and not isinstance(estimator, str):
        raise InputError("k goes with the name of an estimator: an estimator object has its number already")
    method = make_estimator(estimator, k) if isinstance(estimator, str) else estimator
    given, logits = logits, full_precision(logits.detach())
    bernoulli = isinstance(method, ARM) and logits.shape[1] == 1
    if bernoulli:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    if len(logits) == 0:
        return torch.zeros_like(given)

    noise = Noise(seed)
    trajectories = _one_step(logits, method, noise)
    plan = method.plan(trajectories, noise)
    branches = plan.branches
    actions = torch.cat([trajectories.tokens[:, 0], branches.token])
    rows = torch.cat([trajectories.contexts, trajectories.contexts[branches.parent]])
    rewards = _check_rewards(reward(actions, rows), len(actions))
    g = plan.gradient(rewards, logits[trajectories.contexts][:, None])[:, 0]
    total = torch.zeros_like(logits).index_add_(0, trajectories.contexts, g)
    return (total[:, 1:] if bernoulli else total).to(given.dtype)


def _one_step(logits: Float[Tensor, "row vocab"], method: Estimator, noise: Noise) -> Trajectories:
    """Main trajectories of a single step, as the rollout engine would draw them."""
    rows, vocab = logits.shape
    sampler = method.sampler
    count = min(sampler.count, vocab) if sampler.mode in ("beam", "set") else sampler.count
    contexts = torch.arange(rows, device=logits.device).repeat_interleave(count)
    samples = torch.arange(count, device=logits.device).repeat(rows)
    keys = noise.keys(contexts, MAIN, samples)
    log_probs = logits.double().log_softmax(1)
    if sampler.mode == "beam":
        actions = logits.topk(count, 1).indices.flatten()
    elif sampler.mode == "set":
        index = torch.arange(rows, device=logits.device)
        gumbels = -exponential(noise.keys(index, SET, 0), torch.zeros_like(index), vocab, torch.float64).log_()
        actions = (log_probs + gumbels).topk(count, 1).indices.flatten()
    elif sampler.mode == "greedy":
        actions = logits.argmax(1)[contexts]
    else:
        actions = race(logits[contexts], keys, torch.zeros_like(keys))
    log_probs = log_probs[contexts, actions]
    possible = log_probs > -torch.inf  # a beam or a set has no masked actions
    contexts, samples, keys, actions = contexts[possible], samples[possible], keys[possible], actions[possible]
    ones = torch.ones_like(contexts)
    return Trajectories(
        tokens=actions[:, None],
        lengths=ones,
        finished=ones.bool(),
        contexts=contexts,
        examples=contexts,
        samples=samples,
        keys=keys,
        log_probs=log_probs[possible],
        logits=logits[contexts][:, None],
    )


def _check_logits(logits: Tensor) -> None:
    require_instance("logits", logits, Tensor, "a tensor")
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise InputError(f"logits must be of shape [rows, V] with V ≥ 1, not {list(logits.shape)}")
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating-point numbers, not {logits.dtype}")
    # The largest logit of a row is finite if and only if none is NaN or +inf and not all are −inf.
    bad = ~logits.amax(1).isfinite()
    if bool(bad.any()):
        raise InputError(f"the logits of row {int(bad.nonzero()[0])} contain NaN or +inf, or are all −inf")


def _check_rewards(rewards: Tensor, count: int) -> Float[Tensor, " source"]:
    try:
        rewards = torch.as_tensor(rewards)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RewardError(f"the reward must return a tensor of {count} numbers, not {quoted(rewards)}") from error
    if rewards.shape != (count,):
        raise RewardError(f"the rewards of {count} actions must have the shape [{count}], not {list(rewards.shape)}")
    rewards = rewards.detach().double()
    if not bool(rewards.isfinite().all()):
        raise RewardError(f"the reward of action number {int((~rewards.isfinite()).nonzero()[0])} is NaN or infinite")
    return rewards
