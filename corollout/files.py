"""Files: atomic writes, and errors in one sentence."""

import codecs
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from corollout.errors import DiskFullError, InputError
from corollout.json_text import decode_json

TEMPORARY = ".temporary-"  # prefix of files that are not complete yet
_STAGING = re.compile(rf"{re.escape(TEMPORARY)}staging\.[0-9a-f]{{12}}/")  # in a path: it will not be there for long
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")
_LEFTOVER = re.compile(re.escape(TEMPORARY) + r".+\.[0-9a-f]{12}")


@contextmanager
def os_errors(action: str, advice: str = "", left: str = "nothing half-written is left") -> Generator[None, None, None]:
    """Inside, an ``OSError`` becomes an ``InputError``: "cannot {action}: {reason}; {advice}".

    ``left`` says what a full disk leaves behind.
    """
    try:
        yield
    except OSError as error:
        action = _STAGING.sub("", action)
        if is_disk_full(error):
            room = f"make room, or {advice.removeprefix('make room, or ')}" if advice else "make room"
            raise DiskFullError(f"cannot {action}: the disk is full, and {left}; {room}") from error
        reason = f"cannot {action}: {error.strerror or error}"
        raise InputError(f"{reason}; {advice}" if advice else reason) from error


def is_disk_full(error: OSError) -> bool:
    # NumPy says only "13001 requested and 5616 written".
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or bool(_CUT_SHORT.fullmatch(str(error)))


def read_bytes(path: Path, what: str = "") -> bytes:
    """A file's content; ``what`` precedes its path in errors: "the settings "."""
    with os_errors(f"read {what}{path}"):
        return path.read_bytes()


def read_text(path: Path, what: str = "") -> str:
    """The text of a UTF-8 file, without a byte order mark."""
    data = read_bytes(path, what)
    try:
        return data.decode("utf-8").removeprefix("\N{BYTE ORDER MARK}")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where = "it seems to be UTF-16" if is_utf16(data) else f"line {line}, byte {error.start + 1} of the file"
        raise InputError(f"cannot read {what}{path}: it is not UTF-8 text ({where}); save it as UTF-8") from error


def is_utf16(data: bytes) -> bool:
    """Whether a file begins as Windows programs begin UTF-16 text."""
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in data[:1000]


def read_lines(path: Path, what: str = "") -> list[str]:
    """The lines of a UTF-8 file. Only \\n and \\r\\n end a line, unlike in ``str.splitlines``."""
    lines = read_text(path, what).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def read_json(path: Path, advice: str = "") -> Any:
    text = read_text(path)
    try:
        return decode_json(text)
    except (ValueError, RecursionError) as error:
        message = f"cannot read {path}: it is not valid JSON ({error})"
        raise InputError(f"{message}; {advice}" if advice else message) from error


def check_entries(content: Any, where: object, advice: str = "", **types: type | tuple[type, ...]) -> dict[str, Any]:
    """The content of a JSON file, which must be an object with at least these entries, of these types."""
    if not isinstance(content, dict):
        raise InputError(f"{where} is damaged: it is not a JSON object{advice and '; '}{advice}")
    for name, type in types.items():
        value = content.get(name, ...)
        if not isinstance(value, type) or value != value:
            raise InputError(f"{where} is damaged: its entry {name!r} is missing or wrong{advice and '; '}{advice}")
    return content


def write_file(path: Path, content: bytes | str, advice: str = "", what: str = "", *, new: bool = False) -> None:
    """Replace a file atomically: a reader sees either all of the old one or all of the new one.

    With ``new`` there must be no such file, also if another process makes one at the same time.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:  # such as the name of a file that is not UTF-8
        wrong = error.object[max(0, error.start - 20) : error.end + 20]
        raise InputError(f"cannot write {what}{path}: {wrong!r} in it is not valid Unicode") from error
    with os_errors(f"write {what}{path}", advice), atomic_file(path, new=new) as file:
        file.write(data)


def write_json(path: Path, content: Any, advice: str = "", indent: int | None = 2, *, new: bool = False) -> None:
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators)
    write_file(path, text + "\n", advice, new=new)


def require_new_file(path: Path, flag: str = "--out") -> None:
    """Raise an error if a file exists that a command would have to overwrite."""
    if path.parent.is_dir():
        remove_leftovers(path.parent, path.name)  # of a process that was killed after it had written the file
    if os.path.lexists(path):
        raise InputError(f"{path} exists, and nothing is overwritten: choose another file with {flag}, or remove it")


@contextmanager
def atomic_file(path: Path, *, new: bool = False) -> Generator[IO[bytes], None, None]:
    """A file to write to, which becomes ``path`` when all is written and on the disk, or disappears.

    Its name is unique, and its writer holds a lock on it: one that nobody holds was left by a process that was killed,
    and is removed by the next writer of ``path``.
    """
    remove_leftovers(path.parent, path.name)
    temporary, file = _locked_temporary(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            (_place_new if new else os.replace)(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    force_to_disk(path.parent)


def temporary_name(name: str) -> str:
    """A name that no other process uses, for something that will be called ``name``."""
    return f"{TEMPORARY}{name[:100]}.{secrets.token_hex(6)}"


def remove_leftovers(folder: Path, name: str) -> None:
    """Remove what killed processes have left of a file of this name."""
    prefix = f"{TEMPORARY}{name[:100]}."
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                remove_unheld(Path(entry.path))


def is_temporary(name: str) -> bool:
    return _LEFTOVER.fullmatch(name) is not None


def remove_unheld(path: Path) -> None:
    """Remove a temporary file if it can be, unless the process that writes it is alive."""
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


def _locked_temporary(path: Path) -> tuple[Path, IO[bytes]]:
    while True:
        temporary = path.with_name(temporary_name(path.name))
        file = temporary.open("xb")
        if hold(file.fileno(), temporary):
            return temporary, file
        file.close()


def hold(handle: int, temporary: Path) -> bool:
    """Lock what was just created; false if another process took it for a leftover before it was locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # that process is about to remove it
        return False
    except OSError:  # a file system without locks: leftovers then stay
        pass
    return leads_to(temporary, handle)


def leads_to(path: Path, handle: int) -> bool:
    """Whether a path still leads to what was opened there, which another process may have removed or replaced."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _place_new(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(temporary, path)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and force it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append(file: IO[bytes], data: bytes) -> None:
    """Write all of the data to an unbuffered file or, if the disk is full, nothing.

    What a buffered file could not write, it would try to write again when it is closed.
    """
    start, written = os.fstat(file.fileno()).st_size, 0
    try:
        while written < len(data):
            written += file.write(data[written:])
    except OSError:
        os.ftruncate(file.fileno(), start)
        raise


def force_to_disk(path: Path) -> None:
    """Force a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_digest(path: Path) -> str:
    """A digest of a file's content, by which caches and prepared data notice that something has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def digest_of(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
