"""The cold start: its runs, going on where it was, its report; and the task that it learns."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.estimators import make_estimator
from corollout.experiments import cold_start
from corollout.experiments.cold_start import (
    METHODS,
    SCALES,
    First,
    Results,
    Trial,
    carry_out,
    first_updates,
    open_results,
    train,
    trials,
)
from corollout.experiments.cold_start_report import outcomes, reward_at, write_cold_start
from corollout.noise import Noise
from corollout.policies import score_by_steps
from corollout.tasks.likeness import END, likeness_task

TINY = SCALES["tiny"]


def made_up(vocab: int, method: str, rate: float, seed: int) -> dict[str, Any]:
    """A run as it is kept; the rate of 0.03 is best, ARSM makes no update, and REINFORCE the fewest tokens."""
    end = 0.5 + 0.01 * len(method) + 0.001 * seed - (0.02 if rate != 0.03 else 0.0)
    curve = {"seconds": [0.0, 10.0, 30.0], "tokens": [0, 500, 1500], "updates": [0, 20, 60], "reward": [0.5, end, end]}
    if method == "REINFORCE":
        curve["tokens"] = [0, 100, 200]
    if method == "ARSM":
        curve = {name: values[:1] for name, values in curve.items()}
    return {"curve": curve, "rollouts": [] if method == "ARSM" else [4.0, 2.0], "stopped": ""}


def all_made_up() -> Results:
    plan = SCALES["small"]
    done: dict[str, dict[str, Any]] = {
        part.name: {"seconds": 150.0 if part.method == "ARSM" else 0.1, "tokens": 64, "rollouts": 1.0}
        for part in first_updates(plan)
    }
    return Results(plan, done | {trial.name: made_up(*trial) for trial in trials(plan)})


def test_the_reward_is_the_mean_likeness_of_all_places():
    task = likeness_task(30, contexts=3, length=4, dimensions=5, seed=7)
    torch.manual_seed(7)
    vectors = torch.nn.functional.normalize(torch.randn(30, 5), dim=1)
    targets = torch.randint(1, 30, (3, 4))
    sequences = [[3, 9, 9, 1], targets[0].tolist(), [5], []]
    examples = [2, 0, 1, 1]
    expected = []
    for sequence, example in zip(sequences, examples, strict=True):
        total = 0.0
        for place, token in enumerate(sequence):
            total += (1 + float(vectors[token] @ vectors[targets[example, place]])) / 2
        expected.append(total / 4)
    found = task.reward(sequences, examples, {}).values.tolist()
    assert found == pytest.approx(expected, abs=1e-6)
    assert found[1] == pytest.approx(1.0)
    assert END not in targets
    with pytest.raises(InputError, match="no task with 1 tokens"):
        likeness_task(1)


def test_the_policy_scores_what_it_steps():
    task = likeness_task(20, contexts=3, length=5, hidden=7)
    memory, tokens = task.policy.encode(torch.arange(3)), torch.randint(0, 20, (3, 5))
    torch.testing.assert_close(task.policy.score(memory, tokens), score_by_steps(task.policy, memory, tokens))
    assert 0.3 < task.mean_reward(50, Noise(0)) < 0.7


@pytest.mark.parametrize("method", ["ARSM-256", "RLOO"])
def test_it_can_be_learned(method: str):
    plan = replace(TINY, seconds=0.6, rates=(0.1,))
    found = train(plan, Trial(50, method, 0.1, 0), plan.seconds)
    curve = found["curve"]
    assert curve["reward"][-1] > curve["reward"][0] + 0.1
    assert curve["seconds"][0] == curve["updates"][0] == curve["tokens"][0] == 0
    assert curve["seconds"] == sorted(curve["seconds"])
    assert curve["seconds"][-2] < plan.seconds <= curve["seconds"][-1]
    assert len({len(values) for values in curve.values()}) == 1
    rollouts = found["rollouts"]
    assert (rollouts[0] > 1) == (method == "ARSM-256")


def test_a_rate_that_is_too_large_ends_its_run_only():
    found = train(TINY, Trial(50, "REINFORCE", 1e30, 0), 5.0)
    assert found["stopped"]
    assert math.isfinite(found["curve"]["reward"][-1])
    assert found["curve"]["seconds"][-1] < 5


def test_a_method_that_is_too_dear_makes_no_update(tmp_path: Path):
    plan = replace(TINY, seeds=(0,))
    results = Results(plan, {part.name: {"seconds": 1e9, "tokens": 1, "rollouts": 1.0} for part in first_updates(plan)})
    carry_out(results, tmp_path, jobs=1)
    assert results.missing == []
    run = results.of(Trial(50, "ARSM", 0.03, 0))
    assert run is not None
    assert run["curve"]["updates"] == [0]
    assert run["rollouts"] == []


def test_what_is_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []

    def stop_at(number: int):
        def on_part(part: Any, found: Any) -> None:
            told.append(part.name)
            if len(told) == number:
                raise KeyboardInterrupt

        return on_part

    out = tmp_path / "new" / "folder"
    fast = replace(TINY, seconds=0.001)
    monkeypatch.setitem(cold_start.SCALES, "tiny", fast)
    results = open_results(out, "tiny", (3,))
    with pytest.raises(KeyboardInterrupt):
        carry_out(results, out, 1, stop_at(len(METHODS) + 2))
    again = open_results(out)
    assert again.plan == replace(fast, seeds=(3,))
    assert again.done == results.done
    assert len(again.missing) == len(METHODS) - 2
    carry_out(again, out, 1, stop_at(-1))
    assert told == [part.name for part in (*first_updates(again.plan), *trials(again.plan))]
    assert open_results(out, "tiny", (3,)).missing == []
    with pytest.raises(InputError, match=r"begun with other settings \(seeds\)"):
        open_results(out, None, (0,))
    with pytest.raises(InputError, match="no scale of this experiment is called 'paper'"):
        open_results(out, "paper")
    (out / "runs.json").write_text('{"settings"')
    with pytest.raises(InputError, match=r"cannot read .*runs\.json.*remove it"):
        open_results(out)


def test_the_report(tmp_path: Path):
    results = all_made_up()
    found = {(one.vocab, one.label): one for one in outcomes(results)}
    assert len(found) == 2 * len(METHODS)
    budgeted = found[1_000, "ARSM-256"]
    assert budgeted.rate == 0.03
    assert budgeted.final == pytest.approx([0.58, 0.581, 0.582])
    assert budgeted.rewards[0.1] == pytest.approx({0: 0.56, 1: 0.561, 2: 0.562})
    # After 20 seconds, between the evaluations after 10 and 30.
    run = {"curve": {"seconds": [0.0, 10.0, 30.0], "reward": [0.0, 0.4, 0.8]}}
    assert reward_at(run, 20.0) == pytest.approx(0.6)
    assert reward_at(run, 40.0) == pytest.approx(0.8)

    report = tmp_path / "report"
    tables = write_cold_start(results, report)
    assert [table.title for table in tables] == ["V = 1,000", "V = 10,000"]
    rows = {row[0]: row for row in tables[1].rows}
    assert rows["ARSM"] == ["ARSM", "–", "0.500 ± 0.000", "–", "0", "0", "–", "150"]
    assert rows["RLOO"] == ["RLOO", "0.03", "0.541 ± 0.001", "0.516", "60", "1,500", "4.0→2.0", "0.1"]
    names = {f"{name}.{kind}" for name in ("figure", "figure-tokens") for kind in ("png", "svg")}
    assert {path.name for path in report.iterdir()} == names | {
        "table.md", "table.json", "manifest.json", "report.html",
    }  # fmt: skip
    kept = json.loads((report / "table.json").read_text())
    own = next(one for one in kept["methods"] if (one["vocab"], one["method"]) == (10_000, "SET-fit"))
    assert own["rewards"]["0.01"] == pytest.approx({"0": 0.55, "1": 0.551, "2": 0.552})
    assert len(own["curves"]) == 3
    assert kept["missing_parts"] == 0
    figure = (report / "figure.svg").read_text()
    for word in ("V = 1,000", "V = 10,000", *METHODS):
        assert word in figure
    page = (report / "report.html").read_text()
    for heading in ("V = 1,000", "Reward against seconds", "Reward against tokens", "Learning rates", "Settings"):
        assert f"<h2>{heading}</h2>" in page
    assert json.loads((report / "manifest.json").read_text())["settings"] == results.plan.settings()


def test_a_report_of_what_is_done_so_far(tmp_path: Path):
    results = all_made_up()
    kept = [First(1_000, "RLOO"), *(Trial(1_000, "RLOO", rate, 0) for rate in (0.01, 0.1))]
    some = Results(results.plan, {part.name: results.done[part.name] for part in kept})
    (table,) = write_cold_start(some, tmp_path)
    assert table.rows == [["RLOO", "0.01", "0.520", "0.520", "60", "1,500", "4.0→2.0", "0.1"]]
    assert "205 parts are missing" in (tmp_path / "table.md").read_text()
    with pytest.raises(InputError, match="nothing to report"):
        write_cold_start(Results(results.plan), tmp_path)


def test_the_plans():
    for estimator in METHODS.values():
        make_estimator(estimator)
    small = SCALES["small"]
    assert small.vocabularies == (1_000, 10_000)
    assert small.seeds == (0, 1, 2)
    # On two cores, all methods but the one that cannot.
    minutes = (len(trials(small)) - len(small.seeds) * len(small.rates)) * small.seconds / 60 / 2
    assert minutes < 40
    assert len({part.name for part in (*first_updates(small), *trials(small))}) == 208


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(cold_start.SCALES, "tiny", replace(TINY, seconds=0.005))
    options = ["--out", str(tmp_path), "--jobs", "1", "--scale", "tiny", "--seeds", "0"]
    done = CliRunner().invoke(cli, ["reproduce", "coldstart", *options], catch_exceptions=False)
    assert done.exit_code == 0
    for word in (*METHODS, "first update", "V = 50, SET-fit, rate 0.03, seed 0: reward", "report.html"):
        assert word in done.output
    assert open_results(tmp_path).missing == []
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.slow
def test_parts_in_other_processes(tmp_path: Path):
    results = open_results(tmp_path, "tiny", (0,))
    carry_out(results, tmp_path, jobs=2)
    assert results.missing == []
    assert open_results(tmp_path).done == results.done
    assert np.mean([len(results.done[trial.name]["curve"]["reward"]) for trial in trials(results.plan)]) > 2
