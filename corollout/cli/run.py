"""Run the command line: whatever goes wrong ends in one sentence and an exit code."""

import io
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import typer

from corollout.cli.root import cli
from corollout.cli.terminal import print_error
from corollout.errors import CorolloutError, Interrupted
from corollout.files import is_disk_full
from corollout.signals import end_at_once, exit_code, interrupting_stops
from corollout.text import shortened

# The base of all errors of typer, which does not export it.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def run() -> int:
    """Run the command line of this process; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8
    code = None
    with interrupting_stops():
        with suppress(KeyboardInterrupt):  # before a command begins, while an error is printed, or after everything
            code = _run()
            end_at_once()
        if code is None:
            print_error("Stopped. Run the same command again.")
        end_at_once()
    return exit_code() if code is None else code


def _drop_output() -> None:
    """Write nothing more to standard output, where it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run() -> int:
    """Run the command line and report errors; the exit code."""
    try:
        code = cli(standalone_mode=False) or 0
        sys.stdout.flush()
        if code == 128 + signal.SIGINT:  # typer's answer to KeyboardInterrupt, whatever the signal was
            raise Interrupted("Stopped before anything was done. Run the same command again.")
        return code
    except Interrupted as error:
        print_error(str(error))
        return exit_code()
    except CorolloutError as error:
        print_error(f"error: {error}")
    except BrokenPipeError:  # whoever reads the output has seen enough
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:  # a path that the system refuses: too long, or not for us to look at; or a full disk
        if error.filename is None and not is_disk_full(error):
            raise
        where = "standard output" if error.filename is None else shortened(str(error.filename))
        print_error(f"error: cannot use {where}: {'the disk is full' if is_disk_full(error) else error.strerror}")
        if error.filename is None:
            _drop_output()
    except (MemoryError, RuntimeError) as error:  # PyTorch raises either
        if not (
            isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error)
        ):
            raise
        print_error("error: there is not enough memory: choose smaller sizes")
    except _UsageError as error:
        text = io.StringIO()
        error.show(text)
        print_error(text.getvalue().rstrip("\n"))
        return error.exit_code
    return 1
