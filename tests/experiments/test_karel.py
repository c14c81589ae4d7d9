"""The experiments on Karel: the first table, learning curves and the demo, with reports and in miniature."""

import json
import math
import shutil
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from corollout.config import read_toml, write_toml
from corollout.errors import InputError
from corollout.estimators import ARS, Reinforce, make_estimator
from corollout.events import ignore
from corollout.experiments.curves import CAPTION_CURVES, KAREL_CURVES, choosing_methods, mean_over_seeds
from corollout.experiments.demo import demo_sweep, run_demo
from corollout.experiments.experiment import SweepExperiment
from corollout.experiments.settings import DemoSettings, SweepSettings
from corollout.experiments.table1 import TABLE1, KarelData, make_data
from corollout.experiments.table2 import TABLE2
from corollout.reports.report import open_report
from corollout.sweeps import sweep as sweep_module
from corollout.sweeps.report import collect_results, sweep_report
from corollout.sweeps.sweep import PLAN, Sweep, best_rates, open_sweep, rate_scores
from corollout.tasks.karel.dataset import SPLITS
from corollout.tasks.karel.dataset import KarelData as TaskData
from corollout.tasks.task import open_task
from corollout.training.runs import Run
from tests.support.commands import reproduce, short_training
from tests.support.pages import Page
from tests.support.synthetic_runs import RATES, Profiles, make_table

METHODS = TABLE1.spec.methods
FILES = {"table.md", "report.json", "manifest.json", "report.html", "figure.png", "figure-tokens.png"}
# estimator: end, seconds and tokens of an update, rollouts first and last, variance
CURVE_PROFILES: Profiles = {
    "reinforce": (0.27, 0.1, 350, (0.0, 0.0), 12.0),
    "rloo-8": (0.30, 0.3, 2800, (0.0, 0.0), 1.6),
    "set-8:baseline=fitted": (0.32, 0.35, 1500, (0.0, 0.0), 0.9),
    "auto": (0.33, 0.25, 1200, (0.0, 0.0), 0.8),
}
COMPARED = ("REINFORCE", "RLOO", "SET-8", "AUTO")


def sweep_in(folder: Path) -> Sweep:
    return Sweep.of_scale(TABLE1.spec, "small", folder, seeds=[0, 1, 2], rates=list(RATES))


def test_the_report_has_everything(tmp_path: Path):
    make_table(tmp_path / "runs", length=30.0)
    sweep = sweep_in(tmp_path / "runs")
    probes = {m: {"variance": 2.0, "variance_error": 0.1, "tokens": 500.0} for m in ("ARSM", "RLOO")}
    (sweep.out / "probes.json").write_text(json.dumps(probes))
    # All rates of REINFORCE are as bad as its start; the first is then chosen, with which it has only one seed.
    assert best_rates(sweep) == dict.fromkeys(METHODS, 3e-4) | {"REINFORCE": 1e-4}
    folder = tmp_path / "report"
    report = sweep_report(sweep, TABLE1.texts)
    report.write(folder)
    assert {path.name for path in folder.iterdir()} == FILES
    text = (folder / "table.md").read_text()
    for word in ("| ARSM | ", " 17.07 | 16.28 |", "## Learning rates", "top 5", "× tokens", "2 runs are missing"):
        assert word in text
    methods = {method["label"]: method for method in report.numbers["comparison"]["methods"]}
    assert list(methods) == ["MLE", *METHODS]
    assert methods["ARSM"]["runs"] == [f"seed-{seed}/arsm-0.0003" for seed in (0, 1, 2)]
    assert methods["ARSM"]["gains"]["test"]["interval"][0] > 0
    assert report.numbers["rates"]["ARSM"].keys() == {"0.0001", "0.0003", "0.001"}
    # The page can be made again without the runs, and nothing names the machine's folders.
    shutil.rmtree(sweep.out)
    assert open_report(folder).markdown() == text
    assert all(str(tmp_path).encode() not in path.read_bytes() for path in folder.iterdir())


def test_a_report_of_an_unfinished_sweep(tmp_path: Path):
    sweep = sweep_in(tmp_path)
    with pytest.raises(InputError, match="nothing to report"):
        collect_results(sweep)
    make_table(tmp_path, length=10.0)
    missing = [(1, "ARSM", 3e-4), (2, "ARSM", 3e-4), (0, "SC", 3e-4), *((0, "MC-0", rate) for rate in RATES)]
    for seed, method, rate in missing:
        (sweep.run(seed, method, rate) / "result.json").unlink()
    assert rate_scores(sweep, "SC")[3e-4] is None
    results = collect_results(sweep)
    methods = {method.label: method for method in results.methods}
    assert methods["ARSM"].seeds == [0]
    assert methods["SC"].learning_rates == [1e-4]
    assert [group.label for group in results.groups] == [name for name in METHODS if name != "MC-0"]


