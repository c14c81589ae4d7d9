"""Rollouts in numbers and figures: correlation, maps of steps along training, and what is drawn of them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from corollout.reports import rollout_figures as drawn
from corollout.reports.curves import read_curves
from corollout.reports.rollout_figures import Correlation, read_step_map, step_map
from corollout.reports.run_results import MethodRuns
from corollout.training.runs import Run
from tests.support.synthetic_runs import make_run, sequences


def correlation(x: Any, y: Any) -> Correlation:
    one = Correlation.of(np.array(x, dtype=float), np.array(y, dtype=float))
    assert one is not None
    return one


def test_a_correlation_by_hand():
    one = correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
    z, error = math.atanh(0.8), 1 / math.sqrt(2)
    assert (one.r, one.p) == pytest.approx((0.8, math.erfc(z / error / math.sqrt(2))))
    assert one.interval == pytest.approx((math.tanh(z - 1.959964 * error), math.tanh(z + 1.959964 * error)))
    assert one.text() == "r = +0.800, p = 0.12"


@pytest.mark.parametrize("slope", [0.0, -0.1, -0.2, 0.3])
def test_p_agrees_with_a_permutation_test(slope: float):
    draw = np.random.default_rng(5)
    x = draw.gamma(2.0, 1.0, 150)
    y = slope * x + draw.gamma(3.0, 0.5, 150)  # neither is normal
    one = correlation(x, y)
    # The share of permutations whose correlation is as far from zero.
    others = np.random.default_rng(0).permuted(np.tile(y - y.mean(), (20_000, 1)), axis=1)
    correlations = others @ (x - x.mean()) / (len(x) * x.std() * y.std())
    assert one.p == pytest.approx((np.abs(correlations) >= abs(one.r)).mean(), abs=0.02)
    assert one.r == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert (one.p < 0.05) == (not one.interval[0] < 0 < one.interval[1])


def test_where_no_correlation_is_defined_and_ranks():
    assert Correlation.of(np.arange(3.0), np.arange(3.0)) is None
    assert Correlation.of(np.ones(9), np.arange(9.0)) is None
    assert Correlation.of(np.arange(9.0), np.zeros(9)) is None
    perfect = correlation(np.arange(9.0), -2 * np.arange(9.0))
    assert (perfect.r, perfect.p) == (pytest.approx(-1.0), 0.0)
    assert [drawn.p_text(p) for p in (0.034, 1e-4, 9e-5, 0.0)] == ["0.034", "0.0001", "< 0.0001", "< 0.0001"]
    np.testing.assert_allclose(drawn.ranks(np.array([3.0, 1.0, 3.0, 7.0, 3.0, 1.0])), [4, 1.5, 4, 6, 4, 1.5])


def test_a_map_of_steps_by_hand():
    # Of one seed 20 updates, so that two are a tenth; of the other four, whose sentences have a third step.
    first = [(update, [float(update), 10.0]) for update in range(1, 21)]
    second = [(update, [100.0, 20.0, 7.0]) for update in range(1, 5)]
    steps = json.loads(json.dumps(step_map("ARS-5", [first, second]), allow_nan=False))
    values = np.array(steps["values"], dtype=float)  # NaN for null
    assert (steps["label"], steps["updates"], values.shape) == ("ARS-5", 20, (3, 20))
    np.testing.assert_allclose(values[0, :5], [50.5, 51, 51.5, 52, 5])
    np.testing.assert_allclose(values[1], [15.0] * 4 + [10.0] * 16)
    np.testing.assert_allclose(values[2], [7.0] * 4 + [np.nan] * 16)
    np.testing.assert_allclose(steps["early"], [(1 + 2 + 100) / 3, 40 / 3, 7], rtol=1e-3)  # four digits are kept
    np.testing.assert_allclose(steps["late"], [(19 + 20 + 100) / 3, 40 / 3, 7], rtol=1e-3)
    assert step_map("ARS-5", []) is None


def test_long_trainings_are_drawn_in_parts(tmp_path: Path):
    runs = [make_run(tmp_path / str(seed), "ars-5", seed=seed, updates=600, rollouts=(6.0, 2.0)) for seed in (0, 1)]
    steps = read_step_map(MethodRuns("ARS-5", runs))
    assert steps is not None
    values, early, late = (np.array(steps[name], dtype=float) for name in ("values", "early", "late"))
    assert values.shape == (12, 60)
    recorded = {r["update"]: r["rollouts_by_step"][4] for r in Run.open(runs[0]).records("update")}
    np.testing.assert_allclose(values[4, 0], np.mean([recorded[update] for update in range(1, 11)]), rtol=1e-3)
    np.testing.assert_allclose(late[4], np.mean([recorded[update] for update in range(541, 601)]), rtol=1e-3)
    assert early[4] > 2 * late[4]
    assert read_step_map(MethodRuns("ARS-5", runs), "rollouts_by_depth") is None  # which no run has recorded


def assert_inside(figure: Figure) -> None:
    """Nothing that is drawn leaves the figure."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        assert min(box.x0, box.y0, figure.bbox.width - box.x1, figure.bbox.height - box.y1) >= -1


