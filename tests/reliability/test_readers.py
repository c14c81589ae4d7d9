"""A fixed share of the proof of the readers."""

import pytest

from tests.reliability.readers import SUITE


@pytest.mark.filterwarnings("default")
def test_a_share_of_the_readers():
    outcomes = list(SUITE.run(150, 1))
    assert sum(outcome.cases for outcome in outcomes) == 150
    assert not [failure for outcome in outcomes for failure in outcome.failures]
