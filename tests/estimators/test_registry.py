"""Estimators by name, with options in the name."""

import pytest

from corollout.errors import InputError
from corollout.estimators import (
    ARS,
    GRPO,
    RLOO,
    Auto,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    Estimator,
    MonteCarlo,
    Pairs,
    Reinforce,
    SelfCritic,
    UnorderedSet,
    Vine,
    make_estimator,
)


def test_options_stand_behind_a_colon():
    assert make_estimator("arsm:budget=2000") == ARS(budget=2000)
    assert make_estimator("ars-20: budget=5, budget_per=example") == ARS(references=20, budget=5, budget_per="example")
    assert make_estimator("ars-2:shared_references=true") == ARS(references=2, shared_references=True)
    assert make_estimator("rloo:samples=3") == make_estimator("rloo-3") == RLOO(samples=3)
    assert make_estimator("arsm:draws=16,budget=100") == ARS(draws=16, budget=100)
    assert make_estimator("arsm:") == ARS()
    assert make_estimator("arsm:budget=7", budget=7) == ARS(budget=7)
    assert make_estimator("arsm", budget=None) == ARS()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pairs:per_step=0.5", Pairs(per_step=0.5)),
        ("pairs:per_step=.25,samples=2", Pairs(per_step=0.25, samples=2)),
        ("pairs: per_step = 1.5e-2", Pairs(per_step=0.015)),
        ("pairs:per_step=3", Pairs(per_step=3)),
        ("set-8:baseline=fitted", UnorderedSet(8, "fitted")),
        ("rloo-8:baseline=shrunk", RLOO(8, "shrunk")),
        ("reinforce:baseline=fitted,samples=2", Reinforce("fitted", 2)),
        ("vine-2:samples=3", Vine(2, 3)),
        ("grpo:samples=3", GRPO(3)),
        ("auto:every=100", Auto(every=100)),
        ("auto:every=7,estimates=3", Auto(every=7, estimates=3)),
    ],
)
def test_options_may_be_fractions_and_words(name: str, expected: Estimator):
    assert make_estimator(name) == expected


def test_candidates_are_called_what_they_are():
    assert all(make_estimator(name) == candidate for name, candidate in Auto().candidates.items())
    assert len(Auto().candidates) > 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arsm:budget", "options of arsm are written as in arsm:budget=2000"),
        ("arsm:=3", "options of arsm are written as in"),
        ("arsm:budget=1,budget=2", "options of arsm are written as in"),
        ("arsm:budget=x", "arsm takes a whole number for budget, not 'x'"),
        ("arsm:budget=true", "arsm takes a whole number for budget, not True"),
        ("arsm:shared_references=3", "arsm takes true or false for shared_references, not 3"),
        ("arsm:budget=3,budget_per=token", "arsm takes update or example for budget_per, not 'token'"),
        ("arsm:length=3", "arsm has no option 'length'"),
        ("ars-2:references=3", "was given both the number 2 and references = 3"),
        ("nothing:budget=3", "there is no estimator 'nothing'"),
        ("rloo:samples=2.5", "rloo takes a whole number for samples, not 2.5"),
        ("pairs:budget=0.5", "pairs takes a whole number for budget, not 0.5"),
        ("pairs:per_step=few", "pairs takes a number for per_step, not 'few'"),
        ("pairs:per_step=0.0", "budgeted branching needs per_step > 0, not 0.0"),
        ("rloo-8:baseline=nonsense", "rloo takes others or shrunk or fitted for baseline, not 'nonsense'"),
        ("set-8:baseline=shrunk", "set takes set or fitted for baseline, not 'shrunk'"),
        ("auto-3", "auto takes no number k"),
        ("auto:every=0", "auto needs every ≥ 1, not 0"),
        # What was learned, or is there for programs only.
        ("set-8:past=3", "set has no option 'past'; it has size, baseline$"),
        ("rloo:past=3", "rloo has no option 'past'; it has samples, baseline$"),
        ("pairs:gaps=3", "pairs has no option 'gaps'; it has .*, per_step$"),
        ("auto:candidates=3", "auto has no option 'candidates'; it has every, estimates$"),
        ("auto:chosen=pairs", "auto has no option 'chosen'; it has every, estimates$"),
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
