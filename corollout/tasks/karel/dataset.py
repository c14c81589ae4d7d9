"""Karel tasks in arrays, and the cache that makes opening a large file of them quick."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corollout.errors import InputError
from corollout.tasks.digests import digest
from corollout.tasks.karel.grids import Grids
from corollout.tasks.karel.records import Form, read_records, resized, write_records

_VERSION = 1
_ARRAYS = ("tokens", "lengths", "input_cells", "input_hero", "output_cells", "output_hero", "ids")


SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class KarelData:
    """Tasks: a program, and the worlds that it turns into others, the last pair of which is held out."""

    tokens: np.ndarray  # uint8[task, longest], padded with PAD
    lengths: np.ndarray  # int64[task]
    inputs: Grids  # [task, example]
    outputs: Grids  # [task, example]
    ids: np.ndarray  # int64[task], all different

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def side(self) -> int:
        """The side of the grids, frame included."""
        return self.inputs.side

    @property
    def examples(self) -> int:
        """How many pairs of worlds each task has."""
        return self.inputs.hero.shape[1]

    @classmethod
    def from_arrays(
        cls, tokens: np.ndarray, lengths: np.ndarray, inputs: Grids, outputs: Grids, ids: np.ndarray | None = None
    ) -> "KarelData":
        """Tasks from arrays of one's own, whose shapes are checked; ids are the places unless they are given."""
        count = len(lengths)
        ids = np.arange(count) if ids is None else ids
        shapes = {"tokens": tokens.shape[:1], "lengths": lengths.shape, "inputs": inputs.hero.shape[:1]}
        shapes |= {"outputs": outputs.hero.shape[:1], "ids": ids.shape}
        wrong = [name for name, shape in shapes.items() if shape != (count,)]
        if wrong:
            raise InputError(f"{wrong[0]} must have one entry for each of the {count} tasks, not {shapes[wrong[0]]}")
        if inputs.cells.shape != outputs.cells.shape or inputs.hero.shape != outputs.hero.shape:
            raise InputError(f"inputs {inputs.cells.shape} and outputs {outputs.cells.shape} must be of one shape")
        if len(np.unique(ids)) != count:
            raise InputError("the ids of tasks must be different")
        return cls(tokens, lengths.astype(np.int64), inputs, outputs, ids.astype(np.int64))

    @classmethod
    def open(
        cls,
        path: Path | str,
        side: int | None = None,
        skip_bad: bool = False,
        warn: Callable[[str], None] = lambda text: None,
        cache: Path | str | None = None,
    ) -> "KarelData":
        """The tasks of a file in the public JSON-lines form.

        Grids have the ``side`` that the largest world needs, or the given one. A bad line is an error, or is left out
        with ``skip_bad``. What was read is kept in a folder FILE.cache, beside the file or in ``cache``, and taken from
        there as long as the file stays as it is.
        """
        source = Path(path)
        folder = _cache_of(source, cache)
        digest = _digest(source)
        found = _load(folder, digest, warn)
        if found is None or (found[1] and not skip_bad):
            read = read_records(source, skip_bad)
            found = cls(read.tokens, read.lengths, read.inputs, read.outputs, read.ids), len(read.bad)
            try:
                found[0].keep(folder, digest, len(read.bad))
            except OSError as error:
                warn(f"cannot write the cache {folder} ({error.strerror}), so {source} will be read again next time")
        data, bad = found
        if bad:
            warn(f"{source}: left out {bad} bad lines of {bad + len(data)}")
        return data if side is None or side == data.side else data.resized(side, source)

    def keep(self, folder: Path, digest: str, bad: int = 0) -> None:
        """Write the cache of a file with this digest: either the whole of it is there in the end or nothing."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            digests = {}
            for name, array in zip(_ARRAYS, self._arrays(), strict=True):
                np.save(temporary / f"{name}.npy", np.ascontiguousarray(array))
                digests[name] = _digest(temporary / f"{name}.npy")
            meta = {"version": _VERSION, "source": digest, "bad_lines": bad, "side": self.side, "arrays": digests}
            (temporary / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
            temporary.chmod(0o755)
            if folder.exists():
                strange = {entry.name for entry in folder.iterdir()} - {
                    "meta.json",
                    *(f"{name}.npy" for name in _ARRAYS),
                }
                if strange:
                    raise InputError(f"{folder} holds {min(strange)!r}, which is no part of a cache: move it away")
                shutil.rmtree(folder)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        worlds = (self.inputs.cells, self.inputs.hero, self.outputs.cells, self.outputs.hero)
        return self.tokens, self.lengths, *worlds, self.ids

    def write(
        self, path: Path | str, forms: Form = "tensor", on_progress: Callable[[int], None] = lambda done: None
    ) -> None:
        """Write a file in the public JSON-lines form, and its cache beside it."""
        target = Path(path)
        write_records(target, self.tokens, self.lengths, self.inputs, self.outputs, self.ids, forms, on_progress)
        self.keep(_cache_of(target), _digest(target))

    def subset(self, count: int) -> "KarelData":
        """The first tasks."""
        if not 0 < count <= len(self):
            raise InputError(f"there are {len(self)} tasks: cannot take the first {count}")
        first = slice(count)
        return KarelData(
            self.tokens[first], self.lengths[first], self.inputs[first], self.outputs[first], self.ids[first]
        )

    def resized(self, side: int, source: object = "the data set") -> "KarelData":
        """The same worlds in grids of another side."""
        try:
            inputs, outputs = resized(self.inputs, side), resized(self.outputs, side)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
        return KarelData(self.tokens, self.lengths, inputs, outputs, self.ids)


def _cache_of(source: Path, place: Path | str | None = None) -> Path:
    return Path(place or source.parent) / f"{source.name}.cache"


def _digest(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _load(folder: Path, digest: str, warn: Callable[[str], None]) -> tuple[KarelData, int] | None:
    """What the cache of a file with this digest holds, and how many bad lines were left out; None if it is no use."""
    if not folder.exists():
        return None
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text("utf-8"))
        if meta["version"] != _VERSION or meta["source"] != digest:
            return None
        if any(_digest(folder / f"{name}.npy") != meta["arrays"][name] for name in _ARRAYS):
            raise InputError("an array is not what was written")
        # Copy on write: PyTorch warns of arrays that it must not write to.
        tokens, lengths, *worlds, ids = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in _ARRAYS)
        return KarelData(tokens, lengths, Grids(*worlds[:2]), Grids(*worlds[2:]), ids), int(meta["bad_lines"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        warn(f"the cache {folder} is damaged ({error}) and is made again")
        return None
