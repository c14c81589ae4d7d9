"""What both trainers share: batches in a reproducible order, counts, a state to resume from, and gradients."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from corollout.compilation import cpu_time, wall_time
from corollout.data import Batch, Columns
from corollout.errors import InputError, PolicyError
from corollout.events import Callback, ignore
from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.training.averaging import WeightAverage
from corollout.training.checkpoints import State, join_states, optimizer_state, restore_optimizer, split_state
from corollout.training.norms import total_norm
from corollout.training.optimizers import divides_gradients
from corollout.training.settings import Clock

Metrics = TypeVar("Metrics")

# What the seed's noise is used for.
EXAMPLE_ORDER, ROLLOUTS, SCHEDULED_SAMPLING, PROBES, TARGET_ORDER = range(5)


class BaseTrainer(Generic[Metrics]):
    """A trainer that can be stopped after any update and resumed, to the same weights bit for bit.

    A subclass makes one update in ``step``. ``seconds`` counts wall-clock time, or CPU time of this process, which
    other work on the machine does not disturb; neither counts compilation. An update reads ``accumulate`` batches, and
    with ``ema_decay`` > 0 the weights that are evaluated and kept are a :class:`WeightAverage`.
    """

    def __init__(
        self,
        engine: Engine,
        data: Columns,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int,
        max_grad_norm: float | None,
        seed: int,
        device: torch.device | str,
        clock: Clock,
        on_event: Callback = ignore,
        accumulate: int = 1,
        ema_decay: float = 0.0,
    ):
        policy = policy_module(engine)
        if batch_size < 1 or len(data) == 0:
            raise InputError(
                f"training needs at least one example and a batch size ≥ 1, not {len(data)} and {batch_size}"
            )
        if accumulate < 1:
            raise InputError(f"accumulate must be at least 1 batch in an update, not {accumulate}")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise InputError(f"max_grad_norm must be a positive number or None, not {max_grad_norm}")
        if clock not in ("wall", "cpu"):
            raise InputError(f"clock must be 'wall' or 'cpu', not {clock!r}")
        _require_eps(optimizer)
        self.engine, self.data, self.optimizer = engine, data, optimizer
        self.policy = policy
        self.batch_size, self.max_grad_norm, self.device = batch_size, max_grad_norm, device
        self.accumulate = accumulate
        self.noise = Noise(seed)
        self.on_event = on_event
        self.updates, self.epochs, self.tokens, self.seconds = 0, 0, 0, 0.0
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.average = WeightAverage(self.parameters, ema_decay)
        self.now: Callable[[], float] = wall_time if clock == "wall" else cpu_time
        self._updates_in_epoch = 0
        self._batches: Iterator[Batch] | None = None
        self._optimizer_divides = divides_gradients(optimizer)
        self._divisor: Tensor | None = None  # of the gradients, in the next step of the optimizer

    def step(self) -> Metrics:
        """Make one update."""
        raise NotImplementedError

    @property
    def updates_per_epoch(self) -> int:
        return -(-len(self.data) // (self.batch_size * self.accumulate))

    def next_batches(self) -> Iterator[Batch]:
        """The batches of the next update: ``accumulate`` of them, or what is left of the epoch. Every epoch has its own
        order of examples.
        """
        if self._batches is None:
            order, skip = self.noise.fold(EXAMPLE_ORDER, self.epochs), self._updates_in_epoch * self.accumulate
            self._batches = self.data.epoch(self.batch_size, order, self.device, skip=skip)
        return islice(self._batches, self.accumulate)

    @property
    def contexts_before(self) -> int:
        """How many contexts the updates so far had, in all epochs."""
        return self.epochs * len(self.data) + self._updates_in_epoch * self.batch_size * self.accumulate

    @property
    def next_contexts(self) -> int:
        """How many contexts the next update has."""
        return min(self.batch_size * self.accumulate, (self.epochs + 1) * len(self.data) - self.contexts_before)

    def clip_gradients(self) -> float:
        """Scale the gradients down to ``max_grad_norm``; return their norm before."""
        norm = total_norm(p.grad for p in self.parameters if p.grad is not None)
        self.clip_to_norm(norm)
        return norm

    def clip_to_norm(self, norm: float) -> None:
        """Scale the gradients down to ``max_grad_norm``, given their norm: at once, or in the step of an optimizer that
        can.
        """
        if not math.isfinite(norm):
            raise PolicyError(
                f"the gradient of update {self.updates + 1} is not finite; the parameters were left as they were "
                f"(a smaller learning rate or smaller rewards may help, in half precision also another data type)"
            )
        divisor = 1.0 if self.max_grad_norm is None else (norm + 1e-6) / self.max_grad_norm  # as PyTorch does it
        if divisor <= 1:
            return
        if self._optimizer_divides:
            self._divisor = torch.tensor(divisor)
            return
        for p in self.parameters:
            if p.grad is not None:
                p.grad.div_(divisor)

    def step_optimizer(self) -> None:
        """Change the parameters by their gradients; all of them must stay finite."""
        for p in self.parameters:
            # Fused optimisers go through memory as it lies, and do not check that gradients lie as their parameters do.
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = torch.empty_like(p).copy_(p.grad)
        if self._divisor is not None:
            self.optimizer.grad_scale = self._divisor  # pyright: ignore[reportAttributeAccessIssue]
        try:
            self.optimizer.step()
        finally:
            if self._divisor is not None:
                del self.optimizer.grad_scale  # pyright: ignore[reportAttributeAccessIssue]
            self._divisor = None
        if not math.isfinite(total_norm(self.parameters)):
            raise PolicyError(
                f"after update {self.updates + 1} some weights are infinite or NaN; no checkpoint of them was "
                f"written, so that the run can be resumed from the last one (a smaller learning rate may help, in half "
                f"precision a larger eps of the optimizer or another data type)"
            )

    def count_update(self, started: float) -> None:
        """Count an update that began at a time of ``now``."""
        self.seconds += self.now() - started
        self.updates += 1
        self.average.add(self.updates)
        self._updates_in_epoch += 1
        if self._updates_in_epoch == self.updates_per_epoch:
            self.epochs, self._updates_in_epoch, self._batches = self.epochs + 1, 0, None

    def run(
        self,
        *,
        updates: int | None = None,
        epochs: int | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> Iterator[Metrics]:
        """Train until one of the totals is reached, counted from the first update; call again to continue."""
        limits = {"updates": updates, "epochs": epochs, "tokens": tokens, "seconds": seconds}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if not given:
            raise InputError("say when to stop: updates, epochs, tokens or seconds")
        while all(getattr(self, name) < limit for name, limit in given.items()):
            yield self.step()

    def eval_weights(self) -> AbstractContextManager[None]:
        """Inside, the policy has the weights that are evaluated and kept: the average, or those of the last update."""
        return self.average.in_use()

    def state(self) -> State:
        """Everything that the next update depends on, except for the data and the arguments."""
        counts = {"updates": self.updates, "epochs": self.epochs, "tokens": self.tokens, "seconds": self.seconds}
        position = {"in_epoch": self._updates_in_epoch, "per_epoch": self.updates_per_epoch}
        return join_states(
            {
                "policy": State({name: tensor.clone() for name, tensor in self.policy.state_dict().items()}),
                "optimizer": optimizer_state(self.optimizer, dict(self.policy.named_parameters())),
                "loop": State({}, counts | position),
                "own": self.extra_state(),
            }
        )

    def load_state(self, state: State) -> None:
        """Resume from a state."""
        parts = split_state(state)
        loop = parts["loop"].values
        if loop["per_epoch"] != self.updates_per_epoch:
            raise InputError(
                f"the state comes from a training with {loop['per_epoch']} updates per epoch, but this one has "
                f"{self.updates_per_epoch}: the data, the batch size or accumulate has changed"
            )
        load_policy(self.policy, parts["policy"].tensors, "the state")
        restore_optimizer(self.optimizer, dict(self.policy.named_parameters()), parts["optimizer"])
        self.updates, self.epochs = loop["updates"], loop["epochs"]
        self.tokens, self.seconds = loop["tokens"], loop["seconds"]
        self._updates_in_epoch, self._batches = loop["in_epoch"], None
        self.load_extra_state(parts["own"])

    def extra_state(self) -> State:
        """What a subclass needs besides."""
        return State()

    def load_extra_state(self, state: State) -> None:
        pass


def policy_module(engine: Engine, what: str = "training") -> nn.Module:
    """The engine's policy, which must have parameters; ``what`` needs them."""
    if not isinstance(engine.policy, nn.Module):
        raise InputError(f"{what} needs a policy with parameters: an nn.Module")
    return engine.policy


