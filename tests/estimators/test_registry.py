"""Estimators by name: names, numbers and options, what each class says about itself, and classes of the user."""

from pathlib import Path
from typing import Any

import pytest

from corollout.errors import InputError
from corollout.estimators import (
    ARM,
    ARS,
    GRPO,
    RLOO,
    Auto,
    BeamExpectation,
    BinaryTreeARSM,
    BinaryTreeDisARM,
    DisARM,
    Estimator,
    MonteCarlo,
    Pairs,
    Reinforce,
    SelfCritic,
    UnorderedSet,
    Vine,
    estimator_names,
    make_estimator,
)  # fmt: skip
from corollout.estimators.estimator import registered_estimators

ESTIMATORS, NAMES = registered_estimators(), estimator_names()

EXPECTED: dict[str, Estimator] = {
    "arsm": ARS(),
    " ARSM ": ARS(),
    "ars": ARS(references=1),
    "ars-k": ARS(references=1),
    "ars-20": ARS(references=20),
    "ars_20": ARS(references=20),
    "ARS 20": ARS(references=20),
    "ars20": ARS(references=20),
    "arm": ARM(),
    "DisARM": DisARM(),
    "reinforce": Reinforce(),
    "reinforce-2": Reinforce(samples=2),
    "bt-rf": Reinforce(),
    "bt-reinforce-2": Reinforce(samples=2),
    "rloo": RLOO(),
    "rloo-8": RLOO(samples=8),
    "bt-rloo-5": RLOO(samples=5),
    "sc": SelfCritic(),
    "self_critic": SelfCritic(),
    "scst-3": SelfCritic(samples=3),
    "bt-sc": SelfCritic(),
    "mc": MonteCarlo(),
    "mc-k": MonteCarlo(),
    "mc-0": MonteCarlo(completions=0),
    "td-scst": MonteCarlo(completions=0),
    "bt-mc-2": MonteCarlo(completions=2),
    "RL_beam": BeamExpectation(),
    "beam-8": BeamExpectation(size=8),
    "rl_beam_8": BeamExpectation(size=8),
    "grpo-4": GRPO(samples=4),
    "vine-3": Vine(completions=3),
    "set-3": UnorderedSet(size=3),
    "pairs": Pairs(),
    "pairs-2": Pairs(per_step=2),
    "auto": Auto(),
    "BT_ARSM": BinaryTreeARSM(),
    "bt-disarm": BinaryTreeDisARM(),
    # Options
    "arsm:": ARS(),
    "arsm:budget=2000": ARS(budget=2000),
    "arsm:draws=16,budget=100": ARS(draws=16, budget=100),
    "ars-20: budget=5, budget_per=example": ARS(references=20, budget=5, budget_per="example"),
    "ars-2:shared_references=true": ARS(references=2, shared_references=True),
    "rloo:samples=3": RLOO(samples=3),
    "rloo-8:baseline=shrunk": RLOO(8, "shrunk"),
    "reinforce:baseline=fitted,samples=2": Reinforce("fitted", 2),
    "set-8:baseline=fitted": UnorderedSet(8, "fitted"),
    "vine-2:samples=3": Vine(2, 3),
    "pairs:per_step=.25,samples=2": Pairs(per_step=0.25, samples=2),
    "pairs: per_step = 1.5e-2": Pairs(per_step=0.015),
    "auto:every=7,estimates=3": Auto(every=7, estimates=3),
    "bt-disarm: completions=2, samples=3": BinaryTreeDisARM(completions=2, samples=3),
    **Auto().candidates,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_names_and_options(name: str):
    assert make_estimator(name) == EXPECTED[name]
    assert type(make_estimator(name)) is type(EXPECTED[name])


def test_every_name_belongs_to_one_class():
    assert len({repr(make_estimator(name)) for name in NAMES}) == len(NAMES) == len(set(ESTIMATORS.values())) >= 15
    assert all(name in kind.names for name, kind in ESTIMATORS.items())
    assert len({kind.title for kind in ESTIMATORS.values()}) == len(NAMES)


def test_numbers_and_options_can_be_given_separately():
    assert make_estimator("ars", k=7) == make_estimator("ars-7", k=7) == ARS(references=7)
    assert make_estimator("mc", k=0) == MonteCarlo(0)
    assert make_estimator("ars", references=6) == ARS(references=6)
    assert make_estimator("arsm:budget=7", budget=7, main="greedy") == ARS(budget=7, main="greedy")
    assert make_estimator("arsm", budget=None) == ARS()


@pytest.mark.parametrize("name", ["", "ppo", "arsn", "ars-x", "20", "-3", "arsm--4", "ars-2.5", "ars--2", "bt-ars"])
def test_unknown_names_are_refused(name: str):
    for options in ("", ":budget=3"):
        with pytest.raises(InputError, match=r"there is no estimator '.*': choose one of arsm, arm, .*, auto"):
            make_estimator(name + options)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("ars-20", {"k": 5}, "'ars-20', but k = 5"),
        ("td-scst", {"k": 2}, "td-scst is mc-0"),
        ("arm-2", {}, "arm takes no number"),
        ("auto-3", {}, "auto takes no number"),
        ("disarm", {"k": 2}, "disarm takes no number"),
        ("rloo", {"k": 8, "samples": 4}, "both the number 8 and samples = 4"),
        ("ars-2:references=3", {}, "both the number 2 and references = 3"),
        ("arsm:budget=7", {"budget": 8}, "budget = 7 and budget = 8"),
        ("arsm", {"size": 3}, "arsm has no option 'size'; it has main, pseudo, noise, completions"),
        ("arm:references=3", {}, "arm has no option 'references'; it has samples"),
        ("arsm:budget", {}, "options of arsm are written as in arsm:budget=2000"),
        ("arsm:=3", {}, "options of arsm are written as in"),
        ("arsm:budget=1,budget=2", {}, "options of arsm are written as in"),
        ("arsm:budget=x", {}, "ARS needs budget to be a whole number, not 'x'"),
        ("arsm:budget=true", {}, "ARS needs budget to be a whole number, not True"),
        ("rloo:samples=2.5", {}, "RLOO needs samples to be a whole number, not 2.5"),
        ("pairs:per_step=few", {}, "PAIRS needs per_step to be a number, not 'few'"),
        ("pairs:per_step=0.0", {}, "PAIRS needs per_step > 0, not 0.0"),
        ("arsm:shared_references=3", {}, "shared_references to be true or false, not 3"),
        ("arsm:budget=3,budget_per=token", {}, "budget_per to be one of update, example, not 'token'"),
        ("rloo:baseline=mean", {}, "RLOO needs baseline to be one of others, shrunk, fitted, not 'mean'"),
        ("arsm:main=beam", {}, "ARS needs main to be one of sample, greedy, not 'beam'"),
        ("arsm:draws=2,main=greedy", {}, "ARS with draws = 2 needs main = sample"),
        # State is not an option.
        ("set-8:past=3", {}, "set has no option 'past'; it has size, baseline$"),
        ("pairs:gaps=3", {}, "pairs has no option 'gaps'; it has .*, per_step$"),
        ("auto:candidates=3", {}, "auto has no option 'candidates'; it has every, estimates$"),
    ],
)
def test_wrong_numbers_and_options_are_named(name: str, given: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        make_estimator(name, **given)


@pytest.mark.parametrize(
    ("name", "option", "least"),
    [
        *(
            (name, option, 1)
            for name in ("arsm", "bt-disarm", "pairs")
            for option in ("completions", "budget", "samples")
        ),
        *(("arsm", option, 1) for option in ("references", "draws")),
        *((name, "samples", 1) for name in ("arm", "disarm", "reinforce", "sc", "mc")),
        *((name, "samples", 2) for name in ("rloo", "grpo", "vine")),
        ("mc", "completions", 0),
        ("vine", "completions", 1),
        ("rl-beam", "size", 2),
        ("auto", "every", 1),
        ("auto", "estimates", 2),
    ],
)
def test_counts_that_are_too_small_are_refused(name: str, option: str, least: int):
    for value in (least - 1, least - 3):
        with pytest.raises(InputError, match=f"needs {option} ≥ {least}, not {value}"):
            make_estimator(name, **{option: value})
    make_estimator(name, **{option: least})


@pytest.mark.parametrize("size", [-1, 0, 1, 65])
def test_sets_that_are_too_small_or_too_large_are_refused(size: int):
    with pytest.raises(InputError, match=f"SET needs a size from 2 to 64, not {size}"):
        UnorderedSet(size=size)


# What estimators say about themselves


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("arsm", "ARSM"),
        ("arsm:budget=9", "ARSM (budget=9)"),
        ("ars-20", "ARS-20"),
        ("ars-1:shared_references=true", "ARS-1 (shared_references=true)"),
        ("rloo-8", "RLOO-8"),
        ("set-2:baseline=fitted", "SET-2 (baseline=fitted)"),
        ("mc-2", "MC-2"),
        ("reinforce", "REINFORCE"),
        ("sc-3", "SC-3"),
        ("rl_beam-64", "RL_beam-64"),
        ("disarm", "DisARM"),
        ("bt-disarm", "BT-DisARM"),
        ("pairs", "PAIRS"),
        ("pairs:per_step=0.5,budget=3", "PAIRS (budget=3,per_step=0.5)"),
        ("auto", "AUTO"),
    ],
)
def test_labels(name: str, label: str):
    assert make_estimator(name).label == label


