"""A small pool of worker processes in which a stuck or dying worker costs one batch, never the run.

Each worker is a spawned process with a pipe of its own, so that one of them can be killed without touching
the others. A worker is started when it is first needed and says when it is ready: the time-out counts the
work, not the start. What is exchanged is pickled between a process and its own child only.
"""

import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn

from corollout.errors import InputError, RewardError
from corollout.signals import ignore_stops, without_stops

# Seconds that a worker whose pipe was closed may take to leave before it is killed.
GRACE = 5.0


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the error raised in the parent."""


@dataclass(frozen=True)
class _Reply:
    """What a worker sends: once when it is ready, then once for each job."""

    value: Any = None
    error: str | None = None
    traceback: str = ""


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    connection: Connection
    ready: bool = False
    job: int | None = None
    deadline: float = math.inf


class WorkerPool:
    """Runs one pickled task on many jobs in `workers` processes.

    `task` is a pickled callable that takes a job and returns a picklable value or raises `RewardError`. Jobs
    are picklable, and `str(job)` says where a job comes from: it completes the error messages. `timeout` is
    in seconds for each job.
    """

    def __init__(self, name: str, task: bytes, workers: int, timeout: float | None) -> None:
        self._name = name
        self._task = task
        self._size = workers
        self._timeout = timeout
        self._workers: list[_Worker] = []
        weakref.finalize(self, _end_all, self._workers, os.getpid())

    def run(self, jobs: Sequence[object]) -> list[Any]:
        """Return the task's value for each job, in order, or raise the error of the first job that failed.

        After a failure no further job is started and those under way are waited for. All jobs before the
        failed one were started earlier, so the error raised is the one that running them in order would meet.
        """
        values: list[Any] = [None] * len(jobs)
        failures: dict[int, RewardError] = {}
        todo = deque(enumerate([self._pickled(job) for job in jobs]))
        self._hire(min(self._size, len(jobs)))
        try:
            while True:
                for worker in self._workers:
                    if todo and not failures and worker.ready and worker.job is None:
                        self._send(worker, *todo.popleft())
                busy = any(worker.job is not None for worker in self._workers)
                if not busy and (failures or not todo):
                    break
                for worker, answered in self._attend():
                    index = worker.job
                    try:
                        value = self._receive(worker, jobs) if answered else self._expire(worker, jobs)
                    except RewardError as error:
                        if index is None:
                            raise
                        failures[index] = error
                    else:
                        if index is not None:
                            values[index] = value
        finally:
            # Only an interruption leaves busy workers here: their late answers must not reach the next call.
            for worker in [worker for worker in self._workers if worker.job is not None]:
                self._dismiss(worker, grace=0.0)
        if failures:
            raise failures[min(failures)]
        return values

    def close(self) -> None:
        """End all workers. A later `run` starts new ones."""
        _end_all(self._workers, os.getpid())

    def _pickled(self, job: object) -> bytes:
        """The job as a message. Plain pickle copies tensors, where a connection's own would share memory."""
        try:
            return pickle.dumps(job)
        except Exception as error:
            raise InputError(
                f"the columns for reward {self._name!r} cannot be sent to worker processes "
                f"({type(error).__name__}: {error}), {job}; use values that pickle accepts, or set workers=0"
            ) from error

    def _hire(self, count: int) -> None:
        """Bring the pool to `count` living workers at least: those that died while idle are replaced."""
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            self._dismiss(worker, grace=0.0)
        context = multiprocessing.get_context("spawn")
        while len(self._workers) < count:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._task), daemon=True)
            try:
                with without_stops():  # until it ignores them
                    process.start()
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._workers.append(_Worker(process, ours))

    def _send(self, worker: _Worker, index: int, job: bytes) -> None:
        worker.job = index
        # A worker that died since it was last heard of is found when its answer is read.
        with suppress(OSError):
            worker.connection.send_bytes(job)
        if self._timeout is not None:
            worker.deadline = time.monotonic() + self._timeout

    def _attend(self) -> list[tuple[_Worker, bool]]:
        """Wait for an answer or a deadline; return the workers concerned, each with: did it answer?"""
        workers = [worker for worker in self._workers if worker.job is not None or not worker.ready]
        deadline = min(worker.deadline for worker in workers)
        patience = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        readable = wait([worker.connection for worker in workers], patience)
        now = time.monotonic()
        answered = [(worker, worker.connection in readable) for worker in workers]
        return [(worker, answer) for worker, answer in answered if answer or worker.deadline <= now]

    def _receive(self, worker: _Worker, jobs: Sequence[object]) -> Any:
        """Read a worker's answer and make it free for the next job."""
        try:
            reply: _Reply = worker.connection.recv()
        except (EOFError, OSError):
            ending = _ending(self._dismiss(worker, GRACE))
            if worker.job is None:
                raise RewardError(
                    f"a worker process of reward {self._name!r} {ending} while it started; its error output "
                    'says why (a script with workers needs `if __name__ == "__main__":` around its main part)'
                ) from None
            raise RewardError(
                f"a worker process of reward {self._name!r} {ending}, {jobs[worker.job]}; "
                "make sure that the function does not end its process and has enough memory"
            ) from None
        worker.job, worker.deadline = None, math.inf
        if not worker.ready and reply.error is not None:
            self._dismiss(worker, GRACE)
            raise RewardError(
                f"reward {self._name!r} cannot be loaded in a worker process ({reply.error}); "
                "define the function in a module that can be imported"
            ) from WorkerTraceback(reply.traceback)
        worker.ready = True
        if reply.error is not None:
            raise RewardError(reply.error) from WorkerTraceback(reply.traceback)
        return reply.value

    def _expire(self, worker: _Worker, jobs: Sequence[object]) -> NoReturn:
        """Kill a worker whose time is up."""
        assert worker.job is not None
        self._dismiss(worker, grace=0.0)
        raise RewardError(
            f"reward {self._name!r} took longer than its time-out of {self._timeout:g} s, "
            f"{jobs[worker.job]}; raise the time-out, make the batches smaller, or bound the function's work"
        )

    def _dismiss(self, worker: _Worker, grace: float) -> int:
        self._workers.remove(worker)
        return _end(worker, grace)


def _end(worker: _Worker, grace: float) -> int:
    """End a worker, by force if it is still there after `grace` seconds; return its exit code."""
    worker.connection.close()
    worker.process.join(grace)
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
    code = worker.process.exitcode
    assert code is not None
    worker.process.close()
    return code


def _end_all(workers: list[_Worker], owner: int) -> None:
    """End all workers at once; in a forked copy of the process that started them, leave them alone."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.connection.close()
    while workers:
        _end(workers.pop(), GRACE)


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"
    return f"died (exit code {code})"


def _serve(connection: Connection, task: bytes) -> None:
    """A worker's life: load the task, then answer jobs until the pipe is closed."""
    # Ctrl-C reaches every process of a terminal, and torchrun signals all that its processes have started: the parent
    # decides what it means.
    ignore_stops()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        function = pickle.loads(task)  # noqa: S301 (it comes from the parent process)
    except Exception as error:
        connection.send(_Reply(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()))
        raise SystemExit(1) from error
    connection.send(_Reply())
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        try:
            reply = _Reply(function(job))
        except RewardError as error:
            reply = _Reply(error=str(error), traceback=traceback.format_exc())
        connection.send(reply)


def _leave_with_parent() -> None:
    """End this worker when its parent is gone, even if it is stuck in a job nobody waits for any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
