"""A gradient estimate, from a batch of contexts to gradients: sample, plan, complete, reward, score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.arguments import require_instance
from corollout.compilation import wall_time
from corollout.data import Batch
from corollout.division import Division
from corollout.errors import InputError
from corollout.estimators import Adaptive, Estimator, Plan, make_estimator
from corollout.estimators.plans import GroupPlan, SparsePlan
from corollout.noise import Noise
from corollout.policies import detach, evaluation_mode
from corollout.policies.protocol import GraphSizes
from corollout.rewards import AnyReward, as_reward
from corollout.rollouts import Engine, Mains
from corollout.rollouts.policy_calls import call_encode
from corollout.rollouts.watch import Look, Reads
from corollout.training.metrics import RewardNumbers
from corollout.training.micro_batches import MicroScoring
from corollout.training.policy_checks import check_rows, check_scores
from corollout.training.regularisation import Penalty, Regulariser
from corollout.training.scoring import NoScoring, Scoring, score, score_rows
from corollout.types import Cost, Sequences, Trajectories, full_precision


@dataclass(frozen=True)
class Estimate:
    """A gradient estimate for a batch, with everything that led to it."""

    trajectories: Trajectories
    plan: Plan
    completed: Sequences  # the branches' sequences
    rewards: Float[Tensor, " source"]  # of the main trajectories, then of the branches; NaN: skipped
    own_rewards: Float[Tensor, " source"]  # the same without a penalty
    contexts: int  # of this process
    cost: Cost
    scoring: Scoring
    engine: Engine
    memory: Any
    seconds: dict[str, float] = field(default_factory=dict)  # by part of the estimate
    penalty: Penalty | None = None
    reward_parts: Mapping[str, Float[Tensor, " source"]] = field(default_factory=dict)  # each of several rewards
    division: Division | None = None  # of the batch among processes

    def backward(self, contexts: int | None = None) -> None:
        """Add the gradient of the loss, minus the mean expected reward of the batch, to the parameters' ``.grad``.

        If the batch is a part of an update, ``contexts`` is the number of contexts of the whole update. Of a batch that
        is divided it is the part of this process's contexts: the parts of all processes add up to the gradient.
        """
        started = wall_time()
        whole = self.contexts if self.division is None else len(self.division)
        with evaluation_mode(self.engine.policy):
            self.scoring.backward(-1 / (contexts or whole))
        self.seconds["backward"] = wall_time() - started

    def updated(self, estimator: Estimator) -> Estimator:
        """The estimator that made this estimate, with what it learns from it."""
        if not isinstance(estimator, Adaptive) or (self.contexts == 0 and not estimator.compares_contexts):
            return estimator
        return estimator.updated(self.plan, self.rewards, self.scoring.scores)

    @property
    def mean_reward(self) -> float:
        """The mean reward of the main trajectories, without a penalty."""
        return self.reward_numbers.mean

    @property
    def reward_numbers(self) -> RewardNumbers:
        """The rewards of the main trajectories, without a penalty."""
        return RewardNumbers.of(self.own_rewards[: len(self.trajectories.tokens)].tolist())

    @property
    def logits(self) -> Float[Tensor, "row step vocab"]:
        """All logits of the main trajectories by the policy's present weights: to look at, an update never needs them.

        Zero beyond a row's length.
        """
        return self.logits_of(slice(None))

    def logits_of(self, rows: slice) -> Float[Tensor, "some step vocab"]:
        """The same for some main trajectories."""
        t = self.trajectories
        part = Sequences(t.tokens[rows], t.lengths[rows], t.finished[rows])
        with torch.no_grad(), evaluation_mode(self.engine.policy):
            outputs = score_rows(self.engine, self.memory, part, t.contexts[rows])
            return self.engine.head.logits(outputs, part.tokens)

    @property
    def gradient(self) -> Float[Tensor, "row step vocab"]:
        """The estimate of d reward / d logits, all of it; a context's rows add up."""
        return self.plan.gradient(self.rewards, full_precision(self.logits))

    def gradient_of(
        self,
        rows: slice,
        logits: Float[Tensor, "some step vocab"],
        rewards: Float[Tensor, " source"] | None = None,
    ) -> Float[Tensor, "some step vocab"]:
        """The same for some main trajectories, given their logits in full precision; or if rewards were others."""
        if not isinstance(self.plan, SparsePlan):
            return (self if rewards is None else replace(self, rewards=rewards)).gradient[rows]
        credits = self.scoring.credits if rewards is None else self.plan.credits(rewards, self.scoring.scores)
        first, stop, _ = rows.indices(len(self.trajectories.tokens))
        inside = credits.select(((credits.row >= first) & (credits.row < stop)).nonzero().squeeze(1))
        decisions = self.trajectories.decisions
        return replace(inside, row=inside.row - first).gradient(logits, decisions and decisions.select(rows))


