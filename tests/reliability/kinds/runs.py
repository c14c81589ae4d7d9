"""Files of trainings and their results: runs, checkpoints, settings, reports and measurements."""

import json
from pathlib import Path
from random import Random

import torch

from corollout.config import from_table, read_toml, write_toml
from corollout.events import ignore
from corollout.lab.store import FILE as MEASUREMENTS
from corollout.lab.store import Store
from corollout.reports.report import open_report
from corollout.tasks.captioning.settings import ModelSettings
from corollout.training.checkpoints import State, newest_checkpoint, write_checkpoint
from corollout.training.runs import Run
from tests.reliability.kinds.kind import Kind


def _make_run(folder: Path) -> None:
    with Run.create(folder / "run", {"task": "karel", "kind": "pretrain", "model": {"hidden": 8}}) as run:
        run.log("update", {"update": 1, "loss": 0.5})
        run.log("evaluation", {"update": 1, "generalization": 0.25})
        run.save(1, State({"a": torch.ones(2)}, {"b": {"c": [1, 2.5, None]}}))
        run.finish({"updates": 1, "val": {"generalization": 0.5}})


def _use_run(folder: Path, random: Random) -> None:
    run = Run.open(folder / "run")
    for record in (*run.records(), *run.records("update")):
        assert isinstance(record["kind"], str)
    assert isinstance(run.summary, dict | None)
    if (loaded := run.load()) is not None:
        assert isinstance(loaded[1].values, dict)


def _make_checkpoint(folder: Path) -> None:
    for step in (3, 7):
        write_checkpoint(
            folder / "checkpoints", step, State({"a": torch.ones(3)}, {"b": [step, 0.5], "c": {"d": None}})
        )


def _use_checkpoint(folder: Path, random: Random) -> None:
    found = newest_checkpoint(folder / "checkpoints", ignore)
    assert found is None or (found[0] in (3, 7) and isinstance(found[1].values, dict))


def _make_settings(folder: Path) -> None:
    write_toml(folder / "settings.toml", {"embedding": 16, "hidden": 32, "dropout": 0.5})


def _use_settings(folder: Path, random: Random) -> None:
    settings = from_table(ModelSettings, read_toml(folder / "settings.toml"), "settings.toml")
    assert isinstance(settings.hidden, int)


def _make_report(folder: Path) -> None:
    from corollout.reports.report import Facts, Html, Paragraph, Report, Section, Table
    from tests.reports.test_report import CURVES, DRAWN

    table = Table("Numbers", ["method", "a|b"], [["x", "1"], ["y", "–"]], ["A note."])
    sections = [
        Section("Numbers", [Paragraph("words"), table, CURVES, DRAWN, Html("<b>b</b>"), Facts({"a": {"b": 1}})])
    ]
    content = Report("test", "A title", "A lead.", sections, {"command": "x"}, {"third": 1 / 3}).to_json()
    (folder / "report.json").write_text(json.dumps(content))


def _use_report(folder: Path, random: Random) -> None:
    report = open_report(folder)
    report.markdown()
    if random.random() < 0.1:  # drawing is slow
        report.page()


SETTINGS = {"seed": 0, "contexts": 4}


def _make_lab(folder: Path) -> None:
    store = Store(folder, SETTINGS)
    store.seconds = {"rloo": [0.5, 0.25]}
    store.save()


def _use_lab(folder: Path, random: Random) -> None:
    store = Store(folder, SETTINGS)
    assert isinstance(store.measurements, dict)
    assert all(isinstance(one, list) for one in store.seconds.values())


KINDS = {
    "runs": Kind(_make_run, _use_run, weight=4),
    "checkpoints": Kind(_make_checkpoint, _use_checkpoint),
    "settings": Kind(_make_settings, _use_settings, weight=2),
    "reports": Kind(_make_report, _use_report, weight=6),
    "measurements": Kind(_make_lab, _use_lab, files=MEASUREMENTS, weight=2),
}