def test_data_is_generated_once_and_files_of_the_user_are_only_read(tmp_path: Path):
    settings = KarelData(train=6, val=4, test=3, shortest=5, longest=8, largest=4)
    make_data(tmp_path / "data", settings, ignore)
    make_data(tmp_path / "data", settings, ignore)
    split = tmp_path / "data" / "val.jsonl"
    before = split.read_bytes()
    split.unlink()
    with pytest.raises(InputError, match="not all splits"):
        make_data(tmp_path / "data", settings, ignore)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"has no file val\.jsonl"):
        TABLE1.open(SweepSettings(out=out, scale="tiny", data=tmp_path / "data"))
    assert not out.exists()
    split.write_bytes(before)
    assert TABLE1.open(SweepSettings(out=out, scale="tiny", data=tmp_path / "data")).folder == tmp_path / "data"
    with pytest.raises(InputError, match="nothing to report"):
        TABLE1.run(SweepSettings(out=tmp_path / "nowhere", report_only=True))


@pytest.fixture(scope="module")
def public_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks in files that are called as the public ones are; larger than the model of the tiny scale reads."""
    folder = tmp_path_factory.mktemp("mine")
    make_data(folder, KarelData(train=24, val=8, test=9, shortest=16, longest=22, largest=9), ignore)
    for split in SPLITS:
        (folder / f"{split}.jsonl").rename(folder / f"{split}.json")
        shutil.rmtree(folder / f"{split}.jsonl.cache")
    return folder


@pytest.mark.parametrize("experiment", [TABLE1, KAREL_CURVES], ids=lambda one: one.name)
def test_files_of_the_user_are_described_and_the_model_is_made_large_enough(
    experiment: SweepExperiment, public_files: Path, tmp_path: Path
):
    before = {path.name: path.read_bytes() for path in public_files.glob("*.json")}
    out = tmp_path / "runs"
    sweep = experiment.open(SweepSettings(out=out, scale="tiny", data=public_files))
    assert sweep.folder == public_files
    assert experiment.open(SweepSettings(out=out)).model == sweep.model
    data = [TaskData.open(public_files / f"{split}.json") for split in SPLITS]
    assert (sweep.model.largest_world, sweep.model.max_length) == (9, 1 + max(int(one.lengths.max()) for one in data))
    assert Sweep.of_scale(experiment.spec, "paper", out, folder=str(public_files)).model.max_length == 50
    task = open_task({**sweep.table(), "task": "karel", "data": {"folder": str(public_files)}})
    engine = task.engine()
    assert [len(task.evaluate(engine, task.split(split)).scores) for split in SPLITS] == [24, 8, 9]
    assert {name: (public_files / name).read_bytes() for name in before} == before

    sweep_module._make_data(sweep, ignore)
    make_table(out, (0,), length=10.0, profiles={"rloo-8": CURVE_PROFILES["rloo-8"]}, rates=(3e-4,))
    own = replace(sweep, grid=replace(sweep.grid, methods=("RLOO",), rates=(3e-4,), seeds=(0,)))
    report = sweep_report(own, experiment.texts)
    assert "learns from 24 tasks of train.json in mine" in report.lead
    digests = [blake2b(before[f"{split}.json"], digest_size=20).hexdigest() for split in SPLITS]
    table = next(table for table in report.tables if table.title == "Data")
    expected = zip(SPLITS, (24, 8, 9), digests, strict=True)
    assert table.rows == [[split, f"{split}.json", str(count), digest] for split, count, digest in expected]
    files = json.loads((report.write(tmp_path / "report").parent / "manifest.json").read_text())["data_files"]
    assert [(one["split"], one["examples"], one["digest"]) for one in files] == [
        (split, int(count), digest) for split, _, count, digest in table.rows
    ]
    # Results of earlier versions do not say what their files were.
    (out / "data.json").unlink()
    assert "Data" not in [table.title for table in sweep_report(own, experiment.texts).tables]


def test_files_of_the_user_in_the_output_folder_are_left_alone(tmp_path: Path):
    (tmp_path / "out" / "data").mkdir(parents=True)
    mine = tmp_path / "out" / "data" / "train.json"
    mine.write_text("mine")
    with pytest.raises(InputError, match="out is not empty: choose another with --out"):
        TABLE1.run(SweepSettings(out=tmp_path / "out", scale="tiny"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def small_karel(out: Path, experiment: SweepExperiment, methods: list[str], seeds: list[int]) -> None:
    """The smallest plan in a folder."""
    open_sweep(experiment.spec, out, "tiny", seeds=seeds, methods=methods)
    plan = read_toml(out / PLAN)
    plan["data"] |= {"train": 24, "val": 8, "test": 8, "longest": 8, "largest": 4}
    plan["model"] |= {"largest_world": 4, "channels": 2, "pair_width": 4, "embedding": 4, "hidden": 4, "max_length": 9}
    write_toml(out / PLAN, short_training(plan, experiment.name, updates=2, batch_size=2))


def test_the_whole_experiment_in_miniature(tmp_path: Path):
    out = tmp_path / "out"
    small_karel(out, TABLE1, ["ARSM"], [1])
    shown = reproduce(out, "table1")
    assert {path.name for path in (out / "report").iterdir()} >= FILES
    assert json.loads((out / "probes.json").read_text()).keys() == {"ARSM"}
    for word in ("MLE, seed 1: ", "ARSM, seed 1, rate 0.001: ", "variance, ARSM: "):
        assert word in shown
    manifest = json.loads((out / "report" / "manifest.json").read_text())
    assert manifest["command"].endswith("reproduce table1 --out OUT")
    results = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    assert len(results) == 2
    (out / "seed-1" / "arsm-0.001" / "result.json").unlink()
    reproduce(out, "table1")
    changed = [path for path, time in results.items() if path.stat().st_mtime_ns != time]
    assert changed == [out / "seed-1" / "arsm-0.001" / "result.json"]  # nothing else is run twice


@pytest.mark.parametrize(("experiment", "table"), [(KAREL_CURVES, TABLE1), (CAPTION_CURVES, TABLE2)])
def test_curves_have_the_data_models_and_training_of_the_table(
    experiment: SweepExperiment, table: SweepExperiment, tmp_path: Path
):
    sweep, like = (Sweep.of_scale(one.spec, "small", tmp_path) for one in (experiment, table))
    for part in ("data", "model", "pretrain", "finetune", "folder"):
        assert getattr(sweep, part) == getattr(like, part)
    methods = sweep.grid.methods
    assert (sweep.grid.models, methods) == (("MLE",), tuple(experiment.spec.methods))
    assert len({sweep.run(0, method, 1e-3) for method in methods}) == len(methods)
    (analysis,) = experiment.spec.analyses
    assert list(analysis.methods(sweep)) == [method for method in methods if method not in choosing_methods(sweep)]
    assert choosing_methods(sweep) == ["AUTO"]


def test_the_report_compares_at_equal_cost(tmp_path: Path):
    runs = make_table(tmp_path / "runs", length=30.0, profiles=CURVE_PROFILES)
    choices = [("reinforce:baseline=fitted", 0, 2.0), ("set-8:baseline=fitted", 250, 8.0)]
    for run in runs["auto"]:
        with (run / "metrics.jsonl").open("a") as file:
            for picked, update, other in choices:
                seen = [{"variance": 2.0, "seconds": 0.5}, {"variance": other, "seconds": 1.0}]
                file.write(json.dumps({"kind": "choice", "update": update, "picked": picked, "seen": seen}) + "\n")
    sweep = Sweep.of_scale(KAREL_CURVES.spec, "small", tmp_path / "runs", methods=list(COMPARED), rates=[3e-4])
    report, limits = sweep_report(sweep, KAREL_CURVES.texts), collect_results(sweep).comparison.limits

    tables = {table.title: table.rows for table in report.tables}
    assert list(tables)[:4] == ["Generalization", "At equal cost", "Chosen estimators", "Cost"]
    rows = {row[0]: row for row in tables["At equal cost"]}
    assert list(rows) == list(COMPARED)

    for label, column, axis in (("SET-8", 1, "seconds"), ("SET-8", 3, "tokens"), ("REINFORCE", 3, "tokens")):
        gains = []
        for run in runs[KAREL_CURVES.spec.methods[label]]:
            evaluations = Run.open(run).records("evaluation")
            positions, values = [[record[key] for record in evaluations] for key in (axis, "generalization")]
            until = [v for x, v in zip(positions, values, strict=True) if x <= limits[axis]]
            gains.append(100 * (max(*until, np.interp(limits[axis], positions, values)) - values[0]))
        assert rows[label][column] == f"{np.mean(gains):+.2f}"
        half = 4.302653 * np.std(gains, ddof=1) / math.sqrt(3)  # Student's, for three seeds
        ends = [f"{np.mean(gains) + sign * half:+.1f}".replace("-", "−") for sign in (-1, 1)]
        assert rows[label][column + 1] == "…".join(ends)

    def solved(estimator: str) -> np.ndarray:
        tests = [json.loads((run / "result.json").read_text())["test"] for run in runs[estimator]]
        return np.array([list(test["solved"]) for test in tests], dtype=float)

    assert rows["AUTO"][5] == f"{100 * (solved('auto') - solved('rloo-8')).mean():+.2f}"
    assert (rows["RLOO"][5], rows["RLOO"][6]) == ("–", "–")
    chosen = tables["Chosen estimators"]
    assert chosen[0][1:] == ["0", "0", "reinforce:baseline=fitted", "0.5"]
    assert chosen[1][1:] == ["0", "250", "set-8:baseline=fitted", "0.125"]
    assert len(chosen) == 2 * 3


def test_the_paper_s_scale_has_the_authors_values(tmp_path: Path):
    karel = Sweep.of_scale(TABLE1.spec, "paper", tmp_path)
    assert [part.max_grad_norm for part in (karel.pretrain, karel.finetune)] == [0, 0]
    assert (karel.finetune.batch_size, make_estimator(karel.estimator("REINFORCE"))) == (16, Reinforce("batch"))
    assert "reinforce-baseline-batch-" in karel.run(0, "REINFORCE", 1e-5).name
    captions = Sweep.of_scale(TABLE2.spec, "paper", tmp_path)
    for part in (captions.pretrain, captions.finetune):
        assert (part.max_grad_norm, part.max_grad_value) == (0, 0.1)
    # Ten images with five main sentences each.
    assert captions.finetune.batch_size == 10
    softmax = {make_estimator(captions.estimator(method)).sampler.count for method in captions.grid.methods}
    assert softmax == {5}
    assert make_estimator(captions.estimator("ARS-20-own")) == ARS(references=20, noise="own", samples=5)
    assert make_estimator(captions.estimator("BT-RF")) == Reinforce("batch", samples=5)
    # The other scales are ours.
    small = Sweep.of_scale(TABLE2.spec, "small", tmp_path)
    assert (small.finetune.max_grad_norm, small.finetune.max_grad_value) == (1, 0)
    assert [small.estimator(method) for method in TABLE2.spec.methods] == list(TABLE2.spec.methods.values())


def test_one_seed_has_no_interval():
    assert mean_over_seeds([0.25]).interval is None
    # Student's t with one degree of freedom.
    assert mean_over_seeds([1.0, 3.0]).interval == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)


@pytest.mark.prove
def test_an_experiment_in_miniature(tmp_path: Path):
    small_karel(tmp_path, KAREL_CURVES, ["AUTO"], [0])
    reproduce(tmp_path, "curves-karel")
    assert not (tmp_path / "probes.json").exists()
    tables = {table.title: table for table in open_report(tmp_path / "report").tables}
    assert [row[0] for row in tables["Chosen estimators"].rows] == ["AUTO"]


def test_the_budget_is_seconds_of_cpu_time_or_tokens(tmp_path: Path):
    sweep = demo_sweep(DemoSettings(), tmp_path)
    assert (sweep.finetune.unit, sweep.finetune.clock, sweep.finetune.budget) == ("seconds", "cpu", 30.0)
    assert sweep.grid.methods == ("SC", "RLOO", "ARSM", "SET-2")
    tokens = demo_sweep(DemoSettings(tokens=1_000_000, seed=3), tmp_path)
    assert (tokens.finetune.unit, tokens.finetune.budget, tokens.finetune.evaluate_every) == ("tokens", 1e6, 250_000.0)
    assert (tokens.grid.seeds, tokens.grid.rates, tokens.data.data_seed) == ((3,), (5e-4,), 3)
    assert tokens.run(3, "ARSM", 5e-4) == tmp_path / "seed-3" / "arsm-0.0005"


@pytest.mark.prove
def test_the_demo_in_miniature(tmp_path: Path):
    report, page = run_demo(DemoSettings(out=tmp_path, tokens=2_000, epochs=1, estimates=3))
    assert report.lead.startswith("On 1,000 test tasks ")
    assert Page(page).count("ol", "trunk") == 1
    assert open_report(page.parent).page() == page.read_text()
