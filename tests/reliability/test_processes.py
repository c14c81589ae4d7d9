"""A quick share of the proofs on processes: kills, full disks, signals and concurrent writers.

They are in one module because they share a warm process, which takes seconds to start.
"""

import subprocess
from pathlib import Path

import pytest

from tests.reliability import disks, kills, signals, writers
from tests.reliability.suite import Suite


@pytest.fixture
def mountable(tmp_path: Path) -> None:
    try:
        with disks.small_disk(tmp_path):
            pass
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk cannot be mounted here: only root can")


def require_no_failures(suite: Suite, cases: int) -> None:
    outcomes = list(suite.run(cases, 0))
    assert [f"{outcome.what}: {failure}" for outcome in outcomes for failure in outcome.failures] == []
    assert sum(outcome.cases for outcome in outcomes) == cases


@pytest.mark.parametrize(("suite", "cases"), [(kills.SUITE, 4), (signals.SUITE, 4), (writers.SUITE, 2)])
def test_a_share_of_a_suite(suite: Suite, cases: int):
    require_no_failures(suite, cases)


@pytest.mark.usefixtures("mountable")
def test_full_disks():
    require_no_failures(disks.SUITE, 2)
