"""A disk that is full, for this process only."""

import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def small_files(size: int) -> Generator[None, None, None]:
    """Inside, writing beyond this size fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
