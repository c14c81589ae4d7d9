"""Methods side by side: intervals, paired differences, equal cost, and what cannot be compared."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.reports import run_results
from corollout.reports.comparison import compare, group_runs, method_label
from corollout.reports.run_results import MethodRuns, SplitScore, paired_difference, pooled_interval, read_run
from corollout.tasks.captioning.metrics import CIDER
from corollout.tasks.karel.metrics import GENERALIZATION
from corollout.tasks.task import Share
from corollout.training.runs import Run
from tests.support.synthetic_runs import TASKS, make_run, make_table


def bits(text: str) -> SplitScore:
    return SplitScore(text.count("1") / len(text), len(text), np.array(list(text), dtype=float))


def test_a_paired_difference_by_hand():
    # Differences of the tasks, averaged over two seeds: 1, ½, 0, 0.
    gain = paired_difference([(bits("0001"), bits("1101")), (bits("0011"), bits("1011"))])
    assert gain.value == pytest.approx(0.375)
    error = np.std([1.0, 0.5, 0.0, 0.0], ddof=1) / 2
    assert gain.interval == pytest.approx((0.375 - 1.959964 * error, 0.375 + 1.959964 * error))
    for other in (SplitScore(0.5), bits("01")):  # not the same tasks
        gain = paired_difference([(bits("0011"), bits("1111")), (other, bits("0111"))])
        assert (gain.value, gain.interval) == (pytest.approx((0.5 + 0.25) / 2), None)


def test_intervals_of_several_seeds():
    """For shares, of the hits of all seeds together; for other scores, of a mean over examples."""
    assert pooled_interval([bits("0011"), bits("0111")], GENERALIZATION) == Share(5, 8).interval
    assert pooled_interval([bits("0011"), SplitScore(0.5)], GENERALIZATION) is None
    rows = [np.array([0.2, 0.5, 1.1]), np.array([0.4, 0.3, 1.5])]
    splits = [SplitScore(float(row.mean()), 3, row) for row in rows]
    half = 1.959964 * np.std([0.3, 0.4, 1.3], ddof=1) / np.sqrt(3)
    assert pooled_interval(splits, CIDER) == pytest.approx((2 / 3 - half, 2 / 3 + half))
    assert pooled_interval([*splits, SplitScore(0.5)], CIDER) is None


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_number_of_tasks_follows_from_a_recorded_interval(case: tuple[int, int]):
    share = Share(*case)
    low, high = share.interval
    record = {"generalization": share.value, "generalization_low": low, "generalization_high": high}
    assert run_results._of_record(record, GENERALIZATION) == SplitScore(share.value, share.count)


def test_everything_about_a_table_of_runs(tmp_path: Path):
    runs = make_table(tmp_path)
    groups = group_runs([run for own in runs.values() for run in own])
    labels = ["MLE", "REINFORCE", "SC", "MC-0", "MC-2", "RL_beam-64", "RLOO-8", "ARSM", "ARSM (noise=own)"]
    assert [group.label for group in groups] == labels
    comparison = compare(groups)
    mle, reinforce, arsm = (comparison.methods[index] for index in (0, 1, labels.index("ARSM")))
    assert (mle.kind, mle.gains, arsm.seeds) == ("pretrain", {}, [0, 1, 2])
    results = [json.loads((run / "result.json").read_text())["test"] for run in runs["arsm"]]
    shares, test = [result["generalization"] for result in results], arsm.scores["test"]
    assert (test.mean, test.spread) == pytest.approx((np.mean(shares), np.std(shares, ddof=1)))
    assert test.interval == Share(sum(result["solved"].count("1") for result in results), 3 * TASKS).interval
    assert test.top == pytest.approx([np.mean(shares) + 0.01 * k for k in range(1, 6)])
    starts = [json.loads((run / "result.json").read_text())["test"]["generalization"] for run in runs["mle"]]
    gain = arsm.gains["test"]
    assert gain.value == pytest.approx(np.mean(shares) - np.mean(starts))
    assert np.mean(gain.interval or ()) == pytest.approx(gain.value)
    assert (arsm.first_rollouts or 0) > (arsm.last_rollouts or 9)
    # REINFORCE generates the fewest tokens: at equal tokens it is where it is, and others are where they were.
    assert comparison.limits["tokens"] == pytest.approx(reinforce.tokens)
    assert (arsm.at_equal_tokens or 9) < (arsm.at_equal_seconds or 0)
    for table in (comparison.score_table(), comparison.cost_table()):
        assert all(len(row) == len(table.header) for row in table.rows)
        assert table.markdown().count("|\n") == len(table.rows) + 2
    assert "test gain" in comparison.score_table().header
    numbers = json.loads(json.dumps(comparison.numbers(tmp_path), allow_nan=False))
    assert numbers["methods"][labels.index("ARSM")]["runs"] == [str(run.relative_to(tmp_path)) for run in runs["arsm"]]


def test_the_best_score_until_a_limit_is_interpolated(tmp_path: Path):
    run = make_run(tmp_path / "run", "sc", updates=2, evaluations=0)
    with (run / "metrics.jsonl").open("w") as file:
        for tokens, score in ((0, 0.2), (100, 0.4), (200, 0.1), (300, 0.5)):
            record = {"kind": "evaluation", "update": tokens, "tokens": tokens, "seconds": 1.0, "generalization": score}
            file.write(json.dumps(record) + "\n")
    best = [read_run(run).best_until("tokens", limit) for limit in (0, 50, 100, 200, 275, 300, 1000)]
    assert best == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.4, 0.5, 0.5])


def test_one_unfinished_run_without_a_result(tmp_path: Path):
    run = make_run(tmp_path / "run", "arsm", result=False, finished=False)
    comparison = compare(group_runs([run]))
    (method,) = comparison.methods
    values = [record["generalization"] for record in Run.open(run).records("evaluation")]
    score, gain = method.scores["val"], method.gains["val"]
    assert (score.mean, score.count, score.spread, method.updates) == (max(values), TASKS, None, 200)
    assert (gain.value, gain.interval) == (pytest.approx(max(values) - values[0]), None)
    assert any("Not finished yet" in remark for remark in comparison.remarks)
    assert "test %" not in comparison.score_table().header
    assert comparison.cost_table().notes[0].startswith("One seed.")
    # The file of an evaluation stands for a result.
    numbers = {"count": 50, "generalization": 0.3, "top_1": 0.3, "top_2": 0.4}
    (run / "evaluation-test.json").write_text(json.dumps(numbers))
    score = compare(group_runs([run])).methods[0].scores["test"]
    assert (score.interval, score.top) == (Share(15, 50).interval, [0.3, 0.4])


def test_runs_of_one_method_that_differ_in_more_than_the_seed_are_told_apart(tmp_path: Path):
    settings = {"a": ("arsm", 0, 1e-3), "b": ("arsm", 1, 1e-3), "c": ("arsm", 0, 1e-4), "d": ("sc", 0, 3e-4)}
    runs = [make_run(tmp_path / name, how, seed=seed, rate=rate) for name, (how, seed, rate) in settings.items()]
    groups = [(group.label, len(group.runs)) for group in group_runs(runs)]
    assert groups == [("ARSM, rate 0.001", 2), ("ARSM, rate 0.0001", 1), ("SC", 1)]
    named = group_runs(runs, ["x", "x", "x", "y"])
    assert [(group.label, len(group.runs)) for group in named] == [("x", 3), ("y", 1)]
    assert [method_label(name) for name in ("mc-2", "nowhere.module:Mine")] == ["MC-2", "nowhere.module:Mine"]


def test_what_cannot_be_compared(tmp_path: Path):
    run = make_run(tmp_path / "run", "arsm")
    fewer = make_run(tmp_path / "fewer", "sc", tasks=100)
    broken, invalid = make_run(tmp_path / "broken", "sc"), make_run(tmp_path / "invalid", "sc")
    (broken / "result.json").write_text('{"val": {"count": 3}}')
    (invalid / "result.json").write_text('{"val"')
    for groups, said in (
        ([MethodRuns("x", [tmp_path])], "not a run directory"),
        (group_runs([run, fewer]), r"on 400 and 100 tasks \(val\)"),
        ([MethodRuns("x", [run, make_run(tmp_path / "mle")])], "different kinds"),
        (group_runs([broken]), r"result\.json is not the result"),
        (group_runs([invalid]), r"cannot read .*result\.json"),
    ):
        with pytest.raises(InputError, match=said):
            compare(groups)
    with pytest.raises(InputError, match="one or more run directories"):
        group_runs([])
    with pytest.raises(InputError, match="twice"):
        group_runs([run, tmp_path / "x" / ".." / "run"])
    other = make_run(tmp_path / "other", "sc", data="/else/where")
    assert any("different folders: data, where" in remark for remark in compare(group_runs([run, other])).remarks)
