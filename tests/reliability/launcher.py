"""Commands in forks of one warm process, which can be killed, signalled or started at exact instants.

``python -m tests.reliability.launcher SOCKET`` imports everything once and then forks a process for every command that
it is sent: that costs milliseconds, where Python with PyTorch needs seconds to start. :class:`Launcher` is its client.

An instant is the n-th call, in the folder of the command, of a function that changes files: ``os.fsync``,
``os.replace``, opening to write, ``flock`` and the like.
"""

import atexit
import builtins
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from corollout.reports.figures import png, svg
from corollout.tasks.karel import World, machine
from corollout.tasks.karel.grids import pack
from tests.reliability.suite import Finished, listen_to_signals, start, wait

# What commands import when they run.
MODULES = (
    *("corollout.cli.run", "corollout.cli.training", "corollout.cli.pretrain", "corollout.cli.evaluate"),
    *("corollout.cli.compare", "corollout.cli.export", "corollout.cli.inspect", "corollout.cli.lab"),
    *("corollout.cli.reproduce", "corollout.cli.experiments"),
    *("corollout.tasks.karel.task", "corollout.tasks.karel.commands", "corollout.tasks.karel.model"),
    *("corollout.tasks.captioning.task", "corollout.tasks.captioning.commands", "corollout.tasks.captioning.model"),
    *("corollout.tasks.captioning.export", "corollout.experiments.table1", "corollout.experiments.cold_start"),
    *("tensorboardX.event_file_writer", "matplotlib.backends.backend_agg", "matplotlib.pyplot"),
    *("torch._dynamo", "pydantic", "typer._adapters"),
)
CHANGES = ("fsync", "fdatasync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link", "symlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
LONGEST = 60.0  # seconds that a command may take


@dataclass(frozen=True)
class Instant:
    """Send a signal to the process itself right before or after its n-th change of a file, from 1."""

    call: int
    signal: int = signal.SIGKILL
    after: bool = False
    twice: bool = False


@dataclass(frozen=True)
class Started:
    """A process of a launcher, and where its output goes."""

    pid: int
    folder: Path
    began: float

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to it and its children as Ctrl-C does; it may have ended."""
        (os.killpg if group else os.kill)(self.pid, number)

    @property
    def changes(self) -> int:
        """How many changes of files it made, if it ended by itself."""
        path = self.folder / "changes"
        return int(path.read_text()) if path.exists() else 0


class Launcher:
    """Starts commands in forks of one warm process: ``with Launcher() as launcher: …``."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="corollout-launcher-"))
        self._count = 0
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._folder / "socket"))
        listener.listen()
        listener.settimeout(LONGEST)
        self._server = start([sys.executable, "-m", "tests.reliability.launcher", str(self._folder / "socket")])
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            raise RuntimeError(f"the launcher did not start: {wait(self._server, 0).errors}") from None
        finally:
            listener.close()
        self._lines = connection.makefile("rw", buffering=1)
        self._connection = connection

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._connection.close()
        wait(self._server, 10)
        shutil.rmtree(self._folder)

    def start(
        self,
        command: Sequence[object],
        cwd: Path,
        instant: Instant | None = None,
        ignored: Sequence[int] = (),
        at: float | None = None,
    ) -> Started:
        """Start a command: arguments of ``corollout``, or of ``python -m`` if the first is "-m".

        ``ignored`` are signals that it ignores as after nohup; ``at`` is the time on the monotonic clock at which it
        begins. It has begun, or waits for that time, when this returns.
        """
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        request = {
            "command": list(map(str, command)),
            "cwd": str(cwd),
            "output": str(folder),
            "instant": None if instant is None else asdict(instant),
            "ignored": list(map(int, ignored)),
            "at": at,
        }
        pid = self._ask("start", request)
        return Started(pid, folder, time.monotonic())

    def wait(self, process: Started, seconds: float = LONGEST) -> Finished:
        """Wait for a process; at the limit of time it and its group are killed."""
        status = self._ask("wait", {"pid": process.pid, "seconds": seconds})
        hung = status is None
        if hung:
            os.killpg(process.pid, signal.SIGKILL)
            status = self._ask("wait", {"pid": process.pid, "seconds": 10})
        texts = [(process.folder / name).read_text(errors="backslashreplace") for name in ("output", "errors")]
        return Finished(os.waitstatus_to_exitcode(status), *texts, hung=hung)

    def run(self, command: Sequence[object], cwd: Path, **options: Any) -> Finished:
        return self.wait(self.start(command, cwd, **options))

    def _ask(self, what: str, request: dict[str, Any]) -> Any:
        self._lines.write(json.dumps([what, request]) + "\n")
        answer = self._lines.readline()
        if not answer:
            raise RuntimeError(f"the launcher died: {wait(self._server, 1).errors}")
        return json.loads(answer)


