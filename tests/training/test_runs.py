"""A run directory survives kills, refuses a second writer, and never tells anything twice."""

import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto import event_pb2

from corollout.errors import InputError
from corollout.training.checkpoints import State
from corollout.training.runs import Run

CONFIG = {"seed": 3, "rate": 0.1, "names": ["a", "b"], "model": {"hidden": 8, "deep": {"on": True}}}


def silent(message: str) -> None:
    raise AssertionError(message)


def state_of(number: int) -> State:
    return State({"w": torch.full((3,), float(number))}, {"number": number})


def events(run: Path) -> list[Any]:
    """All events of a run, file by file."""
    found = []
    for path in sorted((run / "events").iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + length]))  # pyright: ignore[reportAttributeAccessIssue]
            data = data[16 + length :]
    return found


def scalars(run: Path) -> list[tuple[int, str, float]]:
    return [(e.step, v.tag, v.simple_value) for e in events(run) for v in e.summary.value]


def test_a_run_from_start_to_end(tmp_path: Path):
    with Run.create(tmp_path / "deep" / "run", CONFIG) as run:
        assert run.config == CONFIG
        assert run.records() == []
        run.log("update", {"update": 1, "reward": 0.5, "loss": float("nan"), "note": "x", "ok": True, "list": [1.0]})
        run.log("evaluation", {"update": 1, "reward": float("inf"), "nested": {"a": float("-inf")}})
        run.log("remark", {"text": "no step"})
        run.save(1, state_of(1))
        assert run.finished is None
        run.finish({"reward": 0.5, "bad": float("nan")})
        assert run.finished == {"reward": 0.5, "bad": None}
    read = Run.open(tmp_path / "deep" / "run")
    assert read.config == CONFIG
    assert read.finished == {"reward": 0.5, "bad": None}
    assert read.records("update") == [
        {"kind": "update", "update": 1, "reward": 0.5, "loss": None, "note": "x", "ok": True, "list": [1.0]}
    ]
    assert read.records("evaluation") == [{"kind": "evaluation", "update": 1, "reward": None, "nested": {"a": None}}]
    assert [record["kind"] for record in read.records()] == ["update", "evaluation", "remark"]
    assert read.best == tmp_path / "deep" / "run" / "best.safetensors"
    assert scalars(read.directory) == [(1, "update/reward", 0.5)]
    found = read.load(silent)
    assert found is not None
    assert found[0] == 1
    assert found[1].values == {"number": 1}
    assert {path.name for path in read.directory.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "events",
        "checkpoints",
        "lock",
        "summary.json",
    }


def test_a_reader_cannot_write(tmp_path: Path):
    run = Run.create(tmp_path, CONFIG)
    run.close()
    run.close()
    for reader in (run, Run.open(tmp_path, resume=False)):
        for write in (
            lambda r: r.log("update", {}),
            lambda r: r.save(1, state_of(1)),
            lambda r: r.finish({}),
        ):
            with pytest.raises(InputError, match="closed or was opened only to be read"):
                write(reader)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("trace", ["config.toml", "metrics.jsonl", "checkpoints"])
def test_a_directory_with_a_run_is_refused(tmp_path: Path, trace: str):
    (tmp_path / trace).touch()
    with pytest.raises(InputError, match=r"already holds a run .*--resume, or choose another"):
        Run.create(tmp_path, CONFIG)
    assert not (tmp_path / "lock").exists()


