"""Karel tasks in arrays, their files, and the cache by which a large file opens quickly."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corollout.arrays import read_array
from corollout.errors import InputError
from corollout.events import Callback, Progress, ignore, warning
from corollout.files import atomic_file, file_digest, os_errors, read_json
from corollout.folders import temporary_folder
from corollout.tasks.karel.grids import Grids, needed_side, resized, stacked
from corollout.tasks.karel.language import TOKENS
from corollout.tasks.karel.machine import Programs
from corollout.tasks.karel.records import digest_number, read_record, write_record
from corollout.tasks.karel.settings import Form

_VERSION = 1
_ARRAYS = {  # and their types and numbers of dimensions
    "tokens": (np.uint8, 2),
    "lengths": (np.int64, 1),
    "input_cells": (np.uint8, 4),
    "input_hero": (np.int16, 3),
    "output_cells": (np.uint8, 4),
    "output_hero": (np.int16, 3),
    "ids": (np.int64, 1),
}
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class KarelData:
    """Tasks: a program, and pairs of worlds before and after it, the last of which is held out."""

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

    def check(self) -> None:
        """Raise an error unless every program and every world is valid and all arrays agree."""
        programs, count = Programs(self.tokens, self.lengths), len(self)
        self.inputs.check()
        self.outputs.check()
        same = self.inputs.cells.shape == self.outputs.cells.shape
        if not count or self.inputs.hero.ndim != 3 or len(self.inputs.hero) != count or not same or self.examples < 2:
            raise InputError("its arrays have different shapes, or are empty")
        if (self.tokens >= len(TOKENS)).any() or not programs.valid().all():
            raise InputError("it has tokens that are not a program")
        if self.ids.shape != (count,) or self.ids.dtype != np.int64 or len(np.unique(self.ids)) < count:
            raise InputError("its ids are not all different")

    @classmethod
    def open(
        cls, path: Path, side: int | None = None, skip_bad: bool = False, on_event: Callback = ignore
    ) -> "KarelData":
        """The tasks of a file in the public JSON-lines format.

        Grids have the given ``side``, or that of the largest world. A bad line is an error, unless ``skip_bad``. The
        arrays are cached in a folder FILE.cache beside the file, for as long as the file does not change.
        """
        cache, digest = _cache(path), _digest(path)
        data, bad = _load(cache, digest, on_event) or (None, 0)
        if data is None or (bad and not skip_bad):
            data, errors = read_records(path, skip_bad)
            bad = len(errors)
            try:
                data._write_cache(cache, digest, bad)
            except (OSError, InputError) as error:
                reason = getattr(error, "strerror", None) or error
                on_event(warning(f"cannot write the cache {cache} ({reason}): {path} will be read again next time"))
        if bad:
            on_event(warning(f"{path}: skipped {bad} bad lines of {bad + len(data)}"))
        if side in (None, data.side):
            return data
        try:
            inputs, outputs = resized(data.inputs, side), resized(data.outputs, side)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        return cls(data.tokens, data.lengths, inputs, outputs, data.ids)

    def write(self, path: Path, forms: Form = "tensor", on_event: Callback = ignore) -> None:
        """Write a file in the public JSON-lines format, which appears when it is complete, and its cache beside it."""
        progress = Progress(on_event, f"writing {path.name}", len(self))
        with os_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as file:
                for row, length in enumerate(self.lengths):
                    program, worlds = self.tokens[row, :length], (self.inputs[row], self.outputs[row])
                    file.write(write_record(program, int(self.ids[row]), *worlds, forms).encode() + b"\n")
                    progress.advance()
        with os_errors(f"write the cache of {path}"):
            self._write_cache(_cache(path), _digest(path))

    def _write_cache(self, folder: Path, digest: str, bad: int = 0) -> None:
        """Write the cache of a file with this digest, all of it or nothing."""
        worlds = (self.inputs.cells, self.inputs.hero, self.outputs.cells, self.outputs.hero)
        arrays = dict(zip(_ARRAYS, (self.tokens, self.lengths, *worlds, self.ids), strict=True))
        with temporary_folder(folder) as temporary:
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", np.ascontiguousarray(array))
            digests = {name: _digest(temporary / f"{name}.npy") for name in arrays}
            meta = {"version": _VERSION, "source": digest, "bad_lines": bad, "side": self.side, "arrays": digests}
            (temporary / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
            if folder.exists():
                expected = {"meta.json", *(f"{name}.npy" for name in _ARRAYS)}
                if other := {entry.name for entry in folder.iterdir()} - expected:
                    raise InputError(f"{folder} holds {min(other)!r}, which is not part of a cache: move it away")
                shutil.rmtree(folder)
            temporary.rename(folder)


def read_records(path: Path, skip_bad: bool = False) -> tuple[KarelData, list[str]]:
    """The tasks of a file, and an error for each bad line; unless ``skip_bad``, the first of them is raised."""
    bad: list[str] = []
    programs: list[list[int]] = []
    ids: dict[int, None] = {}
    worlds: list[Grids] = []
    with os_errors(f"read {path}"), path.open("rb") as file:
        for line_number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                program, number, grids = read_record(line)
                if worlds and len(grids.hero) != len(worlds[0].hero):
                    raise InputError(f"{len(grids.hero)} examples, but earlier records have {len(worlds[0].hero)}")
            except InputError as error:
                bad.append(f"{path}, line {line_number}: {error}")
                if not skip_bad:
                    raise InputError(bad[-1]) from error
                continue
            while number in ids:  # all ids are different
                number = digest_number(number.to_bytes(8, "little", signed=True))
            ids[number] = None
            programs.append(program)
            worlds.append(grids)
    if not programs:
        raise InputError(f"{path}: no records" + (f" but {len(bad)} bad lines, the first: {bad[0]}" if bad else ""))
    packed, both = Programs.pack(programs), stacked(worlds)
    both = resized(both, needed_side(both))
    inputs, outputs = (
        Grids(np.ascontiguousarray(both.cells[:, :, which]), np.ascontiguousarray(both.hero[:, :, which]))
        for which in (0, 1)
    )
    return KarelData(packed.tokens, packed.lengths, inputs, outputs, np.array(list(ids), np.int64)), bad


def find_file(folder: Path, split: str) -> Path | None:
    """The file of a split, which may be called SPLIT.jsonl or, as the public ones, SPLIT.json."""
    paths = (folder / f"{split}{ending}" for ending in (".jsonl", ".json"))
    return next((path for path in paths if path.exists()), None)


def _cache(path: Path) -> Path:
    return path.with_name(f"{path.name}.cache")


def _digest(path: Path) -> str:
    with os_errors(f"read {path}"):
        return file_digest(path)


def _load(folder: Path, digest: str, on_event: Callback) -> tuple[KarelData, int] | None:
    """The cached tasks of a file with this digest, and the number of bad lines; None if there is no valid cache."""
    if not folder.exists():
        return None
    try:
        meta = read_json(folder / "meta.json")
        if not isinstance(meta, dict) or not isinstance(meta.get("arrays"), dict):
            raise InputError("meta.json does not describe a cache")
        if meta.get("version") != _VERSION or meta.get("source") != digest:
            return None
        if any(_digest(folder / f"{name}.npy") != meta["arrays"].get(name) for name in _ARRAYS):
            raise InputError("an array has changed since it was written")
        # Copy on write, because PyTorch warns of read-only arrays.
        arrays = [read_array(folder / f"{name}.npy", dtype, ndim, "c") for name, (dtype, ndim) in _ARRAYS.items()]
        tokens, lengths, *worlds, ids = arrays
        data, bad = KarelData(tokens, lengths, Grids(*worlds[:2]), Grids(*worlds[2:]), ids), meta.get("bad_lines")
        data.check()
        if type(bad) is not int or bad < 0 or meta.get("side") != data.side:
            raise InputError("meta.json and the arrays do not agree")
        return data, bad
    except InputError as error:
        on_event(warning(f"the cache {folder} is damaged ({error}) and will be rebuilt"))
        return None
