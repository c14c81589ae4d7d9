"""Sweeps: the plan that a folder keeps, analyses that continue, and the count of rollouts."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.config import read_toml, write_toml
from corollout.data import shuffled
from corollout.errors import CorolloutError, InputError
from corollout.estimators import make_estimator
from corollout.events import Callback, Event
from corollout.experiments.table1 import TABLE1
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.sweeps.analysis import count_rollouts
from corollout.sweeps.sweep import PLAN, Analysis, Sweep, open_sweep, read_analysis, run_analysis
from corollout.tasks.sorting import sorting_data, sorting_engine
from corollout.training.estimates import estimate


def test_a_folder_keeps_its_plan(tmp_path: Path):
    out = tmp_path / "new" / "folder"
    sweep = open_sweep(TABLE1.spec, out, "tiny", seeds=[3, 4], methods=["ARSM", "SC"], threads=2)
    assert (sweep.scale, sweep.grid.seeds, sweep.machine.threads) == ("tiny", (3, 4), 2)
    assert sweep.grid.methods == ("ARSM", "SC")
    assert open_sweep(TABLE1.spec, out) == sweep
    assert open_sweep(TABLE1.spec, out, "tiny", seeds=[3, 4], threads=2, device="cpu") == sweep
    with pytest.raises(InputError, match="started with seeds 3,4 instead of 3, threads 2 instead of 1: leave"):
        open_sweep(TABLE1.spec, out, "tiny", seeds=[3], threads=1)
    with pytest.raises(InputError, match="scale tiny instead of small"):
        open_sweep(TABLE1.spec, out, "small")
    changes = {"no method 'PPO'": {"methods": ["PPO"]}, "different values": {"seeds": [1, 1]}, "unknown key": {"a": 1}}
    for said, bad in changes.items():
        with pytest.raises(InputError, match=said):
            open_sweep(TABLE1.spec, tmp_path / "other", "tiny", **bad)
    assert not (tmp_path / "other").exists()
    # Settings under their former names.
    plan = read_toml(out / PLAN)
    plan["pretrain"]["clip"] = plan["pretrain"].pop("max_grad_norm")
    plan["finetune"]["train_tasks"] = plan["finetune"].pop("train_eval_examples")
    write_toml(out / PLAN, plan)
    assert open_sweep(TABLE1.spec, out) == sweep
    write_toml(out / PLAN, {"scale": "tiny"})
    with pytest.raises(InputError, match="is not a sweep of table1"):
        open_sweep(TABLE1.spec, out)


def count_letters(text: str, on_event: Callback) -> dict[str, Any]:
    if text == "rloo-8":
        raise InputError("not today")
    return {"letters": len(text)}


def analysis(**names: str) -> Analysis:
    """Counts the letters of estimators, in worker processes."""

    def arguments(sweep: Sweep, method: str) -> dict[str, Any]:
        return {"text": names.get(method, sweep.estimator(method))}

    work = "tests.sweeps.test_sweep:count_letters"
    return Analysis("letters", "letters.json", work, lambda sweep: sweep.grid.methods, arguments)


@pytest.mark.prove
def test_an_analysis_that_is_stopped_continues(tmp_path: Path):
    sweep = Sweep.of_scale(TABLE1.spec, "tiny", tmp_path, seeds=[0], methods=["SC", "RLOO"])
    with pytest.raises(CorolloutError, match="letters, RLOO failed: not today"):
        run_analysis(sweep, analysis())
    assert read_analysis(sweep, analysis()) == {"SC": {"letters": 2}}
    events: list[Event] = []
    run_analysis(sweep, analysis(RLOO="abc"), on_event=events.append)
    assert read_analysis(sweep, analysis()) == {"SC": {"letters": 2}, "RLOO": {"letters": 3}}
    parts = [(event.record["part"], event.record["done"]) for event in events]
    assert parts == [("letters, SC", 1), ("letters, RLOO", 1)]
    (tmp_path / "letters.json").write_text('{"SC": {"lett')
    with pytest.raises(InputError, match=r"letters\.json.*remove the file"):
        run_analysis(sweep, analysis())


def in_order(sequences: list[list[int]]) -> list[float | None]:
    """The share of neighbours that are in order; nothing for a list that has none."""
    return [sum(a <= b for a, b in pairwise(s)) / (len(s) - 1) if len(s) > 1 else None for s in sequences]


@pytest.mark.parametrize("name", ["ars-1", "ars-3", "arsm"])
def test_rollouts_are_those_of_whole_estimates(name: str):
    """One example after another, by estimates that complete every branch: the slow twin."""
    data, engine = sorting_data(18, symbols=5, shortest=2, longest=4), sorting_engine(symbols=5, longest=4, hidden=16)
    assert isinstance(engine.policy, torch.nn.Module)
    engine.policy.double()
    reward, estimator, noise = Reward(in_order), make_estimator(name), Noise(4).fold(1)
    events: list[Event] = []
    counted = count_rollouts(engine, data, reward, estimator, noise, batch_size=7, on_event=events.append)

    scores, lengths, rollouts = [], [], []
    departing, reaching = [0] * engine.max_length, [0] * engine.max_length
    for index in shuffled(data.ids, noise).tolist():
        sample = estimate(engine, data.batch([index]), reward, estimator, noise)
        length = int(sample.trajectories.lengths[0])
        for step in range(length):
            reaching[step] += 1
            departing[step] += int((sample.plan.branches.step == step).sum())
        if not sample.rewards[0].isnan():
            scores.append(round(float(sample.rewards[0]), 5))
            lengths.append(length)
            rollouts.append(sample.cost.rollouts)
    assert 0 < len(scores) < 18  # some lists are too short to be judged
    assert (counted["scores"], counted["lengths"], counted["rollouts"]) == (scores, lengths, rollouts)
    steps = sum(count > 0 for count in reaching)
    assert counted["reaching"] == reaching[:steps]
    assert counted["by_step"] == pytest.approx([departing[i] / reaching[i] for i in range(steps)])
    assert len(set(rollouts)) > 2
    assert [event.record["done"] for event in events] == [7, 14, 18]
