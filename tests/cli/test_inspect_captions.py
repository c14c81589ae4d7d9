"""``corollout inspect`` for captions, as a person meets it."""

import json
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from corollout.cli.inspect import record
from corollout.cli.main import cli
from corollout.errors import InputError
from corollout.inspection.credit import Inspection, inspect_run
from corollout.inspection.page import inspection_page
from corollout.tasks.views import CaptionSubject
from tests.support.image_files import noise
from tests.support.pages import Page
from tests.support.small_captions import small_run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory)


@pytest.fixture(scope="module")
def moved(directory: Path) -> Inspection:
    """An estimate with a gradient, of a caption with some words."""
    for seed in range(20):
        found = inspect_run(directory, number=1, estimator="ars-6", seed=seed)
        if found.norm > 0 and found.cost.rollouts > 5 and found.steps > 4:
            return found
    pytest.fail("no image has a gradient")


def run(directory: Path, *arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["inspect", str(directory), *map(str, arguments)])


def options(found: Inspection) -> list[object]:
    return ["--number", found.number, "--seed", found.seed, "--estimator", found.estimator]


def subject(found: Inspection) -> CaptionSubject:
    assert isinstance(found.subject, CaptionSubject)
    return found.subject


def shown_reward(reward: float) -> str:
    return f"{reward:.0f}" if reward == round(reward) else f"{reward:.3f}"


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_json_is_the_whole_inspection(directory: Path, moved: Inspection):
    result = run(directory, *options(moved), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads(json.dumps(record(moved)))
    assert (found["split"], found["image"], found["name"]) == ("val", 1, "val-1.png")
    assert found["photo"] == str(directory.parent / "photos" / "val-1.png")
    assert found["references"] == subject(moved).references
    (main,) = found["mains"]
    assert main["tokens"] == [step["token"] for step in main["steps"]]
    branches = [branch for step in main["steps"] for branch in step["branches"]]
    assert len(branches) == found["totals"]["rollouts"] == moved.cost.rollouts
    for number, step in enumerate(main["steps"]):
        for branch in step["branches"]:
            assert branch["tokens"][: number + 1] == [*main["tokens"][:number], branch["token"]]


def test_the_text_shows_every_step_and_the_whole_sentence_of_every_branch(directory: Path, moved: Inspection):
    result = run(directory, *options(moved), "--most", 0)
    assert result.exit_code == 0, result.output
    text = squeezed(result.stdout)
    (main,) = moved.mains
    words = subject(moved).words
    assert f"main caption reward {shown_reward(main.reward)} " in text
    assert " ".join(words(main.sequence)) in text
    for number, (step, name) in enumerate(zip(main.steps, words(main.sequence), strict=True)):
        assert f"{number} {name} p {step.probability:.3f} ‖g‖ {step.norm:.2g}" in text
        for branch in step.branches:
            (taken,) = words([branch.token])
            sentence = " ".join(words(branch.sequence))
            assert f"{taken} {shown_reward(branch.reward)} ‖C‖ {branch.norm:.2g} {sentence}" in text
    assert text.count("‖C‖") == moved.cost.rollouts
    for reference in subject(moved).references:
        assert reference in text
    assert f"{directory.parent / 'photos' / 'val-1.png'}" in text
    assert f"{moved.cost.reward_calls} different captions judged" in text


@pytest.mark.parametrize("estimator", ["sc-2", "rloo-4"])
def test_other_estimators_are_shown(estimator: str, directory: Path, moved: Inspection, tmp_path: Path):
    place = ["--number", moved.number, "--seed", moved.seed, "--estimator", estimator]
    result = run(directory, *place, "--html", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    found = inspect_run(directory, number=moved.number, seed=moved.seed, estimator=estimator)
    text = squeezed(result.stdout)
    for main in found.mains:
        assert " ".join(subject(found).words(main.sequence)) in text
        if found.is_flat:
            assert f"{shown_reward(main.reward)} {main.advantage:+.3g} {main.weight:.3g} {main.norm:.3g}" in text
    page = Page(tmp_path / "page.html")
    assert page.count("ol", "trunk") == (0 if found.is_flat else 2)
    assert page.count("ol", "samples") == int(found.is_flat)


def test_the_page_has_the_image_its_captions_and_all_branches(directory: Path, moved: Inspection, tmp_path: Path):
    path = tmp_path / "page.html"
    result = run(directory, *options(moved), "--html", path)
    assert result.exit_code == 0, result.output
    page = Page(path)
    (main,) = moved.mains
    tones = [moved.tone(main), *(moved.tone(main, branch) for step in main.steps for branch in step.branches)]
    assert page.count("span", "reward") == moved.cost.rollouts + 1
    for tone in ("good", "bad", "even"):
        assert page.count("span", tone) == tones.count(tone)
    assert page.count("span", "taken") == moved.cost.rollouts
    assert page.count("li", "moved") == moved.steps - moved.zero_steps
    text = squeezed(page.text)
    words = subject(moved).words
    assert " ".join(words(main.sequence)) in text
    for branch in (branch for step in main.steps for branch in step.branches):
        # Reward and sentence are beside each other, whatever the style puts between them.
        assert "".join([shown_reward(branch.reward), *words(branch.sequence)]) in text.replace(" ", "")
    for said in (*subject(moved).references, "val-1.png", "captioning, val image 1", "reward, cider-d"):
        assert said in text
    assert "program" not in text
    # The small picture is there as it is, pixel for pixel.
    (picture,) = page.images
    assert np.array_equal(pixels(picture), np.asarray(Image.open(directory.parent / "photos" / "val-1.png")))
    assert "url(" not in path.read_text("utf-8")


def pixels(data: str) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(b64decode(data.partition(",")[2]))))


