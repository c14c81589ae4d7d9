"""Maximum-likelihood training by teacher forcing: what policies learn before they are fine-tuned."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.noise import FREE, MAIN, uniform
from corollout.policies import detach, evaluation_mode
from corollout.policies.heads import SOFTMAX
from corollout.rollouts import Engine
from corollout.training.base import LESSONS, BaseTrainer, Clock
from corollout.training.checkpoints import State

_COIN = FREE  # the noise that says whose token is fed
_INCREASE = 0.05
_WARM_UP = 10  # updates: a young average forgets sooner


@dataclass(frozen=True)
class Decay:
    """The learning rate is multiplied by a factor every so many epochs."""

    factor: float = 1.0
    every: int = 1

    def at(self, epoch: int) -> float:
        return self.factor ** (epoch // self.every)


@dataclass(frozen=True)
class Sampling:
    """Scheduled sampling (Bengio et al. 2015): a token that is fed is the model's own draw with some probability.

    The probability is 0 at first, grows by 0.05 every so many epochs, and is never more than ``most``.
    """

    most: float = 0.0
    every: int = 5

    def at(self, epoch: int) -> float:
        return min(self.most, _INCREASE * (epoch // self.every))


@dataclass(frozen=True)
class MLEMetrics:
    """What is told about each update."""

    update: int
    epoch: int
    loss: float  # nats a token
    gradient_norm: float  # before clipping
    tokens: int  # learnt from so far
    seconds: float  # so far, updates only


class MLETrainer(BaseTrainer[MLEMetrics]):
    """Fits a policy to a column of target sequences, lists of token ids without the end token.

    With ``average`` > 0 the weights to be looked at and kept are an exponential average of those of all updates, with
    that decay (Polyak averaging): what the last few batches said weighs less in them.
    """

    def __init__(
        self,
        engine: Engine,
        data: Columns,
        optimizer: torch.optim.Optimizer,
        *,
        target: str = "target",
        batch_size: int = 64,
        max_grad_norm: float | None = 1.0,
        decay: Decay | None = None,
        sampling: Sampling | None = None,
        average: float = 0.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        clock: Clock = "wall",
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
        self.decay, self.sampling = decay or Decay(), sampling or Sampling()
        self._rates = [group["lr"] for group in optimizer.param_groups]
        if target not in data.columns:
            raise InputError(f"the data set has no column {target!r} to learn from; it has {', '.join(data.columns)}")
        self.target = target
        if not 0 <= average < 1:
            raise InputError(f"the decay of the average of weights must be in [0, 1), not {average}")
        self.ema_decay = average
        self._averages = [p.detach().clone() for p in self._parameters] if average else []

    def step(self) -> MLEMetrics:
        metrics = super().step()
        if self.ema_decay:
            decay = min(self.ema_decay, (1 + self.updates) / (_WARM_UP + self.updates))
            for average, parameter in zip(self._averages, self._parameters, strict=True):
                average.lerp_(parameter.detach(), 1 - decay)
        return metrics

    @contextmanager
    def eval_weights(self) -> Generator[None, None, None]:
        own = [p.detach().clone() for p in self._parameters] if self.ema_decay else []
        try:
            self._put(self._averages)
            yield
        finally:
            self._put(own)

    def _put(self, weights: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, weight in zip(self._parameters, weights, strict=bool(weights)):
                parameter.copy_(weight)

    def extra_state(self) -> State:
        return State({f"average/{i}": tensor.clone() for i, tensor in enumerate(self._averages)})

    def load_extra_state(self, state: State) -> None:
        if len(state.tensors) != len(self._averages):
            there = "averages its weights" if state.tensors else "does not average its weights"
            raise InputError(
                f"the state is of a training that {there}: this one's decay of the average is {self.ema_decay}"
            )
        for i, tensor in enumerate(self._averages):
            tensor.copy_(state.tensors[f"average/{i}"])

    def learn(self, batch: Batch) -> tuple[float, int, int]:
        policy = self.engine.policy
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.decay.at(self.epochs)
        inputs, wanted = _teacher(self.engine, batch.columns[self.target], self.device)
        self.policy.train()
        memory = policy.encode(batch.context)
        if (probability := self.sampling.at(self.epochs)) > 0:
            inputs = self._mixed(detach(memory), inputs, batch.examples, probability)
        loss = self._loss(policy.score(memory, inputs), wanted)
        loss.backward()
        return loss.item(), self.epochs, int((wanted >= 0).sum())

    def _loss(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Minus the mean log-probability of the tokens that are wanted."""
        head = self.engine.head
        if head is SOFTMAX:
            return cross_entropy(outputs.flatten(0, 1), wanted.flatten(), ignore_index=-1)
        there = wanted >= 0
        tokens = torch.where(there, wanted, 0)
        return -torch.where(there, head.log_probs(head.logits(outputs, tokens), tokens), 0.0).sum() / there.sum()

    @torch.no_grad()
    def _mixed(self, memory: Any, inputs: torch.Tensor, examples: torch.Tensor, probability: float) -> torch.Tensor:
        """The inputs, some of them replaced by what the policy draws after the ones before, without dropout."""
        noise = self.noise.fold(LESSONS, self.epochs)
        steps = torch.arange(inputs.shape[1] - 1, device=inputs.device)
        coins = uniform(noise.keys(examples, _COIN), torch.zeros_like(examples), len(steps)) < probability
        keys = noise.keys(examples, MAIN)
        inputs = inputs.clone()
        with evaluation_mode(self.engine.policy):
            state = self.engine.policy.start(memory)
            for t in steps.tolist():
                outputs, state = self.engine.policy.step(state, inputs[:, t])
                own = coins[:, t].nonzero().squeeze(1)
                if len(own):
                    drawn = self.engine.head.choose(outputs[own], keys[own], torch.full_like(own, t), False)
                    inputs[own, t + 1] = drawn.tokens
        return inputs

    def record(self, outcome: tuple[float, int, int], norm: float) -> MLEMetrics:
        loss, epoch, tokens = outcome
        self.tokens += tokens
        return MLEMetrics(self.updates, epoch, loss, norm, self.tokens, self.seconds)


def pretrain(
    engine: Engine,
    data: Columns,
    optimizer: torch.optim.Optimizer,
    *,
    target: str = "target",
    epochs: int = 1,
    batch_size: int = 64,
    max_grad_norm: float | None = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[float]:
    """Fit the policy to a column of target sequences for some epochs; yields the loss of each batch, in nats a token.

    ``MLETrainer`` is the same with counts, and a state from which it can go on.
    """
    teacher = MLETrainer(
        engine,
        data,
        optimizer,
        target=target,
        batch_size=batch_size,
        max_grad_norm=max_grad_norm,
        seed=seed,
        device=device,
    )
    for metrics in teacher.run(epochs=epochs):
        yield metrics.loss


def _teacher(engine: Engine, targets: list[list[int]], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and wanted outputs of teacher forcing, −1 where nothing is wanted; targets are cut at the limit."""
    wanted = [[*target, engine.eos][: engine.max_length] for target in targets]
    width = max(len(target) for target in wanted)
    outputs = torch.tensor([target + [-1] * (width - len(target)) for target in wanted], device=device)
    start = torch.full_like(outputs[:, :1], engine.bos)
    inputs = torch.cat([start, outputs[:, :-1]], 1)
    return torch.where(inputs < 0, engine.eos, inputs), outputs
