"""Pages in a real browser, wide and narrow, with their script and without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corollout.inspection.credit import inspect_example
from corollout.inspection.page import inspection_page
from corollout.reports.comparison import comparison_report, group_runs
from corollout.reports.report import Figure, Html, Report, Section, Table
from corollout.training import Run, Schedule, fit
from corollout.training.run_weights import open_run
from tests.support import small_karel
from tests.support.browser import NAMES, Tab, browser, find_browser
from tests.support.small_task import make_trainer
from tests.support.synthetic_runs import make_table

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: {', '.join(NAMES)}"),
]
PAGES = ("own", "table", "arsm", "rloo", "figure")
DATA = {"curves": [{"index": 0, "label": "A", "x": [0, 1], "mean": [1, 2], "low": [1, 1], "high": [2, 3]}]}


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    path = find_browser()
    assert path is not None
    with browser(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("arsm", "rloo-4"):
        trainer = make_trainer(name, samples_every=5)
        with Run.create(folder / name, {"estimator": name, "seed": 0}) as run:
            fit(trainer, run, Schedule("updates", 12, 4), lambda: {"score": 1.0}, "score")
    _write(comparison_report(group_runs([folder / "arsm", folder / "rloo-4"]), folder, "updates"), folder / "own.html")
    runs = make_table(folder / "table", length=20.0)
    _write(comparison_report(group_runs([run for own in runs.values() for run in own]), folder), folder / "table.html")
    task, engine = open_run(small_karel.small_run(tmp_path_factory), "last")
    for name in ("arsm", "rloo"):
        page = inspection_page(inspect_example(task, engine, "val", 0, name, None, 5), {"seed": 5})
        (folder / f"{name}.html").write_text(page, "utf-8")
    wide = Table("Wide", [f"column {i}" for i in range(30)], [["a long entry"] * 30])
    drawn = [
        Figure(f"drawn-{wide}", "corollout.reports.rollout_figures:rollouts_figure", DATA, "a note", wide)
        for wide in (True, False)
    ]
    _write(Report("test", "Figures", "Of all widths.", [Section("All", [wide, *drawn])]), folder / "figure.html")
    return folder


def _write(report: Report, path: Path) -> None:
    path.write_text(report.page(), "utf-8")


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_readable_everywhere(name: str, width: int, script: bool, folder: Path, tab: Tab):
    tab.errors.clear()
    tab.open(folder / f"{name}.html", width, script=script)
    assert tab.errors == []
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    texts = "[...document.querySelectorAll('svg:not([aria-hidden])')].map(s => s.getAttribute('aria-label') || '')"
    assert all(tab.evaluate(texts))
    count = tab.evaluate("document.querySelectorAll('details').length")
    for index in {0, count - 1} if count else ():
        element = f"document.querySelectorAll('details')[{index}]"
        # What is folded inside of something else is shown first.
        opened = f"for (let e = {element}.parentElement.closest('details'); e; e = e.parentElement.closest('details'))"
        tab.evaluate(f"{opened} e.open = true; {element}.querySelector('summary').focus()")
        before = tab.evaluate(f"{element}.open")
        tab.press("Enter")
        assert tab.evaluate(f"{element}.open") is (not before)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_figures_show_values_by_pointer_and_keyboard(width: int, folder: Path, tab: Tab):
    tab.open(folder / "own.html", width)
    tip = "document.querySelector('.area .tip')"
    assert tab.evaluate(f"{tip}.hidden") is True
    tab.evaluate("document.querySelector('.area').focus()")
    tab.press("ArrowRight")
    first = tab.evaluate(f"{tip}.hidden ? '' : {tip}.textContent")
    tab.press("End")
    last = tab.evaluate(f"{tip}.textContent")
    assert "ARSM: 1" in first
    assert "RLOO-4: 1" in last
    assert first != last
    tab.evaluate("document.activeElement.blur()")
    assert tab.evaluate(f"{tip}.hidden") is True
    box = tab.evaluate("(({x, y, width, height}) => [x + width / 2, y + height / 2])"
                       "(document.querySelector('.area').getBoundingClientRect())")  # fmt: skip
    tab.hover(*box)
    assert "ARSM: 1" in tab.evaluate(f"{tip}.hidden ? '' : {tip}.textContent")


def test_a_figure_is_enlarged_by_the_keyboard(folder: Path, tab: Tab):
    tab.open(folder / "own.html", 1280)
    size = "document.querySelector('figure.plot').getBoundingClientRect().width"
    before = tab.evaluate(size)
    tab.evaluate("document.querySelector('button.zoom').focus()")
    tab.press("Enter")
    assert tab.evaluate(size) > 1.5 * before
    tab.press("Enter")
    assert tab.evaluate(size) == before


def test_no_other_script_runs(tmp_path: Path, tab: Tab):
    evil = Html("<script>window.ran = 1</script><img src='x' onerror='window.ran = 1'>", "")
    _write(Report("test", "t", "l", [Section("s", [evil])]), tmp_path / "evil.html")
    tab.errors.clear()
    tab.open(tmp_path / "evil.html", 1280)
    assert tab.evaluate("window.ran === undefined") is True
    assert any("Content Security Policy" in error for error in tab.errors)
    tab.errors.clear()
