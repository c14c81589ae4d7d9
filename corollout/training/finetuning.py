"""Fine-tuning on a reward. A small loop: everything that matters is in the estimator, the engine and the reward."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count, islice

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.data import Batch, Columns
from corollout.estimators import Adaptive, Auto, Estimator, make_estimator
from corollout.noise import Noise
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.base import PROBES, ROLLOUTS, BaseTrainer, Clock, Event
from corollout.training.checkpoints import State
from corollout.training.choice import LEARNING, choose, glance
from corollout.training.estimate import Estimate, as_estimator, as_reward, estimate
from corollout.training.variance import RunningVariance, flat_gradient
from corollout.types import Cost

PROBED = 6  # estimates of each estimator in a light probe
_LEARNED = "estimator/"  # what the names of an estimator's memory begin with in a state


@dataclass(frozen=True)
class Metrics:
    """What is told about each update."""

    update: int
    epoch: int
    reward: float  # mean over the main trajectories
    gradient_norm: float  # before clipping
    gradient_variance: float  # exponential average, see RunningVariance
    rollouts_per_step: float  # branches, greedy baselines included, for each token of the main trajectories
    rollouts_by_step: list[float]  # the same for each step: mean over the main trajectories that have one
    rollouts_by_depth: list[float]  # the same for each depth of a tree, mean over the tokens that have a decision there
    mean_length: float
    tokens: int  # generated so far
    reward_calls: int  # so far
    seconds: float  # so far, updates only


class Trainer(BaseTrainer[Metrics]):
    """Fine-tunes a policy: ``for metrics in Trainer(…).run(updates=100): …``.

    Gradients are clipped to ``max_grad_norm`` in norm, in the same way for every estimator, and measured before. An example's
    noise depends on the seed, its id and the epoch. ``reward`` may be a plain function and ``estimator`` a name.

    With ``probe_every`` there is a light probe after every so many updates: variance and cost of the estimator in use
    and of those named in ``probes``, on a few batches. It costs what some more updates cost, and is not
    counted in ``seconds``, ``tokens`` or calls. What the estimator "auto" spends on its choices is.
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
    ):
        super().__init__(
            engine,
            data,
            optimizer,
            batch_size=batch_size,
            max_grad_norm=max_grad_norm,
            seed=seed,
            device=device,
            clock=clock,
        )
        self.reward, self.estimator = as_reward(reward), as_estimator(estimator)
        self.variance = RunningVariance(variance_decay)
        self.cost = Cost()
        self.probe_every = probe_every
        self.probes = {name: make_estimator(name) for name in probes}

    def learn(self, batch: Batch) -> tuple[Estimate, int, Float[Tensor, " parameter"]]:
        if isinstance(self.estimator, Auto) and self.estimator.is_due(self.updates):
            self._choose(self.estimator)
        sample = estimate(
            self.engine,
            batch,
            self.reward,
            self.estimator,
            self.noise.fold(ROLLOUTS, self.epochs),
            check_score=self.updates == 0,
        )
        sample.backward()
        self.estimator = sample.updated(self.estimator)
        return sample, self.epochs, flat_gradient(self._parameters)

    def _choose(self, auto: Auto) -> None:
        """Let the estimator be the best of its candidates, and say so."""
        self.estimator, choice, cost = choose(
            auto, self.engine, self._looked_at(auto.estimates), self.reward, self._probe_noise, self.updates, self._now
        )
        self.cost += cost
        self.news.append(Event("choice", {**asdict(choice), "reason": choice.reason}))

    def _probe(self) -> None:
        """Look at the estimator in use beside some others."""
        estimators = {"in use": self.estimator, **self.probes}
        batches = self._looked_at(PROBED)
        seen, _, _ = glance(self.engine, batches, self.reward, estimators, self._probe_noise, self._now)
        self.news.append(Event("probe", {"update": self.updates, "seen": [asdict(each) for each in seen]}))

    @property
    def _probe_noise(self) -> Noise:
        return self.noise.fold(PROBES, self.updates)

    def _looked_at(self, estimates: int) -> Iterator[Batch]:
        """Batches for a probe: other ones than training has at the moment, if there are any."""
        rounds = (self.data.epoch(self.batch_size, self._probe_noise.fold(i), self.device) for i in count())
        return islice(chain.from_iterable(rounds), LEARNING + estimates)

    def record(self, outcome: tuple[Estimate, int, Float[Tensor, " parameter"]], norm: float) -> Metrics:
        sample, epoch, gradient = outcome
        if self.probe_every and self.updates % self.probe_every == 0:
            self._probe()
        variance = self.variance.add(gradient)
        self.cost += sample.cost
        self.tokens = self.cost.tokens
        return Metrics(
            update=self.updates,
            epoch=epoch,
            reward=sample.mean_reward,
            gradient_norm=norm,
            gradient_variance=variance,
            rollouts_per_step=sample.cost.rollouts / max(sample.cost.main_tokens, 1),
            rollouts_by_step=rollouts_by_step(sample),
            rollouts_by_depth=rollouts_by_depth(sample),
            mean_length=float(sample.trajectories.lengths.double().mean()),
            tokens=self.cost.tokens,
            reward_calls=self.cost.reward_calls,
            seconds=self.seconds,
        )

    def extra_state(self) -> State:
        moments = {"mean": self.variance.mean, "square": self.variance.square}
        tensors = {name: moment.clone() for name, moment in moments.items() if moment is not None}
        if isinstance(self.estimator, Adaptive):
            tensors |= {_LEARNED + name: tensor.clone() for name, tensor in self.estimator.state_dict().items()}
        return State(tensors, {"cost": vars(self.cost), "count": self.variance.count})

    def load_extra_state(self, state: State) -> None:
        self.cost = Cost(**state.values["cost"])
        self.variance.count = state.values["count"]
        self.variance.mean, self.variance.square = (
            moment if moment is None else moment.to(self.device, copy=True)
            for moment in (state.tensors.get("mean"), state.tensors.get("square"))
        )
        if isinstance(self.estimator, Adaptive):
            learned = {name: tensor for name, tensor in state.tensors.items() if name.startswith(_LEARNED)}
            self.estimator = self.estimator.load_state_dict(
                {name.removeprefix(_LEARNED): tensor.to(self.device, copy=True) for name, tensor in learned.items()}
            )


def rollouts_by_step(sample: Estimate) -> list[float]:
    """Branches that depart at each step, for each main trajectory that has it."""
    lengths = sample.trajectories.lengths
    steps = int(lengths.max()) if len(lengths) else 0
    there = (lengths[:, None] > torch.arange(steps, device=lengths.device)).sum(0)
    departing = torch.bincount(sample.plan.branches.step, minlength=steps)
    return [round(share, 4) for share in (departing[:steps] / there).tolist()]


def rollouts_by_depth(sample: Estimate) -> list[float]:
    """Branches that leave the way down the tree at each depth, for each token with a decision there; [] for no tree."""
    made, branches = sample.trajectories.decisions, sample.plan.branches
    if made is None:
        return []
    here = (branches.parent, branches.step)
    departing = ((made.other[here] == branches.token[:, None]) & made.there[here]).sum(0)
    there = (made.there & sample.trajectories.mask[:, :, None]).sum((0, 1))
    return [round(share, 4) for share in (departing / there.clamp(min=1)).tolist()]
