"""Maximum-likelihood training by teacher forcing: what policies learn before they are fine-tuned."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.rollouts import Engine
from corollout.training.learner import Clock, Learner


@dataclass(frozen=True)
class TeachingMetrics:
    """What is told about each update."""

    update: int
    epoch: int
    loss: float  # nats a token
    gradient_norm: float  # before clipping
    tokens: int  # learnt from so far
    seconds: float  # so far, updates only


class TeacherForcing(Learner[TeachingMetrics]):
    """Fits a policy to a column of target sequences, lists of token ids without the end token."""

    def __init__(
        self,
        engine: Engine,
        data: Columns,
        optimizer: torch.optim.Optimizer,
        *,
        target: str = "target",
        batch_size: int = 64,
        clip: float | None = 1.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        clock: Clock = "wall",
    ):
        super().__init__(
            engine, data, optimizer, batch_size=batch_size, clip=clip, seed=seed, device=device, clock=clock
        )
        if target not in data.columns:
            raise InputError(f"the data set has no column {target!r} to learn from; it has {', '.join(data.columns)}")
        self.target = target

    def learn(self, batch: Batch) -> tuple[float, int, int]:
        policy = self.engine.policy
        inputs, wanted = _teacher(self.engine, batch.columns[self.target], self.device)
        self.policy.train()
        logits = policy.score(policy.encode(batch.context), inputs)
        loss = cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-1)
        loss.backward()
        return loss.item(), self.epochs, int((wanted >= 0).sum())

    def record(self, outcome: tuple[float, int, int], norm: float) -> TeachingMetrics:
        loss, epoch, tokens = outcome
        self.tokens += tokens
        return TeachingMetrics(self.updates, epoch, loss, norm, self.tokens, self.seconds)


def pretrain(
    engine: Engine,
    data: Columns,
    optimizer: torch.optim.Optimizer,
    *,
    target: str = "target",
    epochs: int = 1,
    batch_size: int = 64,
    clip: float | None = 1.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[float]:
    """Fit the policy to a column of target sequences for some epochs; yields the loss of each batch, in nats a token.

    ``TeacherForcing`` is the same with counts, and a state from which it can go on.
    """
    teacher = TeacherForcing(
        engine, data, optimizer, target=target, batch_size=batch_size, clip=clip, seed=seed, device=device
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
