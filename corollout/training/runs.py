"""One run, one directory: its settings, what it measured, and the checkpoints from which it can be resumed.

``config.toml``, ``metrics.jsonl``, ``events/`` for TensorBoard, ``checkpoints/``, ``best.safetensors``,
``summary.json`` when it is finished, and ``lock``, which the writer holds. A run that is killed at any instant can be
resumed; what it recorded after its last checkpoint is then dropped, because it will be recorded again.
"""

import fcntl
import importlib
import json
import math
import os
import time
import weakref
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from corollout.config import read_toml, toml_text
from corollout.errors import InputError
from corollout.events import Callback, ignore, warning
from corollout.files import make_folder, os_errors, read_bytes, read_json, write_file, write_json
from corollout.training.checkpoints import State, newest_checkpoint, write_checkpoint


class Run:
    """A run directory: ``with Run.create(directory, config) as run: …`` or ``Run.open(directory, resume=True)``.

    A writer holds the lock of the directory until it closes or dies; readers need none, even while a run is written.
    """

    def __init__(self, directory: Path, config: dict[str, Any], lock: "_Lock | None"):
        self.directory, self.config = directory, config
        self._lock = lock
        self._metrics: IO[bytes] | None = None
        self._events: _EventFile | None = None
        self._purge_step: int | None = None

    @classmethod
    def create(cls, directory: Path | str, config: dict[str, Any]) -> "Run":
        """Begin a run in a directory that holds none."""
        directory = Path(directory)
        text = toml_text(config)
        require_no_run(directory)
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            lock = _Lock(directory)
        try:
            require_no_run(directory)  # another process may have been faster
            make_folder(directory / "events")
            write_file(directory / "config.toml", text)  # last: a directory with a config.toml holds a run
            return cls(directory, read_toml(directory / "config.toml"), lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(cls, directory: Path | str, resume: bool = False) -> "Run":
        """Open an existing run: to resume it (then call :meth:`load` first), or only to read it."""
        directory = Path(directory)
        if not (directory / "config.toml").exists():
            raise InputError(f"{directory} is not a run directory: it has no config.toml")
        config = read_toml(directory / "config.toml")
        if not resume:
            return cls(directory, config, None)
        with _writing(directory):
            return cls(directory, config, _Lock(directory))

    @property
    def best(self) -> Path:
        """The file of the weights that were best on the validation data."""
        return self.directory / "best.safetensors"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def summary(self) -> dict[str, Any] | None:
        """What :meth:`finish` wrote; None if the run is not finished."""
        path = self.directory / "summary.json"
        return read_json(path, "remove it to resume the run") if path.exists() else None

    def log(self, kind: str, record: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``, and its numbers to TensorBoard at the step ``record["update"]``.

        Infinities and NaN, which JSON does not have, become null.
        """
        if "kind" in record:
            raise InputError("a record must not have an entry 'kind': it is an argument of its own")
        entries = _finite({"kind": kind, **record})
        line = json.dumps(entries, allow_nan=False) + "\n"
        metrics = self._metrics_file()
        with _writing(self.directory):
            metrics.write(line.encode())
            metrics.flush()
            update = record.get("update")
            if isinstance(update, int):
                numbers = {
                    f"{kind}/{name}": float(value)
                    for name, value in entries.items()
                    if isinstance(value, int | float) and not isinstance(value, bool) and name != "update"
                }
                self._events = self._events or _EventFile(self.directory / "events", self._purge_step)
                self._events.scalars(update, numbers)

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All records of a kind, or of every kind, in their order. An incomplete last line is left out."""
        path = self.directory / "metrics.jsonl"
        lines = read_bytes(path).split(b"\n")[:-1] if path.exists() else []
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number} is not valid JSON ({error})") from error
            if kind is None or record["kind"] == kind:
                records.append(record)
        return records

    def save(self, step: int, state: State) -> None:
        """Write a checkpoint after ``step`` updates, together with the length of the metrics at that point."""
        metrics = self._metrics_file()
        with _writing(self.directory):
            metrics.flush()
            os.fsync(metrics.fileno())
            length = os.fstat(metrics.fileno()).st_size
        write_checkpoint(self.checkpoints, step, State(state.tensors, {"metrics": length, "state": state.values}))

    def load(self, on_event: Callback = ignore) -> tuple[int, State] | None:
        """Step and state of the newest complete checkpoint; None if the run was stopped before its first.

        If the run is resumed, all records after the checkpoint are dropped.
        """
        checkpoint = newest_checkpoint(self.checkpoints, on_event)
        step, length = (-1, 0) if checkpoint is None else (checkpoint[0], checkpoint[1].values["metrics"])
        if self._lock is not None:
            metrics = self._metrics_file()
            if os.fstat(metrics.fileno()).st_size < length:
                path = self.directory / "metrics.jsonl"
                on_event(warning(f"{path} is shorter than at the checkpoint: some records are lost"))
            else:
                metrics.truncate(length)
            if self._events is not None:
                self._events.close()
            self._events, self._purge_step = None, step + 1
        if checkpoint is None:
            return None
        return step, State(checkpoint[1].tensors, checkpoint[1].values["state"])

    def finish(self, summary: dict[str, Any]) -> None:
        """Record that the run is complete, and its results."""
        self._require_writer()
        write_json(self.directory / "summary.json", _finite(summary))

    def close(self) -> None:
        """Close all files and release the lock; closing again does nothing."""
        for resource in (self._metrics, self._events, self._lock):
            if resource is not None:
                resource.close()
        self._metrics = self._events = self._lock = None

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_writer(self) -> None:
        if self._lock is None:
            raise InputError(f"the run {self.directory} is closed, or was opened for reading only")

    def _metrics_file(self) -> IO[bytes]:
        self._require_writer()
        if self._metrics is None:
            with _writing(self.directory):
                self._metrics = (self.directory / "metrics.jsonl").open("ab")
                # A sudden stop may leave a last line without an end.
                self._metrics.truncate((self.directory / "metrics.jsonl").read_bytes().rfind(b"\n") + 1)
        return self._metrics


class _Lock:
    """The lock of a run directory. The kernel releases it when its holder dies."""

    def __init__(self, directory: Path):
        self._file: IO[str] | None = (directory / "lock").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise InputError(
                    f"run directory {directory} is in use by {holder or 'another process'}; "
                    f"wait for it, stop it, or choose another directory"
                ) from None
            raise
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} (since {datetime.now().isoformat(' ', 'seconds')})\n")
        self._file.flush()
        _locks.add(self)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_locks: "weakref.WeakSet[_Lock]" = weakref.WeakSet()


