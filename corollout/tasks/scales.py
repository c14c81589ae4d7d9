"""Every task has three sizes: files of settings beside its modules."""

from pathlib import Path
from typing import Any

from corollout.config import read_toml
from corollout.errors import InputError

SCALES = ("tiny", "small", "paper")


def read_scale(folder: Path, name: str) -> dict[str, Any]:
    """The settings of a scale: a table for each part of the work."""
    if name not in SCALES:
        raise InputError(f"no scale is called {name!r}: choose one of {', '.join(SCALES)}")
    return read_toml(folder / f"{name}.toml")
