"""Maximum likelihood by teacher forcing: how policies are trained before they are fine-tuned."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from corollout.arguments import require_count, require_instance, require_number
from corollout.data import Data
from corollout.errors import InputError
from corollout.events import Callback, warn
from corollout.noise import FREE, MAIN, uniform
from corollout.policies import detach, evaluation_mode
from corollout.policies.protocol import head_of
from corollout.rollouts import Engine
from corollout.rollouts.policy_calls import call_encode
from corollout.training.agreement import add_gradients, require_same
from corollout.training.base import SCHEDULED_SAMPLING, BaseTrainer
from corollout.training.checkpoints import State
from corollout.training.likelihood import likelihood_backward, teacher_forcing
from corollout.training.settings import Clock

_COIN = FREE  # the noise that decides whose token is fed
_INCREASE = 0.05


@dataclass(frozen=True)
class LearningRateDecay:
    """The learning rate is multiplied by ``factor`` after every ``every`` epochs."""

    factor: float | int = 1.0
    every: int = 1

    def __post_init__(self) -> None:
        require_number("the factor of a decay", self.factor, "above 0 and at most 1", lambda factor: 0 < factor <= 1)
        require_count("the epochs between decays", self.every)

    def at(self, epoch: int) -> float:
        return self.factor ** (epoch // self.every)


@dataclass(frozen=True)
class ScheduledSampling:
    """Scheduled sampling (Bengio et al. 2015): the token that is fed is the model's own draw with some probability.

    The probability starts at 0 and grows by 0.05 after every ``every`` epochs, up to ``most``.
    """

    most: float | int = 0.0
    every: int = 5

    def __post_init__(self) -> None:
        require_number("the highest probability", self.most, "a number in [0, 1]", lambda most: 0 <= most <= 1)
        require_count("the epochs between increases", self.every)

    def at(self, epoch: int) -> float:
        return min(self.most, _INCREASE * (epoch // self.every))


@dataclass(frozen=True)
class MLEMetrics:
    """What is recorded of an update."""

    update: int
    epoch: int
    loss: float  # nats per token
    gradient_norm: float  # before clipping
    tokens: int  # target tokens so far
    seconds: float  # so far, updates only


class MLETrainer(BaseTrainer[MLEMetrics]):
    """Fits a policy to a column of target sequences, lists of token ids without the end token.

    With ``ema_decay`` > 0 the weights that are evaluated and kept are an exponential moving average of those of all
    updates, with that decay (Polyak averaging).
    """

    kind = "pretrain"
    tracked = ("loss", "gradient_norm")

    def __init__(
        self,
        engine: Engine,
        data: Data,
        optimizer: torch.optim.Optimizer,
        *,
        target: str = "target",
        batch_size: int = 64,
        max_grad_norm: float | None = 1.0,
        max_grad_value: float | None = None,
        decay: LearningRateDecay | None = None,
        scheduled_sampling: ScheduledSampling | None = None,
        ema_decay: float = 0.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        clock: Clock = "wall",
        on_event: Callback = warn,
    ):
        super().__init__(
            engine, data, optimizer, batch_size=batch_size, max_grad_norm=max_grad_norm, seed=seed, device=device,
            clock=clock, on_event=on_event, ema_decay=ema_decay, max_grad_value=max_grad_value,
        )  # fmt: skip
        if target not in self.data.columns:
            names = ", ".join(self.data.columns)
            raise InputError(f"the data set has no column {target!r} to learn from; it has {names}")
        if decay is not None:
            require_instance("decay", decay, LearningRateDecay, "a LearningRateDecay or None")
        if scheduled_sampling is not None:
            require_instance("scheduled_sampling", scheduled_sampling, ScheduledSampling, "a ScheduledSampling or None")
        self.target = target
        self.decay = decay or LearningRateDecay()
        self.scheduled_sampling = scheduled_sampling or ScheduledSampling()
        self._learning_rates = [group["lr"] for group in optimizer.param_groups]
        if self.processes.rank:  # dropout of its own
            torch.manual_seed(torch.initial_seed() + self.processes.rank)

    def step(self) -> MLEMetrics:
        self.begin_update()
        started = self.now()
        epoch, batch = self.epochs, next(self.next_batches())
        for group, rate in zip(self.optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = rate * self.decay.at(epoch)
        inputs, targets = teacher_forcing(self.engine, batch.columns[self.target], self.device)
        self.optimizer.zero_grad(set_to_none=True)
        count = 0 if batch.is_stand_in else int((targets >= 0).sum())
        count, log_likelihood = sum(self.processes.gather_values(count)), 0.0
        if not batch.is_stand_in:
            self.policy.train()
            memory = call_encode(self.engine.policy, batch.context)
            if (probability := self.scheduled_sampling.at(epoch)) > 0:
                inputs = self._sample_inputs(detach(memory), inputs, batch.examples, probability)
            log_likelihood = likelihood_backward(self.engine, memory, inputs, targets, 1 / count)
        add_gradients(self.parameters, self.processes)
        norm = self.clip_gradients()
        self.step_optimizer()
        self.tokens += count
        mine = [log_likelihood, self.now() - started, norm, self._most_weight]
        log_likelihoods, seconds, *norms = zip(*self.processes.gather_values(mine), strict=True)
        require_same(zip(*norms, strict=True), self.updates + 1)
        self.count_update(max(seconds))
        return MLEMetrics(self.updates, epoch, -math.fsum(log_likelihoods) / count, norm, self.tokens, self.seconds)

    @torch.no_grad()
    def _sample_inputs(
        self, memory: Any, inputs: torch.Tensor, examples: torch.Tensor, probability: float
    ) -> torch.Tensor:
        """The inputs, some of them replaced by what the policy draws after the previous ones, without dropout."""
        noise = self.noise.fold(SCHEDULED_SAMPLING, self.epochs)
        steps = torch.arange(inputs.shape[1] - 1, device=inputs.device)
        coins = uniform(noise.keys(examples, _COIN), torch.zeros_like(examples), len(steps)) < probability
        keys = noise.keys(examples, MAIN)
        inputs, head = inputs.clone(), head_of(self.engine.policy)
        with evaluation_mode(self.engine.policy):
            state = self.engine.policy.start(memory)
            for t in steps.tolist():
                outputs, state = self.engine.policy.step(state, inputs[:, t])
                rows = coins[:, t].nonzero().squeeze(1)
                if len(rows):
                    choice = head.choose(outputs[rows], keys[rows], torch.full_like(rows, t), False)
                    inputs[rows, t + 1] = choice.tokens
        return inputs

    def settings(self) -> dict[str, Any]:
        rates = {"learning_rate": max(self._learning_rates)}
        return {**super().settings(), **rates, "label": "MLE"}

    def learning_rate_text(self) -> str:
        if self.decay.factor == 1:
            return super().learning_rate_text()
        epochs = "epoch" if self.decay.every == 1 else f"{self.decay.every} epochs"
        return f"the learning rate goes on to be multiplied by {self.decay.factor:g} every {epochs}"

    def extra_state(self) -> State:
        return State(self.average.tensors())

    def load_extra_state(self, state: State) -> None:
        self.average.load(state.tensors)


def pretrain(
    engine: Engine, data: Data, optimizer: torch.optim.Optimizer, *, epochs: int = 1, **options: Any
) -> Iterator[float]:
    """Fit the policy to a column of target sequences for some epochs; yields the loss of each batch, in nats per token.

    ``options`` are those of ``MLETrainer``, which does the same with counts, and a state to resume from.
    """
    return (metrics.loss for metrics in MLETrainer(engine, data, optimizer, **options).run(epochs=epochs))
