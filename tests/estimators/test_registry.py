"""Estimators by name, with options in the name."""

import pytest

from corollout.errors import InputError
from corollout.estimators import ARS, RLOO, make_estimator


def test_options_stand_behind_a_colon():
    assert make_estimator("arsm:budget=2000") == ARS(budget=2000)
    assert make_estimator("ars-20: budget=5, budget_per=example") == ARS(references=20, budget=5, budget_per="example")
    assert make_estimator("ars-2:shared_references=true") == ARS(references=2, shared_references=True)
    assert make_estimator("rloo:samples=3") == make_estimator("rloo-3") == RLOO(samples=3)
    assert make_estimator("arsm:") == ARS()
    assert make_estimator("arsm:budget=7", budget=7) == ARS(budget=7)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arsm:budget", "options of arsm are written as in arsm:budget=2000"),
        ("arsm:=3", "options of arsm are written as in"),
        ("arsm:budget=1,budget=2", "options of arsm are written as in"),
        ("arsm:budget=x", "arsm takes a number for budget, not 'x'"),
        ("arsm:budget=true", "arsm takes a number for budget, not True"),
        ("arsm:shared_references=3", "arsm takes true or false for shared_references, not 3"),
        ("arsm:budget=3,budget_per=token", "arsm takes update or example for budget_per, not 'token'"),
        ("arsm:length=3", "arsm has no option 'length'"),
        ("ars-2:references=3", "was given both the number 2 and references = 3"),
        ("nothing:budget=3", "there is no estimator 'nothing'"),
    ],
)
def test_wrong_options_are_named(name: str, message: str):
    with pytest.raises(InputError, match=message):
        make_estimator(name)


def test_an_option_that_is_given_twice_must_agree():
    with pytest.raises(InputError, match="budget = 7 and budget = 8"):
        make_estimator("arsm:budget=7", budget=8)
