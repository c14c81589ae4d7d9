"""Reports of runs that were made in Python, without a task: curves, samples and a verdict."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.reports.comparison import compare, comparison_report, group_runs
from corollout.reports.run_results import SplitScore
from corollout.reports.sample_records import read_samples
from corollout.reports.verdict import Verdict, decide
from corollout.tasks.captioning.metrics import CIDER
from corollout.training import Run, Schedule, fit
from tests.support.pages import Page
from tests.support.small_task import make_mle_trainer, make_trainer
from tests.support.synthetic_runs import make_run

FOREIGN = "<b>&\u202e"


def own_run(
    directory: Path, config: dict[str, Any], estimator: str = "arsm", score: float = 0.5, half: float | None = None
) -> Path:
    """A run whose score goes up, with an interval of this half width."""
    trainer = make_trainer(estimator, samples_every=3, decode=lambda ids: "".join(FOREIGN + str(i) for i in ids))

    def evaluate() -> dict[str, float]:
        value = score * (1 + trainer.updates)
        ends = {} if half is None else {"reward_low": value - half, "reward_high": value + half}
        return {"reward": value, **ends}

    with Run.create(directory, config) as run:
        fit(trainer, run, Schedule("updates", 6, 2), evaluate, "reward")
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("own")
    without = own_run(folder / "a", {}, half=0.1)
    (without / "config.toml").write_text('about = "anything"\n')  # nothing of its training, which `fit` keeps
    return [
        without,
        own_run(folder / "b", {"training": {"estimator": "rloo-2", "seed": 4}}, "rloo-2", 0.51, half=0.1),
        own_run(folder / "c", {"about": "anything"}, "rloo-2", 0.1, half=0.1),
    ]


def test_a_report_of_runs_without_a_task(runs: list[Path], tmp_path: Path):
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["a", "RLOO-2", "RLOO-2, about anything"]
    page = comparison_report(groups, tmp_path / "r", "updates").write(tmp_path / "r")
    read = Page(page)
    titles = ["Validation reward", "Mean reward of samples", "Entropy (nats per token)", "Length (tokens)"]
    titles += ["Gradient norm", "Gradient variance (log₁₀)", "Rollouts per step"]
    places = [read.text.index(title) for title in titles]
    assert places == sorted(places)
    assert read.count("figure", "plot") == len(titles)
    assert "RLOO-2 has the highest reward, 3.5700 (95 % interval 3.470–3.670). a is tied with it" in read.text
    for part in ("Samples of a", "Samples of RLOO-2", "Before: update 1", "After: update 6", "Best of all samples"):
        assert part in read.text
    assert "branches" in read.text
    assert read.count("span", "raised") > 0
    assert read.count("span", "lowered") > 0
    assert read.count("b", "") == 0  # text of a decoder stays text
    assert [one["label"] for one in json.loads(read.plots[0])["series"]] == ["a", "RLOO-2", "RLOO-2, about anything"]
    assert all(label for label in read.labels)


def test_one_run_says_what_it_gained(runs: list[Path]):
    said = compare(group_runs(runs[:1])).winner()
    assert said.startswith("On the validation examples a reaches a reward of 3.5000 (95 % interval 3.400–3.600), +3")


def test_own_runs_that_cannot_be_compared(runs: list[Path], tmp_path: Path):
    with Run.create(tmp_path / "loss", {}) as run:
        fit(make_mle_trainer(), run, Schedule("updates", 1, 1), lambda: {"accuracy": 1.0}, "accuracy")
    for others, said in (
        ([tmp_path / "loss"], "they were evaluated by 'reward' and 'accuracy'"),
        ([make_run(tmp_path / "karel", "sc")], "one was made without a task, the other is of the task 'karel'"),
    ):
        with pytest.raises(InputError, match=said):
            compare(group_runs([runs[0], *others]))
    with Run.create(tmp_path / "new", {}):
        pass
    with pytest.raises(InputError, match="new has no complete evaluation"):
        compare(group_runs([tmp_path / "new"]))


@pytest.mark.parametrize(
    "change",
    [
        {"contexts": 3},
        {"contexts": [{"sequences": [3]}]},
        {"separator": 1},
        {"contexts": [{"example": 1, "columns": {}, "sequences": [{"tokens": [1], "pieces": []}]}]},
    ],
)
def test_damaged_samples_are_a_sentence(change: dict[str, Any], runs: list[Path], tmp_path: Path):
    (tmp_path / "config.toml").write_text("")
    record = Run.open(runs[0]).samples()[0]
    (tmp_path / "samples.jsonl").write_text(json.dumps({**record, **change}) + "\n")
    with pytest.raises(InputError, match=r"samples\.jsonl, line 1 is damaged"):
        read_samples(Run.open(tmp_path))


def score(*values: float, interval: tuple[float, float] | None = None) -> SplitScore:
    each = np.array(values) if len(values) > 1 else None
    return SplitScore(float(np.mean(values)), None, each, interval=interval)


def test_a_run_whose_last_records_are_lost_is_refused(runs: list[Path], tmp_path: Path):
    short = tmp_path / "short"
    shutil.copytree(runs[0], short)
    metrics = short / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if json.loads(line)["update"] < 5), "utf-8")
    with pytest.raises(InputError, match="ends after update 4 of 6: its last lines are lost"):
        compare(group_runs([short]))


def test_a_verdict_respects_ties():
    """By paired differences where examples are the same, else by intervals, else it is not known."""
    best = [score(1.0, 2.0, 3.0, 4.0)]
    others = {
        "a bit below on every example": [score(0.9, 1.9, 2.95, 3.9)],  # their intervals overlap
        "below on some": [score(0.0, 2.5, 3.0, 3.9)],
        "interval below": [score(1.0, interval=(0.9, 1.1))],
        "interval reaches it": [score(1.0, interval=(0.9, 1.3))],
        "no interval": [score(1.0)],
    }
    verdict = decide("val", {"best": best, **others}, CIDER)
    assert verdict == Verdict("val", "best", ["below on some", "interval reaches it"], ["no interval"])
    # Seeds of a method are averaged over before examples are compared.
    pair = {"x": [score(1.0, 2.0, 3.0), score(1.2, 2.2, 3.2)], "y": [score(1.0, 2.0, 3.05)]}
    assert decide("test", pair, CIDER) == Verdict("test", "x", [], [])


def test_sentences_about_ties(tmp_path: Path):
    runs = [make_run(tmp_path / f"{name}", name, end=end) for name, end in (("sc", 0.3), ("arsm", 0.9))]
    assert compare(group_runs(runs)).winner().endswith("It is above the other beyond the noise.")
    more = [make_run(tmp_path / name, name, end=0.9, seed=seed) for seed, name in ((1, "rloo-8"), (2, "mc-2"))]
    assert "are tied with it: the difference is within the noise." in compare(group_runs([*runs, *more])).winner()
