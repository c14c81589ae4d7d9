"""A run directory survives kills, refuses a second writer, and records nothing twice."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from corollout.errors import InputError
from corollout.events import Event
from corollout.training.checkpoints import State
from corollout.training.runs import Run
from tests.support.event_files import read_events, read_scalars

CONFIG = {"seed": 3, "rate": 0.1, "names": ["a", "b"], "model": {"hidden": 8, "deep": {"on": True}}}


def load(run: Run) -> tuple[int, State]:
    """The newest checkpoint, which must be read without a warning."""
    checkpoint = run.load(lambda event: pytest.fail(str(event)))
    assert checkpoint is not None
    return checkpoint


def state_of(number: int) -> State:
    return State({"w": torch.full((3,), float(number))}, {"number": number})


def test_a_run_from_start_to_end(tmp_path: Path):
    directory = tmp_path / "deep" / "run"
    with Run.create(directory, CONFIG) as run:
        assert run.config == CONFIG
        assert run.records() == []
        run.log("update", {"update": 1, "reward": 0.5, "loss": float("nan"), "note": "x", "ok": True, "list": [1.0]})
        run.log("evaluation", {"update": 1, "reward": float("inf"), "nested": {"a": float("-inf")}})
        run.log("remark", {"text": "no step"})
        with pytest.raises(InputError, match="kind"):
            run.log("update", {"kind": "other"})
        run.save(1, state_of(1))
        assert run.summary is None
        run.finish({"reward": 0.5, "bad": float("nan")})
    read = Run.open(directory)
    assert read.config == CONFIG
    assert read.summary == {"reward": 0.5, "bad": None}
    assert read.records() == [
        {"kind": "update", "update": 1, "reward": 0.5, "loss": None, "note": "x", "ok": True, "list": [1.0]},
        {"kind": "evaluation", "update": 1, "reward": None, "nested": {"a": None}},
        {"kind": "remark", "text": "no step"},
    ]
    assert read.records("remark") == [{"kind": "remark", "text": "no step"}]
    assert read.best == directory / "best.safetensors"
    assert read_scalars(directory / "events") == [(1, "update/reward", 0.5)]
    assert load(read)[1].values == {"number": 1}
    files = {"config.toml", "metrics.jsonl", "events", "checkpoints", "summary.json"}
    assert {path.name for path in directory.iterdir()} == files


def test_readers(tmp_path: Path):
    """A reader drops no records, and cannot write."""
    with Run.create(tmp_path, CONFIG) as run:
        run.save(0, state_of(0))
        run.log("update", {"update": 1})
        load(Run.open(tmp_path))
        assert len(run.records()) == 1
    run.close()
    for reader in (run, Run.open(tmp_path)):
        for write in (lambda r: r.log("update", {}), lambda r: r.save(1, state_of(1)), lambda r: r.finish({})):
            with pytest.raises(InputError, match="closed, or was opened for reading only"):
                write(reader)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "checkpoints"])
def test_a_directory_with_a_run_is_refused(tmp_path: Path, name: str):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"already holds a run .*--resume"):
        Run.create(tmp_path, CONFIG)
    assert not (tmp_path / ".lock").exists()


def test_directories_that_cannot_be_used(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "config.toml").write_text("a = 1\nb = = 2\n")
    for make, message in (
        (lambda: Run.open(tmp_path / "none", resume=True), r"is not a run directory: it has no config\.toml"),
        (lambda: Run.open(tmp_path), r"config\.toml .*not valid TOML.*line 2"),
        (lambda: Run.create(tmp_path / "file", CONFIG), "is not a directory"),
        (lambda: Run.create(tmp_path / "file" / "run", CONFIG), "cannot write to the run directory"),
        (lambda: Run.create(tmp_path / "run", {"a": None}), "TOML"),
    ):
        with pytest.raises(InputError, match=message):
            make()
    assert not (tmp_path / "run").exists()
    # What is left of a run that was killed while it was created: before and after its files were complete
    (tmp_path / "killed" / ".temporary-staging.0123456789ab" / "events").mkdir(parents=True)
    (tmp_path / "killed" / ".lock").touch()
    Run.create(tmp_path / "killed", CONFIG).close()
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {"config.toml", "events"}
    (tmp_path / "killed" / ".complete.0123456789ab.config.toml").mkdir()
    for name in ("config.toml", "events"):
        (tmp_path / "killed" / name).rename(tmp_path / "killed" / ".complete.0123456789ab.config.toml" / name)
    with pytest.raises(InputError, match=r"already holds a run .*--resume"):
        Run.create(tmp_path / "killed", CONFIG)
    Run.open(tmp_path / "killed", resume=True).close()


def test_records_after_the_checkpoint_are_dropped(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        for update in range(1, 6):
            run.log("update", {"update": update, "reward": 1.0})
            if update in (2, 4):
                run.save(update, state_of(update))
    with Run.open(tmp_path, resume=True) as run:
        step, state = load(run)
        assert (step, state.tensors["w"].tolist()) == (4, [4.0] * 3)
        run.log("update", {"update": 5, "reward": 2.0})
        run.log("update", {"update": 6, "reward": 2.0})
        load(run)  # again in the middle of a run
        run.log("update", {"update": 5, "reward": 3.0})
    assert [r["update"] for r in run.records("update")] == [1, 2, 3, 4, 5]
    assert [e.step for e in read_events(tmp_path / "events") if e.HasField("session_log")] == [5, 5]
    rewards = [(5, 2.0), (6, 2.0), (5, 3.0)]
    assert read_scalars(tmp_path / "events")[5:] == [(update, "update/reward", reward) for update, reward in rewards]
    # A damaged checkpoint
    (tmp_path / "checkpoints" / "step-00000004" / "tensors.safetensors").unlink()
    warnings: list[Event] = []
    with Run.open(tmp_path, resume=True) as run:
        checkpoint = run.load(warnings.append)
        assert checkpoint is not None
        assert (checkpoint[0], len(run.records("update")), len(warnings)) == (2, 2, 1)


def test_a_run_without_a_checkpoint_starts_over(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        run.log("update", {"update": 1, "reward": 1.0})
    with Run.open(tmp_path, resume=True) as run:
        assert run.load() is None
        run.log("update", {"update": 1, "reward": 2.0})
    assert [r["reward"] for r in run.records()] == [2.0]
    assert [e.step for e in read_events(tmp_path / "events") if e.HasField("session_log")] == [0]


INCOMPLETE = [b"{", b'{"kind": "update", "upd', b'{"kind": "update", "update": 2}', b"\xc3", b"\0" * 50]


@pytest.mark.parametrize("incomplete", INCOMPLETE)
@pytest.mark.parametrize("saved", [False, True])
def test_an_incomplete_last_line_is_removed(tmp_path: Path, incomplete: bytes, saved: bool):
    with Run.create(tmp_path, CONFIG) as run:
        run.log("update", {"update": 1})
        if saved:
            run.save(1, state_of(1))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(incomplete)
    assert len(Run.open(tmp_path).records()) == 1
    with Run.open(tmp_path, resume=True) as run:
        if saved:
            load(run)
        run.log("update", {"update": 2})
    assert [r["update"] for r in run.records()] == [1, 2]


def test_damaged_metrics_and_summaries(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        run.log("update", {"update": 1})
        run.log("update", {"update": 2})
        run.save(2, state_of(2))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    warnings: list[Event] = []
    with Run.open(tmp_path, resume=True) as run:
        assert run.load(warnings.append) is not None
        run.log("update", {"update": 3})
        assert [r["update"] for r in run.records()] == [1, 3]
    assert ["shorter" in event.record["text"] for event in warnings] == [True]
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1 is damaged: it is not valid JSON"):
        run.records()
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary\.json.*remove it to resume"):
        _ = run.summary


HOLDER = """
import sys, time
from corollout.training.runs import Run
run = Run.create(sys.argv[1], {}) if sys.argv[2] == "create" else Run.open(sys.argv[1], resume=True)
print("ready", flush=True)
time.sleep(60)
"""


def test_one_writer_at_a_time(tmp_path: Path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen([*command, "create"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            with pytest.raises(InputError, match=rf"in use by process {process.pid} \(since 2"):
                Run.open(tmp_path, resume=True)
            with pytest.raises(InputError, match=f"in use by process {process.pid} "):
                Run.create(tmp_path, {})
            assert Run.open(tmp_path).records() == []
        finally:
            process.kill()
    with Run.open(tmp_path, resume=True):
        second = subprocess.run([*command, "open"], capture_output=True, text=True, check=False)
        assert f"in use by process {os.getpid()} " in second.stderr
        # In this process too
        with pytest.raises(InputError, match=f"in use by process {os.getpid()} "):
            Run.open(tmp_path, resume=True)
    Run.open(tmp_path, resume=True).close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_hold_the_lock(tmp_path: Path):
    """It may outlive the writer: as a worker that hangs, for example."""
    run = Run.create(tmp_path, CONFIG)
    context = multiprocessing.get_context("fork")
    gate = context.Event()
    child = context.Process(target=gate.wait, args=(60,))
    child.start()
    try:
        with pytest.raises(InputError, match="in use"):
            Run.open(tmp_path, resume=True)
        run.close()
        deadline = time.monotonic() + 10
        while True:  # the child may not have released it yet
            try:
                Run.open(tmp_path, resume=True).close()
                break
            except InputError:
                assert time.monotonic() < deadline
    finally:
        gate.set()
        child.join()


TRAINER = """
import sys, torch
from pathlib import Path
from corollout.training.checkpoints import State
from corollout.training.runs import Run
from tests.support.event_files import read_events, read_scalars
from tests.support.event_files import read_events, read_scalars
from tests.support.event_files import read_events, read_scalars
path = Path(sys.argv[1])
run = Run.open(path, resume=True) if (path / "config.toml").exists() else Run.create(path, {"a": 1})
checkpoint = run.load(lambda event: sys.exit(str(event)))
update = 0 if checkpoint is None else checkpoint[0]
if checkpoint is not None:
    assert len(run.records("update")) == update
    assert checkpoint[1].tensors["w"].tolist() == [update] * 3000
print("ready", flush=True)
while True:
    update += 1
    run.log("update", {"update": update, "reward": update / 7, "filler": "x" * 300})
    if update % 3 == 0:
        run.save(update, State({"w": torch.full((3000,), float(update))}, {}))
"""


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.prove)])
def test_killed_again_and_again_nothing_is_recorded_twice(tmp_path: Path, kills: int):
    path = tmp_path / "run"
    for attempt in range(kills):
        command = [sys.executable, "-c", TRAINER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "ready\n"
                end, updates = time.monotonic() + 0.2 + 0.041 * attempt, []
                while time.monotonic() < end or len(updates) < 4 * (attempt + 1):
                    updates = [record["update"] for record in Run.open(path).records("update")]
                    assert updates == list(range(1, len(updates) + 1))
            finally:
                process.kill()
    with Run.open(path, resume=True) as run:
        step = load(run)[0]
        assert [r["update"] for r in run.records()] == list(range(1, step + 1))
