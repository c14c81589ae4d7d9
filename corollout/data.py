"""Data sets: named columns of equal length, one of which, ``context``, is what the policy encodes."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.arguments import require_count
from corollout.division import Division
from corollout.errors import InputError
from corollout.files import digest_of
from corollout.noise import ORDER, Noise
from corollout.text import quoted
from corollout.weights import tensor_bytes

Device = torch.device | str
Index = Int64[Tensor, " context"]


@dataclass(frozen=True)
class Batch:
    """Some examples of a data set: their ids and their entries of every column.

    With a ``division``, they are this process's examples of a batch; if it has none, a stand-in, from which nothing is
    to be learned.
    """

    examples: Index
    columns: Mapping[str, Any]
    division: Division | None = None

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def is_stand_in(self) -> bool:
        return self.division is not None and self.division.is_empty

    @property
    def whole(self) -> int:
        """How many examples the batch has, those of other processes included."""
        return len(self) if self.division is None else len(self.division)

    @property
    def own(self) -> int:
        """How many of them this process has."""
        return 0 if self.is_stand_in else len(self)

    @property
    def context(self) -> Any:
        """What ``policy.encode`` reads."""
        return self.columns["context"]

    def shortest_context(self) -> int:
        """The position of the context that a policy has to pad most: the shortest of some lists, else the first."""
        if not isinstance(self.context, list) or not all(hasattr(one, "__len__") for one in self.context):
            return 0
        return min(range(len(self.context)), key=lambda position: len(self.context[position]))

    def aligned(self, contexts: Int64[Tensor, " row"]) -> "dict[str, Rows]":
        """The columns with an entry for each row, which belongs to one of the contexts: the input of a reward function.

        Tensors are on the CPU.
        """
        rows = contexts.tolist()
        columns = {name: c.cpu() if isinstance(c, Tensor) else c for name, c in self.columns.items()}
        return {name: Rows(column, rows) for name, column in columns.items()}


@runtime_checkable
class Gathered(Protocol):
    """A column that makes its tensors on demand: from a memory-mapped file, for example."""

    def __len__(self) -> int: ...

    def gather(self, index: Index) -> Tensor:
        """The entries at these positions; the first dimension is that of the examples."""
        ...


class Columns:
    """A data set: ``Columns(context=…, answer=…)``.

    A column is a tensor or an array whose first dimension is that of the examples, a list, or has a method ``gather``.
    ``context`` goes to ``policy.encode``, and every column to the reward function, by its name. The ids of the
    examples, by which their noise is drawn, are their positions unless given.
    """

    def __init__(self, *, ids: Sequence[int] | Tensor | None = None, **columns: Any):
        if "context" not in columns:
            raise InputError(f"a data set needs a column named 'context'; it has {sorted(columns) or 'no columns'}")
        self.columns: Mapping[str, Any] = {name: _as_column(name, column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise InputError(f"the columns of a data set must have the same length, not {lengths}")
        count = lengths["context"]
        try:
            given = torch.arange(count) if ids is None else torch.as_tensor(ids)
        except (TypeError, ValueError, RuntimeError):  # whatever PyTorch makes of what is not a list of numbers
            given = torch.zeros(0)
        whole = given.dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
        if not whole or given.shape != (count,) or len(given.unique()) != count:
            raise InputError(f"ids must be {count} different whole numbers, one for each example")
        self.ids = given.long()

    @classmethod
    def of(cls, data: "Data") -> "Columns":
        """A data set from a dict of columns, or from a list of examples, each a dict with the same names.

        In a list of examples, tensors of one shape become one tensor, and everything else a list.
        """
        if isinstance(data, Columns):
            return data
        if isinstance(data, Mapping) and all(isinstance(name, str) for name in data):
            return cls(**data)
        if not isinstance(data, Sequence) or isinstance(data, str) or not data:
            given = "an empty list" if data == [] else f"{type(data).__name__} {quoted(data)}"
            raise InputError(f"data must be Columns, a dict of columns, or a list of examples (dicts), not {given}")
        for number, example in enumerate(data):
            if not isinstance(example, Mapping) or example.keys() != data[0].keys():
                given = sorted(map(str, example)) if isinstance(example, Mapping) else quoted(example)
                names = sorted(map(str, data[0])) if isinstance(data[0], Mapping) else "names"
                raise InputError(
                    f"every example must be a dict with the same names, {names}: example {number} is {given}"
                )
        return cls.of({name: _stacked([example[name] for example in data]) for name in data[0]})

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> "Columns":
        """The first examples only."""
        require_count("the number of examples", count, least=0)
        return Columns(ids=self.ids[:count], **{name: _first(column, count) for name, column in self.columns.items()})

    def batch(self, index: Sequence[int] | Index, device: Device = "cpu") -> Batch:
        """The examples at these positions; tensors are moved to the device."""
        positions = self._positions(index)
        columns = {name: _part(column, positions, device) for name, column in self.columns.items()}
        return Batch(self.ids[positions].to(device), columns)

    def divided(self, index: Index, division: Division, device: Device = "cpu") -> Batch:
        """This process's part of the batch of the examples at these positions."""
        own = index[:1] if division.is_empty else index[division.places]
        return replace(self.batch(own, device), division=division)

    def _positions(self, index: Any) -> Index:
        if not isinstance(index, Tensor):
            index = list(index) if isinstance(index, Iterable) else [index]
            if not all(isinstance(one, int) and not isinstance(one, bool) for one in index):
                raise InputError(f"a batch needs the positions of its examples, whole numbers, not {quoted(index)}")
        positions = torch.as_tensor(index, dtype=torch.int64)
        if positions.ndim != 1:
            raise InputError(f"a batch needs a list of positions, not a tensor of shape {list(positions.shape)}")
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < len(self):
            wrong = int(positions.min()) if int(positions.min()) < 0 else int(positions.max())
            raise InputError(f"there is no example {wrong}: the data set has {len(self)}, counted from 0")
        return positions

    def digest(self) -> str:
        """A digest of everything; of entries that are neither tensors, numbers nor text only the number counts."""
        columns = [("ids", self.ids), *sorted(self.columns.items())]
        return digest_of(chain.from_iterable(_bytes(name, column) for name, column in columns))

    def epoch(
        self,
        batch_size: int,
        noise: Noise,
        device: Device = "cpu",
        skip: int = 0,
        divide: Callable[[Index], Division] | None = None,
    ) -> Iterator[Batch]:
        """All examples once in a random order, without the first ``skip`` batches; the last batch may be smaller.

        ``divide`` says which of the examples at some positions each of several processes gets.
        """
        require_count("batch_size", batch_size)
        for index in shuffled(self.ids, noise).split(batch_size)[skip:]:
            yield self.batch(index, device) if divide is None else self.divided(index, divide(index), device)


