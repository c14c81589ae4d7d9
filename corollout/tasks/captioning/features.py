"""Features of images, read from files of several formats a few rows at a time.

A file has one array with a row per image and the names of the images, or an array per image under its name:

- ``.npy``: one array; names are the lines of a text file
- ``.npz``: the arrays ``features`` and ``names``, or one array per image
- ``.safetensors``: one array and ``names`` (JSON, or one per line) in the metadata, or one array per image
- ``.h5``, ``.hdf5``: the data sets ``features`` and ``names``, or one data set per image
- a folder: ``NAME.npy`` per image
"""

import math
import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from reprlib import repr as short
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from corollout.arrays import map_array, read_header, read_stream
from corollout.errors import InputError
from corollout.json_text import decode_json
from corollout.limits import ARRAY_BYTES
from corollout.tasks.captioning.captions import read_names
from corollout.text import shortened

_WINDOW = 1024  # rows read at a time
# What the readers of these formats raise for files that are damaged.
_DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    RuntimeError,
    BadZipFile,
    zlib.error,
    SafetensorError,
)
_NAMES_SECONDS = 20
# A few at a time, because each name can be as long as the file; the second argument is the most bytes of all of them.
_READ_NAMES = """
import json, sys, h5py
texts, names, size = h5py.File(sys.argv[1], "r")["names"].asstr(), [], 0
for start in range(0, len(texts), 64):
    names += texts[start : start + 64].tolist()
    size += sum(map(len, names[start:]))
    if size > int(sys.argv[2]):
        sys.exit("they are longer than the limit of COROLLOUT_MAX_ARRAY_BYTES")
json.dump(names, sys.stdout)
"""


@dataclass(frozen=True)
class Features:
    """Vectors of features by image name."""

    names: Sequence[str]
    width: int
    dtype: np.dtype[Any]  # float16 or float32
    rows: Callable[[np.ndarray], np.ndarray]  # the vectors of some names; indices ascend, also from call to call


def open_features(path: Path, names: Path | None = None) -> Features:
    """Open a file or a folder of features; ``names`` is a text file with the image names of a ``.npy`` file's rows."""
    openers = {".npz": _npz, ".safetensors": _safetensors, ".h5": _hdf5, ".hdf5": _hdf5}
    is_npy = path.suffix == ".npy" and not path.is_dir()
    if names is not None and not is_npy:
        raise InputError(f"{path} includes the names: leave out --names")
    if not path.exists():
        raise InputError(f"cannot read the features {path}: no such file or folder")
    if path.is_dir() or is_npy:
        return _npy(path, names or _names_beside(path)) if is_npy else _folder(path)
    if path.suffix not in openers:
        raise InputError(f"features must be .npy, {', '.join(openers)} or a folder, not {path}")
    with _reading(path):
        return openers[path.suffix](path)


