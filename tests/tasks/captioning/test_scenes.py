"""Generated scenes are reproducible, truly described, and recognisable by their features."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.scenes import (
    COLOURS,
    SHAPES,
    SIDE,
    WIDTH,
    Scenes,
    draw_scene,
    make_scenes,
    pixel_features,
    render,
)
from corollout.tasks.captioning.settings import PreparationSettings
from corollout.tasks.captioning.wording import Dice, Scene, describe

FEW = {"train": 40, "val": 10, "test": 10}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CaptionData:
    return make_scenes(tmp_path_factory.mktemp("scenes") / "out", FEW, settings=PreparationSettings(more_than=0))


def test_it_is_a_data_set_with_images(made: CaptionData):
    assert (made.splits, made.width) == (FEW, WIDTH)
    made.verify()
    photo = made.folder / "images" / "val-000003.png"
    assert made.split("val").photo(3) == photo
    assert np.array_equal(np.asarray(Image.open(photo)), Scenes(FEW).pictures(np.array([43]))[0])


def test_the_same_seed_makes_the_same_files_which_can_be_moved(made: CaptionData, tmp_path: Path):
    again = make_scenes(tmp_path / "again", FEW, settings=PreparationSettings(more_than=0))
    assert again.meta == made.meta
    one, other = ({file.name: file.read_bytes() for file in (d.folder / "images").iterdir()} for d in (made, again))
    assert (len(one), one) == (60, other)
    again.folder.rename(tmp_path / "moved")
    photo = CaptionData.open(tmp_path / "moved").split("train").photo(0)
    assert photo == tmp_path / "moved" / "images" / "train-000000.png"


def test_a_scene_depends_on_seed_split_and_number_only():
    few, many = Scenes({"train": 3, "val": 2}), Scenes({"train": 7, "val": 5, "test": 4})
    assert [few.scene(place) for place in (0, 2, 3, 4)] == [many.scene(place) for place in (0, 2, 7, 8)]
    assert np.array_equal(few.pictures(np.array([4])), many.pictures(np.array([8])))
    assert np.array_equal(few.rows(np.array([1, 4])), many.rows(np.array([1, 8])))
    assert few.scene(0) != few.scene(3)
    assert few.scene(0) != Scenes({"train": 3, "val": 2}, seed=1).scene(0)


def test_words_and_lengths():
    read = Scenes({"train": 1500}).captions()
    assert 80 <= len(read.words) <= 120
    lengths = np.diff(read.arrays.captions)
    assert (lengths.min(), lengths.max()) == (4, 14)
    assert all(len({tuple(caption) for caption in read.arrays.of(image)}) == 5 for image in range(1500))


def scenes(count: int) -> list[tuple[Scene, list[str]]]:
    drawn = [draw_scene(Dice(key)) for key in range(count)]
    return [(scene, describe(scene, Dice(-1 - key))) for key, scene in enumerate(drawn)]


def test_scenes_are_what_they_should_be():
    drawn = [scene for scene, _ in scenes(600)]
    totals = [sum(group.count for group in scene.groups) for scene in drawn]
    assert set(totals) == {1, 2, 3, 4}
    assert {scene.relation for scene in drawn} == {"", "row", "column", "scattered", "left", "right", "above", "below"}
    for scene in drawn:
        cells = [cell for group in scene.groups for cell in group.cells]
        assert len(set(cells)) == len(cells) == sum(group.count for group in scene.groups)
        assert scene.background not in [group.colour for group in scene.groups]
        rows, columns = ([cell[axis] for cell in cells] for axis in (0, 1))
        if len(scene.groups) == 2:
            sides = {"left": (1, 0, 2), "right": (1, 2, 0), "above": (0, 0, 2), "below": (0, 2, 0)}
            axis, *wanted = sides[scene.relation]
            assert [{cell[axis] for cell in group.cells} for group in scene.groups] == [{side} for side in wanted]
            assert len({(group.shape, group.colour) for group in scene.groups}) == 2
        elif scene.relation:
            in_row, in_column = len(set(rows)) == 1, len(set(columns)) == 1
            assert (in_row, in_column) == (scene.relation == "row", scene.relation == "column")


def test_captions_tell_the_truth():
    """Colours, shapes, sizes and sides that a caption names are in the scene."""
    singular = {shape: shape for shape in SHAPES} | {"ball": "circle", "box": "square", "hoop": "ring"}
    singular |= {f"{noun}s": shape for noun, shape in singular.items()} | {"crosses": "cross", "boxes": "square"}
    synonyms = {"little": "small", "tiny": "small", "large": "big", "huge": "big"}
    synonyms |= {"over": "above", "higher": "above", "under": "below", "lower": "below"}
    opposite = {"left": "right", "right": "left", "above": "below", "below": "above"}
    numbers = {"two": 2, "three": 3, "four": 4, "pair": 2, "few": 3, "several": 4}
    named = 0
    for scene, captions in scenes(300):
        colours = {scene.background} | {group.colour for group in scene.groups}
        shapes, sizes = {group.shape for group in scene.groups}, {group.size for group in scene.groups}
        counts = {group.count for group in scene.groups} | {sum(group.count for group in scene.groups)}
        for caption in captions:
            words = [synonyms.get(word, word) for word in caption.split()]
            assert {word for word in words if word in COLOURS} <= colours
            assert {singular[word] for word in words if word in singular} <= shapes
            assert {word for word in words if word in ("small", "big")} <= sizes
            assert {numbers[word] for word in words if word in numbers} <= counts
            if len(scene.groups) == 2:
                sides = {word for word in words if word in opposite}
                assert sides <= {scene.relation, opposite[scene.relation]}
                first = scene.groups[0]
                told = [place for place, word in enumerate(words) if word in opposite]
                if told and first.colour in words[: told[0]] and scene.groups[1].colour != first.colour:
                    assert words[told[0]] == scene.relation, (caption, scene)
                    named += 1
    assert named > 50


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_inside_their_circle_and_different(name: str):
    def one(shape: str) -> np.ndarray:
        objects = [(0, shape, [32.0, 32.0], 20.0, [200.0] * 3)]
        return render([[0.0] * 3], objects, np.zeros((1, SIDE, SIDE), np.float32))[0, ..., 0].astype(float)

    picture = one(name)
    # On a black ground whose shade is at most 12.
    inside = picture > 100
    across = np.hypot(*(np.mgrid[:SIDE, :SIDE] + 0.5 - 32))
    assert not inside[across > 25].any()
    assert 0.3 < inside.sum() / (np.pi * 20**2) < 1.01
    assert np.array_equal(inside, inside[:, ::-1])
    for other in SHAPES:
        if other != name:
            assert (inside != (one(other) > 100)).sum() > 60


def test_features_are_the_plain_ones():
    pictures = Scenes(FEW).pictures(np.arange(3))
    found = pixel_features(pictures)
    for picture, row in zip(pictures.astype(float) / 255, found, strict=True):
        edges, colours, shares = np.zeros((8, 8, 4)), np.zeros((8, 8, 3)), np.zeros((4, 4, 4))
        for y in range(SIDE):
            for x in range(SIDE):
                colours[y // 8, x // 8] += picture[y, x] / 64
                shares[tuple((picture[y, x] * 255 // 64).astype(int))] += 1 / SIDE**2
                for channel in range(3):
                    right = picture[y, x + 1, channel] - picture[y, x - 1, channel] if 0 < x < SIDE - 1 else 0
                    down = picture[y + 1, x, channel] - picture[y - 1, x, channel] if 0 < y < SIDE - 1 else 0
                    angle = round(np.degrees(np.arctan2(down, right)) / 45) % 4
                    edges[y // 8, x // 8, [0, 2, 1, 3][angle]] += np.hypot(right, down) / 64
        plain = [(colours - 0.5) / 0.3, (edges - 0.04) / 0.05, np.sqrt(shares) / 0.12]
        assert np.allclose(row, np.concatenate([part.reshape(-1) for part in plain]), atol=2e-3)


def test_features_say_what_is_to_be_seen():
    """A linear map of them knows the background, and often the only object's shape, colour and size."""
    made = Scenes({"train": 900})
    rows = made.rows(np.arange(900))
    assert 0.5 < rows.std() < 1.5
    drawn = [made.scene(place) for place in range(900)]
    alone = np.array([len(scene.groups) == 1 for scene in drawn])

    def right(labels: list[str], chosen: np.ndarray) -> float:
        x = np.c_[rows[chosen], np.ones(chosen.sum())]
        kinds, y = np.unique(np.array(labels)[chosen], return_inverse=True)
        cut = int(0.8 * len(y))
        square = x[:cut].T @ x[:cut] + 30 * np.eye(x.shape[1])
        weights = np.linalg.solve(square, x[:cut].T @ np.eye(len(kinds))[y[:cut]])
        return float(((x[cut:] @ weights).argmax(1) == y[cut:]).mean())

    assert right([scene.background for scene in drawn], np.full(900, True)) > 0.95
    assert right([scene.groups[0].shape for scene in drawn], alone) > 0.4
    assert right([scene.groups[0].size for scene in drawn], alone) > 0.7
