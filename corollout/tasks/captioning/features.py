"""Features of images from the files that people keep them in, a few rows at a time.

A file has one array with a row for each image and the images' names beside it (``Table``), or an array for each image
under its name (``Separate``). Which of both, and how, is known by the file's ending:

- ``.npy``: one array; names are the lines of a text file
- ``.npz``: the arrays ``features`` and ``names``, or one array for each image
- ``.safetensors``: one array and ``names`` (JSON, or one a line) in the metadata, or one array for each image
- ``.h5``, ``.hdf5``: the data sets ``features`` and ``names``, or one data set for each image
- a folder: ``NAME.npy`` for each image
"""

import json
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from reprlib import repr as short
from typing import Any, Protocol, runtime_checkable
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from corollout.errors import InputError
from corollout.tasks.captioning.files import read_names

_WINDOW = 1024  # rows that are read together


@runtime_checkable
class Features(Protocol):
    """Vectors of numbers by the names of their images."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """float16 or float32."""
        ...

    def rows(self, places: np.ndarray) -> np.ndarray:
        """The vectors of some names, whose places ascend, from one call to the next as well."""
        ...


@dataclass(frozen=True)
class Table:
    """Features in one array."""

    path: Path
    names: Sequence[str]
    width: int
    dtype: np.dtype[Any]
    read: Callable[[int, int], np.ndarray]  # the rows from one to before another

    def rows(self, places: np.ndarray) -> np.ndarray:
        windows = places // _WINDOW
        parts = [np.empty((0, self.width), self.dtype)]
        for window in np.unique(windows):
            wanted = places[windows == window]
            first, last = int(wanted[0]), int(wanted[-1])
            with _reading(self.path):
                parts.append(_converted(self.read(first, last + 1)[wanted - first], self.dtype))
        return np.concatenate(parts)


@dataclass(frozen=True)
class Separate:
    """Features in an array for each image."""

    path: Path
    names: Sequence[str]
    width: int
    dtype: np.dtype[Any]
    load: Callable[[int], np.ndarray]

    def rows(self, places: np.ndarray) -> np.ndarray:
        rows = np.empty((len(places), self.width), self.dtype)
        for row, place in zip(rows, places.tolist(), strict=True):
            vector = self.load(place)
            if len(vector) != self.width or vector.dtype.itemsize > self.dtype.itemsize:
                raise InputError(
                    f"{self.path}: the features of {self.names[place]!r} are {len(vector)} numbers of {vector.dtype}, "
                    f"but those of {self.names[0]!r} {self.width} of {self.dtype}; all must be alike"
                )
            row[:] = vector
        return rows


def open_features(path: Path, names: Path | None = None) -> Features:
    """The features in a file or a folder; ``names`` is the text file with the names of the rows of a ``.npy`` file."""
    kinds = {".npz": _npz, ".safetensors": _safetensors, ".h5": _hdf5, ".hdf5": _hdf5}
    kind = None if path.is_dir() else path.suffix
    if names is not None and kind != ".npy":
        raise InputError(f"{path} has names of its own: leave out --names")
    if not path.exists():
        raise InputError(f"cannot read the features {path}: there is no such file or folder")
    if kind == ".npy":
        return _npy(path, _names_beside(path) if names is None else names)
    if kind is None:
        return _folder(path)
    if kind not in kinds:
        raise InputError(f"features {path}: expected .npy, {', '.join(kinds)} or a folder, not {kind or 'no ending'}")
    with _reading(path):
        return kinds[kind](path)


@contextmanager
def _reading(path: Path) -> Generator[None]:
    """Whatever goes wrong with a file of features is said in one sentence."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, BadZipFile, zlib.error, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise InputError(f"cannot read the features {path}, which may be damaged or cut short: {reason}") from error


def _names_beside(path: Path) -> Path:
    own = path.with_name(f"{path.stem}_names.txt")
    found = [own] if own.exists() else sorted(path.parent.glob("*_names.txt"))
    if len(found) != 1:
        raise InputError(
            f"{path}: there is no file {own.name} beside it with the names of its rows; name it by --names"
        )
    return found[0]


def _table(
    path: Path, names: Sequence[str], shape: Sequence[int], dtype: Any, read: Callable[[int, int], np.ndarray]
) -> Table:
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"{path}: expected a row of numbers for each image, not an array of the shape {tuple(shape)}")
    if len(names) != shape[0]:
        raise InputError(f"{path}: {len(names):,} names for {shape[0]:,} rows of features; there must be as many")
    _check_different(path, names)
    return Table(path, names, shape[1], _kept(path, dtype), read)


def _separate(path: Path, names: Sequence[str], load: Callable[[int], np.ndarray]) -> Separate:
    """Features that are loaded one by one; the first say what the others have to be."""
    if not names:
        raise InputError(f"{path}: no features in it")
    _check_different(path, names)

    def vector(place: int) -> np.ndarray:
        with _reading(path):
            array = load(place)
        if array.size == 0 or array.size != max(array.shape, default=0):
            raise InputError(f"{path}: expected a vector for {names[place]!r}, not an array of the shape {array.shape}")
        return _converted(array.reshape(-1), _kept(f"{path}, {names[place]!r}", array.dtype))

    first = vector(0)
    return Separate(path, names, len(first), first.dtype, vector)