def estimate(
    engine: Engine,
    batch: Batch,
    reward: AnyReward,
    estimator: Estimator | str,
    noise: Noise,
    *,
    check_score: bool = False,
    regulariser: Regulariser | None = None,
    micro_batch: int | None = None,
    reward_weights: Sequence[float | int] | None = None,
) -> Estimate:
    """Estimate the gradient of the expected reward of a batch of contexts.

    ``reward`` may be a list of rewards, or a mapping from names to them: their sum, weighted by ``reward_weights``.
    Everything runs in evaluation mode, scoring included: with dropout, the policy that is scored would not be the one
    that was sampled. A ``regulariser`` takes its penalties off the rewards. With ``micro_batch``, so many contexts at a
    time are scored with a graph, which takes less memory and gives the same gradient; without, as many as make
    a graph of the size that the policy wants (``graph_sizes``), or all. ``check_score`` compares what
    ``policy.score`` and ``policy.step`` return for the same tokens, and makes sure that ``policy.step`` does not change
    old states, and that a context computed by itself gives what it gives in its batch.
    """
    require_instance("engine", engine, Engine, "an Engine, as in Engine(policy, bos=1, eos=0, max_length=20)")
    require_instance("batch", batch, Batch, "a Batch, as data.batch([0, 1, 2]) makes it")
    require_instance("noise", noise, Noise, "a Noise, as in Noise(seed)")
    if len(batch) == 0:
        raise InputError("the batch is empty: there is no gradient to estimate")
    reward, estimator = as_reward(reward, reward_weights), as_estimator(estimator)
    policy, stopwatch = engine.policy, _Stopwatch()
    with evaluation_mode(policy):
        size = micro_batch or _graph_sizes(engine, batch, estimator.sampler.count)
        with torch.set_grad_enabled(size is None):
            memory = call_encode(policy, batch.context)
        reads = _reads(estimator, noise, batch.division)
        mains = engine.sample(detach(memory), batch.examples, estimator.sampler, noise, reads)
        mains = _of_share(mains, batch.division, estimator)
        trajectories = mains.trajectories
        stopwatch.lap("sample")
        plan = _plan(estimator, trajectories, noise, batch)
        stopwatch.lap("plan")
        completions = engine.complete(mains, plan.branches, noise)
        stopwatch.lap("complete")
        completed = completions.sequences
        context = torch.cat([trajectories.contexts, trajectories.contexts[plan.branches.parent]])
        scores = reward(
            trajectories.lists() + completed.lists(),
            batch.examples[context].tolist(),
            batch.aligned(context),
            trajectories.finished.tolist() + completed.finished.tolist(),
        )
        own_rewards = rewards = scores.values.to(trajectories.tokens.device)
        stopwatch.lap("reward")
        penalty = None
        if regulariser is not None and not batch.is_stand_in:
            penalty = regulariser.penalty(detach(memory), batch.context, mains, plan.branches, completed)
            rewards = rewards - penalty.values
            stopwatch.lap("penalty")
        if check_score and not batch.is_stand_in:
            check_scores(engine, memory, mains)
            engine.check_states(mains)
            check_rows(engine, batch, mains)
        if isinstance(size, GraphSizes) and not isinstance(plan, SparsePlan):
            memory, size = call_encode(policy, batch.context), None  # all logits at once
        if batch.is_stand_in:
            scoring = NoScoring(trajectories, plan, rewards)
        elif size is None:
            scoring = score(engine, memory, mains, plan, rewards)
        else:
            scoring = MicroScoring(engine, memory, batch.context, len(batch), mains, plan, rewards, size)
        stopwatch.lap("score")
    main_tokens = int(trajectories.lengths.sum())
    cost = Cost(
        tokens=mains.tokens + completions.tokens,
        main_tokens=main_tokens,
        rollouts=len(plan.branches),
        reward_calls=scores.calls,
        scored_tokens=scoring.tokens,
        saved_tokens=max(main_tokens - mains.tokens, 0)
        + completions.unshared
        - completions.tokens
        + main_tokens
        - scoring.tokens,
    )
    return Estimate(
        trajectories,
        plan,
        completed,
        rewards,
        own_rewards,
        batch.own,
        cost,
        scoring,
        engine,
        detach(memory),
        stopwatch.seconds,
        penalty,
        scores.parts,
        batch.division,
    )


def _of_share(mains: Mains, division: Division | None, estimator: Estimator) -> Mains:
    """Main trajectories that know how their batch is divided, if plans of the estimator ask for that. Those of a
    stand-in are dropped.
    """
    if division is None:
        return mains
    trajectories = mains.trajectories
    if division.is_empty:
        mains = Mains(replace(trajectories.of_rows(slice(0, 0), 0), notes=()), [], 0)
    if estimator.compares_contexts:
        mains = replace(mains, trajectories=replace(mains.trajectories, division=division))
    return mains


def _plan(estimator: Estimator, trajectories: Trajectories, noise: Noise, batch: Batch) -> Plan:
    """The estimator's plan. Of no context it is asked for one only if other processes need to know what it says."""
    if batch.is_stand_in and not estimator.compares_contexts:
        none = torch.zeros_like(trajectories.log_probs)
        return GroupPlan(trajectories, trajectories.contexts, share=none, weight=none, leave_one_out=False)
    return estimator.plan(trajectories, noise)


def _graph_sizes(engine: Engine, batch: Batch, count: int) -> GraphSizes | None:
    """What the policy says of its graphs, if one of all contexts could become too large for it."""
    graph_sizes = getattr(engine.policy, "graph_sizes", None)
    if graph_sizes is None:
        return None
    sizes = graph_sizes(batch.context)
    longest = sum(sizes.contexts) + len(batch) * count * engine.max_length
    return sizes if longest > sizes.most else None


def _reads(estimator: Estimator, noise: Noise, division: Division | None) -> Reads | Look:
    """What the rollout engine keeps of the logits for an estimator."""
    if estimator.reads != "notes":
        return estimator.reads
    if division is None or not estimator.compares_contexts:
        return partial(estimator.take_notes, noise=noise)
    whole = division.repeated(estimator.sampler.count)
    return lambda cells: estimator.take_notes(replace(cells, batch=whole), noise=noise)


def as_estimator(estimator: Estimator | str) -> Estimator:
    """An estimator, or the name of one."""
    require_instance("estimator", estimator, (Estimator, str), "an Estimator or the name of one, such as 'rloo-4'")
    return make_estimator(estimator) if isinstance(estimator, str) else estimator


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = wall_time()

    def lap(self, name: str) -> None:
        now = wall_time()
        self.seconds[name] = now - self._last
        self._last = now
