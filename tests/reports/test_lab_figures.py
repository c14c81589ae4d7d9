"""What the figures and tables of the estimator lab show."""

import pytest
from matplotlib.figure import Figure

from corollout.lab import KINDS, Interval
from corollout.lab.figures import cost_figure, variance_figure
from corollout.lab.report import lab_tables, product_table
from corollout.reports.figures import svg
from tests.support.lab_rows import BASE, NOTHING, lab, row

GOOD, BAD = row("set-8", 0.2, 0.3, 0.4), row("sc", 5.0, 4.0, 3.0)
EXACT = row("rl-beam-8", 0.0, 0.0, 0.0, biased=True, bias=Interval(0.17, 0.13, 0.21))
LOST = row("arsm", 2.0, 2.0, 2.0, relative=dict.fromkeys(KINDS), bias=None, cosine=None)


def ticks(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_estimators_stand_in_order_and_biased_ones_last():
    figure = cost_figure([("best", lab(BAD, GOOD, EXACT, LOST))])
    assert ticks(figure) == ["set-8", "rloo-8", "arsm", "sc", "rl-beam-8 †"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Variance × tokens",
        "Variance × reward calls",
        "Variance × seconds",
    ]
    drawn = svg(figure)
    assert drawn.count("◂ 0") == 3
    assert "over that of rloo-8" in drawn


def test_several_labs_are_lines_of_panels():
    figure = cost_figure([("start", lab(BAD, GOOD)), ("last", lab(GOOD, BAD))])
    assert len(figure.axes) == 6
    assert [figure.axes[i].get_ylabel() for i in (0, 3)] == ["start", "last"]
    assert ticks(figure) == ["set-8", "rloo-8", "sc"]
    assert figure.axes[0].get_xlim() == figure.axes[3].get_xlim()


def test_names_do_not_cover_each_other():
    crowd = [row(f"set-{i}", 1.0 + i / 50, 1.0, 1.0) for i in range(2, 9)]
    figure = variance_figure(lab(*crowd, GOOD, BAD))
    figure.draw_without_rendering()
    names = [text for text in figure.axes[0].texts if text.get_text() in {one.estimator for one in (*crowd, GOOD, BAD)}]
    assert len(names) == 9
    boxes = [text.get_window_extent() for text in names]
    covered = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert len(covered) <= 2  # where there is no room at all


@pytest.mark.parametrize("rows", [(), (EXACT, LOST)])
def test_nothing_to_compare_with(rows):
    still = lab(*rows)
    base = row("rloo-8", 0.0, 0.0, 0.0, relative=dict.fromkeys(KINDS), variance=NOTHING)
    still.rows[0] = base
    for figure in (cost_figure([("best", still)]), variance_figure(still)):
        assert svg(figure).startswith("<svg")


def test_tables_have_intervals_and_marks():
    gradient, cost, relative = lab_tables(lab(GOOD, EXACT, LOST))
    assert gradient.rows[1] == ["set-8", "0.2 (0.16–0.24)", "0.0 (−1.0…1.0)", "0.5 (0.4–0.6)"]
    assert gradient.rows[2][:3] == ["rl-beam-8 †", "0", "17.0 (13.0…21.0)"]
    assert gradient.rows[3][2:] == ["–", "–"]
    assert cost.rows[0] == ["rloo-8", "1", "1", "1"]
    assert relative.rows[1][1:] == ["0.2 (0.16–0.24)", "0.3 (0.24–0.36)", "0.4 (0.32–0.48)"]
    assert relative.rows[3][1:] == ["–"] * 3
    assert product_table(lab(GOOD)).rows[0][1:] == ["1 (0.8–1.2)"] * 3 + ["0"]
    assert BASE.estimator in relative.title
