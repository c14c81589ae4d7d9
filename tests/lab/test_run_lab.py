"""The whole lab: in one go, stopped and continued, and refused."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.data import Batch, Columns
from corollout.errors import InputError
from corollout.estimators import RLOO, make_estimator
from corollout.events import Event
from corollout.lab import Lab, run_lab
from corollout.lab.lab import LARGE_SOFTMAX, SOFTMAX, TREE, default_estimators
from corollout.lab.store import FILE, REFERENCE
from corollout.lab.summary import COSTS
from corollout.noise import Noise
from corollout.rewards import RewardFunction
from corollout.rollouts import Engine
from corollout.training import estimate
from corollout.training.probes import gradient_source
from tests.support.small_task import likeness, make_data, make_engine, make_policy, make_tree_policy
from tests.support.tree_problems import UNBALANCED

Task = tuple[Engine, Batch, RewardFunction]
NAMES = ["rloo-2", "sc", "set-3:baseline=fitted"]
UNTIMED: dict[str, Any] = {"estimates": 8, "reference": "rloo-4", "reference_estimates": 8, "timing_rounds": 0}
FEW: dict[str, Any] = UNTIMED | {"timing_rounds": 2, "warm_up": 2}


@pytest.fixture(scope="module")
def task() -> Task:
    return make_engine(make_policy()), make_data().batch(range(3)), likeness


@pytest.fixture(scope="module")
def whole(task: Task) -> Lab:
    return run_lab(*task, NAMES, **FEW)


def always_one(sequences: list[list[int]]) -> list[float]:
    return [1.0] * len(sequences)


def test_a_lab_has_rows_facts_and_advice(task: Task, whole: Lab):
    assert [row.estimator for row in whole.rows] == NAMES
    assert whole.base == "rloo-2"
    assert all(row.ratio[cost] is not None for row in whole.rows for cost in COSTS)
    assert all(len(one.seconds) == 2 and min(one.seconds) > 0 for one in whole.measurements)
    assert whole.facts.contexts == 3
    assert 0 < whole.facts.top_mass <= 1
    assert whole.advice.startswith(f"{whole.facts.nats_per_token:.2g} nats per token")
    stored = json.loads(json.dumps(whole.to_json(), allow_nan=False))
    assert stored["rows"][1]["products"].keys() == {"tokens", "calls", "seconds"}
    assert stored["measurements"][2]["definition"] == "UnorderedSet(size=3, baseline='fitted')"
    assert stored["settings"]["reward"] == "likeness"


def test_other_batches_add_what_gradients_vary_between_them(task: Task, whole: Lab):
    engine, batch, reward = task
    columns = make_data(64)
    others = [columns.batch(range(3 * i, 3 * i + 3)) for i in range(8)]
    lab = run_lab(engine, batch, reward, NAMES, batches=others, **FEW)
    variance = lab.batch_variance
    assert variance is not None
    # The same by hand: the reference's estimator on each batch, less its variance on one.
    gradients = []
    for index, other in enumerate(others):
        with gradient_source(engine, other, reward) as draw:
            gradients.append(draw(FEW["reference"], Noise(0).fold(4).fold(index))[1].double())
    total = float(torch.stack(gradients).var(0).sum())
    assert sum(variance.distances) / 7 == pytest.approx(total, rel=1e-6)
    assert variance.between == pytest.approx(max(0.0, total - variance.within), rel=1e-6)
    for row in lab.rows:
        alone, together = row.ratio["tokens"], row.training_ratio["tokens"]
        assert alone is not None
        assert together is not None
        costs = row.costs["tokens"].value / lab.rows[0].costs["tokens"].value
        # The common part moves the ratio of variances towards 1.
        assert abs(together.value / costs - 1) <= abs(alone.value / costs - 1) + 1e-9
    assert all(row.training_ratio == {} for row in whole.rows)
    assert whole.batch_variance is None
    with pytest.raises(InputError, match="with one other batch"):
        run_lab(engine, batch, reward, NAMES, batches=others[:1], **FEW)


def test_facts_are_those_of_the_policy():
    """Uniform over five tokens, the end among them, and a reward that is the same for all."""
    policy = make_policy()
    with torch.no_grad():
        policy.output.weight.zero_()
        policy.output.bias.zero_()
    batch = Columns(context=torch.ones(40, 3, dtype=torch.int64)).batch(range(40))
    lab = run_lab(make_engine(policy), batch, always_one, ["rloo-2"], **UNTIMED)
    assert lab.facts.nats_per_token == pytest.approx(torch.tensor(6.0).log().item(), rel=1e-5)
    assert lab.facts.mean_reward == lab.facts.equal_rewards == 1.0
    assert 0 < lab.facts.top_mass < 0.5
    assert "nothing to choose by" in lab.advice


def test_a_lab_that_was_stopped_continues(task: Task, whole: Lab, tmp_path: Path):
    seen: Counter[str] = Counter()

    def count(event: Event) -> None:
        part, done, total = (event.record[key] for key in ("part", "done", "total"))
        seen[part] += 1
        assert done == seen[part] <= total
        if stop == (part, done):
            raise KeyboardInterrupt

    stop: tuple[str, int] | None = ("sc", 4)
    with pytest.raises(KeyboardInterrupt):
        run_lab(*task, NAMES, **FEW, folder=tmp_path, on_event=count)
    assert seen == {"reference rloo-4": 8, "rloo-2": 8, "sc": 4}
    seen.clear()
    stop = None
    again = run_lab(*task, NAMES, **FEW, folder=tmp_path, on_event=count)
    assert seen == {"sc": 8, NAMES[2]: 8, "timing": 9}  # two rounds, after one that is not counted
    timeless, before = ([replace(one, seconds=[]) for one in lab.measurements] for lab in (again, whole))
    assert timeless == before
    assert [row.bias for row in again.rows] == [row.bias for row in whole.rows]
    seen.clear()
    third = run_lab(*task, NAMES, **FEW, folder=tmp_path, on_event=count)
    assert not seen
    assert third == again

    # Another estimator may join; only seconds are measured again.
    run_lab(*task, [*NAMES, "reinforce"], **FEW, folder=tmp_path, base="sc", on_event=count)
    assert seen == {"reinforce": 8, "timing": 12}


def test_a_folder_of_other_settings_is_refused(task: Task, tmp_path: Path):
    def refused(message: str, engine: Engine = task[0], samples: int = 2, folder: Path = tmp_path, **changes: Any):
        with pytest.raises(InputError, match=message):
            run_lab(engine, *task[1:], {"mine": RLOO(samples)}, **UNTIMED | changes, folder=folder)

    run_lab(*task, {"mine": RLOO(2)}, **UNTIMED, folder=tmp_path)
    refused(r"other settings \(reference estimates: 8, now 24\): choose another folder", reference_estimates=24)
    refused(r"other settings \(weights: ", make_engine(make_policy(1)))
    refused(r"mine was measured as RLOO\(samples=2.*and is now RLOO\(samples=3", samples=3)
    (tmp_path / FILE).write_text("{}")
    refused(r"measurements.json is damaged: its entry 'settings'")
    (tmp_path / FILE).unlink()
    refused(r"reference.safetensors belongs to another lab", seed=1)
    (tmp_path / REFERENCE).unlink()
    (tmp_path / "file").write_text("here first")
    refused("is not a folder", folder=tmp_path / "file")


def test_what_cannot_be_measured_is_said_before_anything_is(task: Task, tmp_path: Path):
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        (["magic"], {}, "no estimator 'magic'"),
        (["rloo-2", "bt-arsm"], {}, "bt-arsm does not work here: BT-ARSM needs a tree head"),
        (["ars-50"], {}, "ars-50 does not work here"),
        (["rloo-2", "rloo-2"], {}, "a list of different estimators"),
        ([], {}, "a list of different estimators"),
        (["rloo-2"], {"base": "sc"}, "the base 'sc' is not among the estimators: rloo-2"),
        (["rloo-2"], {"reference": "bt-arsm"}, "the reference bt-arsm does not work here"),
    ]
    for names, options, message in cases:
        with pytest.raises(InputError, match=message):
            run_lab(*task, names, **FEW | options, folder=tmp_path / "x")
        assert not (tmp_path / "x").exists()
    with pytest.raises(InputError, match="the batch is empty"):
        run_lab(task[0], replace(task[1], examples=task[1].examples[:0]), likeness, ["rloo-2"], **FEW)


def test_the_default_list_suits_the_head(task: Task):
    for engine, names in ((task[0], SOFTMAX), (make_engine(make_tree_policy(UNBALANCED), bos=4), TREE)):
        assert default_estimators(engine, task[1]) == names
        assert names[0] == "rloo-8"
        assert not any(make_estimator(name).is_biased for name in names)
        require_all_work(engine, names)
    assert default_estimators(make_engine(make_policy(vocab=300)), task[1]) == LARGE_SOFTMAX


@pytest.mark.prove
def test_the_default_list_works_with_many_actions():
    require_all_work(make_engine(make_policy(vocab=300)), LARGE_SOFTMAX)


def require_all_work(engine: Engine, names: tuple[str, ...]) -> None:
    batch = Columns(context=torch.full((1, 3), 1)).batch([0])
    for name in names:
        assert estimate(engine, batch, always_one, name, Noise(0)).contexts
