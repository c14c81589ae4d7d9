"""A fixed share of the numerical cases."""

from tests.reliability.numerics import ESTIMATORS, SUITE


def test_every_estimator_under_one_condition():
    cases = sum(map(len, ESTIMATORS.values()))
    outcomes = list(SUITE.run(cases, 0))
    assert [outcome for outcome in outcomes if outcome.failures] == []
    assert len(outcomes) == len({outcome.what for outcome in outcomes}) == cases
