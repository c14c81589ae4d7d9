"""Pages that glibc keeps: in processes of their own, because nothing undoes it."""

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corollout.allocator import keep_pages, release_pages
from corollout.events import Event
from corollout.sweeps.jobs import Job, run_jobs
from tests.support.job_functions import MEGABYTES

PROGRAM = """
import corollout
from corollout.allocator import keep_pages, release_pages
from tests.support.job_functions import freed
print({prepare}, freed(lambda event: None))
"""
glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="not glibc")


def kept_megabytes(prepare: str) -> tuple[str, float]:
    """What a program prints of its preparation, and how much of a large freed block it still holds."""
    command = [sys.executable, "-c", PROGRAM.format(prepare=prepare)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    said, megabytes = done.stdout.split()
    return said, float(megabytes)


@pytest.mark.prove
@glibc
def test_pages_are_kept_only_if_the_process_wants_it():
    said, kept = kept_megabytes("keep_pages()")
    assert said == "True"
    assert kept > 0.9 * MEGABYTES
    _, kept = kept_megabytes("'import'")
    assert kept < 0.5 * MEGABYTES


@glibc
def test_workers_of_sweeps_keep_pages():
    events: list[Event] = []
    run_jobs([Job("job", "tests.support.job_functions:freed", {})], 1, events.append)
    [value] = [event.record["value"] for event in events if event.kind == "result"]
    assert value > 0.9 * MEGABYTES


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch, platform: str):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert keep_pages() is False


def test_other_libraries_of_linux_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_pages() is False


def test_a_lower_limit_is_tried_next(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []

    class Library:
        gnu_get_libc_version = None

        def mallopt(self, parameter: int, value: int) -> int:
            calls.append((parameter, value))
            return int(value != 1 << 30)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert keep_pages() is True
    assert calls == [(-3, 1 << 30), (-3, 1 << 25), (-1, 2**31 - 1)]


def test_pages_are_released_where_that_is_possible(monkeypatch: pytest.MonkeyPatch):
    trimmed: list[int] = []

    class Library:
        def malloc_trim(self, kept: int) -> int:
            trimmed.append(kept)
            return 1

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert release_pages() is True
    assert trimmed == [0]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert release_pages() is False
    monkeypatch.setattr(sys, "platform", "darwin")
    assert release_pages() is False
