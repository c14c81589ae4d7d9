"""What the program that started this process, such as ``torchrun``, says in the environment about its job."""

import os

_RANK, _SIZE, _ADDRESS, _PORT = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
_NAMES = (_RANK, _SIZE, _ADDRESS, _PORT)
_MEMBER = "COROLLOUT_MEMBER"  # which process has joined as which rank: its children inherit the environment


def has_others() -> bool:
    """Whether this process was started as one of several; its own children were not."""
    if any(name not in os.environ for name in _NAMES) or os.environ[_SIZE] == "1":
        return False
    return not _is_child()


def is_first() -> bool:
    """Whether this process is the one of its job that writes, or alone."""
    return not has_others() or os.environ[_RANK] == "0"


def mark_member() -> None:
    """Let children of this process know that they are not the rank that their environment describes."""
    if all(name in os.environ for name in _NAMES):
        os.environ[_MEMBER] = f"{os.getpid()} {_job()}"


def ranks_here() -> int:
    """How many processes of the job run on this machine."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if has_others() and text.isdecimal() and int(text) > 0 else 1


def local_rank() -> int:
    """The number of this process among those on its machine."""
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else 0


def restarts() -> int:
    """How often ``torchrun --max-restarts`` has started the processes of this job again."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def is_restartable() -> bool:
    """Whether the job was started by ``torchrun`` and has a store that outlives its processes."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and _PORT in os.environ and not _is_child()


def rank_and_size() -> tuple[int, int]:
    """Of this process among others."""
    return int(os.environ[_RANK]), int(os.environ[_SIZE])


def describe() -> str:
    """This process in its job: "rank 1 of 2 at localhost:29500"."""
    return f"rank {os.environ[_RANK]} of {os.environ[_SIZE]} at {address()}"


def address() -> str:
    """Where the job's store is, by which its processes find each other."""
    return f"{os.environ.get(_ADDRESS, '')}:{os.environ.get(_PORT, '')}"


def _is_child() -> bool:
    """Whether this process has the environment of a rank that started it."""
    member, _, job = os.environ.get(_MEMBER, "").partition(" ")
    return job == _job() and member != str(os.getpid())


def _job() -> str:
    return " ".join(os.environ.get(name, "") for name in _NAMES)
