"""Compiled loops over rows, on as many threads as PyTorch uses."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

# Less work than this many numbers is done sooner than it is handed out.
_WORTH_IT = 1 << 20

_pool: ThreadPoolExecutor | None = None


def by_rows(loop: Callable[..., Any], work: int, *arrays: np.ndarray) -> list[tuple[int, Any]]:
    """Run a loop that releases the GIL on parts of the rows of all arrays; return each part's start and result.

    ``work`` is about how many numbers each row makes the loop look at.
    """
    global _pool
    rows = len(arrays[0])
    parts = min(torch.get_num_threads(), rows, rows * work // _WORTH_IT + 1)
    if parts <= 1:
        return [(0, loop(*arrays))]
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="corollout")
    cuts = [(rows * i // parts, rows * (i + 1) // parts) for i in range(parts)]
    tasks = [_pool.submit(loop, *(array[start:end] for array in arrays)) for start, end in cuts[1:]]
    first = loop(*(array[: cuts[0][1]] for array in arrays))
    return [(0, first), *((start, task.result()) for (start, _), task in zip(cuts[1:], tasks, strict=True))]


def _forget_pool() -> None:
    global _pool
    _pool = None


# A forked process has no threads but its own.
os.register_at_fork(after_in_child=_forget_pool)
