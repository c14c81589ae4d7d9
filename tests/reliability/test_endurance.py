"""One short run, and what the readings of longer ones may be."""

import pytest

from tests.reliability.endurance import LEAST_UPDATES, SUITE, problems


@pytest.mark.prove
def test_a_short_run():
    (outcome,) = SUITE.run(LEAST_UPDATES, 0)
    assert (outcome.cases, outcome.failures) == (LEAST_UPDATES, ())


def test_growth_is_noticed():
    steady = [[100.0 + i % 3, 12.0, 4.0] for i in range(2000)]
    assert problems(steady, 2000) == []
    assert problems(steady[:-1], 2000) == ["wrong: 1999 updates instead of 2000"]
    growing = [[m + 0.004 * i, 12.0 + i // 1000, 4.0] for i, (m, _, _) in enumerate(steady)]
    memory, files = problems(growing, 2000)
    assert memory.startswith("memory: grew from 10")
    assert files == "wrong: between 12 and 13 open files"
