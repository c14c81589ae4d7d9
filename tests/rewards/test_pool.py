"""Rewards in worker processes: equal results, and no failure of a worker that hangs, leaks or is misnamed."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.errors import InputError, RewardError
from corollout.rewards import Reward, pool
from tests.support.reward_functions import DiesWhenLoaded, Do, SlowToLoad, mixed, obey

TIMEOUT = 2.0


@pytest.fixture(scope="module")
def reward() -> Iterator[Reward]:
    """Two workers that get one sequence at a time. They stay usable, whatever a test does to them."""
    with Reward(obey, workers=2, timeout=TIMEOUT, batch_size=1) as reward:
        yield reward


def obeyed(reward: Reward, *commands: int) -> list[float]:
    """The rewards of one-token sequences, whose example ids are 50, 51, …"""
    return reward([[command] for command in commands], range(50, 50 + len(commands)), {}).values.tolist()


def pids(reward: Reward) -> set[int]:
    assert reward._pool is not None
    return {worker.process.pid or 0 for worker in reward._pool._workers}


def all_ready(reward: Reward) -> set[int]:
    """Have both workers started; return their process ids."""
    assert reward._pool is not None
    obeyed(reward, 1, 2)
    while not all(worker.ready for worker in reward._pool._workers):
        obeyed(reward, Do.SLEEP)
    return pids(reward)


def kill_one(reward: Reward) -> None:
    """Kill one of the workers while it has nothing to do."""
    all_ready(reward)
    assert reward._pool is not None
    process = reward._pool._workers[0].process
    process.kill()
    process.join()


def exists(pid: int) -> bool:
    """Is there such a process, be it a zombie?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_order_is_kept_with_more_batches_than_workers(reward: Reward):
    assert obeyed(reward, Do.SLEEP, *range(20)) == [0.4, *range(20)]


def test_a_worker_that_hangs_is_killed_and_replaced(reward: Reward):
    before = all_ready(reward)
    start = time.monotonic()
    with pytest.raises(RewardError, match="'obey' took longer than its time-out of 2 s, on a sequence of example 51;"):
        obeyed(reward, 1, Do.HANG, 2)
    assert TIMEOUT <= time.monotonic() - start < TIMEOUT + 5
    (killed,) = before - pids(reward)
    assert not exists(killed)
    assert obeyed(reward, 1, 2, 3) == [1.0, 2.0, 3.0]
    assert len(pids(reward)) == 2


def test_a_worker_that_dies_is_reported_and_replaced(reward: Reward, monkeypatch: pytest.MonkeyPatch):
    message = r"^a worker process of reward 'obey' died \(exit code 3\), on a sequence of example 50;"
    with pytest.raises(RewardError, match=message):
        obeyed(reward, Do.EXIT, 1)
    assert obeyed(reward, 1, 2, 3) == [1.0, 2.0, 3.0]
    kill_one(reward)
    assert obeyed(reward, 1, 2) == [1.0, 2.0]
    # As it gets its batch
    kill_one(reward)
    with monkeypatch.context() as patch:
        patch.setattr(pool.WorkerPool, "_hire", lambda *_: None)
        with pytest.raises(RewardError, match=r"killed by signal 9 \(Killed\), on a sequence of example 50;"):
            obeyed(reward, 1, 2)
    assert obeyed(reward, 1, 2) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (Do.RAISE, "raised LookupError: no such thing, on a sequence of example 51;"),
        (Do.QUIT, "raised SystemExit: enough, on a sequence of example 51;"),
        (Do.NAN, r"returned nan \(float\) for a sequence of example 51;"),
    ],
)
def test_errors_are_those_of_a_reward_without_workers(reward: Reward, command: int, message: str):
    with pytest.raises(RewardError, match=f"^reward 'obey' {message}") as here:
        obeyed(Reward(obey, batch_size=1), 1, command)
    before = all_ready(reward)
    with pytest.raises(RewardError) as in_worker:
        obeyed(reward, 1, command)
    assert str(in_worker.value) == str(here.value)
    assert isinstance(in_worker.value.__cause__, pool.WorkerTraceback)
    assert "functions.py" in str(in_worker.value.__cause__) or command == Do.NAN
    assert pids(reward) == before


def test_of_several_failures_the_first_in_order_is_reported(reward: Reward):
    all_ready(reward)
    with pytest.raises(RewardError, match="raised LookupError: no such thing, on a sequence of example 50;"):
        reward([[Do.SLEEP, Do.RAISE], [Do.NAN], [Do.EXIT]], [50, 51, 52], {})
    assert obeyed(reward, 1, 2) == [1.0, 2.0]


