"""The experiment of the second table: its data, its report, and all of it in miniature."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from corollout.cli.reproduce import curves_captions, open_sweep, table2
from corollout.config import read_toml, write_toml
from corollout.errors import InputError
from corollout.experiments.table2 import TABLE2, DataSettings, make_data
from corollout.experiments.table2_report import TABLE2_WORDS
from corollout.reports.rollouts import Correlation, Sentences
from corollout.sweeps.report import FIGURES, collect, result_tables, write_table
from corollout.sweeps.sweep import Sweep
from corollout.trees import load_tree
from tests.support.synthetic_runs import CAPTION_PROFILES, make_table, sentences

METHODS = ("SC", "ARS-5", "ARSM")
OWN_FIGURES = ("rollouts-updates", "rollouts-steps", "rollouts-cider")


def synthetic(folder: Path, methods: tuple[str, ...] = METHODS, seeds: tuple[int, ...] = (0, 1)) -> Sweep:
    """A sweep all of whose runs are done."""
    profiles = {TABLE2.methods[method]: CAPTION_PROFILES[TABLE2.methods[method]] for method in methods}
    make_table(folder, seeds, 20.0, profiles, task="captions", rates=(3e-4,), start=0.5)
    return replace(Sweep.of_scale(TABLE2, "small", folder, seeds, methods), rates=(3e-4,))


def table_of(report: Path, title: str) -> dict[str, dict[str, str]]:
    """A table of a report, by first job and by heading."""
    tables = {table["title"]: table for table in json.loads((report / "table.json").read_text())["tables"]}
    table = tables[title]
    return {row[0]: dict(zip(table["header"], row, strict=True)) for row in table["rows"]}


def test_the_report_has_every_measure_and_every_figure(tmp_path: Path):
    sweep = synthetic(tmp_path / "runs")
    measured = {"ARS-5": sentences(2.0, 300), "ARSM": sentences(14.0, 300, seed=1)}
    (sweep.out / "rollouts.json").write_text(json.dumps(measured))
    report = tmp_path / "report"
    write_table(sweep, report, TABLE2_WORDS)

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
    assert table_of(report, "CIDEr-D")["MLE"]["paper: CIDEr"] == "93.3"

    fall = table_of(report, "Rollouts along training")
    assert list(fall) == ["ARS-5", "ARSM"]
    assert (fall["ARS-5"]["K"], fall["ARSM"]["K"]) == ("5", "V")
    assert float(fall["ARS-5"]["first tenth"]) > 2 * float(fall["ARS-5"]["last tenth"])
    adaptive = table_of(report, "Rollouts and CIDEr-D of a sentence")["ARSM"]
    points = Sentences.of("ARSM", measured["ARSM"])
    found = Correlation.of(points.scores, points.per_token)
    assert found is not None
    assert adaptive["r, per\u00a0token"] == f"−{abs(found.r):.3f}"
    assert adaptive["sentences"] == "300"

    names = {f"{name}.{kind}" for name in [*FIGURES.values(), *OWN_FIGURES] for kind in ("png", "svg")}
    files = {"table.md", "table.json", "manifest.json", "curves.json", "rollouts.json", "report.html"}
    assert {path.name for path in report.iterdir()} == names | files
    kept = json.loads((report / "rollouts.json").read_text())
    assert kept["sentences"] == measured
    assert [one["label"] for one in kept["by_step"]] == ["ARS-5", "ARSM"]
    text = (report / "table.md").read_text()
    for word in ("METEOR", "corollout score", "(2,000 generated scenes)", "## Rollouts along training", "Fisher"):
        assert word in text
    page = (report / "report.html").read_text()
    assert page.count("<h2>Training, against") == 3
    for heading in ("Rollouts along training", "Rollouts by time step", "Rollouts and CIDEr-D of a sentence"):
        part = page.split(f"<h2>{heading}</h2>")[1].split("<h2>")[0]
        assert "<svg" in part
    assert f"ARSM: 300 sentences, {found.words()}".replace("<", "&lt;") in page
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    assert str(tmp_path) not in page


def test_a_report_before_the_study_and_without_its_methods(tmp_path: Path):
    sweep = synthetic(tmp_path / "runs", ("SC", "ARS-1"), seeds=(0,))
    report = tmp_path / "report"
    report.mkdir()
    found = collect(sweep)
    drawn = TABLE2_WORDS.sections(sweep, found, report)
    assert [section.title for section in drawn] == ["Rollouts along training", "Rollouts by time step"]
    assert {path.stem for path in report.iterdir()} == {"rollouts", "rollouts-updates", "rollouts-steps"}
    _, measures, _ = result_tables(sweep, found, TABLE2_WORDS)
    assert measures.rows[-1][0] == "ARS-1"
    assert all("±" not in job for job in measures.rows[-1])  # one seed has no spread
    assert TABLE2_WORDS.sections(replace(sweep, methods=("SC",)), found, report) == []


def test_data_that_is_named_is_only_looked_at(tmp_path: Path):
    with pytest.raises(InputError, match="nowhere"):
        make_data(tmp_path / "nowhere", DataSettings(folder=str(tmp_path / "nowhere")), lambda done, total: None)
    assert not (tmp_path / "nowhere").exists()
    sweep, _ = open_sweep(TABLE2, tmp_path / "out", "tiny", None, None, {"folder": "/mine"}, {})
    assert sweep.folder == Path("/mine")
    assert open_sweep(TABLE2, tmp_path / "out", None, None, None, {}, {})[0] == sweep
    with pytest.raises(InputError, match="begun with folder /mine instead of /other"):
        open_sweep(TABLE2, tmp_path / "out", None, None, None, {"folder": "/other"}, {})
    assert open_sweep(TABLE2, tmp_path / "new", "tiny", None, None, {}, {})[0].folder == tmp_path / "new" / "data"


@pytest.mark.parametrize("command", [table2, curves_captions])
def test_nothing_is_begun_without_the_data_that_was_named(command: Callable[..., None], tmp_path: Path):
    with pytest.raises(InputError, match="nowhere"):
        command(tmp_path / "out", data=tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()


def test_which_models_are_made(tmp_path: Path):
    def models(methods: tuple[str, ...] | None, vectors: str = "") -> tuple[str, ...]:
        return Sweep.of_scale(TABLE2, "tiny", tmp_path, None, methods, {"vectors": vectors}).models

    assert models(None) == ("MLE", "tree_RD", "tree_DIS")
    assert models(None, "glove.txt") == ("MLE", "tree_RD", "tree_WV", "tree_DIS")
    assert models(("SC", "ARSM"), "glove.txt") == ("MLE",)
    assert models(("BT-SC",)) == ("MLE", "tree_DIS")  # the tree is made of the softmax model's embeddings
    sweep = Sweep.of_scale(TABLE2, "tiny", tmp_path, (0, 1), ("SC", "BT-SC"))
    assert sweep.run(0, "SC", 1e-3) != sweep.run(0, "BT-SC", 1e-3)
    assert sweep.runs == 2 * (2 + 2)


@pytest.mark.slow
def test_the_whole_experiment_in_miniature(tmp_path: Path):
    out = tmp_path / "out"
    open_sweep(TABLE2, out, "tiny", (0,), ("SC", "ARS-5", "BT-DisARM"), {}, {})
    sweep = read_toml(out / "sweep.toml")
    sweep["data"] |= {"train": 40, "val": 8, "test": 8}
    sweep["model"] |= {"embedding": 8, "hidden": 8}
    sweep["pretrain"] |= {"epochs": 1}
    sweep["finetune"] |= {
        "unit": "updates",
        "budget": 4.0,
        "evaluate_every": 2.0,
        "batch_size": 4,
        "train_eval_examples": 4,
    }
    sweep["table2"] |= {"rates": [1e-3], "probes": 3, "beam": 2}
    write_toml(out / "sweep.toml", sweep)
    command = [str(Path(sys.executable).parent / "corollout"), "reproduce", "table2", "--out", str(out)]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    for word in ("ARS-5, seed 0, rate 0.001: ", "variance, ARS-5: ", "rollouts, BT-DisARM: ", "tree_DIS, seed 0: "):
        assert word in first.stderr
    assert "rollouts, SC" not in first.stderr
    analysis = json.loads((out / "rollouts.json").read_text())
    assert analysis.keys() == {"ARS-5", "BT-DisARM"}
    assert len(analysis["ARS-5"]["scores"]) == 40
    assert sum(analysis["ARS-5"]["rollouts"]) > 0
    names = {path.stem for path in (out / "report").iterdir()}
    assert names >= {*OWN_FIGURES, "rollouts-depths", "figure-tree_DIS", "curves-tree_DIS"}
    rows = table_of(out / "report", "All measures, test")
    assert list(rows) == ["MLE", "SC", "ARS-5", "tree_DIS", "BT-DisARM"]
    gain = json.loads((out / "report" / "table.json").read_text())["comparison"]["methods"][-1]["gains"]["test"]
    start, end = (
        np.array(json.loads((out / "seed-0" / name / "result.json").read_text())["test"]["scores"])
        for name in ("tree-dis", "tree-dis-bt-disarm-0.001")
    )
    assert gain["value"] == pytest.approx((end - start).mean(), abs=1e-5)  # over the model that it started from
    curves = [json.loads((out / "report" / f"curves{part}.json").read_text()) for part in ("", "-tree_DIS")]
    assert [[one["label"] for one in own["seconds"]] for own in curves] == [["SC", "ARS-5"], ["BT-DisARM"]]
    depths = json.loads((out / "report" / "rollouts.json").read_text())["by_depth"]
    tree = load_tree(out / "seed-0" / "tree-dis" / "tree.safetensors").tree
    assert [(one["label"], len(one["values"])) for one in depths] == [("BT-DisARM", tree.depth)]
    row = rows["ARS-5"]
    result = json.loads((out / "seed-0" / "ars-5-0.001" / "result.json").read_text())
    assert row["BLEU-1"] == f"{100 * result['test']['bleu_1']:.1f}"
