"""Curves of methods: what is averaged over what, and the figure of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.reports.curves import (
    Axis,
    Band,
    Curves,
    Group,
    draw_curves,
    draw_panels,
    moving_average,
    read_curves,
    training_figure,
)
from tests.support.synthetic_runs import PROFILES, make_run, make_table, records


def rewrite(run: Path, change) -> None:
    """Pass every record of a run through a function; None leaves it out."""
    path = run / "metrics.jsonl"
    records = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))


def test_moving_average_is_what_its_name_says():
    draw = np.random.default_rng(0)
    places, values = np.sort(draw.random(300)), draw.normal(size=300)
    grid, width = np.linspace(0.1, 0.9, 17), 0.07
    expected = [values[np.abs(places - g) <= width / 2].mean() for g in grid]
    np.testing.assert_allclose(moving_average(places, values, grid, width), expected, rtol=1e-12)


def test_moving_average_goes_between_values_that_are_far_apart():
    found = moving_average(np.array([0.0, 10.0]), np.array([1.0, 3.0]), np.array([0.0, 5.0, 10.0]), 0.5)
    np.testing.assert_allclose(found, [1.0, 2.0, 3.0])


def test_evaluations_are_kept_point_by_point(tmp_path: Path):
    runs = [make_run(tmp_path / str(seed), "arsm", seed=seed) for seed in range(3)]
    looks = [records(run, "evaluation") for run in runs]
    values = np.array([[record["generalization"] for record in look] for look in looks])
    places = np.array([[record["seconds"] for record in look] for look in looks])
    curves = read_curves(Group("ARSM", runs), "seconds")
    band = curves.bands["generalization"]
    np.testing.assert_allclose(band.x, places.mean(0))
    np.testing.assert_allclose(band.mean, values.mean(0))
    np.testing.assert_allclose(band.low, values.min(0))
    np.testing.assert_allclose(band.high, values.max(0))
    assert curves.start["generalization"] == pytest.approx(values[:, 0].mean())


def test_seeds_with_other_evaluations_meet_on_what_they_have_in_common(tmp_path: Path):
    long = make_run(tmp_path / "long", "arsm", updates=200, evaluations=11)
    short = make_run(tmp_path / "short", "arsm", updates=100, evaluations=3)
    band = read_curves(Group("ARSM", [long, short]), "tokens").bands["generalization"]
    assert band.x == [0, 20e3, 40e3, 50e3, 60e3, 80e3, 100e3]
    assert all(low <= mean <= high for low, mean, high in zip(band.low, band.mean, band.high, strict=True))


def test_variance_is_averaged_before_its_logarithm_is_taken(tmp_path: Path):
    run = make_run(tmp_path / "run", "arsm")
    rewrite(run, lambda r: r | {"gradient_variance": 10.0 if r["update"] % 2 else 0.1} if r["kind"] == "update" else r)
    band = read_curves(Group("ARSM", [run]), "updates").bands["gradient_variance"]
    assert np.median(band.mean) == pytest.approx(np.log10(5.05), abs=0.05)


def test_zero_variance_and_nulls_are_left_out(tmp_path: Path):
    run = make_run(tmp_path / "run", "rl-beam-64")
    rewrite(run, lambda r: r | {"gradient_variance": 0.0, "rollouts_per_step": None} if r["kind"] == "update" else r)
    bands = read_curves(Group("RL_beam", [run]), "seconds").bands
    assert set(bands) == {"train_generalization", "generalization"}


@pytest.mark.parametrize("x", ["seconds", "tokens", "updates"])
def test_the_figure_of_eight_methods_and_three_seeds(tmp_path: Path, x: Axis):
    runs = make_table(tmp_path, length=20.0)
    groups = [Group(name, runs[name]) for name in PROFILES]
    groups.append(Group("another one", [make_run(tmp_path / "a", "ars-5", rollouts=(1.0, 0.5))]))
    figure = training_figure(groups, x)
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Gradient variance (log₁₀)",
        "Rollouts per step",
        "Training Generalization (%)",
        "Validation Generalization (%)",
    ]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 9
    top = legend.get_window_extent()
    assert top.x0 >= 0
    assert top.x1 <= figure.bbox.width
    for axes in figure.axes:
        whole = axes.get_tightbbox()
        assert whole is not None
        assert whole.y1 <= top.y0
        lines = axes.get_lines()
        assert len({line.get_color() for line in lines}) == len(lines)
    assert figure.axes[1].get_ylim()[0] < 0  # lines of no rollouts are visible


def test_curves_survive_a_file(tmp_path: Path):
    curves = read_curves(Group("SC", [make_run(tmp_path / "run", "sc")]), "tokens")
    again = Curves.from_table(json.loads(json.dumps(curves.table())))
    assert again.label == "SC"
    np.testing.assert_allclose(again.bands["generalization"].mean, curves.bands["generalization"].mean, rtol=1e-4)
    assert len(draw_panels([again], "tokens")) == 4


def test_maximum_likelihood_alone_shows_its_loss(tmp_path: Path):
    figure = training_figure([Group("MLE", [make_run(tmp_path / "mle")])])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Loss (nats a token)",
        "Validation Generalization (%)",
    ]


def test_one_evaluation_is_a_point(tmp_path: Path):
    run = make_run(tmp_path / "run", "sc")
    rewrite(run, lambda r: None if r["update"] > 0 else r)
    assert draw_curves([read_curves(Group("SC", [run]), "seconds")], "seconds").axes


@pytest.mark.parametrize(("longest", "scale"), [(300.0, "linear"), (900.0, "log")])
def test_the_axis_is_logarithmic_if_one_curve_is_far_longer(longest: float, scale: str):
    def one(label: str, end: float) -> Curves:
        x = [0.0, end / 20, end / 2, end]
        return Curves(label, {"rollouts_per_step": Band(x, x, x, x)}, {}, "karel")

    nothing = Curves("C", {"rollouts_per_step": Band([0.0], [1.0], [1.0], [1.0])}, {}, "karel")
    (axes,) = draw_curves([one("A", 100.0), one("B", longest), nothing], "tokens").axes
    assert axes.get_xscale() == scale
    ends = [np.asarray(line.get_xdata()) for line in axes.get_lines()]
    assert [float(x[-1]) for x in ends[:2]] == [0.1, longest / 1000]
    if scale == "log":  # which has no place for 0, nor for what is far before the shortest curve's end
        assert [len(x) for x in ends] == [2, 3]
        assert axes.get_xlim()[0] == pytest.approx(0.01)
    else:
        assert [len(x) for x in ends] == [4, 4, 1]


def test_bad_input(tmp_path: Path):
    with pytest.raises(InputError, match="holds no run"):
        read_curves(Group("none", [tmp_path]), "seconds")
    empty = make_run(tmp_path / "empty", "sc")
    (empty / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match=r"SC have nothing to draw.*empty"):
        read_curves(Group("SC", [empty]), "seconds")
