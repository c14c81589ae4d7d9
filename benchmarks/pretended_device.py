"""A device that does not exist: its tensors are on the CPU, but PyTorch sees them on a device called "pretended".

Programs for a GPU can be tried on it where there is none. They run as they would there, with the same results:
operations on tensors of both devices are refused, compiled loops for the CPU do not take part, and every time that the
host would have to wait for the device is noted. It says nothing about speed.

On CUDA the host waits for a number (``item``, ``bool``, ``tolist``, a copy), and for every size that depends on what
has been computed: ``nonzero``, ``unique``, an index by a mask, ``repeat_interleave`` without the size of its result.
Copies to the device wait, too, unless they are ``non_blocking``.
"""

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _setup_privateuseone_for_python_backend,  # pyright: ignore[reportPrivateUsage]
)

NAME = "pretended"

_aten = torch.ops.aten
_WAITING = frozenset(
    [
        _aten._local_scalar_dense.default,
        _aten.nonzero.default,
        _aten.masked_select.default,
        _aten._unique2.default,
        _aten.unique_dim.default,
        _aten.unique_consecutive.default,
        _aten.unique_dim_consecutive.default,
        _aten.bincount.default,
        _aten.equal.default,
    ]
)
_INDEXING = frozenset(
    [_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default]
)
_MASKS = (torch.bool, torch.uint8)


class Wait(NamedTuple):
    """The host waits for the device."""

    operation: str
    where: tuple[tuple[str, int, str], ...]  # file, line and source of each call, the innermost last


class PretendedTensor(Tensor):
    """A tensor that says it is on the pretended device; ``held`` has its numbers."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls: type["PretendedTensor"], held: Tensor) -> "PretendedTensor":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device(),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of `with pretended():`")


@cache
def device() -> torch.device:
    """The device. It is registered with PyTorch at the first call, for as long as the process lives.

    That must be before the first backward pass, when PyTorch starts a thread for each device.
    """
    _setup_privateuseone_for_python_backend(NAME)
    return torch.device(NAME, 0)


@contextmanager
def pretended() -> Generator[list[Wait]]:
    """Inside, the device can be used; yields the list of waits so far."""
    device()
    waits: list[Wait] = []
    with _Lists(), _Operations(waits):
        yield waits


class _Lists(TorchFunctionMode):
    """What goes between tensors and lists without an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_pretended(kwargs.get("device")):
            onto = kwargs.pop("device")
            return func(*args, **kwargs).to(onto)
        if func is Tensor.tolist and isinstance(args[0], PretendedTensor):
            return args[0].cpu().tolist()
        if func is Tensor.numpy and isinstance(args[0], PretendedTensor):
            raise TypeError("an array cannot share memory with a tensor that is not on the CPU")
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """Everything else."""

    def __init__(self, waits: list[Wait]):
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        pretending = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
        # A copy goes where it is told to, a new tensor likewise, and everything else stays where its operands are.
        told = kwargs.get("device")
        onto = _is_pretended(told) if told is not None else bool(pretending)
        if not pretending and not onto:
            return func(*args, **kwargs)
        others = [tensor for tensor in tensors if not isinstance(tensor, PretendedTensor) and tensor.ndim > 0]
        if pretending and others and func not in (_aten.copy_.default, *_INDEXING):
            raise RuntimeError(f"{func} has tensors on the CPU and on the device {NAME}")
        if _waits(func, args, kwargs, pretending, onto):
            self._waits.append(Wait(str(func), _callers()))
        args, kwargs = tree_map(lambda leaf: getattr(leaf, "held", leaf), (args, kwargs))
        if told is not None:
            kwargs["device"] = torch.device("cpu")
        result = func(*args, **kwargs)

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not onto:
                return leaf
            # An operation in place returns its operand.
            operand = next((tensor for tensor in pretending if tensor.held is leaf), None)
            return PretendedTensor(leaf) if operand is None else operand

        return result if func is _aten._local_scalar_dense.default else tree_map(wrap, result)


def _is_pretended(where: Any) -> bool:
    return where is not None and torch.device(where).type == NAME


def _waits(func: Any, args: Any, kwargs: Any, pretending: list[PretendedTensor], onto: bool) -> bool:
    if func in _WAITING:
        return bool(pretending)
    if func is _aten._to_copy.default:
        return bool(pretending) != onto and not (onto and kwargs.get("non_blocking"))
    if func is _aten.copy_.default:
        return isinstance(args[0], PretendedTensor) != isinstance(args[1], PretendedTensor)
    if func in _INDEXING:
        index = [part for part in args[1] if part is not None]
        return any(part.dtype in _MASKS or not isinstance(part, PretendedTensor) for part in index)
    return func is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None


def _callers() -> tuple[tuple[str, int, str], ...]:
    """The calls within the package that led here."""
    frames = [frame for frame in traceback.extract_stack() if "/corollout/" in frame.filename]
    return tuple((frame.filename.split("/corollout/")[-1], frame.lineno or 0, frame.line or "") for frame in frames)