def test_workers_ignore_ctrl_c(reward: Reward):
    before = all_ready(reward)

    def interrupt() -> None:
        for pid in before:
            os.kill(pid, signal.SIGINT)

    timer = threading.Timer(0.2, interrupt)
    timer.start()
    assert obeyed(reward, Do.SLEEP, Do.SLEEP) == [0.4, 0.4]
    timer.join()
    assert pids(reward) == before


def test_an_interrupted_call_leaves_no_answer_for_the_next(reward: Reward, monkeypatch: pytest.MonkeyPatch):
    all_ready(reward)

    def interrupt(*_: Any) -> list[Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            obeyed(reward, 1, Do.SLEEP)
    assert obeyed(reward, 3, 4) == [3.0, 4.0]


def test_a_forked_copy_leaves_the_workers_alone(reward: Reward):
    before = all_ready(reward)
    assert reward._pool is not None
    pool._end_all(reward._pool._workers, owner=os.getpid() + 1)
    assert obeyed(reward, 3, 4) == [3.0, 4.0]
    assert pids(reward) == before


def test_results_do_not_depend_on_the_workers_and_none_is_left_behind():
    sequences = [[n % 3] * (n % 4) for n in range(30)]
    examples = [n % 5 for n in range(30)]
    finished = [n % 2 == 0 for n in range(30)]
    weight = torch.tensor([float(example) for example in examples])
    columns = {"weight": list(weight), "unused": [lambda: None] * 30}
    here = Reward(mixed)(sequences, examples, columns, finished)
    assert here.values.isnan().any()
    # The start of a worker takes longer than this time-out, which must not count it.
    one, two = Reward(SlowToLoad(), workers=1, timeout=1.0), Reward(mixed, workers=2)
    for reward in (one, two):
        scores = reward(sequences, examples, columns, finished)
        torch.testing.assert_close(scores.values, here.values, rtol=0, atol=0, equal_nan=True)
        assert scores.calls == here.calls
    of_one, of_two = pids(one), pids(two)
    assert all(exists(pid) for pid in of_one | of_two)
    one.close()
    one.close()
    assert not any(exists(pid) for pid in of_one)
    del reward, two
    gc.collect()
    assert not any(exists(pid) for pid in of_two)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_leave_with_their_parent(sent: signal.Signals, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.support.reward_functions import Do, obey\n"
        "from corollout.rewards import Reward\n"
        "if __name__ == '__main__':\n"
        "    reward = Reward(obey, workers=1, batch_size=1)\n"
        "    reward([[1], [Do.HANG]], [0, 1], {})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, str(script)], env=environment, **pipes) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "hanging\n"
        parent.send_signal(sent)
        # The workers inherited the pipe: it ends when the last of them is gone.
        rest, _ = parent.communicate(timeout=20)
    assert rest == ""
    assert parent.returncode == -sent


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises(InputError, match=r"reward '<lambda>' cannot be sent .* define it at module level"):
        Reward(lambda sequences: [0.0], workers=1)
    reward = Reward(mixed, workers=1)
    with pytest.raises(InputError, match=r"columns for reward 'mixed' cannot be sent .* on a sequence of example 3;"):
        reward([[1]], [3], {"weight": [lambda: None]}, [True])
    assert pids(reward) == set()


def ghost(sequences: list[list[int]]) -> list[float]:
    """A function that the next test hides from the workers."""
    return [0.0 for _ in sequences]


def test_a_function_that_workers_cannot_import_is_reported(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("only_here")
    monkeypatch.setattr(module, "ghost", ghost, raising=False)
    monkeypatch.setattr(ghost, "__module__", "only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    with Reward(ghost, workers=1) as reward:
        message = r"^reward 'ghost' cannot be loaded in a worker process \(ModuleNotFoundError: .*'only_here'"
        with pytest.raises(RewardError, match=message):
            reward([[1]], [0], {})
        assert pids(reward) == set()


def test_a_worker_that_dies_at_its_start_is_reported():
    with Reward(DiesWhenLoaded(), workers=1) as reward:
        message = r"^a worker process of reward 'DiesWhenLoaded' died \(exit code 4\) while it started;"
        with pytest.raises(RewardError, match=message):
            reward([[1]], [0], {})
