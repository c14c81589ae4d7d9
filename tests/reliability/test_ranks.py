"""A share of the proof on jobs whose ranks are killed."""

import random
from pathlib import Path

import pytest

from tests.reliability.ranks import Bench, kill_and_compare


@pytest.mark.prove
def test_a_job_whose_rank_is_killed_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    bench = Bench(tmp_path, updates=60).prepare()
    assert kill_and_compare(bench, 1, "workers", random.Random(1)) == []
