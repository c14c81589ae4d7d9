"""The experiment of the second table: its data, its report, and all of it in miniature."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.config import read_toml, write_toml
from corollout.errors import InputError
from corollout.estimators import ARS, BinaryTreeARSM, make_estimator
from corollout.experiments.curves import CAPTION_CURVES
from corollout.experiments.experiment import SweepExperiment
from corollout.experiments.settings import SweepSettings, Table2Settings
from corollout.experiments.table2 import TABLE2
from corollout.reports.report import Figure, Report, open_report
from corollout.sweeps.analysis import PAIRS, ROLLOUTS
from corollout.sweeps.report import collect_results, sweep_report
from corollout.sweeps.sweep import PLAN, Sweep, open_sweep
from corollout.trees import load_tree
from tests.support.commands import reproduce, short_training
from tests.support.pages import Page
from tests.support.synthetic_runs import CAPTION_PROFILES, make_table, sequences

SPEC = TABLE2.spec
METHODS = ("SC", "ARS-5", "ARSM", "ARS-5-own")
FIGURES = {"figure", "figure-tokens", "figure-updates", "rollouts-updates", "rollouts-steps", "rollouts-cider"}


def synthetic(folder: Path, methods: tuple[str, ...] = METHODS, seeds: tuple[int, ...] = (0, 1)) -> Sweep:
    """A sweep all of whose runs are done."""
    profiles = {SPEC.methods[method]: CAPTION_PROFILES[SPEC.methods[method]] for method in methods}
    make_table(folder, seeds, 20.0, profiles, task="captions", rates=(3e-4,))
    return Sweep.of_scale(SPEC, "small", folder, seeds=list(seeds), methods=list(methods), rates=[3e-4])


def table_of(report: Report, title: str) -> dict[str, dict[str, str]]:
    """A table of a report, by first cell and by heading."""
    table = next(table for table in report.tables if table.title == title)
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def test_the_report_has_every_measure_and_every_figure(tmp_path: Path):
    sweep = synthetic(tmp_path / "runs")
    measured = {"ARS-5": sequences(2.0, 300), "ARSM": sequences(14.0, 300, seed=1)}
    (sweep.out / "rollouts.json").write_text(json.dumps(measured))
    report = sweep_report(sweep, TABLE2.texts)
    folder = tmp_path / "report"
    page = report.write(folder)

    results = [json.loads((sweep.run(seed, "ARSM", 3e-4) / "result.json").read_text())["test"] for seed in (0, 1)]
    for title, prefix in (("All measures, test", ""), ("All measures, test, by beam search", "beam_")):
        own = table_of(report, title)
        assert list(own) == ["MLE", *METHODS]
        for heading, key in (("CIDEr-D", "cider"), ("BLEU-4", "bleu_4"), ("BLEU-1", "bleu_1"), ("ROUGE-L", "rouge_l")):
            values = 100 * np.array([result[prefix + key] for result in results])
            assert own["ARSM"][heading] == f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
    own = table_of(report, "All measures, test")
    assert [own["SC"][f"paper {name}"] for name in ("CIDEr", "B4", "B1", "ROUGE")] == ["106.5", "32.3", "75.6", "54.6"]
    assert (own["ARS-5"]["paper CIDEr"], own["ARS-5"]["paper B4"]) == ("106.1", "–")
    assert own["ARS-5-own"]["paper CIDEr"] == "106.1"  # the paper's rollouts have noise of their own
    assert table_of(report, "CIDEr-D")["MLE"]["paper: CIDEr"] == "93.3"

    decline = table_of(report, "Rollouts along training")
    assert list(decline) == ["ARS-5", "ARSM", "ARS-5-own"]
    assert (decline["ARS-5"]["K"], decline["ARSM"]["K"], decline["ARS-5-own"]["K"]) == ("5", "V", "5")
    assert float(decline["ARS-5"]["first tenth"]) > 2 * float(decline["ARS-5"]["last tenth"])
    adaptive = table_of(report, "Rollouts and CIDEr-D of a sentence")["ARSM"]
    scores, lengths, rollouts = (np.array(measured["ARSM"][key]) for key in ("scores", "lengths", "rollouts"))
    assert adaptive["r, per\u00a0token"] == f"−{abs(np.corrcoef(scores, rollouts / lengths)[0, 1]):.3f}"

    assert {path.stem for path in folder.glob("*.png")} == FIGURES
    assert "(2,000 generated scenes)" in (folder / "table.md").read_text()
    text = page.read_text()
    assert text.count("<h2>Training, against") == 3
    ids = [part.split('"')[0] for part in text.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    assert open_report(folder).page() == text


def test_a_report_before_the_analysis_and_without_its_methods(tmp_path: Path):
    sweep = synthetic(tmp_path / "runs", ("SC", "ARS-1"), seeds=(0,))
    results = collect_results(sweep)
    sections = TABLE2.texts.sections(results)
    assert [section.title for section in sections] == ["Rollouts along training", "Rollouts by time step"]
    row = TABLE2.texts.tables[0](results).rows[-1]
    assert (row[0], any("±" in cell for cell in row)) == ("ARS-1", False)  # one seed has no spread


@pytest.mark.parametrize(("experiment", "settings"), [(TABLE2, Table2Settings), (CAPTION_CURVES, SweepSettings)])
def test_nothing_is_started_without_the_data_that_was_named(experiment: SweepExperiment, settings: Any, tmp_path: Path):
    for name in ("data", "vectors") if experiment is TABLE2 else ("data",):
        with pytest.raises(InputError, match="nowhere"):
            experiment.open(settings(out=tmp_path / "out", **{name: tmp_path / "nowhere"}))
    assert not any(tmp_path.iterdir())


def test_which_models_are_trained_and_whose_rollouts_are_counted(tmp_path: Path):
    def models(**changes: Any) -> tuple[str, ...]:
        return Sweep.of_scale(SPEC, "tiny", tmp_path, **changes).grid.models

    assert models() == ("MLE", "tree_RD", "tree_DIS")
    assert models(vectors="glove.txt") == ("MLE", "tree_RD", "tree_WV", "tree_DIS")
    assert models(methods=["SC", "ARSM"], vectors="glove.txt") == ("MLE",)
    assert models(methods=["BT-SC"]) == ("MLE", "tree_DIS")  # the tree is made of the softmax model's embeddings
    sweep = Sweep.of_scale(SPEC, "tiny", tmp_path, seeds=[0, 1], methods=["SC", "BT-SC"])
    assert sweep.run(0, "SC", 1e-3) != sweep.run(0, "BT-SC", 1e-3)
    assert sweep.runs == 2 * (2 + 2)
    sweep = Sweep.of_scale(SPEC, "tiny", tmp_path, methods=["SC", "ARS-1", "RLOO", "ARSM"])
    assert list(ROLLOUTS.methods(sweep)) == ["ARS-1", "ARSM"]  # whose rollouts adapt
    sweep = Sweep.of_scale(SPEC, "tiny", tmp_path)
    assert list(PAIRS.methods(sweep)) == ["BT-ARSM", "BT-DisARM"]  # whose rollouts are the same
    assert make_estimator(SPEC.methods["BT-ARSM-own"]) == BinaryTreeARSM(noise="own")
    assert make_estimator(SPEC.methods["ARS-20-own"]) == ARS(references=20, noise="own")
    assert SPEC.start("BT-ARSM-own") == "tree_DIS"


@pytest.mark.prove
def test_the_whole_experiment_in_miniature(tmp_path: Path):
    out = tmp_path / "out"
    open_sweep(SPEC, out, "tiny", seeds=[0], methods=["SC", "ARS-5", "BT-DisARM"])
    plan = read_toml(out / PLAN)
    plan["data"] |= {"train": 40, "val": 8, "test": 8}
    plan["model"] |= {"embedding": 8, "hidden": 8}
    write_toml(out / PLAN, short_training(plan, "table2", updates=4, batch_size=4))
    shown = reproduce(out, "table2")
    for word in ("ARS-5, seed 0, rate 0.001: ", "variance, ARS-5: ", "rollouts, BT-DisARM: ", "tree_DIS, seed 0: "):
        assert word in shown
    assert "rollouts, SC" not in shown
    measured = json.loads((out / "rollouts.json").read_text())
    assert measured.keys() == {"ARS-5", "BT-DisARM"}
    assert len(measured["ARS-5"]["scores"]) == 40
    assert sum(measured["ARS-5"]["rollouts"]) > 0
    assert {path.stem for path in (out / "report").iterdir()} >= FIGURES | {"rollouts-depths", "figure-tree_DIS"}
    Page(out / "report" / "report.html")
    report = open_report(out / "report")
    assert list(table_of(report, "All measures, test")) == ["MLE", "SC", "ARS-5", "tree_DIS", "BT-DisARM"]
    gain = report.numbers["comparison"]["methods"][-1]["gains"]["test"]
    start, end = (
        np.array(json.loads((out / "seed-0" / name / "result.json").read_text())["test"]["scores"])
        for name in ("tree-dis", "tree-dis-bt-disarm-0.001")
    )
    assert gain["value"] == pytest.approx((end - start).mean(), abs=1e-5)  # over the model that it started from
    tree = load_tree(out / "seed-0" / "tree-dis" / "tree.safetensors").tree
    section = next(section for section in report.sections if section.title == "Rollouts by depth in the tree")
    (figure,) = section.blocks
    assert isinstance(figure, Figure)
    assert [(one["label"], len(one["values"])) for one in figure.data["maps"]] == [("BT-DisARM", tree.depth)]
