"""How the examples of a batch are divided among processes: evenly, or by what each of them cost when it was last used.

Rollouts adapt to the policy, so that some examples take many times as long as others; a process that has finished its
own waits for the one that has most to do.
"""

import math
from collections.abc import Iterable
from typing import get_args

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from corollout.data import Columns, Index
from corollout.division import Division, divide_by_cost, divide_evenly
from corollout.errors import InputError
from corollout.processes import Processes
from corollout.text import quoted
from corollout.training.estimates import Estimate
from corollout.training.settings import Balance

_STATE = "example_costs"


class Divider:
    """Divides batches. By "cost", it remembers of every example what it cost last; what is remembered is the same in
    all processes, and belongs to checkpoints.
    """

    def __init__(self, balance: Balance, data: Columns, processes: Processes):
        if balance not in get_args(Balance):
            raise InputError(f"balance must be one of {', '.join(get_args(Balance))}, not {quoted(balance)}")
        self.by_cost, self._data, self._processes = balance == "cost", data, processes
        self._ids, self._costs = data.ids[:0], torch.zeros(0)
        if self.by_cost:
            self._ids = data.ids.sort().values
            self._costs = torch.full((len(data),), math.nan)

    def divide(self, index: Index, device: torch.device | str) -> Division:
        """How the batch of the examples at some positions is divided."""
        examples, size = self._data.ids[index], self._processes.size
        if self.by_cost:
            shares = divide_by_cost(self._costs[torch.searchsorted(self._ids, examples)].tolist(), size)
        else:
            shares = divide_evenly(len(index), size)
        return Division.of(examples.to(device), shares, self._processes)

    def remember(self, costs: Iterable[tuple[int, float]]) -> None:
        """Take note of what some examples, by their ids, have cost in all processes."""
        pairs = list(costs)
        if self.by_cost and pairs:
            examples = torch.tensor([example for example, _ in pairs])
            values = torch.tensor([cost for _, cost in pairs], dtype=self._costs.dtype)
            self._costs[torch.searchsorted(self._ids, examples)] = values

    def costs(self, sample: Estimate, examples: Int64[Tensor, " context"]) -> list[tuple[int, float]]:
        """What this process's examples of an estimate have cost, by their ids; nothing if that is not remembered."""
        if not self.by_cost or sample.contexts == 0:
            return []
        return list(zip(examples.tolist(), context_costs(sample).tolist(), strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """For checkpoints."""
        return {_STATE: self._costs.clone()} if self.by_cost else {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from the tensors of a state, which may have others besides."""
        known = tensors.get(_STATE)
        if self.by_cost and known is not None and known.shape == self._costs.shape:
            self._costs = known.to("cpu", copy=True)


def context_costs(sample: Estimate) -> Float32[Tensor, " context"]:
    """Tokens that were generated and scored for each context of an estimate, as if nothing was shared."""
    mains, branches = sample.trajectories, sample.plan.branches
    costs = torch.zeros(sample.contexts, device=mains.contexts.device)
    costs.index_add_(0, mains.contexts, 2.0 * mains.lengths)
    after = sample.completed.lengths - branches.step
    return costs.index_add_(0, mains.contexts[branches.parent], after.to(costs.dtype)).cpu()
