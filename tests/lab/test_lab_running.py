"""The whole lab: in one go, stopped and taken up again, and refused."""

import json
import math
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.estimators import RLOO, UnorderedSet, make_estimator
from corollout.lab import KINDS, Lab, biased_by_design, default_estimators, run_lab, time_rounds
from corollout.lab.defaults import LARGE_SOFTMAX, SOFTMAX, TREE
from corollout.lab.store import FILE, REFERENCE
from corollout.noise import Noise
from corollout.rewards import RewardFunction
from corollout.rollouts import Engine
from corollout.training import estimate
from corollout.training.variance import gradient_source
from tests.support.small_task import likeness, make_data, make_engine, make_policy, make_tree_policy
from tests.support.tree_problems import UNBALANCED

Task = tuple[Engine, Batch, RewardFunction]
NAMES = ["rloo-2", "sc", "set-3:baseline=fitted"]
FEW: dict[str, Any] = {
    "estimates": 8,
    "reference": "rloo-4",
    "reference_estimates": 8,
    "timing_rounds": 2,
    "warm_up": 2,
}


@pytest.fixture(scope="module")
def task() -> Task:
    return make_engine(make_policy()), make_data().batch(range(3)), likeness


@pytest.fixture(scope="module")
def whole(task: Task) -> Lab:
    return run_lab(*task, NAMES, **FEW)


def few(**changes: Any) -> dict[str, Any]:
    return FEW | changes


def timeless(lab: Lab) -> list[dict]:
    return [{**asdict(one), "seconds": None} for one in lab.measurements]


def test_a_lab_has_rows_facts_and_advice(task: Task, whole: Lab):
    assert [row.estimator for row in whole.rows] == NAMES
    assert whole.base == "rloo-2"
    assert all(row.relative[kind] is not None for row in whole.rows for kind in KINDS)
    assert all(len(one.seconds) == 2 for one in whole.measurements)
    assert whole.facts.contexts == 3
    assert 0 < whole.facts.top_mass <= 1
    assert whole.advice.startswith(f"{whole.facts.nats_per_token:.2g} nats a token")
    stored = json.loads(json.dumps(whole.to_json(), allow_nan=False))
    assert stored["rows"][1]["products"].keys() == set(KINDS)
    assert stored["measurements"][2]["definition"] == "UnorderedSet(size=3, baseline='fitted')"
    assert stored["settings"]["reward"] == "likeness"


def test_other_batches_add_what_gradients_vary_between_them(task: Task, whole: Lab):
    engine, batch, reward = task
    columns = make_data(64)
    others = [columns.batch(range(3 * i, 3 * i + 3)) for i in range(8)]
    lab = run_lab(engine, batch, reward, NAMES, batches=others, **FEW)
    assert lab.spread is not None
    assert len(lab.spread.distances) == 7
    # The same by hand: the reference's estimator on each batch, less its variance on one.
    gradients = []
    for place, other in enumerate(others):
        with gradient_source(engine, other, reward) as draw:
            gradients.append(draw(FEW["reference"], Noise(0).fold(4).fold(place))[1].double())
    total = float(torch.stack(gradients).var(0).sum())
    assert math.isclose(sum(lab.spread.distances) / 7, total, rel_tol=1e-6)
    assert math.isclose(lab.spread.between, max(0.0, total - lab.spread.within), rel_tol=1e-6)
    for row in lab.rows:
        alone, together = row.relative["tokens"], row.training["tokens"]
        assert alone is not None
        assert together is not None
        costs = row.costs["tokens"].value / lab.rows[0].costs["tokens"].value
        # The common part moves the ratio of variances towards 1.
        assert abs(together.value / costs - 1) <= abs(alone.value / costs - 1) + 1e-9
    assert all(row.training == {} for row in whole.rows)
    assert whole.spread is None
    with pytest.raises(InputError, match="one other batch tells nothing"):
        run_lab(engine, batch, reward, NAMES, batches=others[:1], **FEW)


def test_facts_are_those_of_the_policy():
    """Uniform over five tokens, the end among them, and a reward that is the same for all."""
    policy = make_policy()
    with torch.no_grad():
        policy.output.weight.zero_()
        policy.output.bias.zero_()
    batch = Columns(context=torch.ones(40, 3, dtype=torch.int64)).batch(range(40))
    lab = run_lab(
        make_engine(policy), batch, lambda sequences: [1.0] * len(sequences), ["rloo-2"], **few(timing_rounds=0)
    )
    assert lab.facts.nats_per_token == pytest.approx(torch.tensor(6.0).log().item(), rel=1e-5)
    assert lab.facts.mean_reward == lab.facts.equal_rewards == 1.0
    assert 0 < lab.facts.top_mass < 0.5
    assert "nothing to choose by" in lab.advice


