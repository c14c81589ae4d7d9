"""Handlers of signals and of errors, which the command line leaves as a process that is about to end needs them."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager

from corollout.signals import STOPS


@contextmanager
def kept_handlers() -> Generator[None, None, None]:
    """Restore the handlers of all signals to stop, and that of errors in destructors."""
    hook, before = sys.unraisablehook, {number: signal.getsignal(number) for number in STOPS}
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
