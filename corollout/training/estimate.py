"""One gradient estimate from start to end: sample, plan, complete, reward, gradient."""

import time
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.data import Batch
from corollout.errors import InputError, PolicyError
from corollout.estimators import Adaptive, Estimator, Plan, make_estimator
from corollout.noise import Noise
from corollout.policies import detach, evaluation_mode, select
from corollout.policies.heads import Head
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine, score_tolerance
from corollout.types import Cost, Sequences, Trajectories, full_precision


@dataclass(frozen=True)
class Estimate:
    """A gradient estimate for a batch, with everything that led to it."""

    trajectories: Trajectories
    plan: Plan
    completed: Sequences  # the branches' sequences
    rewards: Float[Tensor, " source"]  # of the main trajectories, then of the branches; NaN: skipped
    logits: Float[Tensor, "row step vocab"]  # with graph
    gradient: Float[Tensor, "row step vocab"]  # estimate of d reward / d logits; a context's rows add up
    contexts: int
    cost: Cost
    seconds: dict[str, float] = field(default_factory=dict)  # where the time went

    def backward(self) -> None:
        """Add the gradient of the loss, minus the mean expected reward of the batch, to the parameters' ``.grad``."""
        start = time.perf_counter()
        self.logits.backward(gradient=(-self.gradient / max(self.contexts, 1)).to(self.logits.dtype))
        self.seconds["backward"] = time.perf_counter() - start

    def updated(self, estimator: Estimator) -> Estimator:
        """The estimator that made this estimate, with what it learns from it."""
        if not isinstance(estimator, Adaptive):
            return estimator
        return estimator.updated(self.plan, self.rewards, full_precision(self.logits.detach()))

    @property
    def mean_reward(self) -> float:
        """The mean reward of the main trajectories."""
        return float(self.rewards[: len(self.trajectories.tokens)].nanmean())


def estimate(
    engine: Engine,
    batch: Batch,
    reward: Reward | RewardFunction,
    estimator: Estimator | str,
    noise: Noise,
    *,
    check_score: bool = False,
) -> Estimate:
    """Estimate the gradient of the expected reward of a batch of contexts.

    Everything runs in evaluation mode, scoring included: with dropout, the policy that is scored would not be the one
    that was sampled. ``check_score`` compares what ``policy.score`` and ``policy.step`` say of the same tokens, and
    makes sure that ``policy.step`` leaves old states alone.
    """
    if len(batch) == 0:
        raise InputError("the batch is empty: there is no gradient to estimate")
    reward, estimator = as_reward(reward), as_estimator(estimator)
    clock = _Clock()
    policy = engine.policy
    with evaluation_mode(policy):
        memory = policy.encode(batch.context)
        mains = engine.sample(detach(memory), batch.examples, estimator.sampler, noise)
        trajectories = mains.trajectories
        clock.lap("sample")
        plan = estimator.plan(trajectories, noise)
        clock.lap("plan")
        done = engine.complete(mains, plan.branches, noise)
        clock.lap("complete")
        rewards, calls = score_sequences(reward, batch, trajectories, plan, done.sequences)
        clock.lap("reward")
        outputs = policy.score(select(memory, trajectories.contexts), engine.score_inputs(trajectories))
        if outputs.shape[:2] != trajectories.tokens.shape:
            raise _another_shape(outputs, trajectories)
        logits = engine.head.logits(outputs, trajectories.tokens)
        if check_score:
            _compare(engine.head, logits.detach(), trajectories)
            engine.check_states(mains)
        gradient = plan.gradient(rewards, full_precision(logits.detach()))
        clock.lap("score")
    cost = Cost(mains.tokens + done.tokens, mains.tokens, len(plan.branches), calls)
    return Estimate(trajectories, plan, done.sequences, rewards, logits, gradient, len(batch), cost, clock.seconds)


def as_reward(reward: Reward | RewardFunction) -> Reward:
    return reward if isinstance(reward, Reward) else Reward(reward)


def as_estimator(estimator: Estimator | str) -> Estimator:
    return make_estimator(estimator) if isinstance(estimator, str) else estimator


def score_sequences(
    reward: Reward, batch: Batch, trajectories: Trajectories, plan: Plan, completed: Sequences
) -> tuple[Float[Tensor, " source"], int]:
    """Rewards of main trajectories and branches, in one call, and how many sequences were really evaluated."""
    context = torch.cat([trajectories.contexts, trajectories.contexts[plan.branches.parent]])
    scores = reward(
        trajectories.lists() + completed.lists(),
        batch.examples[context].tolist(),
        batch.aligned(context),
        trajectories.finished.tolist() + completed.finished.tolist(),
    )
    return scores.values.to(trajectories.tokens.device), scores.calls


def _compare(head: Head, scored: Float[Tensor, "row step vocab"], trajectories: Trajectories) -> None:
    sampled = trajectories.logits
    if sampled.shape[2] == 0:
        return
    if scored.shape != sampled.shape:
        raise _another_shape(scored, trajectories)
    # Log-probabilities of the tokens that were drawn: they are finite, and indifferent to a shift of the logits.
    gap = head.gap(scored, sampled, trajectories.tokens)
    gap = torch.where(trajectories.mask, gap, 0.0)
    if not bool((gap <= score_tolerance(scored.dtype)).all()):
        row, step = divmod(int(gap.nan_to_num(torch.inf).argmax()), gap.shape[1])
        raise PolicyError(
            f"policy.score and policy.step disagree: for example {int(trajectories.examples[row])} the log-probability "
            f"of the token of step {step} differs by {float(gap[row, step]):.3g}; score(memory, tokens)[:, t] must be "
            f"what step returns after tokens 0 … t"
        )


def _another_shape(scored: Tensor, trajectories: Trajectories) -> PolicyError:
    shapes = f"{list(scored.shape)} where policy.step gave {list(trajectories.logits.shape)}"
    return PolicyError(f"policy.score returned logits of shape {shapes}")


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