@contextmanager
def _reading(path: Path) -> Generator[None]:
    """Turns whatever goes wrong with a file of features into an ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGED as error:
        reason = (getattr(error, "strerror", None) or str(error) or "it ends too early").partition("\n")[0][:200]
        raise InputError(f"cannot read the features {path}, which may be damaged or truncated: {reason}") from error


def _names_beside(path: Path) -> Path:
    usual = path.with_name(f"{path.stem}_names.txt")
    candidates = [usual] if usual.exists() else sorted(path.parent.glob("*_names.txt"))
    if len(candidates) != 1:
        raise InputError(f"{path}: no file {usual.name} with the image names of its rows; give one with --names")
    return candidates[0]


def _table(
    path: Path, names: Sequence[str], shape: Sequence[int], dtype: Any, read: Callable[[int, int], np.ndarray]
) -> Features:
    """Features in one array; ``read(first, end)`` returns the rows ``first`` to ``end − 1``."""
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"{path}: expected a row of numbers per image, not an array of shape {tuple(shape)}")
    if len(names) != shape[0]:
        raise InputError(f"{path}: {len(names):,} names for {shape[0]:,} rows of features; expected one per row")
    _check_different(path, names)
    stored = _stored_dtype(path, dtype)
    _check_block(path, shape[0], shape[1], np.dtype(dtype).itemsize)

    def rows(indices: np.ndarray) -> np.ndarray:
        windows = indices // _WINDOW
        parts = [np.empty((0, shape[1]), stored)]
        for window in np.unique(windows):
            wanted = indices[windows == window]
            first, last = int(wanted[0]), int(wanted[-1])
            with _reading(path):
                parts.append(_converted(read(first, last + 1)[wanted - first], stored))
        return np.concatenate(parts)

    return Features(names, shape[1], stored, rows)


def _separate(path: Path, names: Sequence[str], load: Callable[[int], np.ndarray]) -> Features:
    """Features in one array per image; all must have the shape of the first."""
    if not names:
        raise InputError(f"{path} has no features: a folder of features has a file NAME.npy for each image")
    _check_different(path, names)

    def vector(index: int) -> np.ndarray:
        with _reading(path):
            array = load(index)
        if array.size == 0 or array.size != max(array.shape, default=0):
            raise InputError(f"{path}: expected a vector for {names[index]!r}, not an array of shape {array.shape}")
        return _converted(array.reshape(-1), _stored_dtype(f"{path}, {names[index]!r}", array.dtype))

    first = vector(0)
    _check_block(path, len(names), len(first), first.dtype.itemsize)

    def rows(indices: np.ndarray) -> np.ndarray:
        rows = np.empty((len(indices), len(first)), first.dtype)
        for row, index in zip(rows, indices.tolist(), strict=True):
            one = vector(index)
            if len(one) != len(first) or one.dtype.itemsize > first.dtype.itemsize:
                sizes = f"{one.dtype}[{len(one)}], but those of {names[0]!r} are {first.dtype}[{len(first)}]"
                advice = "all must have the same shape and type"
                raise InputError(f"{path}: the features of {names[index]!r} are {sizes}; {advice}")
            row[:] = one
        return rows

    return Features(names, len(first), first.dtype, rows)


def _check_block(path: Path, rows: int, width: int, itemsize: int) -> None:
    rows = min(rows, _WINDOW)
    ARRAY_BYTES.check(rows * width * max(itemsize, 4), f"{path}: a block of {rows:,} rows of {width:,} features")


def _check_different(path: Path, names: Sequence[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{path}: the name {twice[0]!r} occurs twice")


def _stored_dtype(where: object, dtype: Any) -> np.dtype[Any]:
    """The type in which numbers of this type are stored."""
    if np.dtype(dtype).kind not in "fiu":
        raise InputError(f"{where}: expected numbers, not {dtype}")
    return np.dtype(np.float16 if dtype == np.float16 else np.float32)


def _converted(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):  # too large numbers become infinite and are rejected later
        return array.astype(dtype, copy=False)


def _npy(path: Path, names: Path) -> Features:
    known, array = read_names(names), map_array(path)
    if len(array.shape) == 2 and len(known) != array.shape[0]:
        raise InputError(f"{names} has {len(known):,} names, but {path} has {array.shape[0]:,} rows")
    # Mapped again for each read, so that earlier rows do not stay in memory.
    return _table(path, known, array.shape, array.dtype, lambda first, end: map_array(path)[first:end])


def _npz(path: Path) -> Features:
    with ExitStack() as opened:
        features = _zipped(path, opened.enter_context(ZipFile(path)), opened)
        opened.pop_all()  # stays open as long as the features are in use
        return features


def _zipped(path: Path, archive: ZipFile, opened: ExitStack) -> Features:
    members = {member.removesuffix(".npy"): member for member in archive.namelist()}

    def load(name: str) -> np.ndarray:
        with archive.open(members[name]) as member:
            return read_stream(member, f"{path}, {name!r}")

    if set(members) != {"features", "names"}:
        names = list(members)
        return _separate(path, names, lambda index: load(names[index]))
    file = opened.enter_context(archive.open(members["features"]))
    header = read_header(file, f"{path}, 'features'")
    if header.by_columns:
        raise InputError(f"{path}: save the features as one array of numbers in row-major order")
    start, shape, dtype = file.tell(), header.shape, header.dtype

    def read(first: int, end: int) -> np.ndarray:
        size = dtype.itemsize * shape[1]
        file.seek(start + first * size)  # forwards, so that nothing is decompressed twice
        data = file.read((end - first) * size)
        if len(data) < (end - first) * size:
            raise EOFError
        return np.frombuffer(data, dtype).reshape(end - first, shape[1])

    return _table(path, _texts(path, load("names")), shape, dtype, read)


def _texts(path: Path, names: np.ndarray) -> list[str]:
    names = np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names
    if names.ndim != 1 or names.dtype.kind not in "UO":
        raise InputError(f"{path}: names must be a list of text, not {names.dtype}{list(names.shape)}")
    return [str(name) for name in names]


def _safetensors(path: Path) -> Features:
    file = safe_open(path, framework="pt")
    keys = list(file.keys())
    listed = (file.metadata() or {}).get("names")
    if listed is None:
        # An array is part of the file, which is mapped into memory, so none can be larger.
        return _separate(path, keys, lambda index: _array(file.get_tensor(keys[index])))
    if len(keys) != 1:
        raise InputError(f"{path}: with names in the metadata there must be one array, not {len(keys)}")
    rows = file.get_slice(keys[0])
    names = decode_json(listed) if listed.lstrip().startswith("[") else listed.split("\n")
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: expected image names in the metadata, not {short(names)}")
    dtype = {"F16": np.float16, "BOOL": np.bool_}.get(rows.get_dtype(), np.float32)
    return _table(path, names, rows.get_shape(), dtype, lambda first, end: _array(rows[first:end]))


def _array(tensor: torch.Tensor) -> np.ndarray:
    # NumPy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _hdf5(path: Path) -> Features:
    try:
        h5py: Any = import_module("h5py")
    except ImportError as error:
        raise InputError(f"reading {path} needs the package h5py: pip install 'corollout[h5]'") from error
    file = h5py.File(path, "r")
    keys: list[str] = []
    file.visititems(lambda name, item: keys.append(name) if isinstance(item, h5py.Dataset) else None)
    for key in keys:
        _check_stored(path, key, file[key])

    def load(index: int) -> np.ndarray:
        array = file[keys[index]]
        ARRAY_BYTES.check(array.size * array.dtype.itemsize, f"{path}, {keys[index]!r}")
        return np.asarray(array)

    if set(keys) != {"features", "names"}:
        return _separate(path, keys, load)
    names, rows = _hdf5_names(path, file["names"]), file["features"]
    return _table(path, names, rows.shape, rows.dtype, lambda first, end: rows[first:end])


def _check_stored(path: Path, key: str, array: Any) -> None:
    """Refuse arrays that are not in this file, and those of which a part, read as a whole, is too large."""
    if array.shape is None or array.is_virtual or array.external:
        raise InputError(f"{path}: the array {key!r} is empty or refers to other files: store its numbers here")
    if array.chunks is not None:
        size = math.prod(array.chunks) * array.dtype.itemsize
        ARRAY_BYTES.check(size, f"{path}: a chunk of {key!r}")


def _hdf5_names(path: Path, array: Any) -> list[str]:
    if array.ndim != 1:
        raise InputError(f"{path}: names must be a list of text, not an array of shape {list(array.shape)}")
    ARRAY_BYTES.check(array.size * array.dtype.itemsize, f"{path}: the array of names")
    # In a process of its own: libhdf5 may read text of a damaged file for ever, and nothing else could stop it.
    command = [sys.executable, "-I", "-c", _READ_NAMES, os.path.abspath(path), str(ARRAY_BYTES.value)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_NAMES_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{path} is damaged: its names cannot be read in {_NAMES_SECONDS} seconds") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InputError(f"{path}: the names cannot be read: {shortened(reason)}")
    return list(decode_json(done.stdout))


def _folder(path: Path) -> Features:
    files = sorted(entry for entry in path.iterdir() if entry.suffix == ".npy")
    names = [file.name.removesuffix(".npy") for file in files]

    def load(index: int) -> np.ndarray:
        array = map_array(files[index])
        ARRAY_BYTES.check(array.nbytes, str(files[index]))
        return array

    return _separate(path, names, load)
