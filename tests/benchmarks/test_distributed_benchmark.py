"""The benchmark of several processes at tiny sizes: contestants make the same updates, and what they took is told."""

import pytest
from rich.progress import Progress

from benchmarks import distributed
from benchmarks.harness import Timing


@pytest.mark.prove
def test_two_processes_and_one_make_the_same_updates():
    with Progress(disable=True) as progress:
        result = distributed.run(True, progress)  # it refuses contestants that have generated different sequences
    assert len(result["table"]) == 2
    assert len(result["timings"]) == 2 * 4
    for one in result["measurements"]["of_two_processes"]:
        assert 0 <= one["waiting"] <= 1
        assert set(one["speed"]) == {distributed.ONE, distributed.THREADS}


def test_ratios_are_of_medians():
    timings = [Timing("slow", 1, [6.0, 4.0, 100.0]), Timing("fast", 1, [2.0, 3.0, 2.5])]
    assert distributed._ratio(timings, "slow", "fast") == 6 / 2.5
