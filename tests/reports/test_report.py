"""Reports as data: what is written is read back, and what may be drawn; manifests without paths."""

import base64
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from corollout.errors import InputError
from corollout.reports import manifest as manifests
from corollout.reports import report as reports
from corollout.reports.curves import Band, Curves, MethodCurves, Panel
from corollout.reports.manifest import manifest
from corollout.reports.report import Facts, Figure, Html, Paragraph, Report, Section, Table, open_report
from tests.support.errors import refused
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
    assert again.add_page(folder) == page
    page.unlink()
    assert again.add_page(folder).read_text() == text
    page.write_text("mine")
    with pytest.raises(InputError, match="is another page, and nothing is overwritten"):
        again.add_page(folder)
    (folder / "report.json").write_text('{"kind": "test"}')
    with pytest.raises(InputError, match="is not a report"):
        open_report(folder)


def test_a_report_only_draws_figures_of_this_package():
    for draw in ("os:remove_figure", "corollout.files:write_json", "corollout.lab:_figure", "corolloutx:b_figure"):
        with pytest.raises(InputError, match="does not name a figure"):
            Figure("x", draw, {}).drawing()
    with pytest.raises(InputError, match="cannot draw the figure x"):
        Figure("x", DRAWN.draw, {"nothing": 1}).drawing()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((("title",), 3), (("sections",), {}), (("sections", 0), None), (("sections", 0, "blocks"), None)),
        *((("sections", 0, "blocks", 0, "rows", 0), ["x"]), (("sections", 0, "blocks", 0, "rows", 0, 1), 1.5)),
        *((("sections", 0, "blocks", 0, "notes"), "x"), (("sections", 0, "blocks", 0, "header"), [])),
        *((("sections", 0, "blocks", 0, "kind"), []), (("sections", 0, "blocks", 0, "extra"), 1)),
        *((("sections", 0, "blocks", 1, "panels"), []), (("sections", 0, "blocks", 1, "panels", 0, "key"), "other")),
        *((("sections", 0, "blocks", 1, "panels", 0, "scale"), "x"), (("sections", 0, "blocks", 1, "x"), "parsecs")),
        (("sections", 0, "blocks", 1, "methods", 0, "bands", "reward", "mean"), [1.0]),
        (("sections", 0, "blocks", 1, "methods", 0, "bands", "reward", "x", 0), None),
        (("sections", 0, "blocks", 1, "methods", 0, "start"), []),
        (("sections", 0, "blocks", 2, "name"), "../../x"),
        (("sections", 0, "blocks", 2, "data"), []),
        (("sections", 0, "page_only"), "no"),
        *((("manifest",), "x"), (("numbers",), None)),
    ],
)
def test_a_report_with_another_type_at_any_depth_is_refused(tmp_path: Path, path: tuple[str | int, ...], value: object):
    table = Table("Numbers", ["method", "a"], [["x", "1"]])
    content = Report("test", "A title", "A lead.", [Section("Numbers", [table, CURVES, DRAWN])]).to_json()
    Report.from_json(content)
    inner: Any = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "report.json").write_text(json.dumps(content))
    refused(r"report\.json is not a report: ", open_report, tmp_path)


def test_a_manifest_has_no_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    arguments = f"reproduce --out /home/me/x {tmp_path}/out/run --data=/data/y --vectors /far/a/b/v.txt"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/corollout", *arguments.split()])
    data = {"folder": "/data/y", "vectors": "/far/a/b/v.txt"}
    made = manifest(tmp_path / "out", settings={"data": data, "run": f"{tmp_path}/out/run", "rates": [1.0]})
    assert made["command"] == "corollout reproduce --out OUT run --data=DATA --vectors v.txt"
    assert made["settings"] == {"data": {"folder": "DATA", "vectors": "v.txt"}, "run": "run", "rates": [1.0]}


FOREIGN = r"_$\foo$ <b>&é犬" "\x1b[31m\udce9\u202e" + 300 * "x"


def test_labels_of_strangers_are_shown_as_they_are(tmp_path: Path):
    curves = Curves("figure", "tokens", CURVES.panels, [MethodCurves(FOREIGN, {"reward": BAND}, {})])
    drawn = Figure(DRAWN.name, DRAWN.draw, {"curves": [{**DATA["curves"][0], "label": FOREIGN}]}, FOREIGN)
    table = Table(FOREIGN, [FOREIGN, "a"], [[FOREIGN, "x\ny"]], [FOREIGN])
    sections = [Section(FOREIGN, [Paragraph(FOREIGN), table, curves, drawn, Facts({FOREIGN: FOREIGN})])]
    page = Report("test", FOREIGN, FOREIGN, sections, {"command": FOREIGN}, {FOREIGN: FOREIGN}).write(tmp_path / "r")
    text = page.read_text("utf-8")
    assert not set(text) & set("\x1b\u202e")
    assert r"_$\foo$ &lt;b&gt;&amp;é犬\x1b[31m\udce9\u202e" in text
    assert Page(page).count("b", "") == 0
    assert text.count("foo$ &lt;b&gt;") >= 10  # in the legends of both figures, too
    assert "| x y |" in (tmp_path / "r" / "table.md").read_text("utf-8")
    assert open_report(tmp_path / "r").page() == text


def test_no_page_loads_anything_or_runs_more_than_its_own_script(tmp_path: Path):
    evil = Html("<script>alert(1)</script><img src='https://example.org/x.png'>", "</style><script>alert(2)</script>")
    text = Report("test", "t", "l", [Section("s", [evil])]).write(tmp_path / "r").read_text()
    head = text[: text.index("<title>")]
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()  # ours, and no other
    policy = f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in head
    assert "<style" not in head  # the policy comes before anything that it is about


@pytest.mark.parametrize("script", [None, "echo broken >&2; exit 128", "sleep 60", "printf '\\377'"])
def test_a_commit_is_not_known_without_a_git_that_works(script: str | None, monkeypatch, tmp_path: Path):
    (tmp_path / ".git").touch()
    monkeypatch.setattr(manifests, "__file__", str(tmp_path / "corollout" / "reports" / "manifest.py"))
    monkeypatch.setattr(manifests, "_PATIENCE", 0.5)
    if script is not None:
        (tmp_path / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", "" if script is None else f"{tmp_path}{os.pathsep}/bin")
    began = time.monotonic()
    assert manifest()["commit"] in (None, "\ufffd")
    assert time.monotonic() - began < 10
