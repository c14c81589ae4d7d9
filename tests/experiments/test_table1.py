"""The experiment of the first table: its sweep, its data, its report, and all of it in miniature."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from corollout.cli.reproduce import open_sweep
from corollout.config import read_toml, write_toml
from corollout.errors import InputError
from corollout.experiments.table1 import TABLE1, make_data
from corollout.experiments.table1_report import TABLE1_WORDS
from corollout.sweeps.report import FIGURES, collect, redraw, write_table
from corollout.sweeps.sweep import Sweep, chosen_rates, rate_scores
from corollout.tasks.karel.settings import DataSettings
from tests.support.synthetic_runs import RATES, make_table

METHODS = TABLE1.methods
FIGURE_NAMES = [FIGURES[x] for x in TABLE1_WORDS.axes]
FILES = {"table.md", "table.json", "manifest.json", "curves.json", "report.html"} | {
    f"{name}.{kind}" for name in FIGURE_NAMES for kind in ("png", "svg")
}


def plan_of(folder: Path) -> Sweep:
    return replace(Sweep.of_scale(TABLE1, "small", folder, (0, 1, 2), None), rates=RATES)


def test_the_report_has_everything(tmp_path: Path):
    make_table(tmp_path / "runs", length=30.0)
    sweep = plan_of(tmp_path / "runs")
    probes = {m: {"variance": 2.0, "variance_error": 0.1, "tokens": 500.0} for m in ("ARSM", "RLOO")}
    (sweep.out / "probes.json").write_text(json.dumps(probes))
    # All rates of REINFORCE are as bad as its start; the first is then taken, with which it has only one seed.
    assert chosen_rates(sweep) == dict.fromkeys(METHODS, 3e-4) | {"REINFORCE": 1e-4}
    found = write_table(sweep, tmp_path / "report", TABLE1_WORDS)
    assert found.missing == 2
    report = tmp_path / "report"
    assert {path.name for path in report.iterdir()} == FILES
    assert (report / "curves.json").stat().st_size < 1_000_000
    text = (report / "table.md").read_text()
    for word in ("| ARSM | ", " 17.07 | 16.28 |", "## Learning rates", "top 5", "× tokens", "2 runs are missing"):
        assert word in text
    table = json.loads((report / "table.json").read_text())
    methods = {method["label"]: method for method in table["comparison"]["methods"]}
    assert list(methods) == ["MLE", *METHODS]
    assert methods["ARSM"]["runs"] == [f"seed-{seed}/arsm-0.0003" for seed in (0, 1, 2)]
    assert methods["ARSM"]["gains"]["test"]["interval"][0] > 0
    assert table["rates"]["ARSM"].keys() == {"0.0001", "0.0003", "0.001"}
    assert table["probes"] == probes
    page = (report / "report.html").read_text()
    assert page.count("<h2>Training, against") == 2
    assert str(tmp_path) not in page

    # Figures can be drawn without the runs.
    before = {name: (report / f"{name}.svg").read_bytes() for name in FIGURE_NAMES}
    for name in FIGURE_NAMES:
        (report / f"{name}.svg").unlink()
    shutil.rmtree(sweep.out)
    redraw(report)
    assert {name: (report / f"{name}.svg").read_bytes() for name in FIGURE_NAMES} == before


def test_a_report_of_what_is_done_so_far(tmp_path: Path):
    sweep = plan_of(tmp_path)
    with pytest.raises(InputError, match="nothing to report"):
        collect(sweep)
    make_table(tmp_path, length=10.0)
    for seed in (1, 2):
        (sweep.run(seed, "ARSM", 3e-4) / "result.json").unlink()
    (sweep.run(0, "SC", 3e-4) / "result.json").unlink()
    for rate in RATES:
        (sweep.run(0, "MC-0", rate) / "result.json").unlink()
    assert rate_scores(sweep, "SC")[3e-4] is None
    found = collect(sweep)
    methods = {method.label: method for method in found.methods}
    assert methods["ARSM"].seeds == [0]
    assert methods["SC"].learning_rates == [1e-4]
    assert "MC-0" not in methods
    assert [group.label for group in found.groups] == [name for name in METHODS if name != "MC-0"]


def test_a_folder_keeps_its_plan(tmp_path: Path):
    out = tmp_path / "new" / "folder"
    sweep, machine = open_sweep(TABLE1, out, "tiny", (3, 4), ("ARSM", "SC"), {}, {"threads": 2})
    assert (sweep.scale, sweep.seeds, sweep.methods, machine.threads) == ("tiny", (3, 4), ("ARSM", "SC"), 2)
    assert open_sweep(TABLE1, out, None, None, None, {}, {}) == (sweep, machine)
    assert open_sweep(TABLE1, out, "tiny", (3, 4), None, {}, {"threads": 2, "device": "cpu"}) == (sweep, machine)
    with pytest.raises(InputError, match="begun with seeds 3,4 instead of 3, threads 2 instead of 1: leave"):
        open_sweep(TABLE1, out, "tiny", (3,), None, {}, {"threads": 1})
    with pytest.raises(InputError, match="begun with scale tiny instead of small"):
        open_sweep(TABLE1, out, "small", None, None, {}, {})
    with pytest.raises(InputError, match="no method of table1 is called 'PPO'"):
        open_sweep(TABLE1, tmp_path / "other", "tiny", None, ("PPO",), {}, {})
    assert not (tmp_path / "other").exists()
    write_toml(out / "sweep.toml", {"scale": "tiny"})
    with pytest.raises(InputError, match="is no sweep"):
        open_sweep(TABLE1, out, None, None, None, {}, {})


def test_data_that_is_not_complete_is_made_again(tmp_path: Path):
    settings = DataSettings(train=6, val=4, test=3, shortest=5, longest=8, largest=4)
    make_data(tmp_path / "data", settings)
    files = {split: tmp_path / "data" / f"{split}.jsonl" for split in ("train", "val", "test")}
    made = {split: path.read_bytes() for split, path in files.items()}
    assert [text.count(b"\n") for text in made.values()] == [6, 4, 3]
    files["val"].unlink()
    files["test"].write_text("of another time")
    told: list[tuple[int, int]] = []
    make_data(tmp_path / "data", settings, lambda done, total: told.append((done, total)))
    assert {split: path.read_bytes() for split, path in files.items()} == made
    assert told == sorted(told)
    assert told[-1] == (26, 26)
    told.clear()
    make_data(tmp_path / "data", settings, lambda done, total: told.append((done, total)))
    assert not told  # complete: left alone


@pytest.mark.slow
def test_the_whole_experiment_in_miniature(tmp_path: Path):
    out = tmp_path / "out"
    open_sweep(TABLE1, out, "tiny", (0, 1), ("ARSM",), {}, {})
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
    sweep["table1"] |= {"rates": [1e-3], "probes": 3, "beam": 2}
    write_toml(out / "sweep.toml", sweep)
    command = [str(Path(sys.executable).parent / "corollout"), "reproduce", "table1", "--out", str(out)]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert {path.name for path in (out / "report").iterdir()} >= FILES
    assert json.loads((out / "probes.json").read_text()).keys() == {"ARSM"}
    for word in ("MLE, seed 1: ", "ARSM, seed 1, rate 0.001: ", "variance, ARSM: "):
        assert word in first.stderr
    results = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    assert len(results) == 4

    (out / "seed-1" / "arsm-0.001" / "result.json").unlink()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    changed = [path for path, time in results.items() if path.stat().st_mtime_ns != time]
    assert changed == [out / "seed-1" / "arsm-0.001" / "result.json"]  # nothing else is done twice
