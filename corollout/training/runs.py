"""One run, one directory: its settings, what it measured, and the checkpoints from which it can be resumed.

``config.toml``, ``metrics.jsonl``, ``samples.jsonl`` if samples are taken, ``events/`` for TensorBoard,
``checkpoints/``, ``best.safetensors``, ``summary.json`` when it is finished, and ``.lock`` while it is written to. A
run that is killed at any instant can be resumed; what it recorded after its last checkpoint is then dropped, because it
will be recorded again.

Of the processes of a job, the first writes. The others take the same steps: to create a run, to open it to resume it
and to load its checkpoint are calls that all of them make; what they record is dropped.
"""

import functools
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from corollout.arguments import require_instance
from corollout.config import read_toml, toml_text
from corollout.errors import InputError
from corollout.event_file import EventFile
from corollout.events import Callback, ignore, numbers_of, warning
from corollout.files import append, check_entries, os_errors, read_json, write_file, write_json
from corollout.folders import FolderLock, is_empty, settle_folder, staged
from corollout.processes import processes
from corollout.text import quoted
from corollout.training.checkpoints import State, newest_checkpoint, settle_checkpoints, write_checkpoint
from corollout.training.records import check_measurement, read_records

CONFIG = "config.toml"
METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
FIT = "fit"  # the section in which ``fit`` keeps how a run that was made in Python is trained
KINDS = ("pretrain", "finetune")


def is_of_command(config: Mapping[str, Any]) -> bool:
    """Whether a run was made on the command line, which names its kind; others were made in Python."""
    return config.get("kind") in KINDS


def kind_of(config: Mapping[str, Any]) -> Any:
    """Whether a run is a pre-training or a fine-tuning, from its settings; None if they do not say."""
    kind = config.get("kind")
    return kind if is_of_command(config) else _section(config, FIT).get("kind", kind)


def training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """How a run is trained: the section of its kind or, if it was made in Python, what ``fit`` kept."""
    return _section(config, config["kind"] if is_of_command(config) else FIT)


def _section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name, {})
    return section if isinstance(section, dict) else {}


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings without their sections, and without digests, which say nothing to people."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= {} if name == "inputs" else flat_settings(value)
        else:
            flat[name] = value
    return flat


def wrong_kind(kind: object) -> str:
    """What is wrong with a run that is neither a pre-training nor a fine-tuning."""
    if kind is None:
        return f'its {CONFIG} has no entry "kind" ("pretrain" or "finetune"), and no section "{FIT}" of a call of fit'
    return f'the entry "kind" of its {CONFIG} is {quoted(kind)}, and must be "pretrain" or "finetune"'


def _by_writer(method: Callable[..., None]) -> Callable[..., None]:
    """A method of ``Run`` that writes: in processes that follow another one, it does nothing."""

    @functools.wraps(method)
    def write(self: "Run", *arguments: Any, **options: Any) -> None:
        if self.must_write():
            method(self, *arguments, **options)

    return write


