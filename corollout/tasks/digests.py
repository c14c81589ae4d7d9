"""Digests of files, by which caches and prepared data notice that something has changed."""

import hashlib
from pathlib import Path


def digest(path: Path) -> str:
    """A digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()
