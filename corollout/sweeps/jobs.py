"""A queue of jobs, each in a worker process: some at a time, after those that they depend on.

A job is a function by its import path and arguments that JSON can hold. The worker calls it with ``on_event`` besides;
its events, and what it returns, come back through a pipe. Jobs save their work by themselves: stopped at any instant,
the same jobs continue from there.
"""

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from corollout.errors import CorolloutError, Interrupted
from corollout.events import Callback, Event, ignore
from corollout.signals import interrupting_stops

_ERROR_BYTES = 4_000  # of a failed worker's error output, from its end


@dataclass(frozen=True)
class Job:
    """A call of ``work``, "module:function", with ``arguments`` and ``on_event``."""

    name: str
    work: str
    arguments: Mapping[str, Any]
    after: Sequence[str] = ()  # names of jobs that must be done before
    done: bool = False
    weight: float = 1.0  # in the estimate of the time left


@dataclass(frozen=True)
class _Worker:
    job: Job
    process: "subprocess.Popen[str]"
    errors: IO[bytes]  # a file: a pipe that nobody reads would block the worker when it is full

    def failure(self) -> str:
        size = self.errors.seek(0, 2)
        self.errors.seek(max(0, size - _ERROR_BYTES))
        code = self.process.returncode
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return self.errors.read().decode(errors="replace").strip() or reason


def run_jobs(jobs: Sequence[Job], workers: int, on_event: Callback = ignore) -> None:
    """Run all jobs that are not done, ``workers`` at a time.

    ``on_event`` gets the progress of each job as a part of the work, its other events with the job's name as ``job``,
    and what it returns as an event "result" with ``job`` and ``value``.
    """
    waiting = [job for job in jobs if not job.done]
    for job in jobs:
        if job.done:
            on_event(_progress(job, 1.0))
    pending = {job.name for job in waiting}  # waiting or running
    running: dict[str, _Worker] = {}
    lines: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    try:
        with interrupting_stops():
            while waiting or running:
                for job in [job for job in waiting if not pending.intersection(job.after)]:
                    if len(running) < workers:
                        waiting.remove(job)
                        running[job.name] = _start(job, lines)
                if not running:
                    stuck = waiting[0]
                    raise CorolloutError(f"{stuck.name} waits for {', '.join(stuck.after)}, which wait for it")
                name, line = lines.get()
                if line is not None:
                    on_event(_relayed(running[name].job, *json.loads(line)))
                    continue
                if running[name].process.wait():
                    raise CorolloutError(f"{name} failed: {running[name].failure()}")
                worker = running.pop(name)
                worker.errors.close()
                pending.remove(name)
                on_event(_progress(worker.job, 1.0))
    except KeyboardInterrupt as error:
        raise Interrupted("stopped; all finished work is saved") from error
    finally:
        for worker in running.values():
            worker.process.terminate()  # it saves first
        for worker in running.values():
            worker.process.wait()
            worker.errors.close()


def _start(job: Job, lines: "queue.SimpleQueue[tuple[str, str | None]]") -> _Worker:
    errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the worker)
    description = json.dumps({"work": job.work, "arguments": dict(job.arguments)})
    process = subprocess.Popen(
        [sys.executable, "-m", "corollout.sweeps.worker", description],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this process only, which then stops its workers
    )

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                lines.put((job.name, line))
        lines.put((job.name, None))

    threading.Thread(target=read, daemon=True).start()
    return _Worker(job, process, errors)


def _relayed(job: Job, kind: str, record: dict[str, Any]) -> Event:
    """A worker's event as one of the whole queue."""
    if kind == "progress":
        done, total = record.pop("done"), record.pop("total", None)
        # Only the end of its process ends a job.
        return _progress(job, min(done / total, 0.999) if total else 0.0, **{**record, "part": job.name})
    if kind == "warning":
        return Event(kind, {"text": f"{job.name}: {record['text']}"})
    return Event(kind, {**record, "job": job.name})


def _progress(job: Job, share: float, **record: Any) -> Event:
    return Event("progress", {**record, "part": job.name, "done": share, "total": 1.0, "weight": job.weight})
