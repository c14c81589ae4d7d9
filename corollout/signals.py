"""Signals that ask a process to stop: SIGINT (Ctrl-C), SIGTERM and SIGUSR1 (schedulers), SIGHUP (a closed terminal).

All of them do the same. Those that were ignored when the process began, as by nohup, stay ignored.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from corollout.launch import is_first

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_received: list[int] = []  # since the outermost of the contexts below was entered
_depth = 0
_asking: "StopRequest | None" = None  # whose signals divided work asks for


def exit_code() -> int:
    """The exit code of a process that a signal stopped: 128 plus its number."""
    return 128 + (_received[-1] if _received else signal.SIGINT)


@contextmanager
def interrupting_stops() -> Generator[None, None, None]:
    """Inside, the first signal raises ``KeyboardInterrupt``, as SIGINT does anyway; a second one ends the process."""

    def interrupt(number: int, frame: object) -> None:
        if _received:  # also one that was noted further inside: the process is about to end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        _received.append(number)
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def ending_stops() -> Generator[None, None, None]:
    """Inside, a signal ends the process with one line: nothing has begun yet.

    While modules are imported, an exception would not do: extension modules swallow it, or fail in their own words.
    """

    def end(number: int, frame: object) -> None:
        with suppress(OSError):
            if is_first():  # of several processes, one talks
                os.write(2, b"Stopped. Run the same command again.\n")
        os._exit(128 + number)

    with _handled(end):
        yield


def end_at_once(code: int | None = None) -> None:
    """From now on, a signal ends the process without a word: it has said all that there is to say.

    ``code`` is the exit code, if it is to be another than that of the signal.
    """

    def end(number: int, frame: object) -> None:
        os._exit(code or 0)

    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if code is None else end)


@contextmanager
def default_stops() -> Generator[None, None, None]:
    """Inside, a signal ends the process without a word, even while it is in a call that would keep Python from it."""
    with _handled(signal.SIG_DFL):
        yield


@contextmanager
def without_stops() -> Generator[None, None, None]:
    """Inside, signals wait; processes that are started inside get none until they call :func:`ignore_stops`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stops() -> None:
    """Ignore all signals that ask to stop, in a process that ends without being asked to."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def silence_after_stop() -> None:
    """Say nothing of errors in destructors after a signal: it may have left objects behind that are only half made."""

    def show(error: Any) -> None:
        if not _received:
            sys.__unraisablehook__(error)

    sys.unraisablehook = show


def requested() -> int:
    """Inside ``StopRequest.asking``, the signal that has asked to stop; 0 for none."""
    return 0 if _asking is None else _asking.number


class StopRequest:
    """Whether a signal has asked to stop: ``if stop: …``."""

    def __init__(self) -> None:
        self._count, self._interrupts = 0, False
        self.number = 0  # of the signal; 0 for none

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def is_urgent(self) -> bool:
        """Whether a second signal interrupted something that must not be saved half done."""
        return self._count > 1

    @contextmanager
    def interrupting(self) -> Generator[None, None, None]:
        """Inside, a signal raises ``KeyboardInterrupt`` at once, for work that is simply done again later."""
        self._interrupts = True
        try:
            if self:
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupts = False

    @contextmanager
    def asking(self) -> Generator[None, None, None]:
        """Inside, work that processes divide asks for signals by :func:`requested`, so that all stop at one place."""
        global _asking
        before, _asking = _asking, self
        try:
            yield
        finally:
            _asking = before

    def adopt(self, number: int) -> None:
        """Stop because another process of the job got this signal; 0 for none."""
        if number and not self:
            _received.append(number)
            self._count, self.number = 1, number

    def note(self, number: int, frame: object) -> None:
        """The handler: the first signal is only noted, a second one interrupts at once."""
        _received.append(number)
        self._count += 1
        self.number = self.number or number
        if self.is_urgent or self._interrupts:
            raise KeyboardInterrupt


@contextmanager
def deferred_stops() -> Generator[StopRequest, None, None]:
    """Inside, the first signal is only noted, so that work can be finished and saved."""
    stop = StopRequest()
    with _handled(stop.note):
        yield stop


@contextmanager
def _handled(handler: Callable[[int, object], None] | signal.Handlers) -> Generator[None, None, None]:
    global _depth
    before: dict[signal.Signals, Any] = {}
    if _depth == 0:
        _received.clear()
    _depth += 1
    if threading.current_thread() is threading.main_thread():  # the only one that may handle signals
        for number in STOPS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        _depth -= 1
        for number, previous in before.items():
            if signal.getsignal(number) == handler:  # nobody has replaced it
                signal.signal(number, previous)