def _check_different(path: Path, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{path}: the name {name!r} is there twice")
        seen.add(name)


def _kept(where: object, dtype: Any) -> np.dtype[Any]:
    """The type in which numbers of this type are kept."""
    if np.dtype(dtype).kind not in "fiu":
        raise InputError(f"{where}: expected numbers, not {dtype}")
    return np.dtype(np.float16 if dtype == np.float16 else np.float32)


def _converted(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is then refused as such
        return array.astype(dtype, copy=False)


def _npy(path: Path, names: Path) -> Table:
    known = read_names(names)

    def mapped() -> Any:
        # Mapped anew for each read, so that what was read before does not stay in memory.
        return np.load(path, mmap_mode="r", allow_pickle=False)

    with _reading(path):
        array = mapped()
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: this is no .npy file, whatever its name says")
    if len(array.shape) == 2 and len(known) != array.shape[0]:
        raise InputError(f"{names} has {len(known):,} names, but {path} {array.shape[0]:,} rows; there must be as many")
    return _table(path, known, array.shape, array.dtype, lambda first, end: mapped()[first:end])


def _npz(path: Path) -> Features:
    with ZipFile(path):  # NumPy leaves a damaged file open
        pass
    archive = np.load(path, allow_pickle=False)
    if set(archive.files) != {"features", "names"}:
        return _separate(path, archive.files, lambda place: archive[archive.files[place]])
    rows = _Stream(path, "features.npy")
    return _table(path, _texts(path, archive["names"]), rows.shape, rows.dtype, rows.read)


class _Stream:
    """An array in a zip file, whose rows can only be read one after the other."""

    def __init__(self, path: Path, member: str):
        self._path, self._member = path, member
        self._archive = ZipFile(path)
        self._rewind()

    def _rewind(self) -> None:
        self._file = self._archive.open(self._member)
        version = np.lib.format.read_magic(self._file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        self.shape, by_columns, self.dtype = header(self._file)
        if by_columns or self.dtype.hasobject:
            raise InputError(f"{self._path}: save the features as one array of numbers, row by row")
        self._next = 0

    def read(self, first: int, end: int) -> np.ndarray:
        if first < self._next:
            self._rewind()
        size = self.dtype.itemsize * self.shape[1]
        while self._next < first:
            skipped = min(first - self._next, _WINDOW)
            self._bytes(skipped * size)
            self._next += skipped
        rows = np.frombuffer(self._bytes((end - first) * size), self.dtype)
        self._next = end
        return rows.reshape(end - first, self.shape[1])

    def _bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data


def _texts(path: Path, names: np.ndarray) -> list[str]:
    names = np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names
    if names.ndim != 1 or names.dtype.kind not in "UO":
        raise InputError(f"{path}: names: expected a list of texts, not an array of {names.dtype} {names.shape}")
    return [str(name) for name in names]


def _safetensors(path: Path) -> Features:
    file = safe_open(path, framework="pt")
    keys = list(file.keys())
    told = (file.metadata() or {}).get("names")
    if told is None:
        return _separate(path, keys, lambda place: _array(file.get_tensor(keys[place])))
    if len(keys) != 1:
        raise InputError(f"{path}: names in the metadata are for one array, but there are {len(keys)}")
    rows = file.get_slice(keys[0])
    names = json.loads(told) if told.lstrip().startswith("[") else told.split("\n")
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: expected the names of images in the metadata, not {short(names)}")
    dtype = {"F16": np.float16, "BOOL": np.bool_}.get(rows.get_dtype(), np.float32)
    return _table(path, names, rows.get_shape(), dtype, lambda first, end: _array(rows[first:end]))


def _array(tensor: torch.Tensor) -> np.ndarray:
    # NumPy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _hdf5(path: Path) -> Features:
    try:
        h5py: Any = import_module("h5py")
    except ImportError as error:
        raise InputError(f"to read {path}, the package h5py is needed: pip install 'corollout[h5]'") from error
    file = h5py.File(path, "r")
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    if set(found) != {"features", "names"}:
        return _separate(path, found, lambda place: np.asarray(file[found[place]]))
    names, rows = np.asarray(file["names"].asstr()), file["features"]
    return _table(path, _texts(path, names), rows.shape, rows.dtype, lambda first, end: rows[first:end])


def _folder(path: Path) -> Separate:
    files = sorted(entry for entry in path.iterdir() if entry.suffix == ".npy")
    names = [file.name.removesuffix(".npy") for file in files]

    def load(place: int) -> np.ndarray:
        with _reading(files[place]):
            return np.load(files[place], allow_pickle=False)

    return _separate(path, names, load)
