"""A data set as the library sees it: named columns of equal length, one of which is what the policy encodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.noise import ORDER, Noise


@dataclass(frozen=True)
class Batch:
    """Some examples of a data set: their ids, and their part of every column."""

    examples: Int64[Tensor, " context"]
    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def context(self) -> Any:
        """What ``policy.encode`` reads."""
        return self.columns["context"]


class Columns:
    """A data set in memory: ``Columns(context=…, answer=…)``.

    A column is a tensor with examples first, or a list. ``context`` goes to ``policy.encode``, and every column to
    the reward function, by its name. An example's id is its place, unless ``ids`` says otherwise.
    """

    def __init__(self, *, ids: Sequence[int] | Tensor | None = None, **columns: Tensor | Sequence[Any]):
        if "context" not in columns:
            raise InputError(f"a data set needs a column named 'context'; it has {sorted(columns) or 'none'}")
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise InputError(f"the columns of a data set must be of equal length, not {lengths}")
        self.columns = columns
        count = lengths["context"]
        self.ids = torch.arange(count) if ids is None else torch.as_tensor(ids, dtype=torch.int64)
        if self.ids.shape != (count,) or len(self.ids.unique()) != count:
            raise InputError(f"ids must be {count} different whole numbers, one for each example")

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, index: Sequence[int] | Int64[Tensor, " context"], device: torch.device | str = "cpu") -> Batch:
        """The examples at some places; tensors are moved to the device."""
        where = torch.as_tensor(index, dtype=torch.int64)
        columns = {name: take(column, where, device) for name, column in self.columns.items()}
        return Batch(self.ids[where].to(device), columns)

    def epoch(self, batch_size: int, noise: Noise, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """All examples once, shuffled; the last batch may be smaller."""
        for index in shuffled(self.ids, noise).split(batch_size):
            yield self.batch(index, device)


def shuffled(ids: Int64[Tensor, " example"], noise: Noise) -> Int64[Tensor, " example"]:
    """An order of the examples that depends on their ids and the noise only."""
    return noise.keys(ids, ORDER).argsort()


def take(column: Any, index: Int64[Tensor, " row"], device: torch.device | str = "cpu") -> Any:
    """Some entries of a column."""
    if isinstance(column, Tensor):
        return column[index.to(column.device)].to(device)
    return [column[i] for i in index.tolist()]
