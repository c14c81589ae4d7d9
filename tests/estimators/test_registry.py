"""Estimators by name, with options in the name."""

import pytest

from corollout.errors import InputError
from corollout.estimators import (
    ARS,
    RLOO,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    Estimator,
    MonteCarlo,
    Reinforce,
    SelfCritic,
    make_estimator,
)


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bt-arsm", BinaryTreeARSM()),
        ("BT_ARSM", BinaryTreeARSM()),
        ("bt-arsm:budget=9,budget_per=example", BinaryTreeARSM(budget=9, budget_per="example")),
        ("bt-disarm: completions=2, samples=3", BinaryTreeDisARM(completions=2, samples=3)),
        ("bt-rf", Reinforce()),
        ("bt-reinforce-2", Reinforce(samples=2)),
        ("bt-sc", SelfCritic()),
        ("bt-rloo-5", RLOO(samples=5)),
        ("bt-mc-2", MonteCarlo(completions=2)),
    ],
)
def test_estimators_of_trees_have_names(name: str, expected: Estimator):
    assert make_estimator(name) == expected
    assert type(make_estimator(name)) is type(expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bt-arsm-3", "bt-arsm takes no number k"),
        ("bt-disarm:references=3", "bt-disarm has no option 'references'; it has main, pseudo, completions"),
        ("bt-disarm:samples=0", "BT-DisARM needs samples ≥ 1, not 0"),
        ("bt-arsm:budget=0", "BT-ARSM needs budget ≥ 1, not 0"),
        ("bt-ars", "there is no estimator 'bt-ars'"),
    ],
)
def test_wrong_estimators_of_trees_are_named(name: str, message: str):
    with pytest.raises(InputError, match=message):
        make_estimator(name)
