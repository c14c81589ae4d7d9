"""Commands that several processes run, started by torchrun as users start them."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.training.metrics import TIMED
from corollout.training.runs import Run
from tests.support import fit_script
from tests.support.commands import output
from tests.support.torchrun import ROOT, Job, torchrun, wait_for
from tests.support.troubled_job import VARIABLE

PRETRAIN = "--epochs 2 --batch-size 8 --learning-rate 0.01"
TROUBLE = {
    "none": r"error: rank 1 \(pid \d+ on .*\) ended during update \d+",
    "raise": r"error: reward 'troubled' .*ValueError: there is trouble.*",
    "hang": r"error: rank 1 \(pid \d+ on .*\) has not answered for 6 s during update \d+; COROLLOUT_PROCESS_TIMEOUT.*",
}
FINETUNE = "--estimator rloo-4:baseline=fitted --evaluate-every 20 --batch-size 9 --learning-rate 0.01 --threads 1"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "start"
    output("pretrain", "tests.support.troubled_job", "--out", out, *PRETRAIN.split())
    return out


def finetune(start: Path, out: Path, updates: int) -> list[object]:
    return ["finetune", start, "--out", out, "--budget", updates, *FINETUNE.split()]


def told(errors: str) -> list[str]:
    """What the processes of a job told the user: without what torchrun says of them."""
    lines = [line for line in errors.splitlines() if line.startswith(("error:", "stopped", "Stopped", "warning: "))]
    return [line for line in lines if not line.startswith("warning: ") or "sequences" not in line]


def assert_close(one: Path, other: Path) -> None:
    """The same evaluations, updates and states, but for the order in which numbers were added up."""
    records = [[r for r in Run.open(run).records() if r["kind"] in ("update", "evaluation")] for run in (one, other)]
    assert [len(part) for part in records] == [len(records[0])] * 2
    for mine, theirs in zip(*records, strict=True):
        for name in mine.keys() - TIMED - {"kind"}:
            value = mine[name] if mine[name] is None else pytest.approx(mine[name], rel=1e-9, abs=1e-12)
            assert theirs[name] == value, (name, mine["update"])
    states = [Run.open(run).load() for run in (one, other)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0][1].tensors.keys() == states[1][1].tensors.keys()
    for name, tensor in states[0][1].tensors.items():
        torch.testing.assert_close(states[1][1].tensors[name], tensor, rtol=1e-9, atol=1e-12)


def codes(errors: str) -> list[int]:
    """The exit codes of the ranks that torchrun reports."""
    return [int(code) for code in re.findall(r"exitcode  : (-?\d+)", errors)]


def stopped_at(errors: str, out: Path) -> int:
    [line] = told(errors)
    words = line.split()
    assert f"is saved in {out}. Continue with: corollout finetune --resume --out {out}, in one process or" in line
    assert words[:3] == ["stopped", "after", "update"]
    return int(words[3].rstrip(","))


def test_a_run_goes_from_one_process_to_two_and_back(start: Path, tmp_path: Path) -> None:
    """It has the weights of one process that did it all; a signal to one rank stops both after the same update."""
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    output(*finetune(start, alone, 80))
    output(*finetune(start, shared, 20))
    resume = ["-m", "corollout", "finetune", "--resume", "--out", shared, "--budget", 80]
    with Job(2, resume, variables={VARIABLE: "1 0 slow"}) as job:
        wait_for(shared / "metrics.jsonl", 26)
        os.kill(job.ranks()[1], signal.SIGUSR1)
        done = job.wait()
        assert job.orphans() == []
    reached = stopped_at(done.stderr, shared)
    assert 20 < reached < 80
    assert codes(done.stderr) == [138, 138]
    assert Run.open(shared).load()[0] == reached  # pyright: ignore[reportOptionalSubscript]
    output("finetune", "--resume", "--out", shared)
    assert_close(alone, shared)


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("receiver", ["rank 0", "rank 1", "torchrun"])
def test_a_signal_to_any_process_saves_and_stops_all(
    start: Path, tmp_path: Path, number: signal.Signals, receiver: str
) -> None:
    out = tmp_path / "run"
    options = ["--signals-to-handle", "SIGINT,SIGTERM,SIGHUP,SIGUSR1"]
    with Job(2, ["-m", "corollout", *finetune(start, out, 100_000)], options=options) as job:
        wait_for(out / "metrics.jsonl", 10)
        ranks = job.ranks()
        os.kill(job.process.pid if receiver == "torchrun" else ranks[int(receiver[-1])], number)
        done = job.wait()
        assert job.orphans() == []
    reached = stopped_at(done.stderr, out)
    assert Run.open(out).load()[0] == reached  # pyright: ignore[reportOptionalSubscript]
    if receiver != "torchrun":  # which does not say with which codes the ranks end when it was stopped itself
        assert codes(done.stderr) == [128 + number] * 2


def test_errors_are_told_once(start: Path, tmp_path: Path) -> None:
    """Before and after the processes have met."""
    done = torchrun(2, "-m", "corollout", "finetune", start, "--out", tmp_path / "run", "--estimator", "rloo-1")
    assert told(done.stderr) == ["error: RLOO needs samples ≥ 2, not 1"]
    assert codes(done.stderr) == [1, 1]
    assert not (tmp_path / "run").exists()
    done = torchrun(2, "-m", "corollout", "generate", start)
    assert told(done.stderr)[0].startswith("error: this command runs in one process: start it without torchrun")
    assert (len(told(done.stderr)), done.stdout) == (1, ""), done.stderr
    # torchrun may have ended one of them while it was still importing modules.
    assert set(codes(done.stderr)) in ({1}, {1, 128 + signal.SIGTERM})


@pytest.mark.prove
def test_a_rank_that_ends_or_hangs_is_named_in_time(start: Path, tmp_path: Path) -> None:
    for what, sentence in TROUBLE.items():
        out = tmp_path / what
        variables = {VARIABLE: f"1 20 {what}", "COROLLOUT_PROCESS_TIMEOUT": "6"}
        with Job(2, ["-m", "corollout", *finetune(start, out, 100_000)], variables=variables) as job:
            wait_for(out / "metrics.jsonl", 10)
            if what == "none":
                os.kill(job.ranks()[1], signal.SIGKILL)
            began = time.monotonic()
            done = job.wait()
            assert time.monotonic() - began < 6 + 10 + 15  # the time-out, the grace of a rank that hangs, and the rest
            assert job.orphans() == []
        assert done.returncode == 1
        [line] = told(done.stderr)
        assert re.fullmatch(sentence, line), line
        with Run.open(out, resume=True) as run:  # nothing in it is torn
            assert run.load() is not None


@pytest.mark.prove
def test_evaluations_and_labs_have_the_numbers_of_one_process(start: Path, tmp_path: Path) -> None:
    evaluate = ["evaluate", start, "--beam", "3", "--json"]
    alone = output(*evaluate)
    file = start / "evaluation-test.json"
    saved = file.read_bytes()
    file.unlink()
    done = torchrun(2, "-m", "corollout", *evaluate)
    assert (done.returncode, done.stdout) == (0, alone)
    assert file.read_bytes() == saved
    options = "--estimators rloo-4,set-3:baseline=fitted --estimates 17 --reference-estimates 17"
    lab = ["lab", start, *options.split(), *["--examples", "6", "--batches", "5", "--rounds", "1", "--out"]]
    output(*lab, tmp_path / "alone")
    done = torchrun(2, "-m", "corollout", *lab, tmp_path / "shared")
    assert done.returncode == 0, done.stderr
    points = [tmp_path / name / "points" / "best" for name in ("alone", "shared")]
    assert (points[0] / "reference.safetensors").read_bytes() == (points[1] / "reference.safetensors").read_bytes()
    first, second = (without_seconds(json.loads((point / "measurements.json").read_text())) for point in points)
    assert first == second


def without_seconds(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    return {name: without_seconds(value) for name, value in content.items() if name != "seconds"}


@pytest.mark.prove
def test_a_script_trains_with_the_processes_that_torchrun_has_started(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    fit_script.main(alone, 20)
    done = torchrun(2, ROOT / "tests" / "support" / "fit_script.py", shared, 10)
    assert done.returncode == 0, done.stderr
    assert Run.open(shared).summary is not None
    fit_script.main(shared, 20)
    assert_close(alone, shared)
