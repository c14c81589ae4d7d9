"""Features of images, read from files of several formats a few rows at a time.

A file has one array with a row per image and the names of the images, or an array per image under its name:

- ``.npy``: one array; names are the lines of a text file
- ``.npz``: the arrays ``features`` and ``names``, or one array per image
- ``.safetensors``: one array and ``names`` (JSON, or one per line) in the metadata, or one array per image
- ``.h5``, ``.hdf5``: the data sets ``features`` and ``names``, or one data set per image
- a folder: ``NAME.npy`` per image
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from reprlib import repr as short
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from corollout.errors import InputError
from corollout.tasks.captioning.captions import read_names

_WINDOW = 1024  # rows read at a time


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
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, BadZipFile, zlib.error, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
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
        raise InputError(f"{path} has no features")
    _check_different(path, names)

    def vector(index: int) -> np.ndarray:
        with _reading(path):
            array = load(index)
        if array.size == 0 or array.size != max(array.shape, default=0):
            raise InputError(f"{path}: expected a vector for {names[index]!r}, not an array of shape {array.shape}")
        return _converted(array.reshape(-1), _stored_dtype(f"{path}, {names[index]!r}", array.dtype))

    first = vector(0)

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
    known = read_names(names)

    def mapped() -> Any:
        # Mapped again for each read, so that earlier rows do not stay in memory.
        return np.load(path, mmap_mode="r", allow_pickle=False)

    with _reading(path):
        array = mapped()
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is not a .npy file, despite its name")
    if len(array.shape) == 2 and len(known) != array.shape[0]:
        raise InputError(f"{names} has {len(known):,} names, but {path} has {array.shape[0]:,} rows")
    return _table(path, known, array.shape, array.dtype, lambda first, end: mapped()[first:end])


def _npz(path: Path) -> Features:
    zipped = ZipFile(path)  # first, because NumPy leaves a damaged file open
    archive = np.load(path, allow_pickle=False)
    if set(archive.files) != {"features", "names"}:
        return _separate(path, archive.files, lambda index: archive[archive.files[index]])
    file = zipped.open("features.npy")
    version = np.lib.format.read_magic(file)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, by_columns, dtype = header(file)
    if by_columns or dtype.hasobject:
        raise InputError(f"{path}: save the features as one array of numbers in row-major order")
    start = file.tell()

    def read(first: int, end: int) -> np.ndarray:
        size = dtype.itemsize * shape[1]
        file.seek(start + first * size)  # forwards, so that nothing is decompressed twice
        data = file.read((end - first) * size)
        if len(data) < (end - first) * size:
            raise EOFError
        return np.frombuffer(data, dtype).reshape(end - first, shape[1])

    return _table(path, _texts(path, archive["names"]), shape, dtype, read)


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
        return _separate(path, keys, lambda index: _array(file.get_tensor(keys[index])))
    if len(keys) != 1:
        raise InputError(f"{path}: with names in the metadata there must be one array, not {len(keys)}")
    rows = file.get_slice(keys[0])
    names = json.loads(listed) if listed.lstrip().startswith("[") else listed.split("\n")
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
    if set(keys) != {"features", "names"}:
        return _separate(path, keys, lambda index: np.asarray(file[keys[index]]))
    names, rows = np.asarray(file["names"].asstr()), file["features"]
    return _table(path, _texts(path, names), rows.shape, rows.dtype, lambda first, end: rows[first:end])


def _folder(path: Path) -> Features:
    files = sorted(entry for entry in path.iterdir() if entry.suffix == ".npy")
    names = [file.name.removesuffix(".npy") for file in files]

    def load(index: int) -> np.ndarray:
        with _reading(files[index]):
            return np.load(files[index], allow_pickle=False)

    return _separate(path, names, load)
