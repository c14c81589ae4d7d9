"""Imitation beside a reward: λ times the mean log-likelihood of target sequences is added to the objective.

    E[r(z)] + λ · mean over the contexts of ln p(target)

The second term is known exactly, and so is its gradient: it adds bias to no estimator and noise only through the choice
of examples. As λ is per nat of a whole sequence, it is in the same unit as the coefficients of KL and entropy (the
mixed objective of Wu et al. 2016).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from corollout.data import Batch, Columns, shuffled
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.policies import evaluation_mode, select
from corollout.rollouts import Engine
from corollout.rollouts.policy_calls import call_encode
from corollout.training.likelihood import likelihood_backward, teacher_forcing

TARGET = "target"


class Imitation:
    """The targets are a column of the training data, or of ``own`` data that has contexts of its own.

    Own data takes turns: each update uses as many of its examples as it has contexts, in a random order of all of them,
    then in another one. Everything runs in evaluation mode, without dropout, as the reward's part of the gradient does.
    """

    def __init__(
        self, engine: Engine, weight: float, data: Columns, own: Columns | None, noise: Noise, micro_batch: int | None
    ):
        source = data if own is None else own
        if TARGET not in source.columns:
            where = "the data set has" if own is None else "mle_data has"
            raise InputError(
                f"mle_weight needs a column {TARGET!r} of token lists, but {where} only {', '.join(source.columns)}: "
                f"add it, or give data that has it as mle_data"
            )
        if len(source) == 0:
            raise InputError("mle_data has no example to learn from")
        self.engine, self.weight, self._own, self._noise = engine, weight, own, noise
        self._micro_batch = micro_batch
        self._order: tuple[int, Tensor] | None = None  # of an epoch of the own data

    def backward(self, batch: Batch, first: int, contexts: int, device: torch.device | str) -> float:
        """Add the gradient of −λ / ``contexts`` × Σ ln p(target) for a batch of an update with so many contexts; return
        the sum. ``first`` is the number of contexts that training has used before this batch. Of a batch that is
        divided, it is the part of this process.
        """
        if batch.is_stand_in:
            return 0.0
        if self._own is not None:
            positions = self._positions(self._own, first, batch.whole)
            positions = positions if batch.division is None else positions[batch.division.places]
            batch = self._own.batch(positions, device)
        total = 0.0
        with evaluation_mode(self.engine.policy):
            for context, targets in self._parts(batch):
                inputs, tokens = teacher_forcing(self.engine, targets, device)
                memory = call_encode(self.engine.policy, context)
                total += likelihood_backward(self.engine, memory, inputs, tokens, self.weight / contexts)
        return total

    def _parts(self, batch: Batch) -> Iterator[tuple[object, list[list[int]]]]:
        """Contexts and targets, as many at a time as have a graph together."""
        targets = batch.columns[TARGET]
        if self._micro_batch is None or len(batch) <= self._micro_batch:
            yield batch.context, targets
            return
        for rows in torch.arange(len(batch), device=batch.examples.device).split(self._micro_batch):
            yield select(batch.context, rows), [targets[row] for row in rows.tolist()]

    def _positions(self, own: Columns, first: int, count: int) -> Tensor:
        """Which of the own examples are next: a function of how many there were before, so it needs no state."""
        parts = []
        while count:
            epoch, start = divmod(first, len(own))
            if self._order is None or self._order[0] != epoch:
                self._order = epoch, shuffled(own.ids, self._noise.fold(epoch))
            parts.append(self._order[1][start : start + count])
            first, count = first + len(parts[-1]), count - len(parts[-1])
        return torch.cat(parts)
