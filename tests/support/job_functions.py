"""Jobs for tests of the queue: each runs in a worker process."""

import os
import sys
import time
from pathlib import Path

import numba
import torch

from corollout.errors import InputError
from corollout.events import Callback, Event, Progress, warning


def append(file: str, text: str, on_event: Callback) -> dict[str, str]:
    """Append a line to a file, after more output than a pipe holds."""
    sys.stderr.write("x" * 200_000)
    print("this is not an event")
    on_event(warning("careful"))
    on_event(Event("note", {"text": text}))
    Progress(on_event, "anything", 4).advance(1)
    with Path(file).open("a") as lines:
        lines.write(text + "\n")
    return {"said": text}


def fail(on_event: Callback, how: str = "") -> None:
    if how == "die":
        os.kill(os.getpid(), 9)
    raise InputError("this cannot work")


def sleep(file: str, on_event: Callback) -> None:
    """Say that it has started, then wait to be interrupted, and save."""
    Path(file).touch()
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        Path(file).write_text("saved")
        raise


MEGABYTES = 200


def freed(on_event: Callback) -> float:
    """How many megabytes of a block the process still holds after it was freed."""

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    before = resident()
    block = torch.ones(MEGABYTES * 250_000)
    assert resident() - before > 0.9 * MEGABYTES
    del block
    return resident() - before


def compile_something(on_event: Callback) -> None:
    """A function that no cache has."""
    numba.njit(lambda n: n + 1)(1)