def test_bias_heads_and_notes():
    biased = ["grpo", "rl-beam", "reinforce:baseline=batch", "arsm:main=greedy", "bt-arsm:pseudo=greedy"]
    assert all(make_estimator(name).is_biased for name in biased)
    assert {name for name in NAMES if make_estimator(name).is_biased} == {"grpo", "rl-beam"}
    for head, others in (("softmax", {"bt-arsm", "bt-disarm"}), ("tree", {"arsm", "arm", "disarm"})):
        assert {name for name in NAMES if head not in ESTIMATORS[name].heads} == others
    assert {name for name in NAMES if ESTIMATORS[name].adapts_rollouts} == {
        "arsm",
        "pairs",
        "bt-arsm",
        "bt-disarm",
    }
    assert {name for name in NAMES if ESTIMATORS[name].chooses_estimators} == {"auto"}
    assert {name for name in NAMES if make_estimator(name).note_for_one_context} == {"reinforce"}
    assert not make_estimator("reinforce-2").note_for_one_context


# Classes of the user

MODULE = """
from dataclasses import dataclass
from corollout.estimators import RLOO, Estimator

@dataclass(frozen=True)
class Mine(RLOO):
    strength: float = 1.0
    number = "strength"

class Bare(Estimator):
    sampler = RLOO(2).sampler

    def plan(self, trajectories, noise):
        return RLOO(2).plan(trajectories, noise)

OTHER = 3
"""


