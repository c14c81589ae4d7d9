"""The experiments of learning curves: their plans, their report, and one of them in miniature."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from corollout.cli.reproduce import WORDS, open_sweep
from corollout.config import read_toml, write_toml
from corollout.estimators import make_estimator
from corollout.experiments.learning_curves import CAPTION_CURVES, KAREL_CURVES, choosing_methods
from corollout.experiments.learning_curves_report import KAREL_CURVES_WORDS, mean_over_seeds
from corollout.experiments.table1 import TABLE1
from corollout.experiments.table2 import TABLE2
from corollout.sweeps.report import write_table
from corollout.sweeps.sweep import Experiment, Sweep
from corollout.tasks.scales import SCALES
from tests.support.synthetic_runs import Profiles, make_table, records

SEEDS = (0, 1, 2)
# estimator: end, seconds and tokens of an update, rollouts first and last, variance
PROFILES: Profiles = {
    "reinforce": (0.27, 0.1, 350, (0.0, 0.0), 12.0),
    "rloo-8": (0.30, 0.3, 2800, (0.0, 0.0), 1.6),
    "set-8:baseline=fitted": (0.32, 0.35, 1500, (0.0, 0.0), 0.9),
    "auto": (0.33, 0.25, 1200, (0.0, 0.0), 0.8),
}
METHODS = ("REINFORCE", "RLOO", "SET-8", "AUTO")


def tables_of(report: Path) -> dict[str, list[list[str]]]:
    tables = json.loads((report / "table.json").read_text())["tables"]
    return {table["title"]: table["rows"] for table in tables}


@pytest.mark.parametrize(("experiment", "table"), [(KAREL_CURVES, TABLE1), (CAPTION_CURVES, TABLE2)])
@pytest.mark.parametrize("scale", SCALES)
def test_everything_but_methods_and_rates_is_as_in_the_table(
    experiment: Experiment, table: Experiment, scale: str, tmp_path: Path
):
    sweep = Sweep.of_scale(experiment, scale, tmp_path, None, None)
    like = Sweep.of_scale(table, scale, tmp_path, None, None)
    for part in ("data", "model", "pretrain", "finetune", "folder"):
        assert getattr(sweep, part) == getattr(like, part)
    assert sweep.models == ("MLE",)
    assert sweep.methods == tuple(experiment.methods)
    assert len({sweep.run(0, method, 1e-3) for method in sweep.methods}) == len(sweep.methods)
    for method in sweep.methods:
        make_estimator(sweep.estimator(method))
    assert choosing_methods(sweep) == ["AUTO"]
    (analysis,) = experiment.analyses
    assert list(analysis.methods(sweep)) == [method for method in sweep.methods if method != "AUTO"]
    assert experiment.name in WORDS


def test_the_small_scales(tmp_path: Path):
    karel = Sweep.of_scale(KAREL_CURVES, "small", tmp_path, None, None)
    captions = Sweep.of_scale(CAPTION_CURVES, "small", tmp_path, None, None, {"folder": "/mine"})
    assert (karel.rates, karel.seeds, captions.rates, captions.seeds) == ((3e-4, 1e-3), SEEDS, (5e-5,), SEEDS)
    assert captions.folder == Path("/mine")


def test_the_report_compares_at_equal_cost(tmp_path: Path):
    runs = make_table(tmp_path / "runs", SEEDS, 30.0, PROFILES)
    choices = [("reinforce:baseline=fitted", 0, 2.0), ("set-8:baseline=fitted", 250, 8.0)]
    for run in runs["auto"]:
        with (run / "metrics.jsonl").open("a") as file:
            for picked, update, other in choices:
                seen = [{"variance": 2.0, "seconds": 0.5}, {"variance": other, "seconds": 1.0}]
                file.write(json.dumps({"kind": "choice", "update": update, "picked": picked, "seen": seen}) + "\n")
    sweep = replace(Sweep.of_scale(KAREL_CURVES, "small", tmp_path / "runs", SEEDS, METHODS), rates=(3e-4,))
    report = tmp_path / "report"
    found = write_table(sweep, report, KAREL_CURVES_WORDS)

    tables = tables_of(report)
    assert list(tables) == [
        "Generalization", "At equal cost", "Chosen estimators", "Cost", "Rollouts and variance of the gradient",
    ]  # fmt: skip
    rows = {row[0]: row for row in tables["At equal cost"]}
    assert list(rows) == list(METHODS)

    for label, column, axis in (("SET-8", 1, "seconds"), ("SET-8", 3, "tokens"), ("REINFORCE", 3, "tokens")):
        gains = []
        for run in runs[KAREL_CURVES.methods[label]]:
            looks = records(run, "evaluation")
            places, values = [[look[key] for look in looks] for key in (axis, "generalization")]
            until = [*(v for x, v in zip(places, values, strict=True) if x <= found.comparison.limits[axis])]
            until.append(float(np.interp(found.comparison.limits[axis], places, values)))
            gains.append(100 * (max(until) - values[0]))
        assert rows[label][column] == f"{np.mean(gains):+.2f}"
        half = 4.302653 * np.std(gains, ddof=1) / math.sqrt(3)  # Student's, for three seeds
        ends = [f"{np.mean(gains) + sign * half:+.1f}".replace("-", "−") for sign in (-1, 1)]
        assert rows[label][column + 1] == "…".join(ends)

    solved = [
        [
            np.array([letter == "1" for letter in json.loads((run / "result.json").read_text())["test"]["solved"]])
            for run in runs[estimator]
        ]
        for estimator in ("rloo-8", "auto")
    ]
    difference = np.mean([after.astype(float) - before for before, after in zip(*solved, strict=True)])
    assert rows["AUTO"][5] == f"{100 * difference:+.2f}"
    assert (rows["RLOO"][5], rows["RLOO"][6]) == ("–", "–")
    chosen = tables["Chosen estimators"]
    assert [row[1:] for row in chosen[:2]] == [
        ["0", "0", "reinforce:baseline=fitted", "0.5"],
        ["0", "250", "set-8:baseline=fitted", "0.125"],
    ]
    assert len(chosen) == 2 * len(SEEDS)
    text = (report / "table.md").read_text()
    assert "paper" not in text
    assert "# Learning curves, Karel, scale small" in text
    assert {"figure.svg", "figure-tokens.svg", "report.html"} <= {path.name for path in report.iterdir()}


def test_one_seed_has_no_interval():
    assert mean_over_seeds([0.25]).interval is None
    low, high = mean_over_seeds([1.0, 3.0]).interval or (0.0, 0.0)
    assert (low, high) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)  # Student's t with one degree of freedom


@pytest.mark.slow
def test_an_experiment_in_miniature(tmp_path: Path):
    out = tmp_path / "out"
    open_sweep(KAREL_CURVES, out, "tiny", (0,), ("AUTO",), {}, {})
    sweep = read_toml(out / "sweep.toml")
    sweep["data"] |= {"train": 24, "val": 8, "test": 8, "longest": 8, "largest": 4}
    sweep["model"] |= {"largest_world": 4, "channels": 2, "pair_width": 4, "embedding": 4, "hidden": 4, "max_length": 6}
    sweep["pretrain"] |= {"epochs": 1}
    sweep["finetune"] |= {
        "unit": "updates",
        "budget": 2.0,
        "evaluate_every": 1.0,
        "batch_size": 2,
        "train_eval_examples": 4,
    }
    sweep["curves-karel"] |= {"probes": 3}
    write_toml(out / "sweep.toml", sweep)
    command = [str(Path(sys.executable).parent / "corollout"), "reproduce", "curves-karel", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (out / "seed-0" / "auto-0.0005" / "result.json").exists()
    assert not (out / "probes.json").exists()
    chosen = tables_of(out / "report")["Chosen estimators"]
    assert [row[0] for row in chosen] == ["AUTO"]
