"""Other processes that come at the worst moment."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest


def take_first_for_a_leftover(monkeypatch: pytest.MonkeyPatch, *, removed_before: bool) -> list[Path]:
    """Let another process lock, and perhaps remove, what is created next before its creator locks it.

    Returns the path, once it is known.
    """
    real, taken, kept = fcntl.flock, [], []

    def flock(handle: object, operation: int) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()  # pyright: ignore[reportAttributeAccessIssue]
        if not taken:
            taken.append(path := Path(os.readlink(f"/proc/self/fd/{number}")))
            other = os.open(path, os.O_RDONLY)
            real(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if removed_before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                os.close(other)
            else:
                kept.append(other)
        real(handle, operation)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(fcntl, "flock", flock)
    return taken
