"""The cost of an update beside TRL's: which sizes are measured, how they are judged, and a tiny update of TRL's."""

from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from benchmarks import language_model
from benchmarks.language_model import FULL, MODEL_VARIABLE, QUICK
from benchmarks.language_model_updates import TRL_RLOO, Point, Update, measure
from corollout.errors import InputError


def pretended(point: Point, repetitions: int) -> Update:
    """Ours takes half of TRL's seconds and a quarter of its memory."""
    seconds = 2.0 if point.method == TRL_RLOO else 1.0
    return Update([seconds * point.completions] * repetitions, 4_000 if point.method == TRL_RLOO else 1_000, 3.0)


@pytest.fixture
def _trl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "require_trl", lambda: None)
    monkeypatch.delenv(MODEL_VARIABLE, raising=False)


def run(quick: bool) -> dict[str, Any]:
    with Progress(disable=True) as progress:
        return dict(language_model.run(quick, progress, pretended))


@pytest.mark.usefixtures("_trl")
def test_a_quick_run_measures_everything_and_judges_nothing(tmp_path: Path) -> None:
    result = run(quick=True)
    grown = [one for one in result["timings"] if "axis" in one]
    assert {one["axis"] for one in grown} == set(language_model.AXES)
    assert len(grown) == 3 * sum(map(len, QUICK.grown.values()))
    assert {one["method"] for one in grown if one["completions"] == 3} == {TRL_RLOO, "rloo-3", "arsm:budget=64"}
    assert [one["passed"] for one in result["targets"]] == [None] * 3
    assert len(result["table"]) == 2 * len(QUICK.cases)
    assert language_model.draw_figure(result, tmp_path).stat().st_size > 1_000  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("_trl")
def test_a_full_run_is_judged_by_ratios_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODEL_VARIABLE, "/models/smollm2")
    result = run(quick=False)
    case = result["measurements"][FULL.cases[0].name]
    assert case == {"seconds": 0.5, "peak": 0.25}
    assert [(one["bound"], one["passed"]) for one in result["targets"]] == [
        (0.6, True),
        (0.6, True),
        (0.3, False),
        (1.2, True),
    ]
    assert result["settings"]["folder"] == "smollm2"
    assert all(one["folder"] == "" for one in result["timings"])
    assert len(next(one for one in result["timings"] if "case" in one)["seconds"]) == FULL.rounds * FULL.repetitions


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install") as raised:
        run(quick=True)
    assert str(raised.value).count(". ") == 0


@pytest.mark.filterwarnings("default")  # of the libraries that are measured
@pytest.mark.parametrize("method", [TRL_RLOO, "rloo-2"])
def test_a_tiny_update_is_measured(method: str) -> None:
    pytest.importorskip("trl" if method == TRL_RLOO else "corollout.hf")
    pytest.importorskip("datasets")
    update = measure(QUICK.base._replace(method=method), 2)
    assert len(update.seconds) == 2
    assert min(update.seconds) > 0
    assert update.peak > 10_000_000
    assert update.mean_length <= QUICK.base.max_completion_length
