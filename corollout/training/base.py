"""What all training loops share: a cursor in the data, counts of what was used, and a state to go on from."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from corollout.data import Batch, Columns
from corollout.errors import InputError, PolicyError
from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.training.checkpoints import State, join_states, optimizer_state, restore_optimizer, split_state

Clock = Literal["wall", "cpu"]
Record = TypeVar("Record")

# What the seed's noise is used for.
ORDER, ROLLOUTS, LESSONS, PROBES = range(4)


@dataclass(frozen=True)
class Event:
    """Something besides updates that happened in a training: a record of its own kind for the run."""

    kind: str
    record: dict[str, Any]


class BaseTrainer(Generic[Record]):
    """A training loop that can be stopped after any update and taken up again, to the same weights bit for bit.

    A subclass turns a batch into gradients in ``learn``. ``clock`` says what ``seconds`` counts: time on the wall, or
    the processor's time of this process, which other work on the machine does not disturb.
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
    ):
        if not isinstance(engine.policy, nn.Module):
            raise InputError("training needs a policy with parameters: an nn.Module")
        if batch_size < 1 or len(data) == 0:
            raise InputError(
                f"training needs at least one example and a batch size ≥ 1, not {len(data)} and {batch_size}"
            )
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise InputError(f"max_grad_norm must be a positive norm or None, not {max_grad_norm}")
        if clock not in ("wall", "cpu"):
            raise InputError(f"clock must be 'wall' or 'cpu', not {clock!r}")
        self.engine, self.data, self.optimizer = engine, data, optimizer
        self.policy: nn.Module = engine.policy
        self.batch_size, self.max_grad_norm, self.device = batch_size, max_grad_norm, device
        self.noise = Noise(seed)
        self.updates, self.epochs, self.tokens, self.seconds = 0, 0, 0, 0.0
        self.news: list[Event] = []  # since whoever reads them last emptied the list
        self._in_epoch = 0  # updates made in the present epoch
        self._stream: Iterator[Batch] | None = None
        self._now: Callable[[], float] = time.perf_counter if clock == "wall" else time.process_time
        self._parameters = [p for p in self.policy.parameters() if p.requires_grad]

    def learn(self, batch: Batch) -> Any:
        """Put the gradient for a batch into the parameters' ``.grad``; what is returned goes to ``record``."""
        raise NotImplementedError

    def record(self, outcome: Any, norm: float) -> Record:
        """What is told about the update that was just made."""
        raise NotImplementedError

    def step(self) -> Record:
        """Make one update with the next batch."""
        start = self._now()
        epoch, batch = self._next_batch()
        self.optimizer.zero_grad(set_to_none=True)
        outcome = self.learn(batch)
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None]).item()
        if not norm < float("inf"):
            raise PolicyError(
                f"the gradient of update {self.updates + 1} is not finite; the parameters were left as they were "
                f"(a smaller learning rate may help)"
            )
        if self.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self._parameters, self.max_grad_norm, torch.tensor(norm, device=self.device))
        self.optimizer.step()
        self.seconds += self._now() - start
        self.updates += 1
        self._in_epoch += 1
        if self._in_epoch == self.updates_per_epoch:
            self.epochs, self._in_epoch, self._stream = epoch + 1, 0, None
        return self.record(outcome, norm)

    @property
    def updates_per_epoch(self) -> int:
        return -(-len(self.data) // self.batch_size)

    def _next_batch(self) -> tuple[int, Batch]:
        if self._stream is None:
            order = self.noise.fold(ORDER, self.epochs)
            self._stream = self.data.epoch(self.batch_size, order, self.device, skip=self._in_epoch)
        return self.epochs, next(self._stream)

    def run(
        self,
        *,
        updates: int | None = None,
        epochs: int | None = None,
        tokens: int | None = None,
        seconds: float | None = None,
    ) -> Iterator[Record]:
        """Train until one of the totals is reached, counted from the beginning; call again to go on."""
        limits = {"updates": updates, "epochs": epochs, "tokens": tokens, "seconds": seconds}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if not given:
            raise InputError("say when to stop: updates, epochs, tokens or seconds")
        while all(getattr(self, name) < limit for name, limit in given.items()):
            yield self.step()

    @contextmanager
    def eval_weights(self) -> Generator[None, None, None]:
        """Inside, the policy has the weights that are evaluated and kept: those of the last update, by default."""
        yield

    def state(self) -> State:
        """Everything that the next update depends on, but for the data and the arguments."""
        counts = {"updates": self.updates, "epochs": self.epochs, "tokens": self.tokens, "seconds": self.seconds}
        return join_states(
            {
                "policy": State({name: tensor.clone() for name, tensor in self.policy.state_dict().items()}),
                "optimizer": optimizer_state(self.optimizer, dict(self.policy.named_parameters())),
                "loop": State({}, {**counts, "in_epoch": self._in_epoch, "per_epoch": self.updates_per_epoch}),
                "own": self.extra_state(),
            }
        )

    def restore(self, state: State) -> None:
        """Take up a training where a state was taken."""
        parts = split_state(state)
        loop = parts["loop"].values
        if loop["per_epoch"] != self.updates_per_epoch:
            raise InputError(
                f"the state is of a training with {loop['per_epoch']} updates an epoch, this one has "
                f"{self.updates_per_epoch}: the data or the batch size is another"
            )
        load_policy(self.policy, parts["policy"].tensors, "the state")
        restore_optimizer(self.optimizer, dict(self.policy.named_parameters()), parts["optimizer"])
        self.updates, self.epochs = loop["updates"], loop["epochs"]
        self.tokens, self.seconds = loop["tokens"], loop["seconds"]
        self._in_epoch, self._stream = loop["in_epoch"], None
        self.load_extra_state(parts["own"])

    def extra_state(self) -> State:
        """What a subclass has to remember besides."""
        return State()

    def load_extra_state(self, state: State) -> None:
        pass


def load_policy(policy: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Put weights into a policy, all of them and no others."""
    own = policy.state_dict()
    for name in [*own, *tensors]:
        if name not in own or name not in tensors:
            raise InputError(f"{where} and the model do not fit: only one of them has {name!r}")
        if own[name].shape != tensors[name].shape:
            shapes = f"{list(tensors[name].shape)} and {list(own[name].shape)}"
            raise InputError(f"{where} and the model do not fit: {name!r} has the shapes {shapes}")
    policy.load_state_dict(tensors)
