"""Several processes make the updates of one: the same sequences, the same gradient, the same metrics and state."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks
from tests.support.shared_updates import ALL, MLE, OPTIONS, QUICK, Case, differences, updates_of
from tests.support.torchrun import ROOT, torchrun

PROGRAM = ROOT / "tests" / "support" / "shared_updates.py"
# Ranks are threads in most tests: a job takes seconds to start. With three ranks, one of them often has no context.
SOFTMAX = ("ars-2:shared_references=true", "reinforce:baseline=shrunk", "reinforce-2", "vine-2", "rl-beam-4", "sc-2")
TREE = ("bt-arsm:budget=6", "set-3:baseline=fitted", "bt-mc", "pairs")
IN_THREADS = [
    *(Case(name) for name in SOFTMAX),
    *(Case(name, "tree") for name in TREE),
    Case("disarm", "bits"),
    *(case for case in OPTIONS if "probe_every" not in case.options),
    *MLE[1:],
]


def check_job(folder: Path, size: int, which: str, cases: list[Case]) -> None:
    done = torchrun(size, PROGRAM, folder, which, seconds=900)
    assert done.returncode == 0, done.stderr
    many = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
    for case in cases:
        one = json.loads(json.dumps(updates_of(case)))
        assert differences(case, one, [each[case.name] for each in many]) == [], case.name


def test_a_job_of_two_processes(tmp_path: Path) -> None:
    check_job(tmp_path, 2, "quick", QUICK)


@pytest.mark.prove
@pytest.mark.parametrize("size", [2, 3])
def test_all_estimators_in_jobs(tmp_path: Path, size: int) -> None:
    check_job(tmp_path, size, "all", ALL)


@pytest.mark.usefixtures("unchecked")  # shapes are checked in other tests; ranks would check all of them again
def test_three_ranks() -> None:
    for case in IN_THREADS:
        assert differences(case, updates_of(case), run_ranks(3, lambda rank, case=case: updates_of(case))) == []


@pytest.mark.prove
@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_all_estimators_with_any_number_of_ranks(case: Case, size: int) -> None:
    assert differences(case, updates_of(case), run_ranks(size, lambda rank: updates_of(case))) == []