def test_estimators_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine_estimators.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [])
    mine: Any = make_estimator("mine_estimators:Mine:samples=3,strength=0.5")
    assert (type(mine).__name__, mine.samples, mine.strength) == ("Mine", 3, 0.5)
    assert make_estimator("mine_estimators:Mine", k=2, samples=3).label == "RLOO-2 (samples=3)"
    bare = make_estimator("mine_estimators:Bare")
    assert (bare.label, bare.is_biased, bare.sampler.count) == ("Bare", False, 2)
    for path, message in (
        ("mine_estimators:Bare:samples=2", "Bare has no option 'samples'; it has none"),
        ("mine_estimators:Nothing", "has no 'Nothing'"),
        ("mine_estimators:OTHER", "is not a subclass of corollout.estimators.Estimator"),
        ("no_such_module:Mine", "cannot import 'no_such_module'"),
        ("mine_estimators:Mine:strength", "options of mine_estimators:Mine are written as in"),
    ):
        with pytest.raises(InputError, match=message):
            make_estimator(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"rloo-{'9' * 5000}", "there is no estimator 'rloo-999"),
        (f"arsm:budget={'9' * 5000}", "ARS needs budget to be a whole number, not '999"),
        (f"set-2:k={'9' * 5000}", "set-2 was given|has no option|not '999"),
        ("arsm:samples=1.5e999", "ARS needs samples to be a whole number"),
        ("x" * 10**6, "there is no estimator 'xxx"),
        (f"{'9' * 10**5}x", "there is no estimator '999"),
        (f"arsm:{'y' * 10**6}=1", "arsm has no option 'yyy"),
        (f"arsm:{'z' * 10**6}", "options of arsm are written as in"),
        (f"{'m' * 10**6}:Class", "cannot import 'mmm"),
    ],
)
def test_very_long_names_are_refused_in_one_short_sentence(name: str, message: str):
    with pytest.raises(InputError, match=message) as caught:
        make_estimator(name)
    assert len(str(caught.value)) < 700
