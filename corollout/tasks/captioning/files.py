"""Text files read with errors that say where, and folders that are whole or absent."""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from corollout.errors import InputError


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        return data.decode("utf-8").removeprefix("\N{BYTE ORDER MARK}")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte {error.start + 1} of the file is not UTF-8 text; save the file as UTF-8"
        ) from error


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file; only line ends end a line, whatever else Unicode has for that."""
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def read_names(path: Path) -> list[str]:
    """The names in a file of one name a line, all of them different."""
    lines: dict[str, int] = {}
    for line, text in enumerate(read_lines(path), 1):
        name = text.strip()
        if not name:
            raise InputError(f"{path}, line {line}: expected the name of an image, not an empty line")
        if name in lines:
            raise InputError(f"{path}, line {line}: the name {name!r} is in line {lines[name]} too")
        lines[name] = line
    if not lines:
        raise InputError(f"{path}: expected names of images, one a line, not an empty file")
    return list(lines)


def check_new(path: Path) -> None:
    """Refuse a folder that has something in it."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} is not empty: name a new folder with --out")
    except OSError as error:
        raise InputError(f"cannot use the folder {path}: {error.strerror}; choose another with --out") from error


@contextmanager
def new_folder(path: Path) -> Generator[Path]:
    """A folder to write in, which takes its place only when all is written, and is gone if anything fails."""
    check_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"cannot use the folder {path}: {error.strerror}; choose another with --out") from error
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(path)
    except OSError as error:
        raise InputError(f"cannot write the folder {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
