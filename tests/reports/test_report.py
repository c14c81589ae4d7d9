"""Reports as data: what is written is read back, and what may be drawn; manifests without paths."""

import json
import sys
from pathlib import Path

import pytest

from corollout.errors import InputError
from corollout.reports import report as reports
from corollout.reports.curves import Band, Curves, MethodCurves, Panel
from corollout.reports.manifest import manifest
from corollout.reports.report import Facts, Figure, Html, Paragraph, Report, Section, Table, open_report
from tests.support.pages import Page

BAND = Band([0.0, 1.0], [1 / 3, 0.5], [0.0, 0.0], [1.0, 0.6])
CURVES = Curves(
    "figure", "tokens", [Panel("reward", "evaluation", "Reward")], [MethodCurves("A", {"reward": BAND}, {})]
)
DATA = {"curves": [{"index": 0, "label": "A", "x": [0, 1], "mean": [1, 2], "low": [1, 1], "high": [2, 3]}]}
DRAWN = Figure("rollouts", "corollout.reports.rollout_figures:rollouts_figure", DATA, "a note")


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path):
    table = Table("Numbers", ["method", "a|b"], [["x", "1"], ["y", "–"]], ["A note."])
    settings = reports.settings_section({"x": {"rate": 0.1, "seed": 1}, "y": {"rate": 0.2, "seed": 2}}, "Same & other.")
    sections = [
        Section("Numbers", [Paragraph("<in words>"), table, CURVES, DRAWN]),
        Section("Drawn", [Html("<b class='x'>bold</b>", ".x { color: red; }"), Facts({"a": {"b": 1}})], page_only=True),
        settings,
    ]
    report = Report("test", "A title", "A lead.", sections, {"command": "x", "settings": {"rate": 1}}, {"third": 1 / 3})
    page = report.write(tmp_path / "new" / "folder")
    folder = page.parent
    names = {"figure.png", "rollouts.png", "manifest.json", "report.html", "report.json", "table.md"}
    assert {path.name for path in folder.iterdir()} == names
    text = page.read_text()
    assert Page(page).count("section", "") == 0
    parts = ["&lt;in words&gt;", "<b class='x'>bold</b>", ".x { color: red; }", "How this was made", "<td>0.2</td>"]
    assert all(part in text for part in parts)
    again = open_report(folder)
    assert (again.page(), again.markdown(), again.numbers) == (text, report.markdown(), {"third": 0.333333})
    assert (folder / "table.md").read_text() == (
        "# A title\n\nA lead.\n\n## Numbers\n\n<in words>\n\n"
        "| method | a\\|b |\n|---|---:|\n| x | 1 |\n| y | – |\n\nA note.\n"
    )
    assert json.loads((folder / "manifest.json").read_text())["settings"] == {"rate": 1}
    reports.check_report_folder(folder, "test")
    with pytest.raises(InputError, match="holds no earlier comparison"):
        reports.check_report_folder(folder, "comparison")
    (folder / "report.json").write_text('{"kind": "test"}')
    with pytest.raises(InputError, match="is not a report"):
        open_report(folder)


def test_a_report_only_draws_figures_of_this_package():
    for draw in ("os:remove_figure", "corollout.files:write_json", "corollout.lab:_figure", "corolloutx:b_figure"):
        with pytest.raises(InputError, match="does not name a figure"):
            Figure("x", draw, {}).drawing()
    with pytest.raises(InputError, match="cannot draw the figure x"):
        Figure("x", DRAWN.draw, {"nothing": 1}).drawing()


def test_a_manifest_has_no_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    arguments = f"reproduce --out /home/me/x {tmp_path}/out/run --data=/data/y --vectors /far/a/b/v.txt"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/corollout", *arguments.split()])
    data = {"folder": "/data/y", "vectors": "/far/a/b/v.txt"}
    made = manifest(tmp_path / "out", settings={"data": data, "run": f"{tmp_path}/out/run", "rates": [1.0]})
    assert made["command"] == "corollout reproduce --out OUT run --data=DATA --vectors v.txt"
    assert made["settings"] == {"data": {"folder": "DATA", "vectors": "v.txt"}, "run": "run", "rates": [1.0]}
