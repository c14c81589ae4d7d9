"""Studies of methods: kept one by one, taken up again; and the count of rollouts."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from corollout.data import shuffled
from corollout.errors import InputError
from corollout.estimators import ARS, make_estimator
from corollout.experiments.table1 import TABLE1
from corollout.experiments.table2 import TABLE2
from corollout.noise import Noise
from corollout.rewards import Reward
from corollout.sweeps.analysis import read_analysis, run_analysis
from corollout.sweeps.rollout_analysis import ROLLOUTS, branching, branching_methods, count_rollouts
from corollout.sweeps.sweep import Analysis, Sweep
from corollout.tasks.sorting import sorting_data, sorting_engine
from corollout.training import estimate


def made_up(done: list[str], fail: str = "") -> Analysis:
    """A analysis that lists what it measures, and stops at one of the methods."""

    def begin(sweep: Sweep) -> Callable[[str, Callable[[float], None]], dict[str, Any]]:
        done.append("begin")

        def measure(method: str, tell: Callable[[float], None]) -> dict[str, Any]:
            tell(0.5)
            if method == fail:
                raise KeyboardInterrupt
            done.append(method)
            tell(1.0)
            return {"letters": len(method)}

        return measure

    return Analysis("letters", "letters.json", lambda sweep: sweep.methods, begin)


def test_a_study_that_is_stopped_goes_on_where_it_was(tmp_path: Path):
    sweep = Sweep.of_scale(TABLE1, "tiny", tmp_path, (0,), ("SC", "RLOO", "ARSM"))
    done: list[str] = []
    told: list[tuple[str, float]] = []
    with pytest.raises(KeyboardInterrupt):
        run_analysis(sweep, made_up(done, fail="RLOO"), lambda method, share: told.append((method, share)))
    assert done == ["begin", "SC"]
    assert told == [("SC", 0.5), ("SC", 1.0), ("RLOO", 0.5)]
    assert read_analysis(sweep, made_up([])) == {"SC": {"letters": 2}}
    found = run_analysis(sweep, made_up(done))
    assert done == ["begin", "SC", "begin", "RLOO", "ARSM"]
    assert (
        found
        == read_analysis(sweep, made_up([]))
        == {"SC": {"letters": 2}, "RLOO": {"letters": 4}, "ARSM": {"letters": 4}}
    )
    assert run_analysis(sweep, made_up(done)) == found
    assert done[-1] == "ARSM"  # nothing was left to begin with


def test_a_broken_file_is_named(tmp_path: Path):
    sweep = Sweep.of_scale(TABLE1, "tiny", tmp_path, (0,), ("SC",))
    (tmp_path / "letters.json").write_text('{"SC": {"lett')
    with pytest.raises(InputError, match=r"cannot read .*letters\.json.*remove it"):
        run_analysis(sweep, made_up([]))


def test_only_captions_are_asked_for_their_rollouts(tmp_path: Path):
    assert [analysis.name for analysis in TABLE1.analyses] == ["variance"]
    assert [analysis.name for analysis in TABLE2.analyses] == ["variance", "variance at equal rollouts", "rollouts"]
    sweep = Sweep.of_scale(TABLE2, "tiny", tmp_path, (0,), ("SC", "ARS-1", "RLOO", "ARSM"))
    assert branching_methods(sweep) == list(ROLLOUTS.methods(sweep)) == ["ARS-1", "ARSM"]
    assert branching("ars-5") == ARS(references=5)


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
    told: list[float] = []
    found = count_rollouts(engine, data, reward, estimator, noise, batch_size=7, tell=told.append)

    scores, lengths, rollouts = [], [], []
    departing, reaching = [0] * engine.max_length, [0] * engine.max_length
    for place in shuffled(data.ids, noise).tolist():
        sample = estimate(engine, data.batch([place]), reward, estimator, noise)
        length = int(sample.trajectories.lengths[0])
        for step in range(length):
            reaching[step] += 1
            departing[step] += int((sample.sweep.branches.step == step).sum())
        if not sample.rewards[0].isnan():
            scores.append(round(float(sample.rewards[0]), 5))
            lengths.append(length)
            rollouts.append(sample.cost.rollouts)
    assert 0 < len(scores) < 18  # some lists are too short to be judged
    assert (found["scores"], found["lengths"], found["rollouts"]) == (scores, lengths, rollouts)
    steps = sum(count > 0 for count in reaching)
    assert found["reaching"] == reaching[:steps]
    assert found["by_step"] == pytest.approx([departing[i] / reaching[i] for i in range(steps)])
    assert len(set(rollouts)) > 2
    assert told == pytest.approx([7 / 18, 14 / 18, 1])
    json.dumps(found, allow_nan=False)
