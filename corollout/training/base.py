"""What both trainers share: batches in a reproducible order, counts, a state to resume from, and gradients."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from corollout.arguments import require_callable, require_count, require_instance, require_number
from corollout.compilation import cpu_time, wall_time
from corollout.data import Batch, Columns, Data, Index, check_device
from corollout.division import Division
from corollout.errors import InputError, PolicyError
from corollout.events import Callback, Event, ignore, warn
from corollout.noise import Noise
from corollout.processes import processes
from corollout.rollouts import Engine
from corollout.training.agreement import require_agreement
from corollout.training.averaging import WeightAverage
from corollout.training.balance import Divider
from corollout.training.checkpoints import State, join_states, optimizer_state, restore_optimizer, split_state
from corollout.training.norms import total_norm
from corollout.training.optimizers import divides_gradients, largest_change, require_optimizer
from corollout.training.result import TrainingResult
from corollout.training.settings import Balance, Clock

Metrics = TypeVar("Metrics")

# What the seed's noise is used for.
EXAMPLE_ORDER, ROLLOUTS, SCHEDULED_SAMPLING, PROBES, TARGET_ORDER = range(5)
# Weights are looked at for infinities when one of them, or of their gradients, might be as large as this, and every so
# many updates.
_FAR, _LOOK = 1e30, 64


class BaseTrainer(Generic[Metrics]):
    """A trainer that can be stopped after any update and resumed, to the same weights bit for bit.

    A subclass makes one update in ``step``. ``seconds`` counts wall-clock time, or CPU time of this process, which
    other work on the machine does not disturb; neither counts compilation. An update reads ``accumulate`` batches, and
    with ``ema_decay`` > 0 the weights that are evaluated and kept are a :class:`WeightAverage`.

    Several processes that ``torchrun`` has started make each update together, each with its part of every batch; the
    first one reports events.
    """

    kind: ClassVar[Literal["pretrain", "finetune"]] = "finetune"
    """What its runs are to commands that compare runs."""
    tracked: ClassVar[tuple[str, ...]] = ()
    """The metrics of which ``train`` returns the history."""

    def __init__(
        self,
        engine: Engine,
        data: Data,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int,
        max_grad_norm: float | None,
        seed: int,
        device: torch.device | str,
        clock: Clock,
        on_event: Callback = warn,
        accumulate: int = 1,
        ema_decay: float = 0.0,
        balance: Balance = "even",
        max_grad_value: float | None = None,
    ):
        policy, data = policy_module(engine), Columns.of(data)
        require_count("batch_size", batch_size)
        require_count("accumulate", accumulate)
        if len(data) == 0:
            raise InputError("training needs at least one example, but the data set is empty")
        for name, most in (("max_grad_norm", max_grad_norm), ("max_grad_value", max_grad_value)):
            if most is not None:
                require_number(name, most, "a positive number or None", lambda most: most > 0)
        if clock not in ("wall", "cpu"):
            raise InputError(f"clock must be 'wall' or 'cpu', not {clock!r}")
        require_callable("on_event", on_event, "a function of an Event")
        check_device(device)
        require_optimizer(optimizer, policy, device)
        self.processes = processes()
        self.divider = Divider(balance, data, self.processes)
        self.engine, self.data, self.optimizer = engine, data, optimizer
        self.policy = policy
        self.batch_size, self.device = batch_size, device
        self.max_grad_norm, self.max_grad_value = max_grad_norm, max_grad_value
        self.accumulate = accumulate
        self.seed, self.noise = seed, Noise(seed)
        self.on_event = on_event if self.processes.is_first else ignore
        self.updates, self.epochs, self.tokens, self.seconds = 0, 0, 0, 0.0
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.average = WeightAverage(self.parameters, ema_decay)
        self.now: Callable[[], float] = wall_time if clock == "wall" else cpu_time
        self._updates_in_epoch = 0
        self._batches: Iterator[Batch] | None = None
        self._optimizer_divides = divides_gradients(optimizer)
        self._most_weight = math.inf  # no weight is larger
        self._divisor: Tensor | None = None  # of the gradients, in the next step of the optimizer
        self._agreed = self.processes.size == 1

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
            self._batches = self.batches_of_epoch(order, skip)
        return islice(self._batches, self.accumulate)

    def batches_of_epoch(self, order: Noise, skip: int = 0) -> Iterator[Batch]:
        """All examples once in a random order, without the first ``skip`` batches; this process's part of them."""
        divide = self.divide if self.processes.size > 1 else None
        return self.data.epoch(self.batch_size, order, self.device, skip, divide)

    def divide(self, index: Index) -> Division:
        """How the batch of some examples is divided among processes."""
        return self.divider.divide(index, self.device)

    def begin_update(self) -> None:
        """Make sure that all processes make the same update."""
        self.processes.during = f"update {self.updates + 1}"
        if not self._agreed:
            require_agreement(self.processes, self.policy, self.data, self.settings(), [self.updates, self.epochs])
            self._agreed = True

    @property
    def contexts_before(self) -> int:
        """How many contexts the updates so far had, in all epochs."""
        return self.epochs * len(self.data) + self._updates_in_epoch * self.batch_size * self.accumulate

    @property
    def next_contexts(self) -> int:
        """How many contexts the next update has."""
        return min(self.batch_size * self.accumulate, (self.epochs + 1) * len(self.data) - self.contexts_before)

    def clip_gradients(self) -> float:
        """Clip the gradients; return their norm before."""
        norm = self._gradient_norm()
        self.clip_from(norm)
        return norm

    def _gradient_norm(self) -> float:
        return total_norm(p.grad for p in self.parameters if p.grad is not None)

    def clip_from(self, norm: float) -> bool:
        """Clip each entry of the gradients, whose norm is given, to ± ``max_grad_value``, then scale them down to
        ``max_grad_norm``: at once, or in the step of an optimizer that can. Whether any of this changed them.
        """
        if not math.isfinite(norm):
            raise PolicyError(
                f"the gradient of update {self.updates + 1} is not finite; the parameters were left as they were "
                f"(a smaller learning rate or smaller rewards may help, in half precision also another data type)"
            )
        if norm > _FAR:
            self._most_weight = math.inf
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        most, clips = self.max_grad_value, False
        if most is not None and norm > most:  # no entry is larger than the norm
            clips = any(float(gradient.abs().max()) > most for gradient in gradients if gradient.numel())
            for gradient in gradients if clips else ():
                gradient.clamp_(-most, most)
            norm = self._gradient_norm() if clips else norm
        divisor = 1.0 if self.max_grad_norm is None else (norm + 1e-6) / self.max_grad_norm  # as PyTorch does it
        if divisor <= 1:
            return clips
        if self._optimizer_divides:
            self._divisor = torch.tensor(divisor)
            return True
        for gradient in gradients:
            gradient.div_(divisor)
        return True

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
        # Weights that are far from infinite need not be looked at after every step that can change them only a little.
        self._most_weight += largest_change(self.optimizer)
        if self._most_weight < _FAR and (self.updates + 1) % _LOOK:
            return
        self._most_weight = total_norm(self.parameters)
        if not math.isfinite(self._most_weight):
            raise PolicyError(
                f"after update {self.updates + 1} some weights are infinite or NaN; no checkpoint of them was "
                f"written, so that the run can be resumed from the last one (a smaller learning rate may help, in half "
                f"precision a larger eps of the optimizer or another data type)"
            )

    def count_update(self, seconds: float) -> None:
        """Count an update that took so long."""
        self.seconds += seconds
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
        """Train until one of the totals is reached, counted from the first update; call again to continue.

        An update is made when its metrics are asked for: ``for metrics in trainer.run(updates=100): …``.
        """
        limits = {"updates": updates, "epochs": epochs, "tokens": tokens, "seconds": seconds}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if not given:
            raise InputError("say when to stop: updates, epochs, tokens or seconds")
        for name, limit in given.items():
            require_number(name, limit, "a number, 0 or more", lambda limit: limit >= 0)
        return self._until(given)

    def _until(self, limits: Mapping[str, float | int]) -> Iterator[Metrics]:
        while all(getattr(self, name) < limit for name, limit in limits.items()):
            metrics: Any = self.step()
            self.on_event(Event("update", asdict(metrics)))
            yield metrics

    def train(
        self,
        *,
        updates: int | None = None,
        epochs: int | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> TrainingResult[Metrics]:
        """Train until one of the totals is reached, as ``run`` does, and return what came of it."""
        before, last = self.updates, None
        history: dict[str, list[float]] = {name: [] for name in self.tracked}
        for metrics in self.run(updates=updates, epochs=epochs, tokens=tokens, seconds=seconds):
            last = metrics
            for name, values in history.items():
                values.append(float(getattr(metrics, name)))
        made = self.updates - before
        return TrainingResult(made, last, history, self.updates, self.epochs, self.tokens, self.seconds)

    def settings(self) -> dict[str, Any]:
        """What a run keeps of the trainer, for people and for commands that show runs."""
        groups = [group for group in self.optimizer.param_groups if "lr" in group]
        # A scheduler keeps the rate that it was given beside the one that it sets.
        rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
        return {
            "label": type(self).__name__,
            **({"learning_rate": max(rates)} if rates else {}),
            "batch_size": self.batch_size,
            "ema_decay": self.average.decay,
            "temperature": self.engine.temperature,
            "seed": self.seed,
        }

    def learning_rate_text(self) -> str:
        """How the learning rate goes on, in a few words."""
        return "the learning rate stays as it is"

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
        self._most_weight, self._agreed = math.inf, self.processes.size == 1
        self.load_extra_state(parts["own"])

    def extra_state(self) -> State:
        """What a subclass needs besides."""
        return State()

    def load_extra_state(self, state: State) -> None:
        pass


def policy_module(engine: Engine, what: str = "training") -> nn.Module:
    """The engine's policy, which must have parameters; ``what`` needs them."""
    require_instance("engine", engine, Engine, "an Engine, as in Engine(policy, bos=1, eos=0, max_length=20)")
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
