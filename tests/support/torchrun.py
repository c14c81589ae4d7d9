"""Jobs of several processes, started by torchrun as users start them."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MARK = "COROLLOUT_TEST_JOB"  # by which all processes of a job are found, also those that have lost their parent


class Job:
    """A job under way: ``with Job(2, ["-m", "corollout", …]) as job: …``; what is left of it at the end is killed."""

    def __init__(
        self,
        size: int,
        arguments: Sequence[object],
        *,
        restarts: int = 0,
        meeting: Sequence[str] = ("--standalone",),
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Sequence[str] = (),
    ):
        """``meeting`` says how the machines of the job find each other; ``prefix`` runs a command on one of them."""
        self.mark, self.began = secrets.token_hex(8), time.monotonic()
        words = [*meeting, "--nproc-per-node", str(size), "--max-restarts", str(restarts), *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COROLLOUT_")}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "torch.distributed.run", *words, *map(str, arguments)],
            env={**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), _MARK: self.mark, **(variables or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def ranks(self, start: int = 0) -> dict[int, int]:
        """The processes that torchrun has started, by rank; ``start`` counts how often it has done so before."""
        ranks: dict[int, int] = {}
        for pid in self.alive():
            with suppress(OSError):
                variables = _environment(pid)
                is_of_start = variables.get("TORCHELASTIC_RESTART_COUNT") == str(start)
                if "RANK" in variables and is_of_start and _parent(pid) == self.process.pid:
                    ranks[int(variables["RANK"])] = pid
        return ranks

    def alive(self) -> list[int]:
        """All processes of the job, torchrun itself included."""
        return [pid for pid in _processes() if _environment(pid).get(_MARK) == self.mark]

    def orphans(self, seconds: float = 15.0) -> list[int]:
        """The processes that are left so long after the end of the job."""
        end = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def wait(self, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Wait for the end of the job."""
        output, errors = self.process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, output, errors)


def torchrun(
    size: int,
    *arguments: object,
    restarts: int = 0,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program in so many processes to its end."""
    with Job(size, arguments, restarts=restarts, variables=variables, cwd=cwd) as job:
        return job.wait(seconds)


def wait_for(file: Path, lines: int, seconds: float = 60.0) -> None:
    """Wait until a file has so many lines."""
    end = time.monotonic() + seconds
    while not file.exists() or file.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < end, f"{file} has fewer than {lines} lines after {seconds:g} s"
        time.sleep(0.02)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _environment(pid: int) -> dict[str, str]:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended, or is somebody else's
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
