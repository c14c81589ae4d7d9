"""Files and folders: atomic writes, errors in one sentence, and files of weights that are never pickled."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from corollout.errors import InputError

TEMPORARY = ".temporary-"  # prefix of files that are not complete yet


@contextmanager
def os_errors(action: str, advice: str = "") -> Generator[None, None, None]:
    """Inside, an ``OSError`` becomes an ``InputError``: "cannot {action}: {reason}; {advice}"."""
    try:
        yield
    except OSError as error:
        reason = f"cannot {action}: {error.strerror or error}"
        raise InputError(f"{reason}; {advice}" if advice else reason) from error


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
        raise InputError(
            f"{what}{path} is not UTF-8 text: line {line}, byte {error.start + 1} of the file; save it as UTF-8"
        ) from error


def read_lines(path: Path, what: str = "") -> list[str]:
    """The lines of a UTF-8 file. Only \\n and \\r\\n end a line, unlike in ``str.splitlines``."""
    lines = read_text(path, what).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def read_json(path: Path, advice: str = "") -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"cannot read {path}: it is not valid JSON ({error})"
        raise InputError(f"{message}; {advice}" if advice else message) from error


def write_file(path: Path, content: bytes | str, advice: str = "", what: str = "") -> None:
    """Replace a file atomically: a reader sees either all of the old one or all of the new one."""
    with os_errors(f"write {what}{path}", advice):
        replace_file(path, content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: Any, advice: str = "", indent: int | None = 2) -> None:
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators)
    write_file(path, text + "\n", advice)


def replace_file(path: Path, data: bytes) -> None:
    """:func:`write_file`, but with an ``OSError`` for errors."""
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
    """Force a folder's entries to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, advice: str = "") -> None:
    with os_errors(f"create the folder {folder}", advice):
        folder.mkdir(parents=True, exist_ok=True)


def is_empty(folder: Path, advice: str = "") -> bool:
    """Whether a folder is empty or does not exist."""
    with os_errors(f"use the folder {folder}", advice):
        return not folder.exists() or not any(folder.iterdir())


def require_empty(folder: Path, advice: str = "choose another with --out") -> None:
    """Raise an error unless a folder for new output is empty."""
    if not is_empty(folder, advice):
        raise InputError(f"{folder} is not empty: {advice}")


@contextmanager
def new_folder(folder: Path) -> Generator[Path, None, None]:
    """A temporary folder to write to, renamed to ``folder`` when all is written, or removed if anything fails."""
    require_empty(folder)
    make_folder(folder.parent, "choose another with --out")
    with os_errors(f"use the folder {folder}", "choose another with --out"):
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with os_errors(f"write the folder {folder}"):
            yield temporary
            temporary.chmod(0o755)
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def file_digest(path: Path) -> str:
    """A digest of a file's content, by which caches and prepared data notice that something has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


_DIGEST = "corollout.digest"


def write_weights(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str] | None = None) -> None:
    """Write tensors and some metadata to one file, atomically."""
    dense, meta = dense_copies(tensors), dict(meta or {})
    data = safetensors.torch.save(dense, metadata={**meta, _DIGEST: _weights_digest(dense, meta)})
    write_file(path, _with_sorted_metadata(data), what="the weights ")


def read_weights(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file of weights. A file without our digest, made elsewhere, is not verified."""
    data = read_bytes(path, "the weights ")
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged or not a safetensors file ({error}); write it again") from error
    meta: dict[str, str] = header.get("__metadata__", {})
    digest = meta.pop(_DIGEST, None)
    if digest is not None and digest != _weights_digest(tensors, meta):
        raise InputError(f"{path} is damaged (its content does not match its digest); write it again")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, meta


def dense_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that safetensors accepts: on the CPU, dense, and none sharing memory with another (tied weights)."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def digest_of(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _weights_digest(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> str:
    """A digest of the content, independent of the file's layout."""

    def parts() -> Iterator[bytes]:
        yield json.dumps(sorted(meta.items())).encode()
        for name, tensor in sorted(tensors.items()):
            yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
            yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()

    return digest_of(parts())


def _with_sorted_metadata(data: bytes) -> bytes:
    """The same safetensors file with sorted metadata, so that equal weights give equal files."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + data[start:]
