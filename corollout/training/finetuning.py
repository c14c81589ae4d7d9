"""Fine-tuning on a reward, from a batch of contexts to new weights.

``estimate`` makes a gradient estimate: sample, plan, complete, reward, score. ``Trainer.step`` makes an update of it:
batch, estimate, backward, clip, step, metrics.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.compilation import wall_time
from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.estimators import Adaptive, Auto, Estimator, Plan, make_estimator
from corollout.events import Callback, Event, ignore, warning
from corollout.noise import Noise
from corollout.policies import detach, evaluation_mode
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.rollouts.watch import Look, Reads
from corollout.training.base import PROBES, ROLLOUTS, BaseTrainer
from corollout.training.checkpoints import State
from corollout.training.running_variance import GradientSketch, RunningVariance
from corollout.training.scoring import Scoring, check_scores, score, score_rows
from corollout.training.settings import Clock
from corollout.types import Cost, Sequences, Trajectories, full_precision


@dataclass(frozen=True)
class Estimate:
    """A gradient estimate for a batch, with everything that led to it."""

    trajectories: Trajectories
    plan: Plan
    completed: Sequences  # the branches' sequences
    rewards: Float[Tensor, " source"]  # of the main trajectories, then of the branches; NaN: skipped
    contexts: int
    cost: Cost
    scoring: Scoring
    engine: Engine
    memory: Any
    seconds: dict[str, float] = field(default_factory=dict)  # by part of the estimate

    def backward(self) -> None:
        """Add the gradient of the loss, minus the mean expected reward of the batch, to the parameters' ``.grad``."""
        started = wall_time()
        with evaluation_mode(self.engine.policy):
            self.scoring.backward(-1 / max(self.contexts, 1))
        self.seconds["backward"] = wall_time() - started

    def updated(self, estimator: Estimator) -> Estimator:
        """The estimator that made this estimate, with what it learns from it."""
        if not isinstance(estimator, Adaptive):
            return estimator
        return estimator.updated(self.plan, self.rewards, self.scoring.scores)

    @property
    def mean_reward(self) -> float:
        """The mean reward of the main trajectories."""
        return float(self.rewards[: len(self.trajectories.tokens)].nanmean())

    @property
    def logits(self) -> Float[Tensor, "row step vocab"]:
        """All logits of the main trajectories by the policy's present weights: to look at, an update never needs them.

        Zero beyond a row's length.
        """
        trajectories = self.trajectories
        with torch.no_grad(), evaluation_mode(self.engine.policy):
            outputs = score_rows(self.engine, self.memory, trajectories, trajectories.contexts)
            return self.engine.head.logits(outputs, trajectories.tokens)

    @property
    def gradient(self) -> Float[Tensor, "row step vocab"]:
        """The estimate of d reward / d logits, all of it; a context's rows add up."""
        return self.plan.gradient(self.rewards, full_precision(self.logits))


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
    that was sampled. ``check_score`` compares what ``policy.score`` and ``policy.step`` return for the same tokens, and
    makes sure that ``policy.step`` does not change old states.
    """
    if len(batch) == 0:
        raise InputError("the batch is empty: there is no gradient to estimate")
    reward, estimator = as_reward(reward), as_estimator(estimator)
    policy, stopwatch = engine.policy, _Stopwatch()
    with evaluation_mode(policy):
        memory = policy.encode(batch.context)
        mains = engine.sample(detach(memory), batch.examples, estimator.sampler, noise, _reads(estimator, noise))
        trajectories = mains.trajectories
        stopwatch.lap("sample")
        plan = estimator.plan(trajectories, noise)
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
        rewards = scores.values.to(trajectories.tokens.device)
        stopwatch.lap("reward")
        if check_score:
            check_scores(engine, memory, mains)
            engine.check_states(mains)
        scoring = score(engine, memory, mains, plan, rewards)
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
        trajectories, plan, completed, rewards, len(batch), cost, scoring, engine, detach(memory), stopwatch.seconds
    )


def _reads(estimator: Estimator, noise: Noise) -> Reads | Look:
    """What the rollout engine keeps of the logits for an estimator."""
    return partial(estimator.take_notes, noise=noise) if estimator.reads == "notes" else estimator.reads


def as_reward(reward: Reward | RewardFunction) -> Reward:
    return reward if isinstance(reward, Reward) else Reward(reward)


def as_estimator(estimator: Estimator | str) -> Estimator:
    return make_estimator(estimator) if isinstance(estimator, str) else estimator


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = wall_time()

    def lap(self, name: str) -> None:
        now = wall_time()
        self.seconds[name] = now - self._last
        self._last = now


@dataclass(frozen=True)
class Metrics:
    """What is recorded of an update."""

    update: int
    epoch: int
    reward: float  # mean over the main trajectories
    gradient_norm: float  # before clipping
    gradient_variance: float  # exponential average, see RunningVariance
    rollouts_per_step: float  # branches, greedy baselines included, per token of the main trajectories
    rollouts_by_step: list[float]  # the same at each step: mean over the main trajectories that reach it
    rollouts_by_depth: list[float]  # the same at each depth of a tree: mean over the tokens that have a decision there
    mean_length: float
    tokens: int  # generated so far; a prefix that sequences share counts once
    scored_tokens: int  # computed with gradient so far
    saved_tokens: int  # so far: what sharing prefixes, and gradients of zero, made unnecessary
    reward_calls: int  # so far
    seconds: float  # so far, updates only


class Trainer(BaseTrainer[Metrics]):
    """Fine-tunes a policy: ``for metrics in Trainer(…).run(updates=100): …``.

    ``reward`` may be a plain function and ``estimator`` a name. Gradients are clipped to the norm ``max_grad_norm``, in
    the same way for every estimator, and measured before. An example's noise depends on the seed, its id and the epoch.

    Every ``probe_every`` updates, variance and cost of the current estimator and of those in ``probes`` are measured on
    a few batches and reported as an event. That costs as much as some more updates, and is not counted in ``seconds``,
    ``tokens`` or reward calls. What the estimator "auto" spends on its choices is.
    """

    def __init__(
        self,
        engine: Engine,
        data: Columns,
        reward: Reward | RewardFunction,
        estimator: Estimator | str,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int = 32,
        max_grad_norm: float | None = 1.0,
        seed: int = 0,
        variance_decay: float = 0.9,
        device: torch.device | str = "cpu",
        clock: Clock = "wall",
        probe_every: int = 0,
        probes: Sequence[str] = (),
        on_event: Callback = ignore,
    ):
        super().__init__(
            engine, data, optimizer, batch_size=batch_size, max_grad_norm=max_grad_norm, seed=seed, device=device,
            clock=clock, on_event=on_event,
        )  # fmt: skip
        self.reward, self.estimator = as_reward(reward), as_estimator(estimator)
        self.variance, self._sketch = RunningVariance(variance_decay), GradientSketch(self.parameters)
        self.cost = Cost()
        self.probe_every = probe_every
        self.probes = {name: make_estimator(name) for name in probes}

    def step(self) -> Metrics:
        started = self.now()
        epoch, batch = self.epochs, self.next_batch()
        if isinstance(self.estimator, Auto) and self.estimator.is_due(self.updates):
            self._choose_estimator(self.estimator)
        noise = self.noise.fold(ROLLOUTS, epoch)
        sample = estimate(self.engine, batch, self.reward, self.estimator, noise, check_score=self.updates == 0)
        self.optimizer.zero_grad(set_to_none=True)
        sample.backward()
        gradient = self._sketch()
        norm = self.clip_gradients()
        self.step_optimizer()
        self.estimator = sample.updated(self.estimator)
        self.count_update(started)
        self.cost += sample.cost
        self.tokens = self.cost.tokens
        if self.probe_every and self.updates % self.probe_every == 0:
            self._probe_estimators()
        return Metrics(
            update=self.updates,
            epoch=epoch,
            reward=sample.mean_reward,
            gradient_norm=norm,
            gradient_variance=self.variance.add(gradient),
            rollouts_per_step=sample.cost.rollouts / max(sample.cost.main_tokens, 1),
            rollouts_by_step=rollouts_by_step(sample),
            rollouts_by_depth=rollouts_by_depth(sample),
            mean_length=float(sample.trajectories.lengths.double().mean()),
            tokens=self.tokens,
            scored_tokens=self.cost.scored_tokens,
            saved_tokens=self.cost.saved_tokens,
            reward_calls=self.cost.reward_calls,
            seconds=self.seconds,
        )

    def _choose_estimator(self, auto: Auto) -> None:
        """Let "auto" use the best of its candidates from here on."""
        from corollout.training.probes import choose_estimator  # probes make estimates, so they import this module

        batches, noise = self._probe_batches(auto.estimates), self._probe_noise
        choice = choose_estimator(auto, self.engine, batches, self.reward, noise, self.updates, self.now)
        self.estimator = choice.estimator
        self.cost += choice.cost
        self.on_event(Event("choice", choice.record()))

    def _probe_estimators(self) -> None:
        """Measure the current estimator beside some others."""
        from corollout.training.probes import PROBE_ESTIMATES, probe_estimators

        estimators = {"in use": self.estimator, **self.probes}
        batches, noise = self._probe_batches(PROBE_ESTIMATES), self._probe_noise
        probes, _, _ = probe_estimators(self.engine, batches, self.reward, estimators, noise, self.now)
        seen = [probe.record(name) for name, probe in probes.items()]
        self.on_event(Event("probe", {"update": self.updates, "seen": seen}))

    @property
    def _probe_noise(self) -> Noise:
        return self.noise.fold(PROBES, self.updates)

    def _probe_batches(self, estimates: int) -> Iterator[Batch]:
        """Batches for a probe: others than those of training at the moment, if there are any; one more to warm up."""
        epochs = (self.data.epoch(self.batch_size, self._probe_noise.fold(i), self.device) for i in count())
        return islice(chain.from_iterable(epochs), 1 + estimates)

    def extra_state(self) -> State:
        moments = {"mean": self.variance.mean, "square": self.variance.square}
        tensors = {name: moment.clone() for name, moment in moments.items() if moment is not None}
        if isinstance(self.estimator, Adaptive):
            tensors |= {_ESTIMATOR + name: tensor.clone() for name, tensor in self.estimator.state_dict().items()}
        return State(tensors, {"cost": asdict(self.cost), "count": self.variance.count})

    def load_extra_state(self, state: State) -> None:
        tensors = {name: tensor.to(self.device, copy=True) for name, tensor in state.tensors.items()}
        self.cost = Cost(**state.values["cost"])
        self.variance.load(state.values["count"], tensors.get("mean"), tensors.get("square"))
        if self.variance.mean is not None and len(self.variance.mean) != self._sketch.size:
            self.variance.load(0, None, None)
            self.on_event(warning("the checkpoint is of an earlier version: the running gradient variance starts anew"))
        if isinstance(self.estimator, Adaptive):
            self.estimator = self.estimator.load_state_dict(
                {name.removeprefix(_ESTIMATOR): t for name, t in tensors.items() if name.startswith(_ESTIMATOR)}
            )


_ESTIMATOR = "estimator/"  # prefix of an adaptive estimator's tensors in a state


def rollouts_by_step(sample: Estimate) -> list[float]:
    """Branches that depart at each step, per main trajectory that reaches it."""
    lengths = sample.trajectories.lengths
    steps = int(lengths.max()) if len(lengths) else 0
    reaching = (lengths[:, None] > torch.arange(steps, device=lengths.device)).sum(0)
    departing = torch.bincount(sample.plan.branches.step, minlength=steps)
    return [round(mean, 4) for mean in (departing[:steps] / reaching).tolist()]


def rollouts_by_depth(sample: Estimate) -> list[float]:
    """Branches that leave a token's path at each depth of a tree, per token that decides there; [] without a tree."""
    decisions, branches = sample.trajectories.decisions, sample.plan.branches
    if decisions is None:
        return []
    cell = (branches.parent, branches.step)
    departing = ((decisions.other[cell] == branches.token[:, None]) & decisions.valid[cell]).sum(0)
    reaching = (decisions.valid & sample.trajectories.mask[:, :, None]).sum((0, 1))
    return [round(mean, 4) for mean in (departing / reaching.clamp(min=1)).tolist()]
