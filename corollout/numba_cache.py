"""A cache for compiled functions where numba has none: a read-only installation, and a home that cannot be written.

Importing a module with compiled functions would fail there. The cache must exist before any function is compiled with
``cache=True``, so all modules import numba from here: ``from corollout.numba_cache import numba``.
"""

import atexit
import os
import shutil
import tempfile
from typing import no_type_check

import numba as numba
from numba.core import config


@no_type_check
def _some_function():
    pass


def ensure_cache() -> None:
    """Use a private temporary cache if numba can write neither NUMBA_CACHE_DIR, nor beside this file, nor at home.

    It is handed on to the processes that this one starts, and removed when this one ends. Numba's caches are pickles,
    so its name must not be one that somebody else could foresee.
    """
    try:
        numba.njit(cache=True)(_some_function)  # finds a place for the cache, and compiles nothing yet
    except RuntimeError:
        folder = tempfile.mkdtemp(prefix="corollout-numba-")
        os.environ["NUMBA_CACHE_DIR"] = folder
        config.CACHE_DIR = folder  # pyright: ignore[reportAttributeAccessIssue]  # was read from the environment before
        atexit.register(_remove, folder, os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


ensure_cache()
