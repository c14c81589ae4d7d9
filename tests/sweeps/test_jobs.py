"""The queue of jobs: order, events, failures, and signals."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from corollout.errors import CorolloutError, Interrupted
from corollout.events import Event
from corollout.sweeps.jobs import Job, run_jobs

HERE = "tests.support.job_functions"


def append_job(folder: Path, name: str, after: tuple[str, ...] = ()) -> Job:
    return Job(name, f"{HERE}:append", {"file": str(folder / "order"), "text": name}, after=after, weight=0.5)


def test_jobs_wait_for_others_and_report_their_events(tmp_path: Path):
    """The worker's error output is larger than a pipe: it must not block."""
    done = Job("done", "nowhere:nothing", {}, done=True)
    jobs = [append_job(tmp_path, "second", ("first", "done")), done, append_job(tmp_path, "first")]
    events: list[Event] = []
    run_jobs(jobs, 2, events.append)
    assert (tmp_path / "order").read_text().split() == ["first", "second"]
    assert events[0].record == {"part": "done", "done": 1.0, "total": 1.0, "weight": 1.0}
    own = [(event.kind, dict(event.record)) for event in events if "second" in str(event.record)]
    assert own == [
        ("warning", {"text": "second: careful"}),
        ("note", {"text": "second", "job": "second"}),
        ("progress", {"part": "second", "done": 0.25, "total": 1.0, "weight": 0.5}),
        ("result", {"value": {"said": "second"}, "job": "second"}),
        ("progress", {"part": "second", "done": 1.0, "total": 1.0, "weight": 0.5}),
    ]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("", "bad failed: this cannot work"),
        pytest.param("die", "bad failed: signal SIGKILL", marks=pytest.mark.prove),
    ],
)
def test_a_job_that_fails_stops_the_others(tmp_path: Path, how: str, said: str):
    started = tmp_path / "started"
    jobs = [Job("good", f"{HERE}:sleep", {"file": str(started)}), Job("bad", f"{HERE}:fail", {"how": how})]
    with pytest.raises(CorolloutError, match=said):
        run_jobs(jobs, 2)
    assert not started.exists() or started.read_text() in ("saved", "")


def test_jobs_that_wait_for_each_other(tmp_path: Path):
    jobs = [append_job(tmp_path, "a", ("b",)), append_job(tmp_path, "b", ("a",))]
    with pytest.raises(CorolloutError, match="a waits for b"):
        run_jobs(jobs, 2)


@pytest.mark.parametrize(
    ("number", "sigint"), [(signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_IGN)]
)
def test_a_signal_stops_all_jobs_and_they_save(tmp_path: Path, number: signal.Signals, sigint: Any):
    """Also where SIGINT is ignored, as in a process that was started by nohup."""
    before, file = signal.getsignal(signal.SIGTERM), tmp_path / "file"

    def kill() -> None:
        while not file.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    killer = threading.Thread(target=kill)
    handler = signal.signal(signal.SIGINT, sigint)
    try:
        killer.start()
        with pytest.raises(Interrupted):
            run_jobs([Job("long", f"{HERE}:sleep", {"file": str(file)})], 2)
    finally:
        signal.signal(signal.SIGINT, handler)
    killer.join()
    assert file.read_text() == "saved"
    assert signal.getsignal(signal.SIGTERM) is before
