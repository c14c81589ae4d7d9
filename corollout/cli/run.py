"""Run the command line: whatever goes wrong ends in one sentence and an exit code."""

import io
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import typer

from corollout.cli.root import cli
from corollout.cli.terminal import print_error
from corollout.errors import CorolloutError, Interrupted
from corollout.files import is_disk_full
from corollout.launch import has_others, is_first
from corollout.signals import end_at_once, exit_code, ignore_stops, interrupting_stops
from corollout.text import shortened

_GRACE = 1.0  # seconds in which another process tells an error that all of them have
_PATIENCE = 20.0  # the same before the processes have met, when another one may still be importing
# The base of all errors of typer, which does not export it.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def run() -> int:
    """Run the command line of this process; the exit code."""
    if not is_first():  # of several processes, one talks
        _drop_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8
    code = None
    with interrupting_stops():
        with suppress(KeyboardInterrupt):  # before a command begins, while an error is printed, or after everything
            code = _run()
            _end_undisturbed()
        if code is None and is_first():
            print_error("Stopped. Run the same command again.")
        _end_undisturbed()
    return exit_code() if code is None else code


def _end_undisturbed() -> None:
    """A signal ends this process at once, or not at all: torchrun, which ends all when one has ended, sees its code."""
    if has_others():
        ignore_stops()
    else:
        end_at_once()


def _drop_output() -> None:
    """Write nothing more to standard output, where it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _tell(error: BaseException, text: str, code: int = 1) -> None:
    """Print what ended this process, unless another one of its job does: one error is told once.

    The others wait a little before they end with the same code, because ``torchrun`` ends all when one has ended.
    """
    is_teller: bool | None = getattr(error, "is_teller", None)
    if is_teller is None and not is_first():  # before the processes have met, the first one has the word
        end_at_once(code)
        time.sleep(_PATIENCE)
    if is_teller is False:
        end_at_once(code)
        time.sleep(_GRACE)
    else:
        print_error(text)


def _run() -> int:
    """Run the command line and report errors; the exit code."""
    try:
        code = cli(standalone_mode=False) or 0
        sys.stdout.flush()
        if code == 128 + signal.SIGINT:  # typer's answer to KeyboardInterrupt, whatever the signal was
            raise Interrupted("Stopped before anything was done. Run the same command again.")
        return code
    except Interrupted as error:
        _tell(error, str(error), exit_code())
        return exit_code()
    except CorolloutError as error:
        _tell(error, f"error: {error}")
    except BrokenPipeError:  # whoever reads the output has seen enough
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:  # a path that the system refuses: too long, or not for us to look at; or a full disk
        if error.filename is None and not is_disk_full(error):
            raise
        where = "standard output" if error.filename is None else shortened(str(error.filename))
        _tell(error, f"error: cannot use {where}: {'the disk is full' if is_disk_full(error) else error.strerror}")
        if error.filename is None:
            _drop_output()
    except (MemoryError, RuntimeError) as error:  # PyTorch raises either
        if not (
            isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error)
        ):
            raise
        _tell(error, "error: there is not enough memory: choose smaller sizes")
    except _UsageError as error:
        text = io.StringIO()
        error.show(text)
        _tell(error, text.getvalue().rstrip("\n"), error.exit_code)
        return error.exit_code
    return 1
