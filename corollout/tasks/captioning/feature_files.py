"""Features of many images into one file, by work that can be killed and goes on.

Beside ``features.npy`` are ``features_names.txt``, the name of each row's image, and ``features.json``, which network
made them of which files. Until all is done, the rows are in ``features.npy.part``; each line of
``features.npy.part.jsonl`` says what rows are there, and is written when they are safely on disk.
"""

import fcntl
import io
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.images import Extracted, Network, extract_batches


@dataclass(frozen=True)
class Written:
    """A file of features, and what is wrong with each image that it leaves out."""

    path: Path
    names: Path
    rows: int
    bad: dict[str, str]


def write_features(
    paths: Sequence[Path],
    network: Network,
    out: Path | str,
    batch: int = 32,
    skip_bad: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Written:
    """Write the features of image files to a ``.npy`` file, or go on where a call for the same files was killed.

    The bytes are the same as if it had not been. A file that is no sound image is an error, or with ``skip_bad`` left
    out. ``on_progress`` is told how many files are done, first of all how many were done before.
    """
    target = Path(out)
    if target.suffix != ".npy":
        raise InputError(f"features are written to a file that ends in .npy, not to {target}")
    names = [path.name for path in paths]
    _check_names(names)
    task = {"network": network.name, "side": network.side, "width": network.width, "files": _digest(paths)}
    if not target.exists():
        with _Partial(target, task) as partial:
            on_progress(partial.files)
            _refuse_bad(partial.bad, skip_bad)
            for part in extract_batches(paths[partial.files :], network, batch, skip_bad):
                partial.add(part)
                on_progress(partial.files)
            kept = [name for name in names if name not in partial.bad]
            if not kept:
                raise InputError(f"none of {len(paths)} images can be read; the first: {partial.bad[names[0]]}")
            partial.finish(kept)
    bad = _bad_of(target, task)
    with _writing(target):
        _record_path(target).unlink(missing_ok=True)
    _refuse_bad(bad, skip_bad)
    on_progress(len(paths))
    return Written(target, _names_path(target), len(paths) - len(bad), bad)


def network_of(path: Path) -> str | None:
    """The name of the network that made the features in a file, if this is known."""
    try:
        name = json.loads(_about_path(path).read_text("utf-8"))["network"] if path.suffix == ".npy" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


class _Partial:
    """The rows that are done so far, of a file that is not complete yet."""

    def __init__(self, target: Path, task: dict[str, Any]):
        self._target, self._task = target, task
        self._rows_path = _beside(target, ".part")
        self._record_path = _record_path(target)
        self._row_size = 4 * task["width"]
        self._offset = len(_header(0, task["width"]))
        self.files = 0
        self.bad: dict[str, str] = {}
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._handles = ExitStack()
            self._record = self._handles.enter_context(self._record_path.open("a+b"))

    def __enter__(self) -> "_Partial":
        with self._handles as handles, _writing(self._target):
            self._lock()
            self._rows = handles.enter_context(self._rows_path.open("a+b"))
            self._recall()
            self._handles = handles.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._handles.close()

    def add(self, part: Extracted) -> None:
        """Append rows; should the process die meanwhile, it is as if this had not begun."""
        bad = {path.name: reason for path, reason in part.bad.items()}
        files = len(part.paths) + len(bad)
        with _writing(self._target):
            _append(self._rows, part.rows.tobytes())
            _append(self._record, _line({"files": files, "bad": bad}))
        self.files += files
        self.bad |= bad

    def finish(self, names: list[str]) -> None:
        """Let the complete file appear, after those that belong to it."""
        about = self._task | {"images": len(names), "bad": self.bad}
        with _writing(self._target):
            with self._rows_path.open("r+b") as file:
                _append(file, _header(len(names), self._task["width"]))
            _write_whole(_names_path(self._target), "".join(f"{name}\n" for name in names))
            _write_whole(_about_path(self._target), json.dumps(about, indent=2, ensure_ascii=False) + "\n")
            os.replace(self._rows_path, self._target)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another process is writing {self._target}: wait for it or choose another --out"
            ) from error
        if self._target.exists():
            self._record_path.unlink(missing_ok=True)
            raise InputError(f"another process has just written {self._target}: give the command again to see it")

    def _recall(self) -> None:
        """Find out what is done, and cut off what was begun after that."""
        self._record.seek(0)
        lines = self._record.read().splitlines(keepends=True)
        if not lines or _parsed(lines[0]) is None:
            lines = [_line(self._task)]
            self._record.truncate(0)
            _append(self._record, lines[0])
        elif _parsed(lines[0]) != self._task:
            raise InputError(
                f"{self._rows_path} was begun with other images or another network: remove it and "
                f"{self._record_path.name}, or choose another --out"
            )
        size = os.fstat(self._rows.fileno()).st_size
        if size < self._offset:
            self._rows.truncate(0)
            _append(self._rows, _header(0, self._task["width"]))
        record_end, rows_end = len(lines[0]), self._offset
        for line in lines[1:]:
            done = _parsed(line)
            if done is None:
                break
            after = rows_end + (done["files"] - len(done["bad"])) * self._row_size
            if after > size:
                break
            self.files += done["files"]
            self.bad |= done["bad"]
            record_end, rows_end = record_end + len(line), after
        self._record.truncate(record_end)
        self._rows.truncate(rows_end)


def _names_path(target: Path) -> Path:
    return target.with_name(f"{target.stem}_names.txt")


def _about_path(target: Path) -> Path:
    return target.with_suffix(".json")


def _record_path(target: Path) -> Path:
    return _beside(target, ".part.jsonl")


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _header(rows: int, width: int) -> bytes:
    """The beginning of a .npy file: of the same length for any number of rows, because NumPy leaves room for it."""
    header = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """What a line of the record says; None if it was not written to its end."""
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None


def _append(file: Any, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _write_whole(path: Path, text: str) -> None:
    temporary = _beside(path, ".part")
    with temporary.open("wb") as file:
        _append(file, text.encode())
    os.replace(temporary, path)


@contextmanager
def _writing(target: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}; make room, or choose another --out") from error


def _check_names(names: Sequence[str]) -> None:
    """Each name must be a line of its own in a file of names."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two images have the name {name!r}: rename one of them")
        if name != name.strip() or "\n" in name or name.encode("utf-8", "ignore").decode() != name:
            raise InputError(f"the name {name!r} of an image cannot be a line of text: rename the file")
        seen.add(name)


def _digest(paths: Sequence[Path]) -> str:
    """A digest of what tells files apart without reading them."""
    total = blake2b(digest_size=20)
    for path in paths:
        try:
            facts = path.stat()
        except OSError as error:
            raise InputError(f"cannot read the image {path}: {error.strerror}") from error
        total.update(f"{path.name}\n{facts.st_size}\n{facts.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _bad_of(target: Path, task: dict[str, Any]) -> dict[str, str]:
    """The images that a complete file leaves out, if it is of the same task."""
    try:
        about = json.loads(_about_path(target).read_text("utf-8"))
        if {key: about[key] for key in task} == task:
            return about["bad"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{target} is there already, and not of these images and this network: choose another --out")


def _refuse_bad(bad: dict[str, str], skip_bad: bool) -> None:
    if bad and not skip_bad:
        raise InputError(f"{next(iter(bad.values()))}; it was left out before: go on with --skip-bad")
