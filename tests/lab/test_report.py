"""Advice, figures, tables and the chart of the estimator lab, from rows that were made up."""

import json
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from corollout.lab import Lab, advise
from corollout.lab.figures import cost_data, cost_figure, variance_data, variance_figure
from corollout.lab.measurement import PolicyFacts
from corollout.lab.report import lab_tables
from corollout.lab.summary import COSTS, Interval, Row
from corollout.lab.terminal import narrow, ratio_chart
from corollout.reports.figures import svg

FACTS = PolicyFacts(32, nats_per_token=0.312, mean_length=12.0, mean_reward=0.4, top_mass=0.6, equal_rewards=0.41)
ZERO = Interval(0.0, 0.0, 0.0)


def about(value: float) -> Interval:
    return Interval(value, 0.8 * value, 1.2 * value)


def row(name: str, *products: float, **changes: Any) -> Row:
    """An estimator by its variance × cost, the base's being 1: for each cost, or the same for all."""
    by_cost = dict(zip(COSTS, map(about, products * (3 // len(products))), strict=True))
    made = Row(
        estimator=name,
        estimates=32,
        variance=about(products[0]),
        bias=Interval(0.0, -0.01, 0.01),
        biased=False,
        biased_by_design=False,
        cosine=about(0.5),
        costs=dict.fromkeys(COSTS, Interval(1.0, 1.0, 1.0)),
        variance_cost=by_cost,
        ratio={**by_cost},
        training_ratio={},
        mean_reward=0.4,
        rollouts_per_step=0.0,
    )
    return replace(made, **changes)


BASE, GOOD, BAD = row("rloo-8", 1.0), row("set-8", 0.2, 0.3, 0.4), row("sc", 5.0, 4.0, 3.0)
EXACT = row("rl-beam-8", 0.0, biased=True, bias=Interval(0.17, 0.13, 0.21))
LOST = row("arsm", 2.0, ratio=dict.fromkeys(COSTS), bias=None, cosine=None)


def lab(*rows: Row) -> Lab:
    settings = {"estimates": 32, "reference": "set-16", "reference_estimates": 64}
    return Lab(settings, BASE.estimator, FACTS, about(2.0), 0.001, None, [BASE, *rows], "Take any.", [])


def advice(*rows: Row) -> str:
    """The advice after the state of the policy."""
    text = advise(FACTS, [BASE, *rows], "rloo-8").replace("\u00a0", " ")
    state, _, rest = text.partition(": ")
    assert state == "0.31 nats per token, 60 % of the probability in 8 sequences, 41 % of contexts with equal rewards"
    return rest


def costs(*points: tuple[str, Lab]) -> Figure:
    return cost_figure(**json.loads(json.dumps(cost_data(points), allow_nan=False)))


def variances(lab: Lab) -> Figure:
    return variance_figure(**json.loads(json.dumps(variance_data(lab), allow_nan=False)))


def ticks(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_one_winner_for_all_costs_or_one_for_each():
    assert advice(row("set-8", 0.41, 0.5, 0.625), row("sc", 4.0)) == (
        "set-8 wins per token (variance × tokens 0.41 of rloo-8's, 95 % interval 0.33–0.49), "
        "per reward call (0.5, 0.4–0.6) and per second (0.62, 0.5–0.75)."
    )
    assert advice(row("sc", 4.0)) == "rloo-8 wins per token, per reward call and per second."
    assert advice(row("sc", 1.1)).endswith("per second, but is not distinguishable from sc.")
    rows = row("set-8", 0.4, 2.0, 0.9), row("set-16", 0.5, 2.0, 3.0), row("pairs", 3.0, 0.5, 0.3)
    first, second = advice(*rows).split("; ")
    assert first.startswith("set-8 wins per token (")
    assert first.endswith("but is not distinguishable from set-16")
    assert second == "pairs wins per reward call (0.5, 0.4–0.6) and per second (0.3, 0.24–0.36)."


def test_equals_are_named_where_they_differ_and_few_by_name():
    text = advice(row("set-8", 0.4), row("set-16", 0.5, 2.0, 3.0))
    assert "0.32–0.48; not distinguishable from set-16), per reward call (0.4, 0.32–0.48)" in text
    text = advice(row("set-2", 0.4), *(row(f"set-{size}", 0.5) for size in range(3, 9)))
    assert "not distinguishable from set-3, set-4, set-5 and 3 others." in text


def test_biased_estimators_do_not_win_and_are_named():
    measured = row("rl-beam-8", 0.01, biased=True, bias=Interval(0.87, 0.6, 1.13))
    text = advice(measured, row("grpo-8", 0.02, biased_by_design=True))
    assert text.startswith("rloo-8 wins")
    assert "rl-beam-8 (squared bias 87 % of the squared gradient, 60 % to 113 %) and grpo-8 (by design)" in text


def test_the_best_with_new_contexts():
    few = row("set-2", 0.6, training_ratio=dict.fromkeys(COSTS, Interval(0.3, 0.2, 0.4)))
    text = advice(few, row("set-8", 0.2, training_ratio=dict.fromkeys(COSTS, Interval(0.5, 0.4, 0.6))))
    assert "set-8 wins per token" in text
    assert "as in training, variance × cost is lowest with set-2 per token (0.3, 0.2–0.4), per reward call" in text
    assert "training" not in advice(row("set-8", 0.2))


def test_no_variance_and_no_reference():
    constant = replace(BASE, variance=ZERO, variance_cost=dict.fromkeys(COSTS, ZERO), bias=None)
    text = advise(FACTS, [constant], "rloo-8")
    assert "nothing to choose by" in text
    assert "The reference is too noisy" in text
    assert "rloo-8 wins" in advice(row("set-8", 0.1, ratio=dict.fromkeys(COSTS)))


def test_estimators_are_in_order_with_biased_ones_last():
    figure = costs(("best", lab(BAD, GOOD, EXACT, LOST)))
    assert ticks(figure) == ["set-8", "rloo-8", "arsm", "sc", "rl-beam-8 †"]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Variance × tokens", "Variance × reward calls", "Variance × seconds"]
    assert svg(figure, "text").count("◂ 0") == 3


def test_several_points_are_lines_of_panels():
    figure = costs(("start", lab(BAD, GOOD)), ("last", lab(GOOD, BAD)))
    assert len(figure.axes) == 6
    assert [figure.axes[i].get_ylabel() for i in (0, 3)] == ["start", "last"]
    assert ticks(figure) == ["set-8", "rloo-8", "sc"]
    assert figure.axes[0].get_xlim() == figure.axes[3].get_xlim()


def test_labels_do_not_cover_each_other():
    crowd = [*(row(f"set-{i}", 1.0 + i / 50, 1.0, 1.0) for i in range(2, 9)), GOOD, BAD]
    figure = variances(lab(*crowd))
    figure.draw_without_rendering()
    names = {each.estimator for each in crowd}
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text() in names]
    assert len(boxes) == 9
    covered = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert len(covered) <= 2  # where there is no room at all


@pytest.mark.parametrize("rows", [(), (EXACT, LOST)])
def test_nothing_to_compare_with(rows: tuple[Row, ...]):
    constant = lab(*rows)
    constant.rows[0] = row("rloo-8", 0.0, ratio=dict.fromkeys(COSTS), variance=ZERO)
    for figure in (costs(("best", constant)), variances(constant)):
        assert svg(figure, "text").startswith("<svg")


def test_tables_have_intervals_and_marks():
    gradient, cost, ratio = lab_tables(lab(GOOD, EXACT, LOST))
    assert gradient.rows[1] == ["set-8", "0.2 (0.16–0.24)", "0.0 (−1.0…1.0)", "0.5 (0.4–0.6)"]
    assert gradient.rows[2][:3] == ["rl-beam-8 †", "0", "17.0 (13.0…21.0)"]
    assert gradient.rows[3][2:] == ["–", "–"]
    assert cost.rows[0] == ["rloo-8", "1", "1", "1"]
    assert ratio.rows[1][1:] == ["0.2 (0.16–0.24)", "0.3 (0.24–0.36)", "0.4 (0.32–0.48)"]
    assert ratio.rows[3][1:] == ["–"] * 3
    assert "rloo-8" in ratio.title
    table = narrow(lab_tables(lab(row("arsm:budget=64,draws=4", 1.0)))[0])
    assert table.rows[1][0] == "arsm:\n  budget=64,\n  draws=4"  # options are on lines of their own


def test_the_chart_has_a_line_for_each_known_ratio():
    console = Console(width=80)
    with console.capture() as shown:
        console.print(ratio_chart(lab(BAD, GOOD, EXACT, LOST)))
    lines = [line for line in shown.get().splitlines() if "●" in line]
    assert [(line.split()[0], line.split()[-1]) for line in lines] == [("set-8", "0.2"), ("rloo-8", "1"), ("sc", "5")]
    columns = [line.index("●") for line in lines]
    assert columns == sorted(columns)