def with_photo(found: Inspection, photo: Path | None) -> Inspection:
    return replace(found, subject=replace(subject(found), photo=photo, name='<"a & b">.jpg'))


def test_a_large_photo_is_made_smaller_and_stands_upright(moved: Inspection, tmp_path: Path):
    wide = Image.fromarray(noise(0, 300, 1500)).resize((1500, 300))
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    wide.save(tmp_path / "a.jpg", exif=exif)
    (tmp_path / "page.html").write_text(inspection_page(with_photo(moved, tmp_path / "a.jpg"), {}), "utf-8")
    page = Page(tmp_path / "page.html")
    (picture,) = page.images
    assert picture.startswith("data:image/jpeg;base64,")
    assert pixels(picture).shape == (560, 112, 3)
    assert '<"a & b">.jpg' in page.text


def test_without_a_photo_there_is_none_in_the_page(moved: Inspection, tmp_path: Path):
    (tmp_path / "page.html").write_text(inspection_page(with_photo(moved, None), {}), "utf-8")
    page = Page(tmp_path / "page.html")
    assert page.images == []
    assert '<"a & b">.jpg' in page.text
    assert record(with_photo(moved, None))["photo"] is None


def test_a_photo_that_cannot_be_read_is_a_sentence(moved: Inspection, tmp_path: Path):
    (tmp_path / "a.jpg").write_text("no image")
    with pytest.raises(InputError, match=r"cannot read the image .*a\.jpg: it is no image"):
        inspection_page(with_photo(moved, tmp_path / "a.jpg"), {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--number", "4"], "the split val has only the images 0 to 3, not 4"),
        (["--task", "-1"], "not -1"),
        (["--split", "exam"], "has no split 'exam'"),
        (["--estimator", "magic"], "there is no estimator 'magic'"),
        (["--html", "nowhere/page.html"], "cannot write nowhere/page.html"),
    ],
)
def test_bad_input_is_a_sentence(given: list[str], said: str, directory: Path):
    result = run(directory, *given)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)
    assert result.stdout == ""
