"""Compilation: counted by no clock, announced once, and done before the first update."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from corollout import compilation
from corollout.cli.progress import show_events
from corollout.cli.terminal import Terminal
from corollout.compilation import MESSAGE, announced, cpu_time, wall_time
from corollout.estimators import make_estimator
from corollout.events import Event
from corollout.lab.measurement import time_rounds
from corollout.noise import Noise
from corollout.sweeps.jobs import Job, run_jobs
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.settings import ModelSettings
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining, resume_run
from corollout.training.warm_up import warm_up
from corollout.trees import save_tree
from corollout.trees.building import balanced_tree
from tests.support import small_captions, small_karel
from tests.support.compilations import counted
from tests.support.small_task import ESTIMATORS, likeness, make_data, make_engine, make_policy, make_trainer, weights

ROOT = Path(__file__).parents[1]
TREE_ESTIMATORS = ["bt-arsm", "bt-disarm", *(name for name in ESTIMATORS if "tree" in make_estimator(name).heads)]


def fresh() -> Callable[[int], int]:
    """A function that takes a noticeable time to compile, and none to run."""

    @numba.njit
    def digits(n: int) -> int:
        values = sorted([n, n + 1, n + 2])
        return len(str(values[0]) + str(values[1]))

    return digits


@pytest.mark.parametrize(("ours", "plain"), [(wall_time, time.perf_counter), (cpu_time, time.process_time)])
def test_the_clocks_stand_still_while_functions_are_compiled(ours: Callable[[], float], plain: Callable[[], float]):
    function = fresh()
    before, started = ours(), plain()
    assert function(7) == 2
    compiled, whole = ours() - before, plain() - started
    assert whole > 0.05
    assert compiled < 0.2 * whole
    before, started = ours(), plain()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        function(7)
    assert ours() - before == pytest.approx(plain() - started, abs=1e-3)


def test_threads_that_compile_at_the_same_time_are_not_counted_twice():
    functions = [fresh() for _ in range(3)]
    before, started = wall_time(), time.perf_counter()
    threads = [threading.Thread(target=function, args=(3,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = time.perf_counter() - started
    assert whole > 0.1
    assert -1e-3 < wall_time() - before < 0.3 * whole


@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_seconds_of_training_and_of_the_lab_are_without_compilation(clock: str):
    seconds: dict[str, float] = {}

    def compiling(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
        started = time.process_time()
        fresh()(1)
        seconds["compiling"] = time.process_time() - started
        return likeness(sequences, target, finished)

    trainer = make_trainer(reward=compiling, clock=clock)
    trainer.step()
    assert seconds["compiling"] > 0.05
    assert 0 < trainer.step().seconds < seconds["compiling"]  # of two updates
    engine, batch = make_engine(make_policy()), make_data().batch(range(2))
    [measured] = time_rounds(engine, batch, compiling, {"rloo-2": "rloo-2"}, 1, Noise(0))["rloo-2"]
    assert 0 < measured < seconds["compiling"]


def test_compilation_is_announced_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compilation._announcer, "is_done", False)
    events: list[Event] = []
    function = fresh()
    function(1)  # nobody listens
    with announced(events.append):
        function(2)  # nothing to compile
        assert events == []
        other = fresh()
        other(1)
        fresh()(1)
    assert [(event.kind, event.record["text"]) for event in events] == [("note", MESSAGE)]
    assert compilation._announcer.callback is None


def test_a_note_of_several_workers_is_shown_once(capsys: pytest.CaptureFixture[str]):
    with show_events(Terminal(stderr=True)) as on_event:
        for job in ("a", "b"):
            on_event(Event("note", {"text": MESSAGE, "job": job}))
        on_event(Event("note", {"text": "something else"}))
    assert capsys.readouterr().err.splitlines() == [MESSAGE, "something else"]


def test_workers_and_commands_announce_what_they_compile(monkeypatch: pytest.MonkeyPatch):
    events: list[Event] = []
    run_jobs([Job("job", "tests.support.job_functions:compile_something", {})], 1, events.append)
    assert [event.record["text"] for event in events if event.kind == "note"] == [MESSAGE]
    monkeypatch.setattr(compilation._announcer, "is_done", False)
    shown: list[Any] = []
    with show_events() as on_event:
        monkeypatch.setattr(compilation._announcer, "callback", shown.append)
        fresh()(1)
    assert [event.record["text"] for event in shown] == [MESSAGE]
    assert callable(on_event)


@pytest.mark.parametrize("estimator", ["arsm", "rloo-3:baseline=fitted", "auto:estimates=2"])
def test_a_warm_up_leaves_no_trace(estimator: str):
    def rewards(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
        calls.append(len(sequences))
        return likeness(sequences, target, finished)

    calls: list[int] = []
    plain, warm = make_trainer(estimator), make_trainer(estimator, reward=rewards)
    kept = warm.policy.get_parameter("output.weight")
    kept.grad = gradient = kept.detach().clone()
    before = warm.estimator
    warm_up(warm)
    assert calls == []
    assert kept.grad is gradient
    assert all(p.grad is None for p in warm.policy.parameters() if p is not kept)
    assert warm.estimator is before
    assert (warm.updates, warm.tokens, warm.seconds, warm.cost.tokens) == (0, 0, 0.0, 0)
    if not estimator.startswith("auto"):  # which decides by seconds
        assert [m.reward for m in warm.run(updates=4)] == [m.reward for m in plain.run(updates=4)]
        assert weights(warm.policy).equal(weights(plain.policy))


def counts(start: Path, out: Path, estimators: list[str]) -> dict[str, list[int]]:
    """Functions that were compiled or loaded in each update after the warm-up, by estimator."""
    command = [sys.executable, "-m", "tests.support.compilations", str(start), str(out), *estimators]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tree_run(folder: Path, softmax: Path) -> Path:
    """A captioner with a tree head."""
    data, start = softmax.parent / "data", folder / "start"
    words = CaptionData.open(data).vocabulary.known
    save_tree(folder / "tree", balanced_tree(len(words)), "balanced", words)
    model = ModelSettings(embedding=16, hidden=32, dropout=0.0)
    settings = PretrainSettings(learning_rate=2e-2, batch_size=15, epochs=2, evaluate_every=2)
    create_pretraining(start, "captions", data, model, settings, MachineSettings(), tree=folder / "tree")
    resume_run(start)
    return start


ALL = pytest.mark.prove  # every estimator: some minutes


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("task", "estimators"),
    [
        ("karel", ["arsm", "auto:estimates=2"]),
        pytest.param("karel", ESTIMATORS, marks=ALL),
        pytest.param("captions", ESTIMATORS, marks=ALL),
        pytest.param("tree", TREE_ESTIMATORS, marks=ALL),
    ],
)
def test_after_the_warm_up_updates_compile_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, task: str, estimators: list[str]
):
    start = (small_karel if task == "karel" else small_captions).small_run(tmp_path_factory)
    start = tree_run(tmp_path, start) if task == "tree" else start
    assert counts(start, tmp_path, estimators) == {name: [0, 0, 0] for name in estimators}


def test_the_count_counts():
    trainer = make_trainer(reward=lambda sequences: [float(fresh()(len(s))) for s in sequences[:1]] * len(sequences))
    with counted() as anything, counted("numba:compile") as compiled:
        trainer.step()
    assert any("digits" in name for name in compiled)
    assert len(anything) >= len(compiled)
