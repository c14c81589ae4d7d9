"""An estimate for an image taken apart: rewards are CIDEr-D, and the parts add up to the gradient."""

from functools import cache
from pathlib import Path

import pytest
import torch

from corollout.errors import InputError
from corollout.inspection.credit import Inspection, inspect_example, inspect_run
from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.tasks.captioning.task import CaptionTask
from corollout.tasks.captioning.vocabulary import END
from corollout.tasks.views import CaptionSubject
from corollout.training import estimate
from corollout.training import start as jobs
from tests.support.small_captions import small_run
from tests.support.text_metrics import plain_cider, plain_frequencies

PLACES = [("train", 3, 0), ("val", 1, 0), ("test", 2, 1)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def opened(run: Path) -> tuple[CaptionTask, Engine]:
    task, engine = jobs.open_run(run)
    assert isinstance(task, CaptionTask)
    return task, engine


@cache
def inspections(opened: tuple[CaptionTask, Engine], estimator: str) -> list[Inspection]:
    return [inspect_example(*opened, split, number, estimator, seed=seed) for split, number, seed in PLACES]


@pytest.mark.parametrize("estimator", ["ars-4", "arsm", "mc-2", "rloo-4"])
def test_rewards_are_cider_with_the_end_for_a_word_and_the_frequencies_of_training(
    estimator: str, opened: tuple[CaptionTask, Engine]
):
    task = opened[0]
    taught = [[[*label, END] for label in labels] for labels in task.train.data.labels]
    frequencies = plain_frequencies(taught)
    values = set()
    for found in inspections(opened, estimator):
        group = [[*label, END] for label in task.split(found.split).data.labels[found.number]]
        branches = [branch for main in found.mains for step in main.steps for branch in step.branches]
        for one in (*found.mains, *branches):
            # The end token is part of a sequence that ended, and not of one that was cut.
            expected = plain_cider(one.sequence, group, frequencies, len(taught))
            assert one.reward == pytest.approx(expected, abs=1e-6)
            values.add(round(expected, 3))
    assert len(values) > 3, "nothing would be tested"


@pytest.mark.parametrize("estimator", ["ars-4", "arsm"])
def test_coefficients_times_rewards_are_the_gradient(estimator: str, opened: tuple[CaptionTask, Engine]):
    task, engine = opened
    for found, (split, number, seed) in zip(inspections(opened, estimator), PLACES, strict=True):
        images = task.split(split)
        direct = estimate(engine, images.columns.batch([number]), task.reward(split=images), estimator, Noise(seed))
        (main,) = found.mains
        total = torch.zeros(len(main.steps), direct.gradient.shape[2])
        for step in main.steps:
            for branch in step.branches:
                assert branch.norm == pytest.approx(float(branch.coefficients.norm()))
                total += (branch.reward - main.reward) * branch.coefficients
        assert total.any()
        torch.testing.assert_close(total, direct.gradient[0, : len(main.steps)], atol=1e-5, rtol=1e-4)


def test_tones_compare_with_the_main_caption_or_with_the_others(opened: tuple[CaptionTask, Engine]):
    tones = set()
    for found in inspections(opened, "arsm"):
        (main,) = found.mains
        assert found.tone(main) == "even"
        for branch in (branch for step in main.steps for branch in step.branches):
            gap = branch.reward - main.reward
            assert found.tone(main, branch) == ("even" if abs(gap) < 5e-4 else "good" if gap > 0 else "bad")
            tones.add(found.tone(main, branch))
    assert tones == {"good", "bad", "even"}
    for found in inspections(opened, "rloo-4"):
        for main in found.mains:
            others = sum(other.reward for other in found.mains if other is not main) / 3
            gap = main.reward - others
            assert found.tone(main) == ("even" if abs(gap) < 5e-4 else "good" if gap > 0 else "bad")


def test_the_image_is_the_split_s(run: Path, opened: tuple[CaptionTask, Engine]):
    found = inspect_run(run, split="test", number=2)
    images = opened[0].split("test")
    assert (found.id, found.reward, found.estimator) == (int(images.data.ids[2]), "cider-d", "arsm")
    subject = found.subject
    assert isinstance(subject, CaptionSubject)
    assert (subject.name, subject.photo) == ("test-2.png", run.parent / "photos" / "test-2.png")
    assert subject.words([*opened[0].data.vocabulary.encode(["a", "gnu"]), END]) == ["a", "<unk>", "<end>"]
    assert [subject.kind(word) for word in ("a", "<unk>", "<end>")] == ["word", "mark", "mark"]


def test_the_training_reward_is_that_of_the_training_split(opened: tuple[CaptionTask, Engine]):
    task = opened[0]
    sequences = [list(label) for label in (task.train.data.labels[0][0], task.train.data.labels[1][1], [])]
    given = (sequences, [0, 1, 2], {"image": [5, 1, 0]}, [True, False, True])
    assert torch.equal(task.reward()(*given).values, task.reward("cider-d", task.train)(*given).values)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"number": 4}, "the split val has only the images 0 to 3, not 4"),
        ({"split": "exam"}, "has no split 'exam'"),
        ({"estimator": "magic"}, "there is no estimator 'magic'"),
    ],
)
def test_what_cannot_be_inspected(options: dict, said: str, run: Path):
    with pytest.raises(InputError, match=said):
        inspect_run(run, **options)