def test_the_density_of_rollouts_against_scores():
    measured = sequences(5.0, 600)
    figure = drawn.density_figure("ARS-20", "CIDEr-D", **measured)
    assert_inside(figure)
    one = correlation(measured["scores"], np.array(measured["rollouts"]) / measured["lengths"])
    assert one.r < -0.3
    counted = figure.axes[0].collections[0].get_array()
    assert counted is not None
    assert 600 * 0.98 <= counted.sum() <= 600 * 0.99 + 1  # the tails of both are left out
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert f"ARS-20: 600 sequences, {one.text()}" in titles
    tenths = drawn._tenths(np.arange(20.0)[::-1], np.arange(20.0))
    assert tenths == ([2 * i + 0.5 for i in range(10)], [18.5 - 2 * i for i in range(10)])
    assert_inside(drawn.density_figure("ARSM", "CIDEr-D", scores=[1.0] * 5, lengths=[3] * 5, rollouts=[0] * 5))


def test_maps_of_steps():
    def map_of(label: str, updates: int, steps: Callable[[int], list[float]]) -> Any:
        return step_map(label, [[(update, steps(update)) for update in range(1, updates + 1)]])

    figure = drawn.steps_figure([map_of(label, 30, lambda u: [2.0 / u, 1.0]) for label in ("ARS-1", "ARS-5", "ARSM")])
    assert_inside(figure)
    assert len(figure.axes) == 9  # map, bars and scale of colours for each
    for index, label in enumerate(("ARS-1", "ARS-5", "ARSM")):
        image, bars = figure.axes[3 * index], figure.axes[3 * index + 1]
        assert image.get_title(loc="left") == label
        assert image.get_images()[0].get_extent() == [0, 30, 0.5, 2.5]
        widths = [patch.get_width() for patch in bars.patches if isinstance(patch, Rectangle)]
        expected = [(2 + 1 + 2 / 3) / 3, 1, 2 / 3 * (1 / 28 + 1 / 29 + 1 / 30), 1]
        assert widths == pytest.approx(expected, rel=1e-3)
    # One cell of 120 that is far above the others does not set the scale; without any rollout there is a scale, too.
    strange = [map_of("A", 60, lambda u: [1.0, 50.0 if u == 9 else 1.0]), map_of("B", 60, lambda u: [0.0, 0.0])]
    limits = [axes.get_images()[0].get_clim() for axes in drawn.steps_figure(strange).axes if axes.get_images()]
    assert limits == [(0, 1), (0, 1)]


def test_rollouts_along_training_have_a_logarithmic_axis_if_they_can(tmp_path: Path):
    made = {}
    for index, (name, ends) in enumerate({"ars-1": (2.0, 0.5), "ars-20": (20.0, 4.0), "ars-5": (0.0, 0.0)}.items()):
        curves = read_curves(MethodRuns(name, [make_run(tmp_path / name, name, rollouts=ends)]), "updates")
        made[name] = {"index": index, "label": name, **vars(curves.bands["rollouts_per_step"])}
    figure = drawn.rollouts_figure([made["ars-1"], made["ars-20"]])
    assert_inside(figure)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ars-20", "ars-1"]
    np.testing.assert_allclose(np.asarray(axes.get_lines()[1].get_ydata(), dtype=float), made["ars-20"]["mean"])
    assert drawn.rollouts_figure([made["ars-5"]]).axes[0].get_yscale() == "linear"
