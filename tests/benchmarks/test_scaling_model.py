"""The model of an update's cost: counts and simulated waiting equal literal ones, formulas have the right limits."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from benchmarks import scaling_model
from benchmarks.imbalance import DIVISIONS, PASSES, Counts, Prices, owners_of, simulate
from benchmarks.rollout_counts import Recording, Visit, read_recordings, visit_of
from benchmarks.update_model import (
    SHAPES,
    WORKS,
    Machine,
    Shape,
    Work,
    all_reduce,
    communicate,
    state_bytes,
    update,
    waves,
)
from corollout.estimators import make_estimator
from corollout.noise import Noise
from corollout.tasks.sorting import sorting_data, sorting_engine, sorting_reward
from corollout.training.estimates import estimate

SMALL, LARGE = SHAPES
PRICES = Prices(context=0.5, step=2.0, main=3.0, branch=0.7)


@pytest.fixture(scope="module")
def counts() -> dict[str, Counts]:
    return {recording.label: Counts(recording) for recording in read_recordings()}


def test_what_an_example_takes_is_counted():
    engine, data = sorting_engine(symbols=5, longest=4, hidden=16), sorting_data(6, 5, 2, 4)
    sample = estimate(engine, data.batch(range(6)), sorting_reward(), make_estimator("ars-2:samples=2"), Noise(3))
    noted, branches = visit_of(sample), sample.plan.branches
    assert len(branches) > 6
    for context in range(6):
        mains = [row for row, owner in enumerate(sample.trajectories.contexts.tolist()) if owner == context]
        own = [n for n, parent in enumerate(branches.parent.tolist()) if parent in mains]
        after = [int(sample.completed.lengths[n] - branches.step[n]) - 1 for n in own]
        lengths = sample.trajectories.lengths[mains].tolist()
        expected = [sum(lengths), max(lengths), len(own), sum(after), max(after, default=0)]
        assert [int(noted[field][context]) for field in Visit.__dataclass_fields__] == expected


def test_recordings_are_complete(counts: dict[str, Counts]):
    assert set(scaling_model.STANDS_FOR.values()) <= set(counts)
    for one in counts.values():
        assert one.table.shape == (3 * 2048, 5)
        assert len(one.expected) == len(one.table)
        assert one.table[:, 1].max() <= one.recording.longest
        assert (one.mean_branches > 0) == ("arsm" in one.recording.estimator)


@pytest.mark.parametrize("division", DIVISIONS)
def test_seconds_are_those_of_the_slowest_by_hand(counts: dict[str, Counts], division: str):
    one, ranks = counts["Karel small, arsm"], 3
    visits = np.array([5, 17, 4000, 17, 300, 41, 99])
    known = np.array([one.seconds(np.array([visit]), np.array([0]), 1, PRICES)[0] for visit in visits])
    shares = DIVISIONS[division](one.expected[visits], known, ranks)
    assert sorted(place for share in shares for place in share) == list(range(7))
    by_hand = []
    for share in shares:
        rows = [one.table[visits[place]] for place in share]
        steps = max(row[1] for row in rows) + max(row[4] for row in rows)
        tokens = sum(0.5 + 3.0 * row[0] + 0.7 * row[3] for row in rows)
        by_hand.append(2.0 * steps + tokens)
    assert one.seconds(visits, owners_of(shares, 7), ranks, PRICES) == pytest.approx(by_hand)


def test_the_visit_before_is_what_is_expected():
    visits = [Visit([n, 2 * n], [n, n], [1, 0], [3, 0], [2, 0]) for n in (1, 4, 6)]
    one = Counts(Recording("two examples", "ars-1", 2, 0.0, 9, [0.0] * 3, visits))
    assert one.table[:, 0].tolist() == [4, 8, 6, 12]
    assert one.expected.tolist() == [2 * 1 + 3, 4 * 1, 2 * 4 + 3, 4 * 4]


def test_waiting_needs_differences_and_several_processes(counts: dict[str, Counts]):
    one = counts["captions tiny, rloo-5"]
    assert simulate(one, 1, 4, 5).waiting == pytest.approx(0.0, abs=1e-12)
    assert simulate(one, 8, 4, 5, prices=Prices(1.0, 0.0, 0.0, 0.0)).waiting == pytest.approx(0.0, abs=1e-12)
    even, known = (simulate(one, 8, 4, 20, name).waiting for name in ("even", "by known cost"))
    assert 0 < known < even < 1
    assert simulate(one, 8, 4, 20).mean == pytest.approx(simulate(one, 8, 4, 20, "by expected cost").mean)
    assert simulate(one, 64, 4, 20).waiting > even


def test_messages_have_the_limits_they_should():
    fast = Machine(latency=0.0, agreement=0.0)
    assert all_reduce(8e9, 1, fast) == 0
    assert all_reduce(8e9, 2, fast) == pytest.approx(8e9 / fast.local)
    inside, between = 2 * 7 / 8 * 8e9 / fast.local, 2 * 1 / 2 * 1e9 / fast.network
    assert all_reduce(8e9, 16, fast) == pytest.approx(inside + between)
    assert communicate(LARGE, 1, fast) == 0
    # Shards: four bytes of gradients one way and two of weights the other, where a sum sends four both ways.
    both = all_reduce(4 * LARGE.parameters, 64, fast)
    assert communicate(LARGE, 64, fast) == pytest.approx(both * 6 / 8)
    assert communicate(LARGE, 64, Machine()) > communicate(LARGE, 64, fast)


def test_a_model_that_does_not_fit_is_left_out():
    rloo, _ = WORKS
    assert waves(LARGE, rloo, 1, Machine()) is None
    # 128 contexts with 8 rows each, a prompt once for a context; 4 + 16 / 8 bytes are taken for each weight.
    rows, free = 128 * 8 * 131_072 * (512 / 8 + 512), 72e9 - 6 * 8.03e9
    assert waves(LARGE, rloo, 8, Machine()) == math.ceil(rows / free) == 4
    assert waves(SMALL, rloo, 1024, Machine()) == 1
    assert state_bytes(LARGE, 10**9) == pytest.approx(4 * LARGE.parameters)  # whole weights and gradients remain


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_the_parts_of_an_update(counts: dict[str, Counts], shape: Shape, work: Work):
    one = counts[scaling_model.STANDS_FOR[work.name]]
    few, many = (update(shape, work, one, gpus, "even", 2) for gpus in (8, 256))
    assert few is not None
    assert many is not None
    # The arithmetic by hand: 6 operations for each parameter and scored token, prompts included.
    scored = work.contexts / 8 * (work.prompt + work.sequences * work.completion)
    assert few.score == pytest.approx(6 * shape.parameters * scored / Machine().speed, rel=0.05)
    assert many.score == pytest.approx(few.score / 32, rel=0.1)
    # They become no fewer, but for those of parts that a GPU has to generate one after the other.
    parts = waves(shape, work, 8, Machine()) or 0
    assert many.steps > 0.85 * few.steps / parts
    assert many.wait / many.total > few.wait / few.total
    assert min(few) > 0
    assert math.isclose(sum(few), few.total)
    assert update(shape, replace(work, contexts=128), one, 256, "even", 2) is None


def test_a_quick_run_draws_both_figures(tmp_path: Path):
    with Progress(disable=True) as progress:
        result = scaling_model.run(True, progress)
    assert [path.name for path in scaling_model.draw_figure(result, tmp_path)] == [
        "scaling_waiting.png",
        "scaling_update.png",
    ]
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())
    assert len({tuple(row) for row in result["table"]}) == 1
    assert PASSES._asdict() == result["settings"]["prices of the simulation"]