Data = Columns | Mapping[str, Any] | Sequence[Mapping[str, Any]]


def _as_column(name: str, column: Any) -> Any:
    """A column; arrays of numbers become tensors, so that policies get tensors."""
    if isinstance(column, np.ndarray) and column.ndim and column.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(column))
    if isinstance(column, str | bytes | Mapping) or not hasattr(column, "__len__") or _is_single(column):
        raise InputError(
            f"the column {name!r} must be a tensor, an array or a list with an entry for each example, "
            f"not {quoted(column)}"
        )
    return column


def _is_single(column: Any) -> bool:
    return isinstance(column, Tensor | np.ndarray) and column.ndim == 0


def _stacked(entries: list[Any]) -> Any:
    """A tensor, if the entries are tensors of one shape; else the list."""
    if all(isinstance(entry, Tensor) for entry in entries) and len({entry.shape for entry in entries}) == 1:
        return torch.stack(entries)
    return entries


class Split:
    """Examples of a task: as columns, and as ``data`` in whatever form the task wants to keep them besides."""

    def __init__(self, columns: Columns, data: Any = None):
        self.columns, self.data = columns, data

    def __len__(self) -> int:
        return len(self.columns)

    def first(self, count: int) -> "Split":
        """The first examples only; ``data`` stays whole."""
        return Split(self.columns.first(count), self.data)


class _First:
    """The first entries of a column that makes its tensors on demand."""

    def __init__(self, column: Gathered, count: int):
        self._column, self._count = column, count

    def __len__(self) -> int:
        return min(self._count, len(self._column))

    def gather(self, index: Index) -> Tensor:
        return self._column.gather(index)


def _is_gathered(column: Any) -> TypeGuard[Gathered]:
    # An isinstance with the protocol would take longer than the rest of a batch.
    return hasattr(column, "gather") and not isinstance(column, Tensor)


def _first(column: Any, count: int) -> Any:
    if _is_gathered(column):
        return _First(column, count)
    return column[:count]


def _part(column: Any, index: Index, device: Device) -> Any:
    if isinstance(column, Tensor):
        return column[index].to(device)
    if _is_gathered(column):
        return column.gather(index).to(device)
    return [column[i] for i in index.tolist()]


def _bytes(name: str, column: Any) -> Iterator[bytes]:
    yield json.dumps([name, len(column)]).encode()
    if isinstance(column, Tensor):
        parts: Iterable[Tensor] = [column]
    elif _is_gathered(column):
        parts = (column.gather(index) for index in torch.arange(len(column)).split(1024))
    else:
        with suppress(TypeError, ValueError):
            yield json.dumps(list(column)).encode()
        return
    for part in parts:
        yield json.dumps([str(part.dtype), list(part.shape)]).encode()
        yield tensor_bytes(part)


def plain_entry(value: Any) -> Any:
    """An entry of a column, to be read by people: tensors other than short vectors by their shape."""
    if isinstance(value, Tensor):
        return value.tolist() if value.numel() <= 32 and value.ndim <= 1 else f"tensor of shape {tuple(value.shape)}"
    return value if isinstance(value, str | int | float | list | None) else str(value)


def check_device(device: Any) -> None:
    """Raise an error unless tensors can be computed on a device."""
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"there is no device {quoted(device)}: choose cpu, cuda, or a GPU by its number, as cuda:1"
        ) from error
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:  # PyTorch raises all of these
        reason = f"this PyTorch or this machine cannot use {kind}"
        if kind == "cuda" and torch.cuda.is_available():
            reason = f"there are {torch.cuda.device_count()} GPUs here, numbered from 0"
        elif kind == "cuda":
            reason = "PyTorch finds no GPU that it can use with CUDA"
        raise InputError(f"cannot compute on the device {quoted(device)}: {reason}; choose cpu instead") from error


def shuffled(ids: Int64[Tensor, " example"], noise: Noise) -> Int64[Tensor, " example"]:
    """A random order of the examples, which depends on their ids and the noise only."""
    return noise.keys(ids, ORDER).argsort()


class Rows(Sequence[Any]):
    """A column with an entry for each row: that of the row's context. Nothing is copied."""

    def __init__(self, column: Any, contexts: list[int]):
        self._column, self._contexts = column, contexts

    def __len__(self) -> int:
        return len(self._contexts)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return Rows(self._column, self._contexts[row])
        return self._column[self._contexts[row]]
