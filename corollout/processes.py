"""The processes of a job: several that ``torchrun`` has started, or one that is alone.

Every rank makes the same calls in the same order. A call waits until all ranks have made it, and fails with a
``ProcessError`` that names a rank if one has ended, or has not come within the time-out. Between the calls, ranks may
do different things for as long as that: rollouts contain no call.

The time-out is 600 seconds; COROLLOUT_PROCESS_TIMEOUT sets another one, for rewards that take longer.
"""

import atexit
import math
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from corollout.errors import InputError, ProcessError
from corollout.launch import (
    describe,
    has_others,
    is_restartable,
    local_rank,
    mark_member,
    rank_and_size,
)
from corollout.process_group import TIMEOUT, Group, Processes, keep_forever
from corollout.signals import default_stops
from corollout.stores import of_default_group, of_this_start, of_torchrun
from corollout.text import quoted

__all__ = ["TIMEOUT", "Processes", "joined", "processes"]

_DEFAULT_TIMEOUT = 600.0
_JOIN_TIMEOUT = 300.0  # until all processes of the job have started

_alone = Processes()
_joined: tuple[Any, Group] | None = None  # the default group, and what was made for it
_is_fork = False  # a copy of a member, which is none itself


def processes() -> Processes:
    """The processes of this job; all ranks make the first call together.

    They are those of the process group of ``torch.distributed``, if there is one. Otherwise a process that ``torchrun``
    has started joins the group that ``torchrun`` describes, until the process ends. Any other process is alone.
    """
    if _is_fork:
        return _alone
    if not _is_initialized():
        if not has_others():
            return _alone
        context = joined()
        context.__enter__()
        atexit.register(lambda: context.__exit__(*_last_error()))
    if dist.get_world_size() == 1:
        return _alone
    if _joined is None or _joined[0] is not dist.group.WORLD:
        group = _join(_timeout())
        atexit.register(lambda: group.leave(str(_last_error()[1] or "")))  # whoever made the group leaves it as it is
    assert _joined is not None
    return _joined[1]


def _forked() -> None:
    global _is_fork
    _is_fork = _is_fork or _joined is not None


os.register_at_fork(after_in_child=_forked)


def _join(timeout: float) -> Group:
    """Make what this process talks to the others with, once the default group is there."""
    global _joined
    mark_member()
    group = Group(timeout, of_this_start(of_default_group()))
    _joined = dist.group.WORLD, group
    return group


@contextmanager
def joined(timeout: float | None = None) -> Generator[Processes, None, None]:
    """Inside, this process is in the group that the environment of ``torchrun`` describes; without one, it is alone.

    gloo carries tensors of the CPU and nccl those of GPUs. ``timeout`` is how many seconds a rank waits for another.
    A group that exists already is used and left as it is.
    """
    global _joined
    if _is_initialized() or not has_others():
        yield processes()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    seconds = _timeout() if timeout is None else timeout
    try:
        with default_stops():  # a process that waits for others in there does not hear a signal
            dist.init_process_group(backend, timeout=timedelta(seconds=_JOIN_TIMEOUT), **_meeting_point())
            group = _join(seconds)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ProcessError(f"{describe()} cannot join its job: {first}") from None
    reason: str | None = ""
    try:
        yield group
    except ProcessError as error:
        reason = None
        error.is_teller = error.is_teller and group.is_first_to_say(str(error))
        raise
    except BaseException as error:
        reason = str(error) or type(error).__name__
        vars(error)["is_teller"] = group.is_first_to_say(reason)
        raise
    finally:
        _joined = None
        if reason is not None:
            group.leave(reason)
        if reason == "":
            dist.destroy_process_group()
        else:  # others may be gone or stuck: its end would wait for them
            keep_forever(dist.group.WORLD, group)


def _meeting_point() -> dict[str, Any]:
    """How the processes of a job find each other.

    ``torchrun`` has one store for all starts of a job, in which processes would find addresses of earlier ones.
    """
    if not is_restartable():
        return {}
    rank, size = rank_and_size()
    return {"store": of_this_start(of_torchrun(_JOIN_TIMEOUT)), "rank": rank, "world_size": size}


def _last_error() -> tuple[Any, Any, Any]:
    """The error that ends this process, if one does."""
    error = getattr(sys, "last_exc", None)
    return (None, None, None) if error is None else (type(error), error, None)


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text) if text else _DEFAULT_TIMEOUT
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{TIMEOUT} must be a positive number of seconds, not {quoted(text)}")
    return seconds
