"""Where a number comes from: the command, the code, the machine and the versions that produced it."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "numba")


def manifest(**facts: Any) -> dict[str, Any]:
    """The record that stands beside every result; ``facts`` are added to it (seeds, sizes)."""
    script = Path(sys.argv[0])
    # A package that was run as a module is known by its folder.
    program = ["python", "-m", script.parent.name] if script.name == "__main__.py" else [script.name]
    command = [*program, *sys.argv[1:]]
    return {
        "command": shlex.join(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        **facts,
    }


def _commit() -> str | None:
    """The commit of the source tree the package runs from, marked if files differ; None for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=root, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
