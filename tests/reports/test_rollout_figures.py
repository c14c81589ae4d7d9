"""Rollouts in numbers and figures: correlation, maps of steps along training, and what is drawn of them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from corollout.reports.curves import Group, read_curves
from corollout.reports.rollout_figures import _tenths, density_figure, fall_figure, step_figures, steps_figure
from corollout.reports.rollouts import Correlation, Sentences, p_words, ranks, read_step_map, step_map
from tests.support.synthetic_runs import make_run, sentences


def permuted_p(x: np.ndarray, y: np.ndarray, count: int = 20_000) -> float:
    """The share of permutations whose correlation is as far from zero: what the approximation must agree with."""
    draw = np.random.default_rng(0)
    others = draw.permuted(np.tile(y - y.mean(), (count, 1)), axis=1)
    found = others @ (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).sum() * ((y - y.mean()) ** 2).sum())
    return float((np.abs(found) >= abs(np.corrcoef(x, y)[0, 1])).mean())


def test_a_correlation_by_hand():
    found = Correlation.of(np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5]))
    assert found is not None
    assert (found.count, found.r) == (5, pytest.approx(0.8))
    z, error = math.atanh(0.8), 1 / math.sqrt(2)
    assert found.interval == pytest.approx((math.tanh(z - 1.959964 * error), math.tanh(z + 1.959964 * error)))
    assert found.p == pytest.approx(math.erfc(z / error / math.sqrt(2)))
    assert found.words() == "r = +0.800, p = 0.12"


@pytest.mark.parametrize("slope", [0.0, -0.1, -0.2, 0.3])
def test_p_agrees_with_a_permutation_test(slope: float):
    draw = np.random.default_rng(5)
    x = draw.gamma(2.0, 1.0, 150)
    y = slope * x + draw.gamma(3.0, 0.5, 150)  # neither is normal
    found = Correlation.of(x, y)
    assert found is not None
    assert found.p == pytest.approx(permuted_p(x, y), abs=0.02)
    assert found.r == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert (found.p < 0.05) == (not found.interval[0] < 0 < found.interval[1])


def test_where_no_correlation_is_defined():
    assert Correlation.of(np.arange(3.0), np.arange(3.0)) is None
    assert Correlation.of(np.ones(9), np.arange(9.0)) is None
    assert Correlation.of(np.arange(9.0), np.zeros(9)) is None
    perfect = Correlation.of(np.arange(9.0), -2 * np.arange(9.0))
    assert perfect is not None
    assert (perfect.r, perfect.p) == (pytest.approx(-1.0), 0.0)
    assert [p_words(p) for p in (0.034, 1e-4, 9e-5, 0.0)] == ["0.034", "0.0001", "< 0.0001", "< 0.0001"]


def test_equal_values_share_their_ranks():
    np.testing.assert_allclose(ranks(np.array([3.0, 1.0, 3.0, 7.0, 3.0, 1.0])), [4, 1.5, 4, 6, 4, 1.5])


def test_a_map_of_steps_by_hand():
    # Of one seed 20 updates, so that two are a tenth; of the other four, whose sentences have a third step.
    first = [(update, [float(update), 10.0]) for update in range(1, 21)]
    second = [(update, [100.0, 20.0, 7.0]) for update in range(1, 5)]
    found = step_map("ARS-5", [first, second])
    assert found is not None
    assert (found.updates, found.values.shape) == (20, (3, 20))
    np.testing.assert_allclose(found.values[0, :5], [50.5, 51, 51.5, 52, 5])
    np.testing.assert_allclose(found.values[1], [15.0] * 4 + [10.0] * 16)
    np.testing.assert_allclose(found.values[2], [7.0] * 4 + [np.nan] * 16)
    np.testing.assert_allclose(found.early, [(1 + 2 + 100) / 3, 40 / 3, 7])
    np.testing.assert_allclose(found.late, [(19 + 20 + 100) / 3, 40 / 3, 7])
    table = json.loads(json.dumps(found.table(), allow_nan=False))
    assert table["values"][2][3:5] == [7.0, None]
    assert step_map("ARS-5", []) is None


def test_long_trainings_are_drawn_in_parts(tmp_path: Path):
    runs = [make_run(tmp_path / str(seed), "ars-5", seed=seed, updates=600, rollouts=(6.0, 2.0)) for seed in (0, 1)]
    found = read_step_map(Group("ARS-5", runs))
    assert found is not None
    assert found.values.shape == (12, 60)
    records = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    steps = {r["update"]: r["rollouts_by_step"] for r in records if r["kind"] == "update"}
    np.testing.assert_allclose(found.values[4, 0], np.mean([steps[update][4] for update in range(1, 11)]))
    np.testing.assert_allclose(found.late[4], np.mean([steps[update][4] for update in range(541, 601)]))
    assert found.early[4] > 2 * found.late[4]
    silent = make_run(tmp_path / "silent", "ars-5", updates=3)
    lines = (json.loads(line) for line in (silent / "metrics.jsonl").read_text().splitlines())
    kept = [{key: value for key, value in r.items() if key != "rollouts_by_step"} for r in lines]
    (silent / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    assert read_step_map(Group("ARS-5", [silent])) is None


def assert_inside(figure: Figure) -> None:
    """Nothing that is drawn leaves the figure."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box is not None
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.width + 1
        assert box.y1 <= figure.bbox.height + 1


