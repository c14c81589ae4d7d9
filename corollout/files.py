"""Files and folders: written whole or not at all, and one sentence about whatever is wrong with them."""

import hashlib
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corollout.errors import InputError

TEMPORARY = ".temporary-"  # how the names of files begin that are not complete yet


@contextmanager
def os_errors(action: str, advice: str = "") -> Generator[None, None, None]:
    """Inside, an ``OSError`` becomes an ``InputError``: "cannot {action}: {reason}; {advice}"."""
    try:
        yield
    except OSError as error:
        reason = f"cannot {action}: {error.strerror or error}"
        raise InputError(f"{reason}; {advice}" if advice else reason) from error


def read_bytes(path: Path, what: str = "") -> bytes:
    """A file's content; ``what`` says in an error what the file should have been: "the settings "."""
    with os_errors(f"read {what}{path}"):
        return path.read_bytes()


def read_text(path: Path, what: str = "") -> str:
    try:
        return read_bytes(path, what).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}{path} is not UTF-8 text: {error}") from error


def read_json(path: Path, advice: str = "") -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"cannot read {path}: it is not valid JSON ({error})" + (f"; {advice}" if advice else "")
        ) from error


def write_file(path: Path, content: bytes | str, advice: str = "", what: str = "") -> None:
    """Replace a file at once: whoever reads it sees all of the old one or all of the new one."""
    with os_errors(f"write {what}{path}", advice):
        replace_file(path, content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: Any, advice: str = "", indent: int | None = 2) -> None:
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators)
    write_file(path, text + "\n", advice)


def replace_file(path: Path, data: bytes) -> None:
    """:func:`write_file` that lets an ``OSError`` pass."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    write_synced(temporary, data)
    temporary.replace(path)
    sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and force it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force a folder's list of names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, advice: str = "") -> None:
    with os_errors(f"create the folder {folder}", advice):
        folder.mkdir(parents=True, exist_ok=True)


def is_empty(folder: Path, advice: str = "") -> bool:
    """Whether there is nothing in a folder, or no folder."""
    with os_errors(f"use the folder {folder}", advice):
        return not folder.exists() or not any(folder.iterdir())


def require_empty(folder: Path, advice: str = "choose another with --out") -> None:
    """Refuse a folder for new output that holds anything."""
    if not is_empty(folder, advice):
        raise InputError(f"{folder} is not empty: {advice}")


def file_digest(path: Path) -> str:
    """A digest of a file's content, by which caches and prepared data notice that something has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()
