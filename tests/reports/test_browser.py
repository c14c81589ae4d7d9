"""Pages in a real browser, wide and narrow, with their script and without."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corollout.inspection.credit import inspect_example
from corollout.inspection.page import inspection_page
from corollout.reports.comparison import comparison_report, group_runs
from corollout.reports.completions import write_completions_page
from corollout.reports.report import Figure, Html, Report, Section, Table
from corollout.training import Run, Schedule, fit
from corollout.training.run_weights import open_run
from tests.support import small_karel
from tests.support.browser import NAMES, Tab, browser, find_browser
from tests.support.completions import EVIL, make_context, make_samples, make_sequence
from tests.support.small_task import make_trainer
from tests.support.synthetic_runs import make_table

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(find_browser() is None, reason=f"no browser on PATH: {', '.join(NAMES)}"),
]
PAGES = ("own", "table", "arsm", "rloo", "figure", "completions")
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
    evil = make_context(EVIL, role=EVIL, sequences=[make_sequence(EVIL, pieces=[EVIL * 3, "", "<end>"])])
    records = [make_samples(1), replace(make_samples(20), contexts=[*make_samples().contexts, evil])]
    write_completions_page(folder / "completions.html", records, {"model": EVIL})
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


GROUPS = "[...document.querySelectorAll('.group')].filter(e => !e.hidden)"


def choose(tab: Tab, number: int, value: str) -> list[list[str]]:
    """Choose from one of the lists above the completions; the update and the reward of the prompts that remain."""
    chosen = f"document.querySelectorAll('.tools select')[{number}]"
    tab.evaluate(f"{chosen}.value = '{value}'; {chosen}.dispatchEvent(new Event('change'))")
    return tab.evaluate(f"{GROUPS}.map(e => [e.dataset.update, e.dataset.reward])")


def test_completions_are_sorted_and_filtered(folder: Path, tab: Tab):
    tab.open(folder / "completions.html", 1280)
    new, old = [["20", "0.5"], ["20", "0"], ["20", "1"]], [["1", "0.5"], ["1", "0"]]
    assert tab.evaluate("document.querySelector('.tools').hidden") is False
    assert choose(tab, 1, "update") == new + old
    assert choose(tab, 1, "low") == [["20", "0"], ["1", "0"], ["20", "0.5"], ["1", "0.5"], ["20", "1"]]
    rewards = "[...document.querySelectorAll('.group')].map(e => [...e.querySelectorAll('.completion')]"
    rewards += ".map(e => e.dataset.reward).join())"
    assert tab.evaluate(rewards) == ["0,0", "0,0", "0,1", "0,1", "1"]
    assert choose(tab, 1, "high")[0] == ["20", "1"]
    assert choose(tab, 1, "credit")[-2:] == [["20", "0"], ["1", "0"]]
    assert choose(tab, 1, "update") == new + old
    assert tab.evaluate(rewards)[0] == "1,0"
    assert choose(tab, 2, "equal") == [["20", "0"], ["1", "0"]]
    assert choose(tab, 2, "teach") == [["20", "0.5"], ["20", "1"], ["1", "0.5"]]
    assert choose(tab, 0, "1") == [["1", "0.5"]]
    assert tab.evaluate("document.querySelector('.tools output').textContent") == "1 prompt"
    assert tab.errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_token_shows_its_branches_and_its_credit(width: int, folder: Path, tab: Tab):
    tab.open(folder / "completions.html", width)
    panel = "document.querySelector('.panel')"
    tab.evaluate("document.querySelector('.strip a').focus()")
    tab.press("Enter")
    said = tab.evaluate(f"{panel}.textContent")
    assert said.index("sampled") < said.index("Crimson sky") < said.index("Blue sea <end>")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.press("Enter")
    assert tab.evaluate(panel) is None
    box = tab.evaluate("(e => { e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
                       "return [b.x + b.width / 2, b.y + b.height / 2] })"
                       "(document.querySelector('.completion .strip > span'))")  # fmt: skip
    tab.hover(*box)
    tip = "document.querySelector('.hover')"
    lines = ["credit +0.3", "probability 0.500", "entropy 1.25", "2 branches"]
    assert tab.evaluate(f"{tip}.hidden ? '' : {tip}.textContent").split("\n") == lines
    tab.hover(1, 1)
    assert tab.evaluate(f"{tip}.hidden") is True
    assert tab.errors == []


def test_completions_can_be_read_without_javascript(folder: Path, tab: Tab):
    tab.open(folder / "completions.html", 1280, script=False)
    assert tab.evaluate("getComputedStyle(document.querySelector('.tools')).display") == "none"
    tab.evaluate("document.querySelector('.strip a').focus()")
    tab.press("Enter")  # leads to the branches, in what is folded away
    assert tab.evaluate("document.querySelector('.branches').open") is True
    assert "Crimson sky" in tab.evaluate("document.querySelector('ol.steps').innerText")


def test_no_other_script_runs(tmp_path: Path, tab: Tab):
    evil = Html("<script>window.ran = 1</script><img src='x' onerror='window.ran = 1'>", "")
    _write(Report("test", "t", "l", [Section("s", [evil])]), tmp_path / "evil.html")
    tab.errors.clear()
    tab.open(tmp_path / "evil.html", 1280)
    assert tab.evaluate("window.ran === undefined") is True
    assert any("Content Security Policy" in error for error in tab.errors)
    tab.errors.clear()
