"""What a job that ``torchrun --max-restarts`` starts again has begun before: its own output, never somebody else's.

The store of ``torchrun``'s agent lives as long as the job, whatever happens to its processes.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corollout.errors import ProcessError
from corollout.launch import address, is_restartable, restarts
from corollout.processes import processes
from corollout.stores import of_torchrun

_SECONDS = 60  # to reach the store


@contextmanager
def beginning(output: Path, marker: str) -> Generator[None, None, None]:
    """Inside, the first process of the job writes new output, of which a file ``marker`` comes last."""
    is_ours = processes().is_first and is_restartable() and not (output / marker).exists()
    if is_ours:
        _store().set(_key(output), "")
    try:
        yield
    except Exception:
        if is_ours and not (output / marker).exists():
            _store().delete_key(_key(output))
        raise


def has_begun(output: Path, marker: str) -> bool:
    """Whether an earlier start of this very job has written this output."""
    group, begun = processes(), False
    with group.agreed():
        if group.is_first and restarts() and is_restartable():
            begun = (output / marker).exists() and _store().check([_key(output)])
    return group.from_first(begun)


def _key(output: Path) -> str:
    return f"corollout/begun/{os.path.realpath(output)}"


def _store() -> Any:
    try:
        return of_torchrun(_SECONDS)
    except (RuntimeError, ValueError) as error:
        raise ProcessError(f"the store of torchrun at {address()} cannot be reached: {error}") from None