def serve(path: str) -> dict[str, Any] | None:
    """Answer the client until it is gone; in a fork, return what it is to do."""
    for name in MODULES:
        importlib.import_module(name)
    warm_up()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    lines = connection.makefile("rw", buffering=1)
    for line in lines:
        what, request = json.loads(line)
        if what == "start":
            ready, begun = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(ready)
                lines.close()
                connection.close()
                return {**request, "begun": begun}
            os.close(begun)
            os.read(ready, 1)  # it has a session and handlers of its own now
            os.close(ready)
            lines.write(f"{child}\n")
        else:
            lines.write(json.dumps(_wait(request["pid"], request["seconds"])) + "\n")
    return None


def warm_up() -> None:
    """Do what takes long the first time, but starts no thread: load compiled functions and fonts."""
    world = pack([World(2, 2, (0, 0, 0))], side=4)[None]
    machine.judge(machine.Programs.pack([[]]), np.zeros(1, np.int64), world, world)
    figure = Figure()
    figure.add_subplot().set_title("warm")
    svg(figure, "warm")
    png(figure)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page


def _wait(pid: int, seconds: float) -> int | None:
    """The status of a child that ends within so many seconds."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def begin(request: dict[str, Any]) -> Path:
    """Become the process of a command, as a shell would start it; return the folder of its output."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = Path(request["output"])
    for descriptor, name in ((1, "output"), (2, "errors")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(request["cwd"])
    listen_to_signals()
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.write(request["begun"], b"!")
    os.close(request["begun"])
    if request["at"] is not None:
        time.sleep(max(0.0, request["at"] - time.monotonic() - 0.002))
        while time.monotonic() < request["at"]:
            pass
    return folder


class Changes:
    """Counts changes of files in a folder, and sends the process a signal at one of them."""

    def __init__(self, folder: Path, instant: Instant | None):
        self._folder, self._instant = f"{folder}/", instant
        self.count = 0
        for name in CHANGES:
            setattr(os, name, self._watched(getattr(os, name)))
        os.open = self._watched(os.open, lambda path, flags, *_, **__: bool(flags & WRITING))
        fcntl.flock = self._watched(fcntl.flock)
        io.open = builtins.open = self._watched(
            io.open, lambda path, mode="r", *_, **__: not set("wax+").isdisjoint(mode)
        )

    def _watched(self, function: Callable[..., Any], changes: Callable[..., bool] = lambda *_, **__: True) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if not changes(*arguments, **options) or not self._is_inside(arguments[0], options):
                return function(*arguments, **options)
            self.count += 1
            instant = self._instant if self._instant is not None and self._instant.call == self.count else None
            if instant is not None and not instant.after:
                _send(instant)
            result = function(*arguments, **options)
            if instant is not None and instant.after:
                _send(instant)
            return result

        return call

    def _is_inside(self, target: Any, options: dict[str, Any]) -> bool:
        if hasattr(target, "fileno"):
            target = target.fileno()
        if isinstance(target, int):
            return os.readlink(f"/proc/self/fd/{target}").startswith(self._folder)
        handle = options.get("dir_fd", options.get("src_dir_fd"))
        parent = os.getcwd() if handle is None else os.readlink(f"/proc/self/fd/{handle}")
        return os.path.join(parent, os.fsdecode(target)).startswith(self._folder)


def _send(instant: Instant) -> None:
    for _ in range(1 + instant.twice):
        os.kill(os.getpid(), instant.signal)


def run_command(command: Sequence[str]) -> int:
    """Run a command as a process of its own would, and return its exit code."""
    try:
        try:
            if command[0] == "-m":
                sys.argv = list(command[1:])
                runpy.run_module(command[1], run_name="__main__")
            else:
                sys.argv = ["corollout", *command]
                importlib.import_module("corollout.cli.main").app()
        finally:
            # What Python does before it tears down its modules, which takes a second in a fork.
            threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
            atexit._run_exitfuncs()
            sys.stdout.flush()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    if (request := serve(sys.argv[1])) is None:
        return
    folder = begin(request)
    instant = None if request["instant"] is None else Instant(**request["instant"])
    changes = Changes(Path(request["cwd"]), instant)
    code = run_command(request["command"])
    (folder / "changes").write_text(str(changes.count))
    os._exit(code)


if __name__ == "__main__":
    main()