def load_policy(policy: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Load weights into a policy: all of them, and no others. ``source`` names them in an error."""
    expected = policy.state_dict()
    for name in [*expected, *tensors]:
        if name not in expected or name not in tensors:
            owner = "the model" if name in expected else source
            raise InputError(f"{source} does not fit the model: only {owner} has {name!r}")
        if expected[name].shape != tensors[name].shape:
            shapes = f"{list(tensors[name].shape)} instead of {list(expected[name].shape)}"
            raise InputError(f"{source} does not fit the model: {name!r} has the shape {shapes}")
    policy.load_state_dict(tensors)


def _require_eps(optimizer: torch.optim.Optimizer) -> None:
    """Raise an error if the eps that keeps an optimiser from dividing by zero is zero in the weights' precision."""
    for group in optimizer.param_groups:
        eps = group.get("eps", 0.0)
        for dtype in {p.dtype for p in group["params"]}:
            if isinstance(eps, float) and eps > 0 and not torch.tensor(eps, dtype=dtype) > 0:
                raise InputError(
                    f"the optimizer's eps = {eps:g} is zero in {dtype}, and would make weights NaN: give it eps=1e-4, "
                    f"or use weights in torch.bfloat16 or torch.float32"
                )


Gradient = Float[Tensor, " parameter"]


def flat_gradient(parameters: Iterable[nn.Parameter]) -> Gradient:
    """The gradients of all parameters as one vector; a parameter without a gradient counts as zeros."""
    parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    return torch.cat(parts) if parts else torch.zeros(0)


class GradientStatistics:
    """Mean and variance of gradients by Welford's algorithm: no difference of large numbers.

    ``distances`` are, from the second gradient on, how much each one added to the sum of squared distances to the mean.
    Each is expected to be the trace of the covariance.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor = torch.zeros(())
        self.distances: list[float] = []

    def add(self, gradient: Gradient) -> None:
        gradient = gradient.double()
        self.count += 1
        delta = gradient - self.mean
        self.mean = self.mean + delta / self.count
        if self.count > 1:
            self.distances.append(float((delta * (gradient - self.mean)).sum()))

    @property
    def variance(self) -> float:
        """The trace of the covariance: the sum over parameters of the unbiased sample variance."""
        return math.fsum(self.distances) / (self.count - 1) if self.count > 1 else math.nan

    @property
    def variance_error(self) -> float:
        """The standard error of the variance."""
        spread = torch.tensor(self.distances).std().item() if self.count > 2 else math.nan
        return spread / math.sqrt(max(self.count - 1, 1))

    @property
    def squared_norm(self) -> float:
        """Of the expected gradient: that of the mean without its noise, so it may be slightly negative."""
        return float((self.mean**2).sum()) - self.variance / self.count