class Run:
    """A run directory: ``with Run.create(directory, config) as run: …`` or ``Run.open(directory, resume=True)``.

    A writer holds the lock of the directory until it closes or dies; readers need none, even while a run is written.
    """

    def __init__(self, directory: Path, config: dict[str, Any], lock: FolderLock | None, follows: bool = False):
        self.directory, self.config = directory, config
        self._lock, self._follows = lock, follows  # another process of the job writes
        self._lines: dict[str, IO[bytes]] = {}  # open files of records
        self._events: EventFile | None = None
        self._purge_step: int | None = None

    @classmethod
    def create(
        cls, directory: Path | str, config: dict[str, Any], fill: Callable[[Path], None] = lambda folder: None
    ) -> "Run":
        """Begin a run in a new or empty directory; ``fill`` writes what it needs besides its settings to a folder."""
        directory = _as_path(directory)
        require_instance("the settings of a run", config, Mapping, "a dict of what TOML can hold")
        return cls._of_job(directory, lambda: cls._created(directory, toml_text(config), fill))

    @classmethod
    def _created(cls, directory: Path, text: str, fill: Callable[[Path], None]) -> "Run":
        require_no_run(directory)
        lock = _lock(directory)
        try:
            _refuse_run(directory)  # another process may have been faster
            with _writing(directory), staged(directory, last=CONFIG) as folder:
                (folder / "events").mkdir()
                fill(folder)
                write_file(folder / CONFIG, text)
            return cls(directory, read_toml(directory / CONFIG), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, directory: Path | str, resume: bool = False) -> "Run":
        """Open an existing run: to resume it (then call :meth:`load` first), or only to read it."""
        directory = _as_path(directory)
        return cls._of_job(directory, lambda: cls._opened(directory, True)) if resume else cls._opened(directory, False)

    @classmethod
    def _opened(cls, directory: Path, resume: bool) -> "Run":
        if not (directory / CONFIG).is_file():
            raise InputError(f"{directory} is not a run directory: it has no {CONFIG}")
        lock = _lock(directory) if resume else None
        try:
            return cls(directory, read_toml(directory / CONFIG), lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def _of_job(cls, directory: Path, make: Callable[[], "Run"]) -> "Run":
        """The run that the first process of the job makes; the others follow it."""
        group, run = processes(), None
        with group.agreed():
            if group.is_first:
                run = make()
        text = group.from_first("" if run is None else toml_text(run.config))
        return cls(directory, tomllib.loads(text), None, follows=True) if run is None else run

    def section(self, name: str) -> dict[str, Any]:
        """A section of the settings; empty if there is none."""
        section = self.config.get(name, {})
        if not isinstance(section, dict):
            raise InputError(f"{self.directory / CONFIG}: {name} must be a section, not {section!r}")
        return section

    @property
    def task(self) -> Any:
        """The name of the run's task; an error if it has none."""
        task = self.config.get("task")
        if task is None:
            raise InputError(
                f"{self.directory} was made without a task, which has the data, the model and the reward that this "
                f'needs: describe yours in a module (docs/extending.md), and add task = "my_module:TASK" to '
                f"{self.directory / CONFIG}"
            )
        return task

    def record_training(self, entries: Mapping[str, Any]) -> None:
        """Keep how a run that was made in Python is trained, so that commands can show it."""
        self.change_settings(FIT, entries)

    def change_settings(self, section: str, entries: Mapping[str, Any]) -> None:
        """Change entries of a section of ``config.toml``."""
        writes = self.must_write()
        changed = {**self.section(section), **entries}
        if changed != self.config.get(section):
            self.config = {**self.config, section: changed}
            if writes:
                write_file(self.directory / CONFIG, toml_text(self.config))

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
        path, advice = self.directory / "summary.json", "remove it to resume the run"
        return check_entries(read_json(path, advice), path, advice) if path.exists() else None

    @_by_writer
    def log(self, kind: str, record: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``, and its numbers to TensorBoard at the step ``record["update"]``.

        Infinities and NaN, which JSON does not have, become null.
        """
        require_instance("the kind of a record", kind, str, "text")
        require_instance("a record", record, Mapping, "a dict of what JSON can hold")
        if "kind" in record:
            raise InputError("a record must not have an entry 'kind': it is an argument of its own")
        entries = _finite({"kind": kind, **record})
        self._append(METRICS, entries)
        with _writing(self.directory):
            update = record.get("update")
            if isinstance(update, int):
                numbers = {f"{kind}/{name}": value for name, value in numbers_of(entries).items()}
                self._events = self._events or EventFile(self.directory / "events", self._purge_step)
                self._events.scalars(update, numbers)

    @_by_writer
    def log_samples(self, record: dict[str, Any]) -> None:
        """Append a line to ``samples.jsonl``."""
        self._append(SAMPLES, _finite(record))

    def measurements(self) -> list[dict[str, Any]]:
        """The records of updates and evaluations: after which update, and by name numbers or None, lists or mappings of
        them.
        """
        records = [record for record in self.records() if record["kind"] in ("update", "evaluation")]
        for record in records:
            check_measurement(record, self.directory / METRICS)
        return records

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All records of a kind, or of every kind, in their order. An incomplete last line is left out."""
        records = read_records(self.directory / METRICS, kind=str)
        return [record for record in records if kind is None or record["kind"] == kind]

    def samples(self) -> list[dict[str, Any]]:
        """All samples that were taken, in their order. An incomplete last line is left out."""
        return read_records(self.directory / SAMPLES, update=int)

    @_by_writer
    def save(self, step: int, state: State) -> None:
        """Write a checkpoint after ``step`` updates, together with the lengths of metrics and samples at that point."""
        lengths = {}
        for name in (METRICS, SAMPLES):
            if name == METRICS or (self.directory / name).exists():
                file = self._lines_file(name)
                with _writing(self.directory):
                    os.fsync(file.fileno())
                    lengths[Path(name).stem] = os.fstat(file.fileno()).st_size
        write_checkpoint(self.checkpoints, step, State(state.tensors, {**lengths, "state": state.values}))

    def load(self, on_event: Callback = ignore) -> tuple[int, State] | None:
        """Step and state of the newest complete checkpoint; None if the run was stopped before its first.

        If the run is resumed, all records after the checkpoint are dropped; the processes of a job get what the first
        one reads.
        """
        if self._lock is None and not self._follows:
            return self._load(on_event)
        group, checkpoint = processes(), None
        with group.agreed():
            if not self._follows:
                checkpoint = self._load(on_event)
        if group.size == 1:
            return checkpoint
        known = group.from_first(None if checkpoint is None else [checkpoint[0], checkpoint[1].values])
        tensors = group.tensors_from_first({} if checkpoint is None else checkpoint[1].tensors)
        return None if known is None else (known[0], State(tensors, known[1]))

    def _load(self, on_event: Callback) -> tuple[int, State] | None:
        if self._lock is not None:
            settle_checkpoints(self.checkpoints)
        checkpoint = newest_checkpoint(self.checkpoints, on_event)
        step, values = -1, {METRICS: 0, SAMPLES: 0}
        if checkpoint is not None:
            step, given = checkpoint[0], {"samples": 0, **checkpoint[1].values}
            check_entries(given, f"the checkpoint {step} of {self.directory}", metrics=int, samples=int, state=dict)
            values = {name: given[Path(name).stem] for name in values}
        if self._lock is not None:
            self._cut(METRICS, values[METRICS], on_event)
            if (self.directory / SAMPLES).exists():
                self._cut(SAMPLES, values[SAMPLES], on_event)
            if self._events is not None:
                self._events.close()
            self._events, self._purge_step = None, step + 1
        if checkpoint is None:
            return None
        return step, State(checkpoint[1].tensors, checkpoint[1].values["state"])

    def _cut(self, name: str, length: int, on_event: Callback) -> None:
        """Drop what was recorded after a checkpoint."""
        file = self._lines_file(name)
        if os.fstat(file.fileno()).st_size < length:
            on_event(warning(f"{self.directory / name} is shorter than at the checkpoint: some records are lost"))
        else:
            file.truncate(max(length, 0))

    @_by_writer
    def finish(self, summary: dict[str, Any]) -> None:
        """Record that the run is complete, and its results."""
        write_json(self.directory / "summary.json", _finite(summary))

    @_by_writer
    def unfinish(self) -> None:
        """Training goes on: what :meth:`finish` wrote is not true any more."""
        with _writing(self.directory):
            (self.directory / "summary.json").unlink(missing_ok=True)

    def close(self) -> None:
        """Close all files and release the lock; closing again does nothing."""
        files, events, lock = list(self._lines.values()), self._events, self._lock
        self._lines, self._events, self._lock, self._follows = {}, None, None, False
        try:
            with _writing(self.directory):
                for file in (*files, events):
                    if file is not None:
                        file.close()
        finally:
            if lock is not None:
                lock.release()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def must_write(self) -> bool:
        """Whether this process writes, not another one of its job; an error if neither does."""
        if self._lock is None and not self._follows:
            raise InputError(f"the run {self.directory} is closed, or was opened for reading only")
        return not self._follows

    def _append(self, name: str, record: Any) -> None:
        try:
            line = json.dumps(record, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise InputError(f"a record must be what JSON can hold: {error}") from error
        file = self._lines_file(name)
        with _writing(self.directory):
            append(file, line.encode())

    def _lines_file(self, name: str) -> IO[bytes]:
        self.must_write()
        if name not in self._lines:
            with _writing(self.directory):
                path = self.directory / name
                self._lines[name] = path.open("ab", buffering=0)
                # A sudden stop may leave a last line without an end.
                self._lines[name].truncate(path.read_bytes().rfind(b"\n") + 1)
        return self._lines[name]


def _as_path(directory: Any) -> Path:
    require_instance("the directory of a run", directory, (str, Path), "a path")
    return Path(directory)


def require_no_run(directory: Path) -> None:
    """A new run needs a new or empty directory."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is not a directory: choose another one for the run")
    settle_folder(directory)
    _refuse_run(directory)


def _refuse_run(directory: Path) -> None:
    if is_empty(directory):
        return
    for name in (CONFIG, METRICS, "checkpoints"):
        if (directory / name).exists():
            raise InputError(
                f"{directory} already holds a run ({name}): resume it with --resume, or choose another directory"
            )
    raise InputError(f"{directory} is not empty: choose another directory for the run")


def _lock(directory: Path) -> FolderLock:
    return FolderLock(directory, "run directory")


def _writing(directory: Path) -> AbstractContextManager[None]:
    return os_errors(f"write to the run directory {directory}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
