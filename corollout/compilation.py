"""Compilation by numba, kept apart from the work that needs it: announced once, and counted by no clock.

Compiled functions are specialised to the types and layouts of their arguments, so the surest way to know which ones a
piece of work needs is to do it. Numba reports when it begins and ends to compile a function or to load one from its
cache on disk. :func:`wall_time` and :func:`cpu_time` leave out these times: whatever is measured by them is measured as
if everything had been compiled before, also functions of rewards and policies outside this package. Where it matters
that nothing is compiled in between, as in the progress of a run, ``training.warm_up`` makes it happen before.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from corollout.events import Callback, note

MESSAGE = "compiling functions for this machine: once, later starts load them"


class _Stopwatch(event.Listener):
    """Adds up the times in which any thread compiles or loads functions, or waits for another that does."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self._running, self._started, self._lock = 0, (0.0, 0.0), threading.Lock()

    def on_start(self, event: Any) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._started = time.perf_counter(), time.process_time()

    def on_end(self, event: Any) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self.wall += time.perf_counter() - self._started[0]
                self.cpu += time.process_time() - self._started[1]


class _Announcer(event.Listener):
    """Tells a callback that something is being compiled, once in this process."""

    def __init__(self) -> None:
        self.callback: Callback | None = None
        self.is_done = False

    def on_start(self, event: Any) -> None:
        if self.callback is not None and not self.is_done:
            self.is_done = True
            self.callback(note(MESSAGE))

    def on_end(self, event: Any) -> None:
        pass


_stopwatch, _announcer = _Stopwatch(), _Announcer()
event.register("numba:compiler_lock", _stopwatch)  # held to compile and to load
event.register("numba:compile", _announcer)


def wall_time() -> float:
    """Seconds of a clock that stands still while functions are compiled or loaded."""
    return time.perf_counter() - _stopwatch.wall


def cpu_time() -> float:
    """Seconds of CPU time of this process, without those in which functions are compiled or loaded."""
    return time.process_time() - _stopwatch.cpu


@contextmanager
def announced(on_event: Callback) -> Generator[None, None, None]:
    """Inside, the first function that really has to be compiled in this process is announced by a note."""
    before, _announcer.callback = _announcer.callback, on_event
    try:
        yield
    finally:
        _announcer.callback = before