def test_a_lab_that_was_stopped_goes_on(task: Task, whole: Lab, tmp_path: Path):
    seen: Counter[str] = Counter()

    def stop(part: str, done: int, total: int) -> None:
        seen[part] += 1
        if (part, done) == ("sc", 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_lab(*task, NAMES, **FEW, folder=tmp_path, on_progress=stop)
    assert seen == {"reference rloo-4": 8, "rloo-2": 8, "sc": 4}
    seen.clear()

    def count(part: str, done: int, total: int) -> None:
        seen[part] += 1
        assert done == seen[part] <= total

    again = run_lab(*task, NAMES, **FEW, folder=tmp_path, on_progress=count)
    assert seen == {"sc": 8, NAMES[2]: 8, "timing": 9}
    assert timeless(again) == timeless(whole)
    assert [row.bias for row in again.rows] == [row.bias for row in whole.rows]
    seen.clear()
    third = run_lab(*task, NAMES, **FEW, folder=tmp_path, on_progress=count)
    assert not seen
    assert third == again

    # Another estimator may join; nothing but seconds is measured again.
    run_lab(*task, [*NAMES, "reinforce"], **FEW, folder=tmp_path, base="sc", on_progress=count)
    assert seen == {"reinforce": 8, "timing": 12}


def test_a_folder_of_other_settings_is_refused(task: Task, tmp_path: Path):
    short = few(timing_rounds=0)
    run_lab(*task, {"mine": RLOO(2)}, **short, folder=tmp_path)
    with pytest.raises(InputError, match=r"other settings \(reference estimates: 8, now 24\): choose another folder"):
        run_lab(*task, {"mine": RLOO(2)}, **few(timing_rounds=0, reference_estimates=24), folder=tmp_path)
    with pytest.raises(InputError, match=r"other settings \(weights: "):
        run_lab(make_engine(make_policy(1)), *task[1:], {"mine": RLOO(2)}, **short, folder=tmp_path)
    with pytest.raises(InputError, match=r"mine was measured as RLOO\(samples=2.*and is now RLOO\(samples=3"):
        run_lab(*task, {"mine": RLOO(3)}, **short, folder=tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(InputError, match=r"cannot read .*measurements.json"):
        run_lab(*task, {"mine": RLOO(2)}, **short, folder=tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(InputError, match=r"reference.safetensors belongs to another lab"):
        run_lab(*task, {"mine": RLOO(2)}, **few(timing_rounds=0, seed=1), folder=tmp_path)
    (tmp_path / REFERENCE).unlink()
    (tmp_path / "file").write_text("here first")
    with pytest.raises(InputError, match="cannot make the folder"):
        run_lab(*task, ["rloo-2"], **short, folder=tmp_path / "file")


def test_what_cannot_be_measured_is_said_before_anything_is(task: Task, tmp_path: Path):
    for names, options, message in (
        (["magic"], {}, "no estimator 'magic'"),
        (["rloo-2", "bt-arsm"], {}, "bt-arsm cannot be measured here: BT-ARSM is for a policy whose head is a binary"),
        (["ars-50"], {}, "ars-50 cannot be measured here: ARS-50 needs 50 references"),
        (["rloo-2", "rloo-2"], {}, "a list of different estimators"),
        ([], {}, "a list of different estimators"),
        (["rloo-2"], {"base": "sc"}, "the base 'sc' is not among the estimators: rloo-2"),
        (["rloo-2"], {"reference": "bt-arsm"}, "the reference bt-arsm cannot be measured here"),
    ):
        with pytest.raises(InputError, match=message):
            run_lab(*task, names, **few(**options), folder=tmp_path / "x")
        assert not (tmp_path / "x").exists()
    with pytest.raises(InputError, match="the batch is empty"):
        run_lab(task[0], replace(task[1], examples=task[1].examples[:0]), likeness, ["rloo-2"], **FEW)


def test_rounds_have_an_estimate_of_each_and_one_more_round_comes_first(task: Task):
    made = 0

    def count() -> None:
        nonlocal made
        made += 1

    seconds = time_rounds(*task, {"a": "rloo-2", "b": UnorderedSet(3)}, 3, Noise(0), count)
    assert {name: len(own) for name, own in seconds.items()} == {"a": 3, "b": 3}
    assert min(map(min, seconds.values())) > 0
    assert made == 8


def test_the_list_suits_the_head(task: Task):
    assert default_estimators(*task[:2]) == SOFTMAX
    tree = make_engine(make_tree_policy(UNBALANCED), bos=4)
    assert default_estimators(tree, task[1]) == TREE
    large = make_engine(make_policy(vocab=300))
    assert default_estimators(large, task[1]) == LARGE_SOFTMAX
    for engine, names in ((task[0], SOFTMAX), (tree, TREE), (large, LARGE_SOFTMAX)):
        assert names[0] == "rloo-8"
        for name in names:
            assert not biased_by_design(make_estimator(name))
        batch = Columns(context=torch.full((1, 3), 1)).batch([0])
        for name in names:  # all of them can be measured there
            assert estimate(engine, batch, lambda sequences: [1.0] * len(sequences), name, Noise(0)).contexts


def test_biased_by_design():
    for name in ("rl-beam", "grpo-8", "reinforce:baseline=batch", "arsm:pseudo=greedy", "bt-arsm:main=greedy"):
        assert biased_by_design(make_estimator(name))
