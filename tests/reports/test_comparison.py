"""Methods side by side: intervals, paired differences, equal cost, and what cannot be compared."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.reports.comparison import compare, group_runs, method_label
from corollout.reports.curves import Group
from corollout.reports.run_results import Outcome, _of_record, paired_difference, pooled_interval, read_run
from corollout.tasks.captioning.metrics import CIDER
from corollout.tasks.karel.metrics import GENERALIZATION
from corollout.tasks.task import Share, mean_interval
from tests.support.synthetic_runs import TASKS, make_run, make_table, records


def bits(text: str) -> Outcome:
    return Outcome(text.count("1") / len(text), len(text), np.array([float(letter) for letter in text]))


def test_a_paired_difference_by_hand():
    # Differences of the tasks, averaged over two seeds: 1, ½, 0, 0.
    pairs = [(bits("0001"), bits("1101")), (bits("0011"), bits("1011"))]
    found = paired_difference(pairs)
    assert found.value == pytest.approx(0.375)
    assert found.interval is not None
    error = np.std([1.0, 0.5, 0.0, 0.0], ddof=1) / 2
    assert found.interval == pytest.approx((0.375 - 1.959964 * error, 0.375 + 1.959964 * error))


def test_a_paired_interval_is_narrower_than_an_unpaired_one():
    draw = np.random.default_rng(1)
    before = draw.random(1000) < 0.3
    after = before | (draw.random(1000) < 0.05)
    pair = [Outcome(float(hits.mean()), 1000, hits.astype(float)) for hits in (before, after)]
    found = paired_difference([(pair[0], pair[1])])
    assert found.interval is not None
    assert found.interval[1] - found.interval[0] < 0.03  # unpaired: 0.08


@pytest.mark.parametrize("other", [Outcome(0.5), bits("01")])
def test_without_the_same_tasks_a_difference_has_no_interval(other: Outcome):
    found = paired_difference([(bits("0011"), bits("1111")), (other, bits("0111"))])
    assert found.value == pytest.approx((0.5 + 0.25) / 2)
    assert found.interval is None


def test_pooled_intervals_count_the_hits_of_all_seeds():
    assert pooled_interval([bits("0011"), bits("0111")], GENERALIZATION) == Share(5, 8).interval
    assert pooled_interval([bits("0011"), Outcome(0.5)], GENERALIZATION) is None


def test_intervals_of_scores_are_those_of_a_mean_over_examples():
    rows = [np.array([0.2, 0.5, 1.1]), np.array([0.4, 0.3, 1.5])]
    outcomes = [Outcome(float(row.mean()), 3, row) for row in rows]
    found = pooled_interval(outcomes, CIDER)
    assert found == mean_interval(np.array([0.3, 0.4, 1.3]))
    assert found is not None
    half = 1.959964 * np.std([0.3, 0.4, 1.3], ddof=1) / np.sqrt(3)
    assert found == pytest.approx((2 / 3 - half, 2 / 3 + half))
    assert pooled_interval([*outcomes, Outcome(0.5)], CIDER) is None


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_number_of_tasks_follows_from_a_recorded_interval(case: tuple[int, int]):
    share = Share(*case)
    low, high = share.interval
    record = {"generalization": share.value, "generalization_low": low, "generalization_high": high}
    assert _of_record(record, GENERALIZATION) == Outcome(share.value, share.count)


def test_everything_about_a_table_of_runs(tmp_path: Path):
    runs = make_table(tmp_path)
    groups = group_runs([run for own in runs.values() for run in own])
    assert [group.label for group in groups] == [
        "MLE",
        "REINFORCE",
        "SC",
        "MC-0",
        "MC-2",
        "RL_beam-64",
        "RLOO-8",
        "ARSM",
    ]
    found = compare(groups)
    mle, arsm = found.methods[0], found.methods[-1]
    assert mle.kind == "pretrain"
    assert mle.gains == {}
    assert arsm.seeds == [0, 1, 2]
    results = [json.loads((run / "result.json").read_text()) for run in runs["arsm"]]
    shares = [result["test"]["generalization"] for result in results]
    assert arsm.scores["test"].mean == pytest.approx(np.mean(shares))
    assert arsm.scores["test"].spread == pytest.approx(np.std(shares, ddof=1))
    hits = sum(result["test"]["solved"].count("1") for result in results)
    assert arsm.scores["test"].interval == Share(hits, 3 * TASKS).interval
    assert arsm.scores["test"].top == pytest.approx([np.mean(shares) + 0.01 * k for k in range(1, 6)])
    starts = [json.loads((run / "result.json").read_text())["test"]["generalization"] for run in runs["mle"]]
    gain = arsm.gains["test"]
    assert gain.value == pytest.approx(np.mean(shares) - np.mean(starts))
    assert gain.interval is not None
    assert gain.interval[0] < gain.value < gain.interval[1]
    assert arsm.first_rollouts is not None
    assert arsm.last_rollouts is not None
    assert arsm.first_rollouts > arsm.last_rollouts
    # REINFORCE generates the fewest tokens: at equal tokens it is where it is, and others are where they were.
    reinforce = found.methods[1]
    assert found.limits["tokens"] == pytest.approx(reinforce.tokens)
    assert arsm.at_equal_tokens is not None
    assert arsm.at_equal_seconds is not None
    assert arsm.at_equal_tokens < arsm.at_equal_seconds
    for table in found.tables():
        assert all(len(row) == len(table.header) for row in table.rows)
        assert table.markdown().count("\n|") == len(table.rows) + 2
    assert "test gain" in found.tables()[0].header
    json.dumps(found.table(), allow_nan=False)


def test_the_best_score_until_a_limit_is_interpolated(tmp_path: Path):
    run = make_run(tmp_path / "run", "sc", updates=2, evaluations=0)
    looks = [(0, 0.2), (100, 0.4), (200, 0.1), (300, 0.5)]
    lines = [
        {"kind": "evaluation", "update": i, "tokens": t, "seconds": t / 10, "generalization": g}
        for i, (t, g) in enumerate(looks)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = read_run(run)
    found = [outcome.best_until("tokens", limit) for limit in (0, 50, 100, 200, 275, 300, 1000)]
    assert found == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.4, 0.5, 0.5])


def test_one_unfinished_run_without_a_result(tmp_path: Path):
    run = make_run(tmp_path / "run", "arsm", result=False, finished=False)
    found = compare(group_runs([run]))
    (method,) = found.methods
    looks = [record["generalization"] for record in records(run, "evaluation")]
    assert method.scores["val"].mean == max(looks)
    assert method.scores["val"].count == TASKS
    assert method.scores["val"].spread is None
    assert method.gains["val"].value == pytest.approx(max(looks) - looks[0])
    assert method.gains["val"].interval is None
    assert method.updates == 200
    assert any("Not finished yet" in remark for remark in found.remarks)
    result, cost = found.tables()
    assert "test %" not in result.header
    assert cost.notes[0].startswith("One seed.")


def test_the_file_of_an_evaluation_stands_for_a_result(tmp_path: Path):
    run = make_run(tmp_path / "run", "arsm", result=False)
    numbers = {"count": 50, "generalization": 0.3, "top_1": 0.3, "top_2": 0.4}
    (run / "evaluation-test.json").write_text(json.dumps(numbers))
    score = compare(group_runs([run])).methods[0].scores["test"]
    assert score.interval == Share(15, 50).interval
    assert score.top == [0.3, 0.4]


def test_runs_of_one_method_that_differ_in_more_than_the_seed_are_told_apart(tmp_path: Path):
    runs = [
        make_run(tmp_path / "a", "arsm", seed=0, rate=1e-3),
        make_run(tmp_path / "b", "arsm", seed=1, rate=1e-3),
        make_run(tmp_path / "c", "arsm", seed=0, rate=1e-4),
        make_run(tmp_path / "d", "sc"),
    ]
    groups = group_runs(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("ARSM, rate 0.001", 2),
        ("ARSM, rate 0.0001", 1),
        ("SC", 1),
    ]
    named = group_runs(runs, ["x", "x", "x", "y"])
    assert [(group.label, len(group.runs)) for group in named] == [("x", 3), ("y", 1)]


def test_estimators_are_written_as_in_the_literature():
    names = ["arsm", "rl_beam", "rl-beam-64", "disarm", "mc-2", "ars-20"]
    assert [method_label(name) for name in names] == ["ARSM", "RL_beam", "RL_beam-64", "DisARM", "MC-2", "ARS-20"]


def test_what_cannot_be_compared(tmp_path: Path):
    run = make_run(tmp_path / "run", "arsm")
    with pytest.raises(InputError, match="twice"):
        group_runs([run, tmp_path / "x" / ".." / "run"])
    with pytest.raises(InputError, match="1 runs and 2 labels"):
        group_runs([run], ["a", "b"])
    with pytest.raises(InputError, match="one run directory or more"):
        group_runs([])
    with pytest.raises(InputError, match="holds no run"):
        compare([Group("x", [tmp_path])])
    captions = make_run(tmp_path / "captions", "arsm", task="captions")
    with pytest.raises(InputError, match="their tasks are 'karel' and 'captions'"):
        compare(group_runs([run, captions]))
    fewer = make_run(tmp_path / "fewer", "sc", tasks=100)
    with pytest.raises(InputError, match=r"on 400 and on 100 tasks \(val\)"):
        compare(group_runs([run, fewer]))
    with pytest.raises(InputError, match="different kinds"):
        compare([Group("x", [run, make_run(tmp_path / "mle")])])
    silent = make_run(tmp_path / "silent", "sc", evaluations=0, result=False)
    with pytest.raises(InputError, match="has no evaluation yet"):
        compare(group_runs([silent]))
    broken = make_run(tmp_path / "broken", "sc")
    (broken / "result.json").write_text('{"val": {"count": 3}}')
    with pytest.raises(InputError, match=r"result\.json is no result"):
        compare(group_runs([broken]))
    (broken / "result.json").write_text('{"val"')
    with pytest.raises(InputError, match=r"cannot read .*result\.json"):
        compare(group_runs([broken]))


def test_other_data_is_remarked_upon(tmp_path: Path):
    runs = [make_run(tmp_path / "a", "arsm"), make_run(tmp_path / "b", "sc", data="/elsewhere")]
    assert any("/elsewhere" in remark for remark in compare(group_runs(runs)).remarks)
