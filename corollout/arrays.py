"""Arrays in ``.npy`` files, read by a header that is checked first. Nothing is evaluated or unpickled."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from corollout.errors import InputError
from corollout.files import os_errors
from corollout.limits import ARRAY_BYTES

Stream = IO[bytes] | BufferedIOBase
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # bytes, as in NumPy
_FIELDS = (
    re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?[biufcSU]\d{1,9})['"]"""),
    re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)"""),
    re.compile(r"""['"]shape['"]\s*:\s*\(([\d\s,L]*)\)"""),
)


@dataclass(frozen=True)
class Header:
    """What a ``.npy`` file says about its array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool  # Fortran's order

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: Stream, name: object) -> Header:
    """Read a header; the file is then at the array's first byte. ``name`` is that of the file, for errors."""
    start = file.read(8)
    size_bytes = {b"\x01": 2, b"\x02": 4, b"\x03": 4}.get(start[6:7], 0)
    if start[:6] != _MAGIC or not size_bytes:
        raise InputError(f"{name} is not a .npy file, or is damaged: it does not begin like one")
    size = int.from_bytes(file.read(size_bytes).ljust(size_bytes, b"\xff"), "little")
    text = file.read(min(size, _LONGEST_HEADER)).decode("latin-1")
    fields = [field.search(text) for field in _FIELDS]
    if len(text) < size or not all(fields):
        raise InputError(f"{name} is damaged, or is not an array of numbers: its header cannot be read")
    descr, by_columns, shape = (field[1] for field in fields if field)
    sizes = [entry.strip().removesuffix("L") for entry in shape.split(",") if entry.strip()]
    if len(sizes) > 32 or not all(entry.isdigit() and len(entry) <= 18 for entry in sizes):
        raise InputError(f"{name} is damaged: its header says that the array's shape is ({shape})")
    try:
        dtype = np.dtype(descr)
    except TypeError as error:
        raise InputError(f"{name} is damaged: its header says that the array's type is {descr!r}") from error
    header = Header(tuple(map(int, sizes)), dtype, by_columns == "True")
    # NumPy refuses such an array even if it is empty.
    if not 0 < math.prod(max(size, 1) for size in header.shape) * dtype.itemsize < 2**63:
        raise InputError(f"{name} is damaged: its header says that the array's shape is ({shape})")
    return header


def read_stream(file: Stream, name: object) -> np.ndarray:
    """The array in an open ``.npy`` file, such as a member of a ``.npz`` file, in memory."""
    header = read_header(file, name)
    ARRAY_BYTES.check(header.nbytes, f"{name}: the array of shape {list(header.shape)}")
    if header.nbytes == 0:
        return np.empty(header.shape, header.dtype)
    data = bytearray(header.nbytes)
    if _fill(memoryview(data), file) < header.nbytes:
        raise InputError(f"{name} is cut short: it ends before its array of shape {list(header.shape)} does")
    order = "F" if header.by_columns else "C"
    return np.frombuffer(data, header.dtype).reshape(header.shape, order=order)


def map_array(path: Path, mode: Literal["r", "r+", "c"] = "r") -> np.ndarray:
    """The array of a file of any type and shape, mapped into memory."""
    with os_errors(f"read {path}"), path.open("rb") as file:
        header = read_header(file, path)
        start, size = file.tell(), path.stat().st_size
        if start + header.nbytes > size:
            raise InputError(
                f"{path} is cut short: it has {size - start:,} bytes of its array of shape {list(header.shape)}, which "
                f"has {header.nbytes:,}"
            )
        if header.nbytes == 0:
            return np.empty(header.shape, header.dtype)
        order = "F" if header.by_columns else "C"
        return np.memmap(path, header.dtype, mode, start, header.shape, order)


def read_array(
    path: Path, dtype: type | Iterable[type], ndim: int, mode: Literal["r", "c"] = "r", size: int | None = None
) -> np.ndarray:
    """An array that we wrote ourselves, mapped into memory; another type, order or number of dimensions is an error.

    ``dtype`` is its type, or all that it may have; ``size``, if given, is its number of rows.
    """
    array = map_array(path, mode)
    types = [np.dtype(one) for one in ((dtype,) if isinstance(dtype, type) else dtype)]
    if array.dtype not in types or array.ndim != ndim or not array.flags.c_contiguous:
        expected = f"{' or '.join(map(str, types))} of {ndim} dimension{'s' if ndim > 1 else ''}"
        given = f"{array.dtype} of shape {list(array.shape)}"
        raise InputError(f"{path} is damaged: expected an array of {expected} in row-major order, not {given}")
    if size is not None and len(array) != size:
        raise InputError(f"{path} is damaged: expected {size:,} rows, not {len(array):,}")
    return array


def _fill(view: memoryview, file: Stream) -> int:
    """Read until the view is full or the file ends; how many bytes were read."""
    done = 0
    while done < len(view) and (data := file.read(min(len(view) - done, 1 << 24))):
        view[done : done + len(data)] = data
        done += len(data)
    return done
