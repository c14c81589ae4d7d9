"""The norm of many tensors, which also says whether all of their numbers are finite.

Models have many small tensors, and an operation on each takes longer than to read their numbers. Compiled loops go
through all of them in one call, by the addresses of their numbers.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from corollout.numba_cache import numba


def total_norm(tensors: Iterable[Tensor]) -> float:
    """The norm of all numbers in some tensors: finite if all of them are, below 10¹⁵⁰ in double precision, else not.

    Where squares of single precision over- or underflow, they are added up in double precision.
    """
    tensors = list(tensors)
    if can_loop(tensors):
        at, sizes, like, _kept = addresses([t if t.is_contiguous() else t.permute(memory_order(t)) for t in tensors])
        return math.sqrt(_sum_of_squares(at, sizes, like))
    norms = [torch.linalg.vector_norm(t.detach(), dtype=torch.float64) for t in tensors]
    return float(torch.stack(norms).norm()) if norms else 0.0


_LIKE = {torch.float32: np.empty(0, np.float32), torch.float64: np.empty(0, np.float64)}


class Addresses(NamedTuple):
    """Where the numbers of some tensors lie."""

    at: np.ndarray
    sizes: np.ndarray
    like: np.ndarray  # an empty array of the tensors' type
    tensors: list[Tensor]  # must live as long as the addresses are used


def can_loop(tensors: list[Tensor]) -> bool:
    """Whether compiled loops can read some tensors."""
    dtype = tensors[0].dtype if tensors else None
    return dtype in _LIKE and all(t.is_cpu and t.dtype is dtype for t in tensors)


def memory_order(tensor: Tensor) -> list[int]:
    """The dimensions in the order in which the numbers lie in memory."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)


def addresses(tensors: list[Tensor]) -> Addresses:
    """Those of some tensors that compiled loops can read; a tensor whose numbers are not in order is copied."""
    tensors = [t.contiguous() for t in tensors]
    at, sizes = np.array([t.data_ptr() for t in tensors]), np.array([t.numel() for t in tensors])
    return Addresses(at, sizes, _LIKE[tensors[0].dtype], tensors)


@no_type_check
@intrinsic
def _pointer(typing_context, address, like):
    pointer = types.CPointer(like.dtype)
    return pointer(address, like), lambda context, builder, signature, arguments: builder.inttoptr(
        arguments[0], context.get_value_type(pointer)
    )


@no_type_check
@numba.njit(cache=True, nogil=True)
def numbers_at(address, size, like):
    """The array of so many numbers at an address, of the same type as another array."""
    return numba.carray(_pointer(address, like), (size,))


# Numbers whose squares are added up in their own precision, and between which sums nothing of them can be lost.
_TOGETHER = 1 << 10
_LEAST_SUM, _MOST_SUM = 1e-25, 1e30


@no_type_check
@numba.njit(cache=True, nogil=True)
def sum_of_squares(numbers):
    """As in double precision, to the rounding of single precision: converting every number would take twice as long."""
    total = 0.0
    for start in range(0, len(numbers), _TOGETHER):
        some = numbers[start : start + _TOGETHER]
        part = np.float64(_squares(some))
        total += part if is_safe(part) else _squares_in_double(some)
    return total


@no_type_check
@numba.njit(cache=True, nogil=True)
def is_safe(squares):
    """Whether a sum of some thousand squares in single precision is right: none of them over- or underflowed much."""
    return _LEAST_SUM < squares < _MOST_SUM


@no_type_check
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _squares(numbers):
    total = numbers.dtype.type(0)
    for i in range(len(numbers)):
        total += numbers[i] * numbers[i]
    return total


@no_type_check
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _squares_in_double(numbers):
    total = 0.0
    for i in range(len(numbers)):
        number = np.float64(numbers[i])
        total += number * number
    return total


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sum_of_squares(at, sizes, like):
    total = 0.0
    for k in range(len(at)):
        total += sum_of_squares(numbers_at(at[k], sizes[k], like))
    return total
