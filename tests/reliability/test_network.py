"""A job on two machines, here network namespaces, between which the cable is cut."""

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from corollout.heartbeats import SILENCE
from corollout.training.runs import Run
from tests.support.commands import output
from tests.support.namespaces import Impossible, Machine, two_machines
from tests.support.torchrun import Job, wait_for

pytestmark = pytest.mark.prove


@pytest.fixture
def machines() -> Generator[tuple[Machine, Machine], None, None]:
    try:
        with two_machines() as both:
            yield both
    except Impossible as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


def test_both_sides_of_a_cut_network_end_in_time_and_say_why(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    start, out = tmp_path / "start", tmp_path / "run"
    output("pretrain", "tests.support.repeat_job", "--out", start, "--epochs", "1", "--batch-size", "8")
    options = ["--estimator", "rloo-2", "--budget", "100000", "--evaluate-every", "20", "--batch-size", "8"]
    command = ["-m", "corollout", "finetune", start, "--out", out, *options]

    def launch(number: int) -> Job:
        meeting = ["--nnodes", "2", "--node-rank", str(number)]
        meeting += ["--master-addr", machines[0].address, "--master-port", "29555"]
        variables = {"GLOO_SOCKET_IFNAME": machines[number].interface}
        prefix = machines[number].command([])
        return Job(1, command, meeting=meeting, variables=variables, prefix=prefix)

    with launch(0) as first, launch(1) as second:
        wait_for(out / "metrics.jsonl", 40)
        machines[1].cut()
        began = time.monotonic()
        ends = [job.wait(SILENCE + 60) for job in (first, second)]
        assert time.monotonic() - began < SILENCE + 45
        assert first.orphans() == second.orphans() == []
    lines = [[line for line in end.stderr.splitlines() if line.startswith("error:")] for end in ends]
    assert [len(one) for one in lines] == [1, 1], lines
    assert lines[0][0].startswith("error: rank 1 (pid ")
    assert "has given no sign of life for 3" in lines[0][0]
    assert lines[1][0].startswith(
        f"error: the store of the job, at {machines[0].address}:29555, has given no sign of life"
    )
    assert all(end.returncode != 0 for end in ends)
    with Run.open(out, resume=True) as run:  # nothing in it is torn
        assert run.load() is not None
