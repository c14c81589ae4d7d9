"""The number of threads: measured, or given."""

import os
import re
import time
from collections.abc import Callable

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


def work_of(seconds: dict[int, float], calls: list[int]) -> Callable[[], None]:
    """Work that takes so long with each number of threads."""

    def work() -> None:
        calls.append(torch.get_num_threads())
        time.sleep(seconds[calls[-1]])

    return work


@pytest.mark.parametrize(
    ("one", "two", "expected"), [(0.012, 0.006, 2), (0.012, 0.012, 1), (0.006, 0.012, 1), (0.0105, 0.01, 1)]
)
def test_more_threads_are_used_if_they_are_clearly_faster(one: float, two: float, expected: int):
    calls: list[int] = []
    before, started = torch.get_num_threads(), time.perf_counter()
    choice = choose_threads(work_of({1: one, 2: two}, calls))
    assert choice.threads == expected
    gain = float(re.findall(r"(\S+) × as fast", choice.reason)[0])
    assert gain == pytest.approx(one / two, rel=0.12)
    assert choice.reason.startswith("2 threads: measured" if expected == 2 else "1 thread: 2 threads would be")
    assert "\n" not in choice.reason
    assert torch.get_num_threads() == before
    assert calls.count(1) == calls.count(2) >= 5
    assert time.perf_counter() - started < 1.0


def test_long_work_is_measured_once_or_twice():
    calls: list[int] = []
    assert choose_threads(work_of({1: 0.3, 2: 0.1}, calls)).threads == 2
    assert calls == [1, 1, 2, 2]


def test_without_work_a_small_step_is_measured():
    started = time.process_time()
    choice = choose_threads()
    assert choice.threads in (1, 2)
    assert "× as fast" in choice.reason
    assert time.process_time() - started < 3


@pytest.mark.parametrize(("value", "expected"), [("1", 1), ("3", 3), (" 2 ", 2), ("4,2", 4)])
def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, value: str, expected: int):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    calls: list[int] = []
    choice = choose_threads(work_of({}, calls))
    assert choice.threads == expected
    assert "OMP_NUM_THREADS" in choice.reason
    assert calls == []


@pytest.mark.parametrize("value", ["", "0", "-1", "many"])
def test_an_environment_that_says_nothing_does_not_decide(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    calls: list[int] = []
    choose_threads(work_of({1: 0.1, 2: 0.1}, calls))
    assert calls


def test_one_core_needs_no_measurement(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 1)
    calls: list[int] = []
    assert choose_threads(work_of({}, calls)) == ThreadChoice(1, "1 thread: there is one core")
    assert calls == []


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
