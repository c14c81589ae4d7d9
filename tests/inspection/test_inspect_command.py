"""``corollout inspect`` as a person meets it: for programs and for captions."""

import json
from base64 import b64decode
from copy import copy
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from corollout.errors import InputError
from corollout.inspection.credit import Inspection, inspect_run
from corollout.inspection.page import inspection_page
from corollout.inspection.settings import InspectSettings
from corollout.reports.tables import reward_text
from corollout.tasks.captioning.view import CaptionView
from corollout.tasks.karel.view import KarelView
from corollout.training.credit import Branch
from tests.support.commands import output, refusal
from tests.support.image_files import noise
from tests.support.pages import Page

Moved = tuple[Inspection, list[object]]  # and the arguments of the command that shows it


def first_moved(run: Path, weights: str, **options: object) -> Moved:
    """An estimate with a gradient and some branches."""
    for seed in range(20):
        settings = InspectSettings(run, weights=weights, seed=seed, **options)  # pyright: ignore[reportArgumentType]
        found = inspect_run(settings)
        if found.norm > 0 and found.cost.rollouts > 5 and found.totals["steps"] > 4:
            example = ["--split", settings.split, "--index", settings.index, "--weights", weights]
            return found, ["inspect", run, *example, "--seed", seed, "--estimator", found.estimator]
    pytest.fail("no estimate has a gradient")


@pytest.fixture(scope="module")
def program(karel_run: Path) -> Moved:
    return first_moved(karel_run, "last", split="train", index=1, estimator="arsm")


@pytest.fixture(scope="module")
def caption(caption_run: Path) -> Moved:
    return first_moved(caption_run, "best", index=1, estimator="ars-6")


@pytest.fixture(params=["program", "caption"])
def moved(request: pytest.FixtureRequest) -> Moved:
    return request.getfixturevalue(request.param)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def branches_of(found: Inspection) -> list[Branch]:
    return [branch for step in found.mains[0].steps for branch in step.branches]


def caption_view(found: Inspection) -> CaptionView:
    assert isinstance(found.view, CaptionView)
    return found.view


def test_json_is_the_whole_inspection(moved: Moved, tmp_path: Path, caption_run: Path):
    found, arguments = moved
    shown = json.loads(output(*arguments, "--json", "--html", tmp_path / "page.html"))
    assert (tmp_path / "page.html").exists()
    assert shown == json.loads(json.dumps(found.to_json()))
    assert shown[found.view.example_noun] == found.view.index
    (main,) = shown["mains"]
    assert main["tokens"] == [step["token"] for step in main["steps"]]
    assert sum(step["gradient_norm"] == 0 for step in main["steps"]) == shown["totals"]["zero_steps"]
    branches = [branch for step in main["steps"] for branch in step["branches"]]
    assert len(branches) == shown["totals"]["rollouts"] == found.cost.rollouts
    assert [branch["reward"] for branch in branches] == [branch.reward for branch in branches_of(found)]
    for number, step in enumerate(main["steps"]):
        for branch in step["branches"]:
            assert branch["tokens"][: number + 1] == [*main["tokens"][:number], branch["token"]]
    if isinstance(view := found.view, CaptionView):
        assert (shown["split"], shown["image"], shown["name"]) == ("val", 1, "val-1.png")
        assert shown["photo"] == str(caption_run.parent / "photos" / "val-1.png")
        assert shown["references"] == view.references


def test_the_text_shows_every_step_and_branch(moved: Moved):
    found, arguments = moved
    text = squeezed(output(*arguments, "--branches", 0))
    (main,) = found.mains
    tokens, noun = found.view.tokens, found.view.output_noun
    assert f"main {noun} reward {reward_text(main.reward)} " in text
    for number, (step, name) in enumerate(zip(main.steps, tokens(main.sequence), strict=True)):
        assert f"{number} {name} p {step.probability:.3f} ‖g‖ {step.norm:.2g}" in text
        for branch in step.branches:
            first, *rest = tokens(branch.sequence[number:])
            # A caption is a whole sentence, a program continues from its branch.
            after = " ".join(tokens(branch.sequence) if found.view.is_prose else ["…", *rest])
            assert squeezed(f"{first} {reward_text(branch.reward)} ‖C‖ {branch.norm:.2g} {after}") in text
    totals = found.totals
    assert text.count("‖C‖") == totals["rollouts"]
    assert f"rollouts {totals['rollouts']}, {totals['rollouts_per_step']:.2f} per step" in text
    assert f"exactly zero at {totals['zero_steps']} of {totals['steps']} steps" in text
    assert f"{totals['reward_calls']} different {noun}s scored" in text
    if isinstance(found.view, CaptionView):
        assert " ".join(tokens(main.sequence)) in text
        assert all(reference in text for reference in found.view.references)


def test_few_branches_are_those_that_count_most(program: Moved):
    found, arguments = program
    text = squeezed(output(*arguments, "--most", 1))
    steps = [step for step in found.mains[0].steps if step.branches]
    assert text.count("‖C‖") == len(steps)
    for step in steps:
        assert f"‖C‖ {max(branch.norm for branch in step.branches):.2g} …" in text
        if len(step.branches) > 1:
            assert f"{len(step.branches) - 1} more" in text