def _release_locks() -> None:
    """A forked process must not hold the lock of its parent, which it may outlive."""
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_release_locks)


class _EventFile:
    """A file of TensorBoard events, written immediately and without a thread, so that a kill loses nothing."""

    def __init__(self, folder: Path, purge_step: int | None):
        # Imported here: readers do not need it. Its classes are generated at run time, invisible to a type checker.
        writer: Any = importlib.import_module("tensorboardX.event_file_writer")
        self._event: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        folder.mkdir(exist_ok=True)
        # Names contain seconds: the number keeps a quick restart from overwriting the previous file.
        number = len(list(folder.iterdir()))
        self._writer: Any = writer.EventsWriter(str(folder / "events"), f".{number:04d}")
        if purge_step is not None:
            # TensorBoard then hides what earlier files have for this step and later ones.
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(step=purge_step, session_log=start)

    def scalars(self, step: int, numbers: dict[str, float]) -> None:
        entries = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        self._write(step=step, summary=self._summary(value=entries))

    def close(self) -> None:
        self._writer.close()

    def _write(self, **entries: Any) -> None:
        self._writer.write_event(self._event.Event(wall_time=time.time(), **entries))
        self._writer.flush()


def require_no_run(directory: Path) -> None:
    """A new run needs a directory that holds none."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is not a directory: choose another one for the run")
    for name in ("config.toml", "metrics.jsonl", "checkpoints"):
        if (directory / name).exists():
            raise InputError(
                f"{directory} already holds a run ({name}): resume it with --resume, or choose another directory"
            )


def _writing(directory: Path) -> AbstractContextManager[None]:
    return os_errors(f"write to the run directory {directory}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
