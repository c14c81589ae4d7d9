"""What a result was computed with: versions of packages, the machine, and settings without the machine's paths."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "numba")
NAMED_PATHS = {
    "out": "OUT",
    "data": "DATA",
    "folder": "DATA",
}  # flags and settings whose paths have a name of their own


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that compute."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def machine() -> dict[str, Any]:
    """The processor, its cores, and the threads that PyTorch uses."""
    return {"cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def without_paths(value: Any, out: Path | None = None, key: str = "") -> Any:
    """The same settings with paths that say nothing about the machine."""
    if isinstance(value, Mapping):
        return {name: without_paths(entry, out, name) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(entry, out, key) for entry in value]
    if isinstance(value, str | Path) and str(value).startswith("/"):
        return NAMED_PATHS.get(key) or relative_path(str(value), out)
    return value


def relative_path(path: str, out: Path | None) -> str:
    """Relative to the output folder, or the name alone of what is not near it."""
    if not path.startswith("/"):
        return path
    near = None if out is None else os.path.relpath(path, os.path.realpath(out))
    return Path(path).name if near is None or near.startswith("../../..") else near
