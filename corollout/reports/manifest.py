"""Where a number comes from: the command, the code, the machine and the versions that produced it."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from corollout.text import visible_values

PACKAGES = ("torch", "numpy", "numba")
_PATIENCE = 20.0  # seconds for git
_NAMED = {"out": "OUT", "data": "DATA", "folder": "DATA"}  # flags and settings whose paths have a name of their own


def manifest(out: Path | None = None, **facts: Any) -> dict[str, Any]:
    """The record that accompanies every result; ``facts`` are added to it (seeds, sizes).

    It has no absolute path: paths are relative to ``out``, or OUT and DATA for the folders of output and data.
    """
    script = Path(sys.argv[0])
    # A package that was run as a module is known by its folder.
    program = ["python", "-m", script.parent.name] if script.name == "__main__.py" else [script.name]
    return visible_values(
        {
            "command": shlex.join([*program, *_arguments(sys.argv[1:], out)]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _commit(),
            "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
            "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
            **without_paths(facts, out),
        }
    )


def _arguments(arguments: list[str], out: Path | None) -> list[str]:
    shown, flag = [], ""
    for argument in arguments:
        is_flag = argument.startswith("--")
        name, equals, value = argument.partition("=") if is_flag else (flag, "", argument)
        flag = argument if is_flag and not equals else ""
        value = _NAMED.get(name.removeprefix("--")) or _relative(value, out)
        shown.append(flag or (f"{name}={value}" if equals else value))
    return shown


def without_paths(value: Any, out: Path | None = None, key: str = "") -> Any:
    """The same settings with paths that say nothing about the machine."""
    if isinstance(value, Mapping):
        return {name: without_paths(entry, out, name) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(entry, out, key) for entry in value]
    if isinstance(value, str | Path) and str(value).startswith("/"):
        return _NAMED.get(key) or _relative(str(value), out)
    return value


def _relative(path: str, out: Path | None) -> str:
    """Relative to the output folder, or the name alone of what is not near it."""
    if not path.startswith("/"):
        return path
    near = None if out is None else os.path.relpath(path, os.path.realpath(out))
    return Path(path).name if near is None or near.startswith("../../..") else near


def _commit() -> str | None:
    """The commit of the source tree the package runs from, marked if files differ; None if git does not tell it."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(command, cwd=root, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired):  # git is not installed, or hangs on a slow disk
        return None
    return described.stdout.decode(errors="replace").strip() or None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
