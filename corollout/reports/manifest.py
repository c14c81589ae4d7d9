"""Where a number comes from: the command, the code, the machine and the versions that produced it."""

import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corollout.provenance import NAMED_PATHS, machine, relative_path, versions, without_paths
from corollout.text import visible_values

_PATIENCE = 20.0  # seconds for git


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
            "versions": versions(),
            "machine": machine(),
            **without_paths(facts, out),
        }
    )


def _arguments(arguments: list[str], out: Path | None) -> list[str]:
    shown, flag = [], ""
    for argument in arguments:
        is_flag = argument.startswith("--")
        name, equals, value = argument.partition("=") if is_flag else (flag, "", argument)
        flag = argument if is_flag and not equals else ""
        value = NAMED_PATHS.get(name.removeprefix("--")) or relative_path(value, out)
        shown.append(flag or (f"{name}={value}" if equals else value))
    return shown


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
