"""Features of many image files: in memory, or in one file by work that can be killed and resumed.

Beside ``features.npy`` are ``features_names.txt``, the image name of each row, and ``features.json``, the network and
the files they were made from. Until all is done, the rows are in ``features.npy.part``; each line of
``features.npy.part.jsonl`` records a batch of them, written when the rows are safely on disk.
"""

import fcntl
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, TypeGuard

import numpy as np
import torch
from jaxtyping import Float32

from corollout.errors import InputError, Interrupted
from corollout.events import Callback, Progress, ignore
from corollout.files import append, os_errors, write_file, write_json
from corollout.json_text import decode_json
from corollout.tasks.captioning.networks import Network, read_image

_MOST_THREADS = 8  # decoding with more is no faster than a network on the same machine


@dataclass(frozen=True)
class Extracted:
    """The features of image files, and the problems of files that were skipped."""

    paths: list[Path]
    rows: Float32[np.ndarray, "image width"]
    bad: dict[Path, str]


def extract(
    paths: Sequence[Path], network: Network, batch: int = 32, skip_bad: bool = False, on_event: Callback = ignore
) -> Extracted:
    """The features of image files, all in memory; an invalid image is an error, or skipped with ``skip_bad``."""
    whole = Extracted([], np.empty((0, network.width), np.float32), {})
    rows, progress = [whole.rows], Progress(on_event, "images", len(paths))
    for part in extract_batches(paths, network, batch, skip_bad):
        whole.paths.extend(part.paths)
        whole.bad.update(part.bad)
        rows.append(part.rows)
        progress.advance(len(part.paths) + len(part.bad))
    return replace(whole, rows=np.concatenate(rows))


def extract_batches(
    paths: Sequence[Path], network: Network, batch: int = 32, skip_bad: bool = False
) -> Iterator[Extracted]:
    """The same, ``batch`` files at a time; the next batch is decoded while the network computes."""
    if batch < 1:
        raise InputError(f"a batch must have at least one image, not {batch}")
    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS), thread_name_prefix="decoding")

    def begin(start: int) -> list[tuple[Path, Future[np.ndarray]]]:
        chosen = paths[start : start + batch]
        return [(path, pool.submit(lambda path: network.prepare(read_image(path)), path)) for path in chosen]

    try:
        ahead = begin(0)
        for start in range(0, len(paths), batch):
            current, ahead = ahead, begin(start + batch)
            yield _extract(current, network, skip_bad)
    finally:
        pool.shutdown(cancel_futures=True)


def _extract(decoding: list[tuple[Path, Future[np.ndarray]]], network: Network, skip_bad: bool) -> Extracted:
    good: list[Path] = []
    pixels: list[np.ndarray] = []
    bad: dict[Path, str] = {}
    for path, future in decoding:
        try:
            pixels.append(future.result())
            good.append(path)
        except InputError as error:
            if not skip_bad:
                raise InputError(f"{error}; repair or remove it, or skip such files with --skip-bad") from error
            bad[path] = str(error)
    expected = len(pixels), network.width
    rows = np.empty(expected, np.float32)
    if pixels:
        rows = network(torch.from_numpy(np.stack(pixels))).numpy()
    if rows.shape != expected or rows.dtype != np.float32:
        returned = f"returned {rows.dtype} {rows.shape} for {len(pixels)} images"
        raise InputError(f"the network {network.name} {returned}, not float32 {expected}")
    return Extracted(good, rows, bad)


@dataclass(frozen=True)
class FeatureFile:
    """A file of features, and the problem of each image that was skipped."""

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
    on_event: Callback = ignore,
) -> FeatureFile:
    """Write the features of image files to a ``.npy`` file, or resume a call for the same files that was killed.

    The resulting bytes are the same. An invalid image is an error, or skipped with ``skip_bad``. The first progress
    event counts the images that were done before.
    """
    target = Path(out)
    if target.suffix != ".npy":
        raise InputError(f"features are written to a .npy file, not to {target}")
    names = [path.name for path in paths]
    _check_names(names)
    task = {"network": network.name, "side": network.side, "width": network.width, "files": _digest(paths)}
    progress = Progress(on_event, "images", len(paths))
    if not target.exists():
        with ExitStack() as handles:
            partial = _Partial(target, task, names, handles)
            progress.report(partial.files)
            _check_bad(partial.bad, skip_bad)
            try:
                for part in extract_batches(paths[partial.files :], network, batch, skip_bad):
                    partial.add(part)
                    progress.report(partial.files)
            except KeyboardInterrupt:
                done = f"{partial.files:,} of {len(paths):,} images"
                raise Interrupted(f"stopped after {done}; run the same command again to continue") from None
            kept = [name for name in names if name not in partial.bad]
            if not kept:
                raise InputError(f"none of {len(paths)} images is readable; the first: {partial.bad[names[0]]}")
            partial.finish(kept)
    about = _read_about(target)
    if {key: about.get(key) for key in task} != task or not _are_problems(about.get("bad"), names):
        raise InputError(f"{target} exists and was made from other images or by another network: choose another --out")
    with _writing(target):
        _record_path(target).unlink(missing_ok=True)
    _check_bad(about["bad"], skip_bad)
    progress.report(len(paths))
    return FeatureFile(target, _names_path(target), len(paths) - len(about["bad"]), about["bad"])


def network_of(path: Path) -> str | None:
    """The name of the network that made the features in a file, if known."""
    about = _read_about(path) if path.suffix == ".npy" else {}
    return name if isinstance(name := about.get("network"), str) else None


