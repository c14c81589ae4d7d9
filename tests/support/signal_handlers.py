"""Handlers of signals, which the command line leaves as a process needs them that is about to end."""

import signal
from collections.abc import Generator
from contextlib import contextmanager

from corollout.signals import STOPS


@contextmanager
def kept_handlers() -> Generator[None, None, None]:
    """Restore the handlers of all signals to stop."""
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
