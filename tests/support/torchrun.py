"""Jobs of several processes, started by torchrun as users start them."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command(size: int, arguments: Sequence[object], restarts: int = 0) -> list[str]:
    """The command that starts a program, given as arguments of Python, in so many processes."""
    options = ["--standalone", "--nproc-per-node", str(size), "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "torch.distributed.run", *options, *map(str, arguments)]


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COROLLOUT_", "TORCHELASTIC_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(variables or {})}


def torchrun(
    size: int,
    *arguments: object,
    restarts: int = 0,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a program in so many processes to its end."""
    return subprocess.run(
        command(size, arguments, restarts),
        env=environment(variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
