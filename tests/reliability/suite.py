"""What a suite of the reliability proof is, and processes within limits of time and memory."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS, MEGABYTES = 120.0, 6_000  # limits of a process, unless a suite sets tighter ones


@dataclass(frozen=True)
class Outcome:
    """One or several cases of the same kind, and a line for each that failed: "traceback: …", "hang: …"."""

    what: str  # the command, reader or estimator that was tried
    cases: int = 1
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """Cases that test one promise. ``run(cases, seed)`` yields outcomes until so many cases were tried."""

    name: str
    promise: str
    cases: int  # of the full proof
    run: Callable[[int, int], Iterator[Outcome]]


@dataclass(frozen=True)
class Finished:
    """A process that ended by itself, or at a limit."""

    code: int
    output: str
    errors: str
    hung: bool = False

    @property
    def problem(self) -> str:
        """What no process may do, however it was treated: hang, run out of memory, or print a traceback."""
        if self.hung:
            return "hang"
        if "MemoryError" in self.errors:
            return f"memory: {self.errors.strip().splitlines()[-1]}"
        if "Traceback (most recent call last)" in self.errors:
            return f"traceback: {self.errors.strip().splitlines()[-1]}"
        return (
            f"killed by signal {-self.code}" if self.code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS) else ""
        )


def corollout(*arguments: object) -> list[str]:
    """The command line as users run it, in a process of its own."""
    return [sys.executable, "-c", "from corollout.cli.main import app; app()", *map(str, arguments)]


def listen_to_signals() -> None:
    """Handle signals as a process that a terminal starts does, also where nohup or a background job ignores some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def start(
    command: Sequence[str], *, megabytes: int = MEGABYTES, env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start a process whose address space is limited."""

    def limit() -> None:
        listen_to_signals()
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "160", **(env or {})}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="backslashreplace", env=environment, preexec_fn=limit, start_new_session=True,
    )  # fmt: skip


def wait(process: "subprocess.Popen[str]", seconds: float = SECONDS) -> Finished:
    """Wait for a process; at the limit of time it and everything that it started is killed."""
    try:
        output, errors = process.communicate(timeout=seconds)
        return Finished(process.returncode, output, errors)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        return Finished(process.returncode, output, errors, hung=True)


def run(
    command: Sequence[str],
    *,
    seconds: float = SECONDS,
    megabytes: int = MEGABYTES,
    env: Mapping[str, str] | None = None,
) -> Finished:
    return wait(start(command, megabytes=megabytes, env=env), seconds)