class _Partial:
    """The rows of an unfinished file, and the record of what is done; ``handles`` keeps both open."""

    def __init__(self, target: Path, task: dict[str, Any], names: Sequence[str], handles: ExitStack):
        self._target, self._task, self._names = target, task, names
        self._rows_path, record_path = target.with_name(f"{target.name}.part"), _record_path(target)
        self.files = 0
        self.bad: dict[str, str] = {}
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._record = handles.enter_context(record_path.open("a+b", buffering=0))
            try:
                fcntl.flock(self._record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"another process is writing {target}: wait for it or choose another --out") from error
            if target.exists():
                record_path.unlink(missing_ok=True)
                raise InputError(f"another process has just written {target}: run the command again to see it")
            if not self._record.seek(0, os.SEEK_END):  # nothing is overwritten that an earlier call did not write
                for path in (_names_path(target), target.with_suffix(".json")):
                    if path.exists():
                        record_path.unlink()
                        raise InputError(f"{path} exists, and belongs to {target}: choose another --out, or remove it")
            self._rows = handles.enter_context(self._rows_path.open("a+b", buffering=0))
            self._restore()

    def add(self, part: Extracted) -> None:
        """Append rows; if the process dies meanwhile, they do not count."""
        bad = {path.name: reason for path, reason in part.bad.items()}
        files = len(part.paths) + len(bad)
        with _writing(self._target):
            _append(self._rows, part.rows.tobytes())
            _append(self._record, _line({"files": files, "bad": bad}))
        self.files += files
        self.bad |= bad

    def finish(self, names: list[str]) -> None:
        """Write the files that belong to it, and then rename the complete file."""
        about = self._task | {"images": len(names), "bad": self.bad}
        with _writing(self._target):
            with self._rows_path.open("r+b", buffering=0) as file:
                _append(file, _header(len(names), self._task["width"]))
            write_file(_names_path(self._target), "".join(f"{name}\n" for name in names))
            write_json(self._target.with_suffix(".json"), about)
            os.replace(self._rows_path, self._target)

    def _restore(self) -> None:
        """Count what is done, and cut off what was begun after that."""
        self._record.seek(0)
        lines = self._record.read().splitlines(keepends=True)
        if not lines or _parsed(lines[0]) is None:
            lines = [_line(self._task)]
            self._record.truncate(0)
            _append(self._record, lines[0])
        elif _parsed(lines[0]) != self._task:
            advice = f"remove it and {_record_path(self._target).name}, or choose another --out"
            raise InputError(f"{self._rows_path} was begun with other images or another network: {advice}")
        size, header = os.fstat(self._rows.fileno()).st_size, _header(0, self._task["width"])
        if size < len(header):
            self._rows.truncate(0)
            _append(self._rows, header)
        record_end, rows_end = len(lines[0]), len(header)
        for line in lines[1:]:
            done = _parsed(line)
            files, bad = (done.get(name) for name in ("files", "bad")) if isinstance(done, dict) else (None, None)
            if type(files) is not int or not 0 < files <= len(self._names) - self.files:
                break
            if not _are_problems(bad, self._names[self.files : self.files + files]):
                break
            after = rows_end + (files - len(bad)) * 4 * self._task["width"]
            if after > size:
                break
            self.files += files
            self.bad |= bad
            record_end, rows_end = record_end + len(line), after
        self._record.truncate(record_end)
        self._rows.truncate(rows_end)


def _names_path(target: Path) -> Path:
    return target.with_name(f"{target.stem}_names.txt")


def _record_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.part.jsonl")


def _header(rows: int, width: int) -> bytes:
    """The header of a .npy file; NumPy pads it, so its length does not depend on the number of rows."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    return header.getvalue()


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"


def _parsed(line: bytes) -> Any:
    """The content of a line of the record; None if the line is incomplete."""
    try:
        return decode_json(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None


def _are_problems(bad: Any, names: Sequence[str]) -> TypeGuard[dict[str, str]]:
    """Whether this says of some of the images why they were skipped."""
    return isinstance(bad, dict) and bad.keys() <= set(names) and all(isinstance(why, str) for why in bad.values())


def _append(file: IO[bytes], data: bytes) -> None:
    append(file, data)
    os.fsync(file.fileno())


def _writing(target: Path) -> AbstractContextManager[None]:
    return os_errors(f"write {target}", "make room, or choose another --out", "the same command continues")


def _check_names(names: Sequence[str]) -> None:
    """Each name must be a line of its own in a file of names."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"two images have the name {name!r}: rename one of them")
        if name != name.strip() or "\n" in name or name.encode("utf-8", "ignore").decode() != name:
            raise InputError(f"the image name {name!r} is not a valid line of text: rename the file")


def _digest(paths: Sequence[Path]) -> str:
    """A digest of the names, sizes and times of files."""
    total = blake2b(digest_size=20)
    for path in paths:
        with os_errors(f"read the image {path}"):
            facts = path.stat()
        total.update(f"{path.name}\n{facts.st_size}\n{facts.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _read_about(target: Path) -> dict[str, Any]:
    """The content of a file's ``.json``; empty if there is none, or something else."""
    try:
        about = decode_json(target.with_suffix(".json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _check_bad(bad: dict[str, str], skip_bad: bool) -> None:
    if bad and not skip_bad:
        raise InputError(f"{next(iter(bad.values()))}; it was skipped before: continue with --skip-bad")
