"""The key-value stores of ``torch.distributed``, by which the processes of a job find each other."""

from datetime import timedelta
from typing import Any

import torch.distributed

from corollout.launch import address, restarts

_dist: Any = torch.distributed  # whose stores are not declared


def of_torchrun(seconds: float) -> Any:
    """The store of ``torchrun``, which lives as long as the job; seconds are the most that a call waits."""
    host, _, port = address().rpartition(":")
    return _dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=seconds))


def of_default_group() -> Any:
    """The store through which the default process group was made."""
    return _dist.distributed_c10d._get_default_store()


def of_this_start(store: Any) -> Any:
    """The part of a store that earlier starts of the job have not written to."""
    return _dist.PrefixStore(f"corollout/start-{restarts()}", store)
