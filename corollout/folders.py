"""Output folders: one writer at a time, and files that appear together when all of them are complete."""

import fcntl
import os
import re
import secrets
import shutil
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from corollout.errors import InputError
from corollout.files import force_to_disk, hold, is_temporary, leads_to, os_errors, remove_unheld, temporary_name

LOCK = ".lock"
ELSEWHERE = "choose another with --out"
# A folder of complete files that are being moved to where they belong; the name ends with that of the last one.
_RANDOM = 12  # characters at the end of a temporary name
_COMPLETE = re.compile(r"\.complete\.[0-9a-f]{12}\.(.+)")


class FolderLock:
    """The right to write to a folder, which one process has at a time; the kernel releases it when its holder dies.

    A folder that does not exist is created, and removed again if nothing was written to it. What a process that was
    killed has left unfinished in the folder is completed or removed first.
    """

    def __init__(self, folder: Path, what: str = "folder"):
        self.folder = folder
        self._file: IO[str] | None = None
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is not a folder: {ELSEWHERE}")
        with os_errors(f"write to the {what} {folder}", ELSEWHERE):
            self._created = not folder.exists()
            self._file = _take(folder, f"the {what} {folder}")
            _locks.add(self)
            _settle(folder)

    def require_empty(self) -> None:
        """Raise an error unless there is nothing in the folder."""
        _check_empty(self.folder)

    def release(self) -> None:
        """Give it back; doing so again does nothing."""
        if self._file is None:
            return
        with suppress(OSError):  # a disk that can no longer be written to
            (self.folder / LOCK).unlink()
            if self._created:
                self.folder.rmdir()  # which fails if it is not empty
        self.forget()

    def forget(self) -> None:
        """Close the file only: a forked process must not hold the lock of its parent, which it may outlive."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _take(folder: Path, what: str) -> IO[str]:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # Not through a link, behind which might be a file of somebody else.
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            if folder.exists():
                raise
            continue  # its last holder has just removed the folder, in which it had written nothing
        file = os.fdopen(handle, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if leads_to(folder / LOCK, file.fileno()):  # its last holder may have removed it after we opened it
                file.truncate(0)
                file.write(f"process {os.getpid()} (since {datetime.now().isoformat(' ', 'seconds')})\n")
                file.flush()
                return file
            file.close()
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise InputError(
                f"{what} is in use by {holder or 'another process'}; wait for it, stop it, or choose another"
            ) from None
        except BaseException:
            file.close()
            raise


_locks: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


def _forget_locks() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def staged(folder: Path, last: str) -> Generator[Path, None, None]:
    """A folder for new files, which move to ``folder`` when all of them are written; ``last`` comes last.

    The caller holds the lock of ``folder``. Whoever finds the file ``last`` finds the others, too; a process that is
    killed between two moves leaves the rest to the next one that takes the lock.
    """
    staging = folder / temporary_name("staging")
    staging.mkdir()
    try:
        yield staging
        if existing := [entry.name for entry in staging.iterdir() if os.path.lexists(folder / entry.name)]:
            raise InputError(f"{folder / min(existing)} exists, and nothing is overwritten: {ELSEWHERE}")
        for entry in (staging, *staging.rglob("*")):
            force_to_disk(entry)
        complete = folder / f".complete.{secrets.token_hex(6)}.{last}"
        staging.rename(complete)
        force_to_disk(folder)
        _move_up(complete, last)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def new_folder(folder: Path, last: str) -> Generator[Path, None, None]:
    """A folder to write to; everything in it appears in ``folder``, which must be new or empty, when it is complete."""
    with FolderLock(folder) as lock:
        lock.require_empty()
        with os_errors(f"write the folder {folder}"), staged(folder, last) as staging:
            yield staging


@contextmanager
def temporary_folder(path: Path) -> Generator[Path, None, None]:
    """A folder beside ``path``, to be renamed to it when it is complete; whatever is left of it at the end is removed.

    What killed processes have left of such folders is removed first.
    """
    prefix = temporary_name(path.name)[:-_RANDOM]
    for leftover in path.parent.iterdir():
        if leftover.name.startswith(prefix) and is_temporary(leftover.name) and leftover.is_dir():
            with suppress(OSError):
                _remove_unheld_folder(leftover)
    folder, handle = _held_folder(path)
    try:
        yield folder
    finally:
        os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unheld_folder(folder: Path) -> None:
    """Remove a temporary folder, unless the process that writes it is alive."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(handle)


def _held_folder(path: Path) -> tuple[Path, int]:
    while True:
        folder = path.with_name(temporary_name(path.name))
        folder.mkdir()
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for a leftover
            continue
        if hold(handle, folder):
            return folder, handle
        os.close(handle)


def make_folder(folder: Path, advice: str = "") -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder" + (f": {advice}" if advice else ""))
    with os_errors(f"create the folder {folder}", advice):
        folder.mkdir(parents=True, exist_ok=True)


def is_empty(folder: Path, advice: str = "") -> bool:
    """Whether a folder does not exist or holds nothing but our own locks and temporary files."""
    with os_errors(f"use the folder {folder}", advice):
        return not folder.exists() or all(name == LOCK or is_temporary(name) for name in os.listdir(folder))


def require_empty(folder: Path) -> None:
    """Raise an error unless a folder for new output is empty; whoever holds its lock calls that method instead."""
    settle_folder(folder)
    _check_empty(folder)


def _check_empty(folder: Path) -> None:
    if not is_empty(folder, ELSEWHERE):
        raise InputError(f"{folder} is not empty: {ELSEWHERE}")


def settle_folder(folder: Path) -> None:
    """Complete or remove what a process that was killed has left in a folder; refuse one that is being written to."""
    if folder.is_dir() and any(name == LOCK or _COMPLETE.fullmatch(name) for name in os.listdir(folder)):
        FolderLock(folder).release()


def _settle(folder: Path) -> None:
    """Finish what the last holder of the lock was killed at: complete files move up, incomplete ones go."""
    for entry in list(folder.iterdir()):
        if is_temporary(entry.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                remove_unheld(entry)
        elif (match := _COMPLETE.fullmatch(entry.name)) and entry.is_dir():
            _move_up(entry, match[1])


def _move_up(complete: Path, last: str) -> None:
    for entry in sorted(complete.iterdir(), key=lambda entry: entry.name == last):
        entry.rename(complete.parent / entry.name)
    complete.rmdir()
    force_to_disk(complete.parent)
