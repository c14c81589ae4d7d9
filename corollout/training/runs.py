"""One run, one directory: what it was told, what it measured, and where it can go on.

``config.toml``, ``metrics.jsonl``, ``events/`` for TensorBoard, ``checkpoints/``, ``best.safetensors``,
``summary.json`` when it is finished, and ``lock``, which one writer holds. Killed at any instant, a run can be opened
again; what it measured after its last checkpoint is then forgotten, because it will be measured again.
"""

import fcntl
import importlib
import json
import math
import os
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from corollout.config import read_toml, toml_text
from corollout.errors import InputError
from corollout.training.checkpoints import State, newest_checkpoint, replace_file, write_checkpoint


class Run:
    """A run directory: ``with Run.create(directory, config) as run: …`` or ``Run.open(directory, resume=True)``.

    A writer holds the lock of the directory until it closes or dies; readers need none, also while a writer is at work.
    """

    def __init__(self, directory: Path, config: dict[str, Any], lock: "_Lock | None"):
        self.directory, self.config = directory, config
        self._lock = lock
        self._metrics: IO[bytes] | None = None
        self._events: _Events | None = None
        self._purge_step: int | None = None

    @classmethod
    def create(cls, directory: Path | str, config: dict[str, Any]) -> "Run":
        """Begin a run in a directory that holds none."""
        directory = Path(directory)
        text = toml_text(config)
        refuse_a_run(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = _Lock(directory)
        except OSError as error:
            raise _cannot_write(directory, error) from error
        try:
            refuse_a_run(directory)  # another process may have been faster
            # The settings come last: with them the directory holds a run.
            (directory / "events").mkdir(exist_ok=True)
            replace_file(directory / "config.toml", text.encode())
            return cls(directory, read_toml(directory / "config.toml"), lock)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise _cannot_write(directory, error) from error
            raise

    @classmethod
    def open(cls, directory: Path | str, resume: bool = False) -> "Run":
        """Open a run that exists: to go on with it (then :meth:`load` comes first), or only to read it."""
        directory = Path(directory)
        if not (directory / "config.toml").exists():
            raise InputError(f"{directory} holds no run: it has no config.toml")
        config = read_toml(directory / "config.toml")
        if not resume:
            return cls(directory, config, None)
        try:
            return cls(directory, config, _Lock(directory))
        except OSError as error:
            raise _cannot_write(directory, error) from error

    @property
    def best(self) -> Path:
        """Where the weights that were best on the validation data are kept."""
        return self.directory / "best.safetensors"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.directory / "checkpoints"

    @property
    def finished(self) -> dict[str, Any] | None:
        """What :meth:`finish` wrote, or None."""
        path = self.directory / "summary.json"
        try:
            return json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the summary {path}: {error}; remove it if the run is to go on") from error

    def log(self, kind: str, record: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``, and the numbers in it to TensorBoard at the step ``record["update"]``.

        JSON has no infinities and nothing for what is not a number: both become null.
        """
        if "kind" in record:
            raise InputError("a record must not have an entry 'kind': its kind is given beside it")
        entries = _finite({"kind": kind, **record})
        line = json.dumps(entries, allow_nan=False) + "\n"
        metrics = self._metrics_file()
        try:
            metrics.write(line.encode())
            metrics.flush()
            update = record.get("update")
            if isinstance(update, int):
                numbers = {
                    f"{kind}/{name}": float(value)
                    for name, value in entries.items()
                    if isinstance(value, int | float) and not isinstance(value, bool) and name != "update"
                }
                self._event_file().scalars(update, numbers)
        except OSError as error:
            raise _cannot_write(self.directory, error) from error

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All records of a kind, or of every kind, in their order. A last line that is not complete is left out."""
        path = self.directory / "metrics.jsonl"
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: this is no JSON ({error})") from error
            if kind is None or record["kind"] == kind:
                found.append(record)
        return found

    def save(self, step: int, state: State, keep: int = 2) -> None:
        """Write a checkpoint after ``step`` updates, which also knows what had been measured by then."""
        metrics = self._metrics_file()
        try:
            metrics.flush()
            os.fsync(metrics.fileno())
            length = os.fstat(metrics.fileno()).st_size
        except OSError as error:
            raise _cannot_write(self.directory, error) from error
        write_checkpoint(self.checkpoints, step, State(state.tensors, {"metrics": length, "state": state.values}), keep)

    def load(self, warn: Callable[[str], None]) -> tuple[int, State] | None:
        """Step and state of the newest checkpoint that is whole; None if the run was stopped before its first.

        When the run goes on, all that was measured later is forgotten.
        """
        found = newest_checkpoint(self.checkpoints, warn)
        length, step = (0, -1) if found is None else (found[1].values["metrics"], found[0])
        if self._lock is not None:
            self._forget(length, warn)
            self._purge_step = step + 1
        if found is None:
            return None
        return step, State(found[1].tensors, found[1].values["state"])

    def finish(self, summary: dict[str, Any]) -> None:
        """Say that the run is complete, and what came out."""
        self._writer()
        text = json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n"
        try:
            replace_file(self.directory / "summary.json", text.encode())
        except OSError as error:
            raise _cannot_write(self.directory, error) from error

    def close(self) -> None:
        """Close all files and let go of the lock; closing again does nothing."""
        if self._metrics is not None:
            self._metrics.close()
        if self._events is not None:
            self._events.close()
        if self._lock is not None:
            self._lock.release()
        self._metrics = self._events = self._lock = None

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _writer(self) -> None:
        if self._lock is None:
            raise InputError(f"the run {self.directory} is closed or was opened only to be read")

    def _metrics_file(self) -> IO[bytes]:
        self._writer()
        if self._metrics is None:
            try:
                self._metrics = (self.directory / "metrics.jsonl").open("ab")
                _cut_torn_line(self._metrics)
            except OSError as error:
                raise _cannot_write(self.directory, error) from error
        return self._metrics

    def _event_file(self) -> "_Events":
        if self._events is None:
            self._events = _Events(self.directory / "events", self._purge_step)
        return self._events

    def _forget(self, length: int, warn: Callable[[str], None]) -> None:
        metrics = self._metrics_file()
        have = os.fstat(metrics.fileno()).st_size
        if have < length:
            warn(f"{self.directory / 'metrics.jsonl'} is shorter than at the checkpoint; what is missing stays missing")
        else:
            metrics.truncate(length)
        if self._events is not None:
            self._events.close()
            self._events = None


class _Lock:
    """The lock of a run directory. The kernel lets go of it when its holder dies."""

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

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_locks: "weakref.WeakSet[_Lock]" = weakref.WeakSet()


def _leave_locks() -> None:
    """A forked process must not hold the lock of its parent, whom it may outlive."""
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_leave_locks)


class _Events:
    """A file of TensorBoard events, written at once and by no thread, so that nothing waits when we are killed."""

    def __init__(self, folder: Path, purge_step: int | None):
        # Imported here: a reader does without. Their classes are made at run time, where no type checker sees them.
        writer: Any = importlib.import_module("tensorboardX.event_file_writer")
        self._event: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        folder.mkdir(exist_ok=True)
        # Names have seconds in them: the number keeps a quick restart from writing over the file before.
        number = len(list(folder.iterdir()))
        self._writer: Any = writer.EventsWriter(str(folder / "events"), f".{number:04d}")
        if purge_step is not None:
            # TensorBoard then hides what earlier files say about this step and later ones.
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


def refuse_a_run(directory: Path) -> None:
    """A new run needs a directory without one."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is no directory: choose another for the run")
    for name in ("config.toml", "metrics.jsonl", "checkpoints"):
        if (directory / name).exists():
            raise InputError(
                f"{directory} already holds a run ({name}): go on with it by --resume, or choose another directory"
            )


def _cannot_write(directory: Path, error: OSError) -> InputError:
    return InputError(f"cannot write to the run directory {directory}: {error.strerror or error}")


def _cut_torn_line(file: IO[bytes]) -> None:
    """Remove a last line without an end, which a sudden stop may leave."""
    with Path(file.name).open("rb") as reader:
        complete = reader.read().rfind(b"\n") + 1
    file.truncate(complete)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
