"""Curves of methods: what is averaged over what, and the figure of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.reports.curves import Band, Curves, MethodCurves, Panel, moving_average, read_curves, training_curves
from corollout.reports.run_results import MethodRuns
from corollout.training.runs import Run
from tests.support.synthetic_runs import PROFILES, make_run, make_table


def rewrite(run: Path, change) -> None:
    """Pass every record of a run through a function; None leaves it out."""
    path = run / "metrics.jsonl"
    records = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))


def test_moving_average_is_what_its_name_says():
    draw = np.random.default_rng(0)
    positions, values = np.sort(draw.random(300)), draw.normal(size=300)
    grid, width = np.linspace(0.1, 0.9, 17), 0.07
    expected = [values[np.abs(positions - g) <= width / 2].mean() for g in grid]
    np.testing.assert_allclose(moving_average(positions, values, grid, width), expected, rtol=1e-12)
    between = moving_average(np.array([0.0, 10.0]), np.array([1.0, 3.0]), np.array([0.0, 5.0, 10.0]), 0.5)
    np.testing.assert_allclose(between, [1.0, 2.0, 3.0])  # values that are far apart


def test_evaluations_are_kept_point_by_point(tmp_path: Path):
    runs = [make_run(tmp_path / str(seed), "arsm", seed=seed) for seed in range(3)]
    evaluations = [Run.open(run).records("evaluation") for run in runs]
    keys = ("seconds", "generalization")
    positions, values = (np.array([[record[key] for record in run] for run in evaluations]) for key in keys)
    curves = read_curves(MethodRuns("ARSM", runs), "seconds")
    band = curves.bands["generalization"]
    expected = [positions.mean(0), values.mean(0), values.min(0), values.max(0)]
    np.testing.assert_allclose([band.x, band.mean, band.low, band.high], expected)
    assert curves.start["generalization"] == pytest.approx(values[:, 0].mean())


def test_seeds_with_other_evaluations_meet_on_what_they_have_in_common(tmp_path: Path):
    long = make_run(tmp_path / "long", "arsm", updates=200, evaluations=11)
    short = make_run(tmp_path / "short", "arsm", updates=100, evaluations=3)
    band = read_curves(MethodRuns("ARSM", [long, short]), "tokens").bands["generalization"]
    assert band.x == [0, 20e3, 40e3, 50e3, 60e3, 80e3, 100e3]
    assert all(low <= mean <= high for low, mean, high in zip(band.low, band.mean, band.high, strict=True))


def test_variance_is_averaged_before_its_logarithm_is_taken(tmp_path: Path):
    run = make_run(tmp_path / "run", "arsm")
    rewrite(run, lambda r: r | {"gradient_variance": 10.0 if r["update"] % 2 else 0.1} if r["kind"] == "update" else r)
    band = read_curves(MethodRuns("ARSM", [run]), "updates").bands["gradient_variance"]
    assert np.median(band.mean) == pytest.approx(np.log10(5.05), abs=0.05)
    # Zero variance and nulls are left out.
    rewrite(run, lambda r: r | {"gradient_variance": 0.0, "rollouts_per_step": None} if r["kind"] == "update" else r)
    bands = read_curves(MethodRuns("RL_beam", [run]), "seconds").bands
    assert set(bands) == {"train_generalization", "generalization"}


@pytest.mark.parametrize("x", ["seconds", "tokens", "updates"])
def test_the_figure_of_all_methods_and_three_seeds(tmp_path: Path, x: Any):
    runs = make_table(tmp_path, length=20.0)
    groups = [MethodRuns(name, runs[name]) for name in PROFILES]
    groups.append(MethodRuns("another one", [make_run(tmp_path / "a", "ars-5", rollouts=(1.0, 0.5))]))
    figure = training_curves(groups, x).drawing()
    figure.draw_without_rendering()
    titles = ["Gradient variance (log₁₀)", "Rollouts per step", "Training Generalization (%)"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [*titles, "Validation Generalization (%)"]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(PROFILES) + 2  # maximum likelihood, and another one
    top = legend.get_window_extent()
    assert 0 <= top.x0 < top.x1 <= figure.bbox.width
    for axes in figure.axes:
        whole = axes.get_tightbbox()
        assert whole is not None
        assert whole.y1 <= top.y0
        assert len({line.get_color() for line in axes.get_lines()}) == len(axes.get_lines())
    assert figure.axes[1].get_ylim()[0] < 0  # lines of no rollouts are visible


def test_maximum_likelihood_alone_and_runs_with_one_record_or_none(tmp_path: Path):
    curves = training_curves([MethodRuns("MLE", [make_run(tmp_path / "mle")])], "seconds")
    assert [panel.title for panel in curves.panels] == ["Loss (nats per token)", "Validation Generalization (%)"]
    run = make_run(tmp_path / "run", "sc")
    rewrite(run, lambda r: None if r["update"] > 0 else r)
    assert training_curves([MethodRuns("SC", [run])], "seconds").drawing().axes
    rewrite(run, lambda r: None)
    with pytest.raises(InputError, match=r"SC have recorded nothing.*run"):
        read_curves(MethodRuns("SC", [run]), "seconds")


@pytest.mark.parametrize(("longest", "scale"), [(300.0, "linear"), (900.0, "log")])
def test_the_axis_is_logarithmic_if_one_curve_is_far_longer(longest: float, scale: str):
    def one(label: str, end: float) -> MethodCurves:
        x = [0.0, end / 20, end / 2, end]
        return MethodCurves(label, {"rollouts_per_step": Band(x, x, x, x)}, {})

    nothing = MethodCurves("C", {"rollouts_per_step": Band([0.0], [1.0], [1.0], [1.0])}, {})
    panel = Panel("rollouts_per_step", "update", "Rollouts")
    (axes,) = Curves("figure", "tokens", [panel], [one("A", 100.0), one("B", longest), nothing]).drawing().axes
    assert axes.get_xscale() == scale
    ends = [np.asarray(line.get_xdata()) for line in axes.get_lines()]
    assert [float(x[-1]) for x in ends[:2]] == [0.1, longest / 1000]
    # A logarithmic axis has neither 0 nor what is far before the shortest curve's end.
    assert [len(x) for x in ends] == ([2, 3] if scale == "log" else [4, 4, 1])
    assert axes.get_xlim()[0] == pytest.approx(0.01 if scale == "log" else 0)