def test_directories_that_cannot_be_used(tmp_path: Path):
    with pytest.raises(InputError, match=r"holds no run: it has no config\.toml"):
        Run.open(tmp_path / "none", resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is no directory"):
        Run.create(tmp_path / "file", CONFIG)
    with pytest.raises(InputError, match="cannot write to the run directory"):
        Run.create(tmp_path / "file" / "run", CONFIG)
    with pytest.raises(InputError, match="settings that TOML cannot hold"):
        Run.create(tmp_path / "run", {"a": None})
    assert not (tmp_path / "run").exists()
    (tmp_path / "config.toml").write_text("a = 1\nb = = 2\n")
    with pytest.raises(InputError, match=r"config\.toml are no TOML.*line 2"):
        Run.open(tmp_path)


def test_a_run_that_was_stopped_while_it_was_made_can_be_made_again(tmp_path: Path):
    (tmp_path / "lock").touch()
    (tmp_path / "events").mkdir()
    Run.create(tmp_path, CONFIG).close()


def test_a_record_has_one_kind(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run, pytest.raises(InputError, match="kind"):
        run.log("update", {"kind": "other"})


def test_what_came_after_the_checkpoint_is_forgotten(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        for update in range(1, 6):
            run.log("update", {"update": update, "reward": 1.0})
            if update in (2, 4):
                run.save(update, state_of(update))
    with Run.open(tmp_path, resume=True) as run:
        found = run.load(silent)
        assert found is not None
        assert found[0] == 4
        assert torch.equal(found[1].tensors["w"], torch.full((3,), 4.0))
        run.log("update", {"update": 5, "reward": 2.0})
    assert [r["update"] for r in run.records("update")] == [1, 2, 3, 4, 5]
    starts = [e.step for e in events(tmp_path) if e.HasField("session_log")]
    assert starts == [5]
    assert len(list((tmp_path / "events").iterdir())) == 2
    assert scalars(tmp_path) == [*((n, "update/reward", 1.0) for n in range(1, 6)), (5, "update/reward", 2.0)]


def test_an_older_checkpoint_takes_its_metrics_along(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        for update in range(1, 6):
            run.log("update", {"update": update})
            run.save(update, state_of(update))
    (tmp_path / "checkpoints" / "step-00000005" / "tensors.safetensors").unlink()
    warnings: list[str] = []
    with Run.open(tmp_path, resume=True) as run:
        found = run.load(warnings.append)
        assert found is not None
        assert found[0] == 4
        assert len(warnings) == 1
        assert len(run.records("update")) == 4


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        run.log("update", {"update": 1, "reward": 1.0})
    with Run.open(tmp_path, resume=True) as run:
        assert run.load(silent) is None
        run.log("update", {"update": 1, "reward": 2.0})
    assert [r["reward"] for r in run.records()] == [2.0]
    assert [e.step for e in events(tmp_path) if e.HasField("session_log")] == [0]


def test_loading_in_the_middle_of_a_run(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        run.log("update", {"update": 1, "reward": 1.0})
        run.save(1, state_of(1))
        run.log("update", {"update": 2, "reward": 1.0})
        run.load(silent)
        run.log("update", {"update": 2, "reward": 3.0})
        assert [r["reward"] for r in run.records()] == [1.0, 3.0]


def test_a_reader_forgets_nothing(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        run.save(0, state_of(0))
        run.log("update", {"update": 1})
        Run.open(tmp_path).load(silent)
        assert len(run.records()) == 1


TORN = [b"{", b'{"kind": "update", "upd', b'{"kind": "update", "update": 2}', b"\xc3", b"\0" * 50]


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("saved", [False, True])
def test_a_torn_last_line_is_ignored_and_removed(tmp_path: Path, torn: bytes, saved: bool):
    with Run.create(tmp_path, CONFIG) as run:
        run.log("update", {"update": 1})
        if saved:
            run.save(1, state_of(1))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    assert len(Run.open(tmp_path).records()) == 1
    with Run.open(tmp_path, resume=True) as run:
        if saved:
            run.load(silent)
        run.log("update", {"update": 2})
    assert [r["update"] for r in run.records()] == [1, 2]


def test_metrics_that_someone_has_cut_or_broken(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        run.log("update", {"update": 1})
        run.log("update", {"update": 2})
        run.save(2, state_of(2))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    warnings: list[str] = []
    with Run.open(tmp_path, resume=True) as run:
        assert run.load(warnings.append) is not None
        run.log("update", {"update": 3})
        assert [r["update"] for r in run.records()] == [1, 3]
    assert len(warnings) == 1
    assert "shorter" in warnings[0]
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: this is no JSON"):
        run.records()


def test_a_summary_that_is_broken(tmp_path: Path):
    with Run.create(tmp_path, CONFIG) as run:
        (tmp_path / "summary.json").write_text("{")
        with pytest.raises(InputError, match="cannot read the summary"):
            _ = run.finished


HOLDER = """
import sys, time
from corollout.training.runs import Run
run = Run.create(sys.argv[1], {}) if sys.argv[2] == "create" else Run.open(sys.argv[1], resume=True)
print("ready", flush=True)
time.sleep(60)
"""


def test_one_writer_at_a_time(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "create"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(InputError, match=rf"run directory .* is in use by process {process.pid} \(since 2"):
            Run.open(tmp_path, resume=True)
        with pytest.raises(InputError, match="already holds a run"):
            Run.create(tmp_path, {})
        assert Run.open(tmp_path).records() == []
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with Run.open(tmp_path, resume=True):
        with pytest.raises(InputError, match=f"in use by process {os.getpid()} "):
            Run.open(tmp_path, resume=True)
        second = subprocess.run(
            [sys.executable, "-c", HOLDER, str(tmp_path), "open"], capture_output=True, text=True, check=False
        )
        assert f"in use by process {os.getpid()} " in second.stderr
    Run.open(tmp_path, resume=True).close()


def test_a_directory_that_is_being_made_is_in_use(tmp_path: Path):
    with Run.create(tmp_path, CONFIG):
        (tmp_path / "config.toml").unlink()
        with pytest.raises(InputError, match="in use by process"):
            Run.create(tmp_path, CONFIG)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_hold_the_lock(tmp_path: Path):
    """It may outlive the writer, for instance as a worker that waits for ever."""
    run = Run.create(tmp_path, CONFIG)
    context = multiprocessing.get_context("fork")
    gate = context.Event()
    child = context.Process(target=gate.wait, args=(60,))
    child.start()
    try:
        # Still held by us.
        with pytest.raises(InputError, match="in use"):
            Run.open(tmp_path, resume=True)
        run.close()
        deadline = time.monotonic() + 10
        while True:  # the child may not have come so far
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
path = Path(sys.argv[1])
run = Run.open(path, resume=True) if (path / "config.toml").exists() else Run.create(path, {"a": 1})
found = run.load(lambda message: sys.exit(message))
update = 0 if found is None else found[0]
if found is not None:
    assert len(run.records("update")) == update
    assert found[1].tensors["w"].tolist() == [update] * 3000
print("ready", flush=True)
while True:
    update += 1
    run.log("update", {"update": update, "reward": update / 7, "filler": "x" * 300})
    if update % 3 == 0:
        run.save(update, State({"w": torch.full((3000,), float(update))}, {}))
"""


def test_killed_again_and_again_nothing_is_told_twice(tmp_path: Path):
    path = tmp_path / "run"
    for round_ in range(4):
        process = subprocess.Popen([sys.executable, "-c", TRAINER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            end = time.monotonic() + 0.2 + 0.041 * round_
            reader, updates = Run.open(path), []
            while time.monotonic() < end or len(updates) < 4 * (round_ + 1):
                updates = [record["update"] for record in reader.records("update")]
                assert updates == list(range(1, len(updates) + 1))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        updates = [record["update"] for record in reader.records("update")]
        assert updates == list(range(1, len(updates) + 1))
    with Run.open(path, resume=True) as run:
        found = run.load(silent)
        assert found is not None
        assert [r["update"] for r in run.records()] == list(range(1, found[0] + 1))
        assert (
            json.loads((path / "checkpoints" / f"step-{found[0]:08d}" / "state.json").read_text())["step"] == found[0]
        )