def test_the_density_of_rollouts_against_scores():
    own = Sentences.of("ARS-20", sentences(5.0, 600))
    np.testing.assert_allclose(own.per_token, own.rollouts / own.lengths)
    figure = density_figure(own, "CIDEr-D")
    assert_inside(figure)
    found = Correlation.of(own.scores, own.per_token)
    assert found is not None
    assert found.r < -0.3
    counted = figure.axes[0].collections[0].get_array()
    assert counted is not None
    assert 600 * 0.98 <= counted.sum() <= 600 * 0.99 + 1  # the tails of both are left out
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert f"ARS-20: 600 sentences, {found.words()}" in titles
    x, y = _tenths(np.arange(20.0)[::-1], np.arange(20.0))
    assert x == [2 * i + 0.5 for i in range(10)]
    assert y == [18.5 - 2 * i for i in range(10)]
    same = Sentences("ARSM", np.ones(5), np.full(5, 3.0), np.zeros(5))
    assert_inside(density_figure(same, "CIDEr-D"))


VALUES = {"ARS-1": 1.0, "ARS-5": 50.0}


def test_maps_are_drawn_alone_and_together():
    maps = [step_map(label, [[(u, [2.0 / u, 1.0]) for u in range(1, 31)]]) for label in ("ARS-1", "ARS-5", "ARSM")]
    drawn = [one for one in maps if one is not None]
    for figure, label in zip(step_figures(drawn), ("ARS-1", "ARS-5", "ARSM"), strict=True):
        assert_inside(figure)
        image, bars = figure.axes[0], figure.axes[1]
        assert image.get_title(loc="left") == label
        assert image.get_images()[0].get_extent() == [0, 30, 0.5, 2.5]
        widths = [patch.get_width() for patch in bars.patches if isinstance(patch, Rectangle)]
        assert widths == pytest.approx([(2 + 1 + 2 / 3) / 3, 1, 2 / 3 * (1 / 28 + 1 / 29 + 1 / 30), 1])
    assert_inside(steps_figure(drawn))
    # One cell of 120 that is far above the others does not set the scale; without any rollout there is a scale, too.
    strange = [step_map(name, [[(u, [1.0, v if u == 9 else 1.0]) for u in range(1, 61)]]) for name, v in VALUES.items()]
    silent = step_map("ARS-1", [[(u, [0.0, 0.0]) for u in range(1, 61)]])
    limits = [
        figure.axes[0].get_images()[0].get_clim() for figure in step_figures([m for m in (*strange, silent) if m])
    ]
    assert limits == [(0, 1), (0, 1), (0, 1)]
    assert len(steps_figure(drawn).axes) == 9  # map, bars and scale of colours for each


def test_rollouts_along_training_have_a_logarithmic_axis_if_they_can(tmp_path: Path):
    made = {
        name: read_curves(Group(name, [make_run(tmp_path / name, name, rollouts=ends)]), "updates")
        for name, ends in {"ars-1": (2.0, 0.5), "ars-20": (20.0, 4.0), "ars-5": (0.0, 0.0)}.items()
    }
    figure = fall_figure([(3, made["ars-1"]), (6, made["ars-20"])])
    assert_inside(figure)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ars-20", "ars-1"]
    drawn = np.asarray(axes.get_lines()[1].get_ydata(), dtype=float)
    np.testing.assert_allclose(drawn, made["ars-20"].bands["rollouts_per_step"].mean)
    assert fall_figure([(0, made["ars-5"])]).axes[0].get_yscale() == "linear"
