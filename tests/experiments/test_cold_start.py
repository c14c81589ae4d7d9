"""The cold start: its runs, continuing, its report; and the task that it learns."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from corollout.errors import CorolloutError, InputError
from corollout.estimators import make_estimator
from corollout.events import Event
from corollout.experiments import cold_start as cold
from corollout.experiments.cold_start import METHODS, SCALES, Runs, first_name, open_runs, run_name
from corollout.experiments.likeness import END, likeness_task
from corollout.noise import Noise
from corollout.policies import score_by_steps

TINY, SMALL = SCALES["tiny"], SCALES["small"]


def all_made_up() -> Runs:
    """All runs as they are kept; the rate of 0.03 is best, ARSM makes no update, and REINFORCE the fewest tokens."""
    runs = Runs(SMALL)
    for vocab, method in product(SMALL.vocabularies, METHODS):
        seconds = 150.0 if method == "ARSM" else 0.1
        runs.done[first_name(vocab, method)] = {"seconds": seconds, "tokens": 64, "rollouts": 1.0}
        for rate, seed in product(SMALL.rates, SMALL.seeds):
            end = 0.5 + 0.01 * len(method) + 0.001 * seed - (0.02 if rate != 0.03 else 0.0)
            tokens = [0, 100, 200] if method == "REINFORCE" else [0, 500, 1500]
            curve = {"seconds": [0.0, 10.0, 30.0], "tokens": tokens, "updates": [0, 20, 60], "reward": [0.5, end, end]}
            run = {"curve": curve, "rollouts": [4.0, 2.0], "stopped": ""}
            if method == "ARSM":
                run |= {"curve": {name: values[:1] for name, values in curve.items()}, "rollouts": []}
            runs.done[run_name(vocab, method, rate, seed)] = run
    return runs


def test_the_reward_is_the_mean_likeness_of_all_positions():
    task = likeness_task(30, contexts=3, length=4, dimensions=5, seed=7)
    torch.manual_seed(7)
    vectors = torch.nn.functional.normalize(torch.randn(30, 5), dim=1)
    targets = torch.randint(1, 30, (3, 4))
    sequences, examples = [[3, 9, 9, 1], targets[0].tolist(), [5], []], [2, 0, 1, 1]
    expected = [0.0] * 4
    for row, example in enumerate(examples):
        for position, token in enumerate(sequences[row]):
            expected[row] += (1 + float(vectors[token] @ vectors[targets[example, position]])) / 2 / 4
    rewards = task.reward(sequences, examples, {}).values.tolist()
    assert rewards == pytest.approx(expected, abs=1e-6)
    assert rewards[1] == pytest.approx(1.0)
    assert END not in targets
    with pytest.raises(InputError, match="cannot make a task with 1 tokens"):
        likeness_task(1)


def test_the_policy_scores_what_it_steps():
    task = likeness_task(20, contexts=3, length=5, hidden=7)
    memory, tokens = task.policy.encode(torch.arange(3)), torch.randint(0, 20, (3, 5))
    torch.testing.assert_close(task.policy.score(memory, tokens), score_by_steps(task.policy, memory, tokens))
    assert 0.3 < task.mean_reward(50, Noise(0)) < 0.7


@pytest.mark.parametrize("method", ["ARSM-256", "RLOO"])
def test_it_can_be_learned(method: str):
    scale = replace(TINY, seconds=0.6, rates=(0.1,))
    cold.train(scale, 50, method, 0.1, 0, 0.01)  # what is compiled on first use does not count
    run = cold.train(scale, 50, method, 0.1, 0, scale.seconds)
    curve, seconds = run["curve"], run["curve"]["seconds"]
    assert curve["reward"][-1] > curve["reward"][0] + 0.1
    assert seconds[0] == curve["updates"][0] == curve["tokens"][0] == 0
    assert seconds == sorted(seconds)
    assert seconds[-2] < scale.seconds <= seconds[-1]
    assert (run["rollouts"][0] > 1) == (method == "ARSM-256")


def test_a_learning_rate_that_is_too_high_ends_its_run_only():
    run = cold.train(TINY, 50, "REINFORCE", 1e30, 0, 5.0)
    assert run["stopped"]
    assert math.isfinite(run["curve"]["reward"][-1])
    assert run["curve"]["seconds"][-1] < 5


def test_a_job_runs_what_is_missing(tmp_path: Path):
    """A method that cannot afford an update makes none; what was done before is not done again."""
    name = first_name(50, "ARSM")
    runs = Runs(replace(TINY, rates=(0.03, 0.1), seeds=(3,)), {name: {"seconds": 1e9, "tokens": 1, "rollouts": 1.0}})
    runs.done[run_name(50, "ARSM", 0.1, 3)] = {}
    runs.write(tmp_path)
    events: list[Event] = []
    cold.run_method(str(tmp_path), 50, "ARSM", 3, events.append)
    (result,) = [event.record for event in events if event.kind == "result"]
    assert result["name"] == run_name(50, "ARSM", 0.03, 3)
    assert (result["value"]["curve"]["updates"], result["value"]["rollouts"]) == ([0], [])


@pytest.mark.prove
def test_it_continues_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "new" / "folder"
    # Workers read their settings from the folder: they know nothing of this scale.
    monkeypatch.setitem(SCALES, "tiny", replace(TINY, seconds=0.001))
    runs = open_runs(out, "tiny", (3,))
    assert runs.missing == 2 * len(METHODS)
    for method in METHODS:
        if method not in ("RLOO", "PAIRS"):
            runs.done |= {first_name(50, method): {"seconds": 1.0}, run_name(50, method, 0.03, 3): {}}

    def stop(event: Event) -> None:
        if event.record.get("part") == "V = 50, PAIRS, seed 3" and event.record["done"] == 1:
            raise CorolloutError("stopped")

    with pytest.raises(CorolloutError, match="stopped"):
        cold.run_missing(runs, out, 1, stop)
    again = open_runs(out)
    assert (again.scale, again.done, again.missing) == (replace(TINY, seconds=0.001, seeds=(3,)), runs.done, 2)
    cold.run_missing(again, out, 1)
    assert open_runs(out, "tiny", (3,)).missing == 0
    assert cold.COLD_START.weight(cold.ColdStartSettings(out=out)) == 0
    for scale, seeds, said in ((None, (0,), r"other settings \(seeds\)"), ("paper", (), "no scale 'paper'")):
        with pytest.raises(InputError, match=said):
            open_runs(out, scale, seeds)
    (out / "runs.json").write_text('{"settings"')
    with pytest.raises(InputError, match=r"cannot read .*runs\.json.*remove it"):
        open_runs(out)


def test_the_report(tmp_path: Path):
    runs = all_made_up()
    results = {(one.vocab, one.label): one for one in cold.method_results(runs)}
    budgeted = results[1_000, "ARSM-256"]
    assert budgeted.rate == 0.03
    assert budgeted.rewards[0.03] == pytest.approx({0: 0.58, 1: 0.581, 2: 0.582})
    assert budgeted.rewards[0.1] == pytest.approx({0: 0.56, 1: 0.561, 2: 0.562})
    run = {"curve": {"seconds": [0.0, 10.0, 30.0], "reward": [0.0, 0.4, 0.8]}}
    assert [cold.reward_at(run, seconds) for seconds in (20.0, 40.0)] == pytest.approx([0.6, 0.8])

    report = cold.cold_start_report(runs)
    page = report.write(tmp_path / "report").read_text()
    assert [table.title for table in report.tables] == ["V = 1,000", "V = 10,000", "Learning rates"]
    rows = {row[0]: row for row in report.tables[1].rows}
    assert rows["ARSM"] == ["ARSM", "–", "0.500 ± 0.000", "–", "0", "0", "–", "150"]
    assert rows["RLOO"] == ["RLOO", "0.03", "0.541 ± 0.001", "0.516", "60", "1,500", "4.0→2.0", "0.1"]
    own = next(one for one in report.numbers["methods"] if (one["vocab"], one["method"]) == (10_000, "SET-fit"))
    assert own["rewards"]["0.01"] == pytest.approx({0: 0.55, 1: 0.551, 2: 0.552})
    assert page.count("<h2>Reward against") == 2
    assert report.manifest["settings"] == SMALL.settings()

    kept = [first_name(1_000, "RLOO"), *(run_name(1_000, "RLOO", rate, 0) for rate in (0.01, 0.1))]
    report = cold.cold_start_report(Runs(SMALL, {name: runs.done[name] for name in kept}))
    assert report.tables[0].rows == [["RLOO", "0.01", "0.520", "0.520", "60", "1,500", "4.0→2.0", "0.1"]]
    assert "205 results are missing" in report.lead
    with pytest.raises(InputError, match="nothing to report"):
        cold.cold_start_report(Runs(SMALL))


def test_the_jobs(tmp_path: Path):
    assert all(map(make_estimator, METHODS.values()))
    after = {job.name: job.after for job in Runs(SMALL).jobs(tmp_path)}
    assert (len(after), Runs(SMALL).missing) == (2 * len(METHODS) * 3, 208)
    assert after["V = 1,000, RLOO, seed 2"] == ("V = 1,000, RLOO, seed 0",)
