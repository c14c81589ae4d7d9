"""The number of threads: measured, or given."""

import os
import re
import time
from types import SimpleNamespace

import pytest
import torch

from corollout import threads
from corollout.threads import ThreadChoice, choose_threads, use_threads


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch):
    """Nothing is given, and threads are as before afterwards."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: 2)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Work:
    """Work that takes so long with each number of threads, by a clock that nothing else moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> None:
        self.seconds, self.calls, self.now = seconds, [], 0.0
        monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def __call__(self) -> None:
        self.calls.append(torch.get_num_threads())
        self.now += self.seconds[self.calls[-1]]


@pytest.mark.parametrize(
    ("one", "two", "expected"), [(0.012, 0.006, 2), (0.012, 0.012, 1), (0.006, 0.012, 1), (0.0105, 0.01, 1)]
)
def test_more_threads_are_used_if_they_are_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, one: float, two: float, expected: int
):
    before, work = torch.get_num_threads(), Work(monkeypatch, {1: one, 2: two})
    choice = choose_threads(work)
    assert choice.threads == expected
    gain = float(re.findall(r"(\S+) × as fast", choice.reason)[0])
    assert gain == pytest.approx(one / two, abs=0.005)
    assert choice.reason.startswith("2 threads: measured" if expected == 2 else "1 thread: 2 threads would be")
    assert "\n" not in choice.reason
    assert torch.get_num_threads() == before
    assert work.calls.count(1) == work.calls.count(2) >= 5
    assert work.now < 1.0


def test_long_work_is_measured_once_or_twice(monkeypatch: pytest.MonkeyPatch):
    work = Work(monkeypatch, {1: 0.3, 2: 0.1})
    assert choose_threads(work).threads == 2
    assert work.calls == [1, 1, 2, 2]


def test_without_work_a_small_step_is_measured():
    started = time.process_time()
    choice = choose_threads()
    assert choice.threads in (1, 2)
    assert "× as fast" in choice.reason
    assert time.process_time() - started < 3


@pytest.mark.parametrize(("value", "expected"), [("1", 1), ("3", 3), (" 2 ", 2), ("4,2", 4)])
def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, value: str, expected: int):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    work = Work(monkeypatch, {})
    choice = choose_threads(work)
    assert choice.threads == expected
    assert "OMP_NUM_THREADS" in choice.reason
    assert work.calls == []


@pytest.mark.parametrize("value", ["", "0", "-1", "many"])
def test_an_environment_that_says_nothing_does_not_decide(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    work = Work(monkeypatch, {1: 0.1, 2: 0.1})
    choose_threads(work)
    assert work.calls


def test_one_core_needs_no_measurement(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 1)
    work = Work(monkeypatch, {})
    assert choose_threads(work) == ThreadChoice(1, "1 thread: there is one core")
    assert work.calls == []


def test_threads_are_restored_if_the_work_fails():
    before = torch.get_num_threads()

    def fail() -> None:
        if torch.get_num_threads() == 2:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        choose_threads(fail)
    assert torch.get_num_threads() == before


def test_threads_are_used(monkeypatch: pytest.MonkeyPatch):
    use_threads(2)
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(threads, "choose_threads", lambda: ThreadChoice(1, "because"))
    use_threads(None)
    assert torch.get_num_threads() == 1


def test_the_cores_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert 1 <= threads.available_cores() <= (os.cpu_count() or 1)
