"""Maximum likelihood by teacher forcing: how policies are trained before they are fine-tuned."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from corollout.arguments import require_count, require_instance, require_number
from corollout.data import Data
from corollout.errors import InputError, PolicyError
from corollout.events import Callback, warn
from corollout.noise import FREE, MAIN, uniform
from corollout.policies import detach, evaluation_mode
from corollout.policies.protocol import SOFTMAX, head_of, policy_errors
from corollout.policies.read_out import PrefixCredits, read_out_backward
from corollout.prefix_tree import PrefixTree
from corollout.rollouts import Engine
from corollout.text import quoted
from corollout.training.base import SCHEDULED_SAMPLING, BaseTrainer
from corollout.training.checkpoints import State
from corollout.training.settings import Clock
from corollout.types import full_precision

_COIN = FREE  # the noise that decides whose token is fed
_INCREASE = 0.05
_WARM_UP = 10  # updates: at first the moving average forgets faster


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
            clock=clock, on_event=on_event,
        )  # fmt: skip
        if target not in self.data.columns:
            names = ", ".join(self.data.columns)
            raise InputError(f"the data set has no column {target!r} to learn from; it has {names}")
        require_number("ema_decay", ema_decay, "a number in [0, 1)", lambda decay: 0 <= decay < 1)
        if decay is not None:
            require_instance("decay", decay, LearningRateDecay, "a LearningRateDecay or None")
        if scheduled_sampling is not None:
            require_instance("scheduled_sampling", scheduled_sampling, ScheduledSampling, "a ScheduledSampling or None")
        self.target = target
        self.decay = decay or LearningRateDecay()
        self.scheduled_sampling = scheduled_sampling or ScheduledSampling()
        self.ema_decay = ema_decay
        self._averages = [p.detach().clone() for p in self.parameters] if ema_decay else []
        self._learning_rates = [group["lr"] for group in optimizer.param_groups]

    def step(self) -> MLEMetrics:
        started = self.now()
        epoch, batch = self.epochs, self.next_batch()
        for group, rate in zip(self.optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = rate * self.decay.at(epoch)
        inputs, targets = teacher_forcing(self.engine, batch.columns[self.target], self.device)
        self.policy.train()
        with policy_errors("policy.encode"):
            memory = self.engine.policy.encode(batch.context)
        if (probability := self.scheduled_sampling.at(epoch)) > 0:
            inputs = self._sample_inputs(detach(memory), inputs, batch.examples, probability)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(memory, inputs, targets)
        norm = self.clip_gradients()
        self.step_optimizer()
        self.tokens += int((targets >= 0).sum())
        self.count_update(started)
        self._average_weights()
        return MLEMetrics(self.updates, epoch, loss, norm, self.tokens, self.seconds)

    def _backward(self, memory: Any, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Back-propagate minus the mean log-probability of the target tokens, and return it."""
        policy: Any = self.engine.policy
        head, mask = head_of(policy), targets >= 0  # without a temperature, which is for rewards
        if not hasattr(policy, "hidden_states"):
            with policy_errors("policy.score", f" for target tokens up to {int(targets.max())}"):
                outputs = policy.score(memory, inputs)
            loss = self._loss(outputs, targets)
            loss.backward()
            return loss.item()
        # Only where there are targets.
        tree = PrefixTree.chains(inputs, mask.sum(1))
        step, row = mask.t().nonzero(as_tuple=True)
        tokens = targets[row, step]
        with policy_errors("policy.hidden_states", f" for target tokens up to {int(tokens.max())}"):
            hidden = policy.hidden_states(memory, tree)
        if head is not SOFTMAX:
            logits = head.logits(hidden[:, None], tokens[:, None])
            loss = -head.log_probs(logits, tokens[:, None]).mean()
            loss.backward()
            return loss.item()
        share = torch.full_like(tokens, 1 / max(len(tokens), 1), dtype=full_precision(hidden[:0]).dtype)
        credits = PrefixCredits(tree.node[row, step], tokens, share, "policy")
        log_probs, read_out = torch.empty_like(share), policy.read_out(tree)
        _require_vocabulary(targets, len(read_out.weight))
        read_out_backward(hidden, read_out, credits, -1.0, log_probs=log_probs)
        return -log_probs.mean().item()

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Minus the mean log-probability of the target tokens, from what the policy puts out at all steps."""
        head = head_of(self.engine.policy)
        if outputs.ndim != 3 or outputs.shape[:2] != targets.shape:
            given = list(outputs.shape)
            raise PolicyError(
                f"policy.score returned logits of shape {given} for tokens of shape {list(targets.shape)}"
            )
        if head is SOFTMAX:
            _require_vocabulary(targets, outputs.shape[2])
            return cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-1)
        mask = targets >= 0
        tokens = torch.where(mask, targets, 0)
        return -torch.where(mask, head.log_probs(head.logits(outputs, tokens), tokens), 0.0).sum() / mask.sum()

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

    @torch.no_grad()
    def _average_weights(self) -> None:
        decay = min(self.ema_decay, (1 + self.updates) / (_WARM_UP + self.updates))
        for average, parameter in zip(self._averages, self.parameters, strict=bool(self._averages)):
            average.lerp_(parameter, 1 - decay)

    def settings(self) -> dict[str, Any]:
        rates = {"learning_rate": max(self._learning_rates)}
        return {**super().settings(), **rates, "label": "MLE"}

    def learning_rate_text(self) -> str:
        if self.decay.factor == 1:
            return super().learning_rate_text()
        epochs = "epoch" if self.decay.every == 1 else f"{self.decay.every} epochs"
        return f"the learning rate goes on to be multiplied by {self.decay.factor:g} every {epochs}"

    @contextmanager
    def eval_weights(self) -> Generator[None, None, None]:
        self._swap_weights()
        try:
            yield
        finally:
            self._swap_weights()

    @torch.no_grad()
    def _swap_weights(self) -> None:
        """Exchange the weights and their averages, if there are any."""
        for average, parameter in zip(self._averages, self.parameters, strict=bool(self._averages)):
            current = parameter.clone()
            parameter.copy_(average)
            average.copy_(current)

    def extra_state(self) -> State:
        return State({f"average/{i}": tensor.clone() for i, tensor in enumerate(self._averages)})

    def load_extra_state(self, state: State) -> None:
        if len(state.tensors) != len(self._averages):
            what = "with" if state.tensors else "without"
            raise InputError(
                f"the state comes from a training {what} a moving average of weights, but here ema_decay is "
                f"{self.ema_decay}"
            )
        for i, tensor in enumerate(self._averages):
            tensor.copy_(state.tensors[f"average/{i}"])


def pretrain(
    engine: Engine, data: Data, optimizer: torch.optim.Optimizer, *, epochs: int = 1, **options: Any
) -> Iterator[float]:
    """Fit the policy to a column of target sequences for some epochs; yields the loss of each batch, in nats per token.

    ``options`` are those of ``MLETrainer``, which does the same with counts, and a state to resume from.
    """
    return (metrics.loss for metrics in MLETrainer(engine, data, optimizer, **options).run(epochs=epochs))


def _require_vocabulary(targets: torch.Tensor, vocab: int) -> None:
    if (largest := int(targets.max())) >= vocab:
        raise InputError(
            f"the target sequences have the token {largest}, but the policy has logits for 0 to {vocab - 1}"
        )


def teacher_forcing(
    engine: Engine, sequences: list[list[int]], device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of teacher forcing, −1 where there is no target; sequences are cut at the maximum length."""
    sequences = [tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens for tokens in sequences]
    for tokens in sequences:
        if not isinstance(tokens, list | tuple) or any(type(token) is not int or token < 0 for token in tokens):
            raise InputError(f"a target must be a list of token ids, whole numbers from 0, not {quoted(tokens)}")
    ended = [[*tokens, engine.eos][: engine.max_length] for tokens in sequences]
    width = max(len(tokens) for tokens in ended)
    targets = torch.tensor([tokens + [-1] * (width - len(tokens)) for tokens in ended], device=device)
    start = torch.full_like(targets[:, :1], engine.bos)
    inputs = torch.cat([start, targets[:, :-1]], 1)
    return torch.where(inputs < 0, engine.eos, inputs), targets
