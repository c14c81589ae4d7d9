"""A data set as the library sees it: named columns of equal length, one of which is what the policy encodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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

    def aligned(self, contexts: Int64[Tensor, " row"]) -> "dict[str, Rows]":
        """The columns as rows see them that belong to these contexts: what a reward function gets, on the CPU."""
        places = contexts.tolist()
        return {
            name: Rows(column.cpu() if isinstance(column, Tensor) else column, places)
            for name, column in self.columns.items()
        }


@runtime_checkable
class Gathered(Protocol):
    """A column that makes its tensors when asked: from a file that is mapped into memory, say."""

    def __len__(self) -> int: ...

    def gather(self, index: Int64[Tensor, " context"]) -> Tensor:
        """The entries at some places, examples first."""
        ...


class Columns:
    """A data set: ``Columns(context=…, answer=…)``.

    A column is a tensor with examples first, a list, or has a method ``gather``. ``context`` goes to ``policy.encode``,
    and every column to the reward function, by its name. An example's id is its place, unless ``ids`` says otherwise.
    """

    def __init__(self, *, ids: Sequence[int] | Tensor | None = None, **columns: Tensor | Sequence[Any] | Gathered):
        if "context" not in columns:
            raise InputError(f"a data set needs a column named 'context'; it has {sorted(columns) or 'none'}")
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise InputError(f"the columns of a data set must be of equal length, not {lengths}")
        self.columns: Mapping[str, Any] = columns
        count = lengths["context"]
        given = torch.arange(count) if ids is None else torch.as_tensor(ids)
        if given.is_floating_point() or given.shape != (count,) or len(given.unique()) != count:
            raise InputError(f"ids must be {count} different whole numbers, one for each example")
        self.ids = given.long()

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, index: Sequence[int] | Int64[Tensor, " context"], device: torch.device | str = "cpu") -> Batch:
        """The examples at some places; tensors are moved to the device."""
        where = torch.as_tensor(index, dtype=torch.int64)
        columns = {name: _part(column, where, device) for name, column in self.columns.items()}
        return Batch(self.ids[where].to(device), columns)

    def epoch(
        self, batch_size: int, noise: Noise, device: torch.device | str = "cpu", skip: int = 0
    ) -> Iterator[Batch]:
        """All examples once, shuffled, but for the first ``skip`` batches; the last batch may be smaller."""
        for index in shuffled(self.ids, noise).split(batch_size)[skip:]:
            yield self.batch(index, device)


def _part(column: Any, index: Int64[Tensor, " context"], device: torch.device | str) -> Any:
    if isinstance(column, Tensor):
        return column[index].to(device)
    if isinstance(column, Gathered):
        return column.gather(index).to(device)
    return [column[i] for i in index.tolist()]


def shuffled(ids: Int64[Tensor, " example"], noise: Noise) -> Int64[Tensor, " example"]:
    """An order of the examples that depends on their ids and the noise only."""
    return noise.keys(ids, ORDER).argsort()


class Rows(Sequence[Any]):
    """A column as seen by rows: entry i is the column's entry for row i's context. Nothing is copied."""

    def __init__(self, column: Any, contexts: list[int]):
        self._column, self._contexts = column, contexts

    def __len__(self) -> int:
        return len(self._contexts)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return Rows(self._column, self._contexts[row])
        return self._column[self._contexts[row]]