@pytest.mark.parametrize("estimator", ["ars-5", "mc-2", "sc-2", "rloo-8", "reinforce", "rl_beam-3", "set-3", "pairs"])
def test_every_estimator_is_shown(estimator: str, karel_run: Path, program: Moved, tmp_path: Path):
    moved, arguments = program
    path = tmp_path / "page.html"
    text = squeezed(output(*arguments[:-1], estimator, "--branches", 0, "--html", path))
    found = inspect_run(InspectSettings(karel_run, "train", moved.view.index, estimator, moved.seed, "last"))
    assert text.count("‖C‖") == found.cost.rollouts
    for main in found.mains if found.is_flat else ():
        assert main.advantage is not None
        assert f"{main.reward:g} {main.advantage:+.3g} {main.weight:.3g} {main.norm:.3g}" in text
        assert " ".join(found.view.tokens(main.sequence)) in text
    assert found.note in text
    assert Page(path).count("ol", "trunk") == (0 if found.is_flat else len(found.mains))


def test_the_page_has_all_branches_in_one_file(moved: Moved, tmp_path: Path, caption_run: Path):
    found, arguments = moved
    path = tmp_path / "page.html"
    assert f"Page: {path}" in output(*arguments, "--html", path)
    page, source = Page(path), path.read_text("utf-8")
    assert "url(" not in source
    (main,), branches = found.mains, branches_of(found)
    tones = [found.tone(main), *(found.tone(main, branch) for branch in branches)]
    assert page.count("span", "reward") == len(branches) + 1
    for tone in ("good", "bad", "even"):
        assert page.count("span", tone) == tones.count(tone)
    assert page.count("span", "taken") == found.cost.rollouts
    assert page.count("li", "moved") == found.totals["steps"] - found.totals["zero_steps"]
    if isinstance(found.view, KarelView):
        worlds = [world for pair in found.view.worlds for world in pair]
        assert page.count("svg", "world") == len(worlds)
        markers = sum(len(world.markers) for world in worlds)
        assert page.count("circle", "marker") + page.count("rect", "marker") == markers
        assert page.count("rect", "wall") == sum(len(world.walls) for world in worlds)
        assert "&lt;/s&gt;" in source
        assert "://" not in source
        return
    text, tokens = squeezed(page.text), found.view.tokens
    for said in (" ".join(tokens(main.sequence)), *caption_view(found).references, "val-1.png", "reward, cider-d"):
        assert said in text
    assert "program" not in text
    for branch in branches:
        # Reward and sentence are beside each other, whatever the style puts between them.
        assert "".join([reward_text(branch.reward), *tokens(branch.sequence)]) in text.replace(" ", "")
    # The small picture is there as it is, pixel for pixel.
    (picture,) = page.images
    assert np.array_equal(pixels(picture), np.asarray(Image.open(caption_run.parent / "photos" / "val-1.png")))


def pixels(data: str) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(b64decode(data.partition(",")[2]))))


def page_with_photo(found: Inspection, photo: Path | None, folder: Path) -> Page:
    view = copy(caption_view(found))
    view.photo, view.name = photo, '<"a & b">.jpg'
    shown = replace(found, view=view)
    assert shown.to_json()["photo"] == (None if photo is None else str(photo))
    (folder / "page.html").write_text(inspection_page(shown, {}), "utf-8")
    page = Page(folder / "page.html")
    assert '<"a & b">.jpg' in page.text
    return page


def test_photos_large_missing_and_damaged(caption: Moved, tmp_path: Path):
    wide, exif = Image.fromarray(noise(0, 300, 1500)).resize((1500, 300)), Image.Exif()
    exif[0x0112] = 6  # on its side: it is turned upright, and made smaller
    wide.save(tmp_path / "a.jpg", exif=exif)
    (picture,) = page_with_photo(caption[0], tmp_path / "a.jpg", tmp_path).images
    assert picture.startswith("data:image/jpeg;base64,")
    assert pixels(picture).shape == (560, 112, 3)
    assert page_with_photo(caption[0], None, tmp_path).images == []
    (tmp_path / "a.jpg").write_text("no image")
    with pytest.raises(InputError, match=r"a\.jpg"):
        page_with_photo(caption[0], tmp_path / "a.jpg", tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--task", "3"], "only the tasks 0 to 2, not 3"),
        (["--index", "-1"], "not -1"),
        (["--estimator", "magic"], "'magic'"),
        (["--estimator", "arm"], "V must be 2"),
        (["--estimator", "rloo-1"], "RLOO needs samples ≥ 2, not 1"),
        (["--split", "exam"], "'exam'"),
        (["--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--html", "nowhere/page.html"], "cannot write nowhere/page.html"),
    ],
)
def test_bad_input_is_a_sentence(given: list[str], said: str, karel_run: Path):
    assert said in refusal("inspect", karel_run, *given)
