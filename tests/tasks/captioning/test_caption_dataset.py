"""Prepared data sets: all that was read is in them, each image with its own, and damage is noticed."""

import errno
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.tasks.captioning import preparation
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.preparation import PreparationSettings, image_ids, prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.text import tokenize
from corollout.tasks.digests import digest
from tests.support.caption_files import flickr, karpathy, numbers, sentences, table

SPLITS = {"train": 6, "restval": 3, "val": 4, "test": 2}
SETTINGS = PreparationSettings(more_than=2, longest=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CaptionData:
    folder = tmp_path_factory.mktemp("captions")
    names = karpathy(folder / "dataset.json", SPLITS)
    features = table([str(100 + number) for number in reversed(range(len(names)))])
    facts = {"why": "a test"}
    return prepare(read_captions(folder / "dataset.json"), features, folder / "out", SETTINGS, facts=facts)


def test_a_data_set_is_what_a_plain_program_makes_of_the_files(made: CaptionData):
    order = {"train": range(9), "val": range(9, 13), "test": range(13, 15)}
    said = {number: [tokenize(text) for text in sentences(number)] for number in range(15)}
    counts = Counter(word for number in order["train"] for caption in said[number] for word in caption)
    frequent = sorted((word for word in counts if counts[word] > 2), key=lambda word: (-counts[word], word))
    assert made.vocabulary.words[1 : made.vocabulary.size - 1] == tuple(frequent)
    everything = {word for captions in said.values() for caption in captions for word in caption}
    assert set(made.vocabulary.words) == {"<end>", "<unk>", *everything}
    rows = numbers(15)[::-1]
    for name, places in order.items():
        split = made.split(name)
        assert split.names == [f"COCO_val2014_{100 + number:012}.jpg" for number in places]
        assert np.array_equal(split.features(np.arange(len(split))), rows[list(places)])
        for image, number in enumerate(places):
            references = [[made.vocabulary.words[token] for token in caption] for caption in split.references[image]]
            assert references == said[number]
            labels = [[word if word in frequent else "<unk>" for word in caption[:4]] for caption in said[number]]
            assert [[made.vocabulary.words[token] for token in caption] for caption in split.labels[image]] == labels


def test_a_split_has_captions_in_two_forms(made: CaptionData):
    for name in ("train", "val", "test"):
        for split in (made.split(name), made.split(name).first(2)):
            flat = [label for labels in split.labels for label in labels]
            assert split.caption_count == len(flat) == 5 * len(split)
            assert [split.label(place) for place in range(len(flat))] == flat
            assert split.image_of_caption.tolist() == [image for image in range(len(split)) for _ in range(5)]
            for place in (-1, len(flat)):
                with pytest.raises(IndexError, match="captions: there is no"):
                    split.label(place)


def test_views_are_sequences(made: CaptionData):
    references = made.split("train").references
    whole = list(references)
    assert len(references) == 9
    assert references[-1] == whole[8]
    assert references[2:7:2] == whole[2:7:2]
    with pytest.raises(IndexError):
        references[9]


def test_facts_about_it(made: CaptionData):
    assert (made.width, made.longest, made.photos) == (6, 4, None)
    assert made.splits == {"train": 9, "val": 4, "test": 2}
    assert made.meta["made"] == {"why": "a test"}
    made.verify()
    assert made.split("train").photo(0) is None
    for name in ("train", "val", "test"):
        split = made.split(name)
        assert np.array_equal(split.ids, image_ids(list(split.names)))
        torch.from_numpy(split.ids)  # without a warning
    with pytest.raises(InputError, match=r"has no split 'dev'; it has train, val, test"):
        made.split("dev")
    with pytest.raises(InputError, match="the split 'val' has 4 images: cannot take the first 5"):
        made.split("val").first(5)
    with pytest.raises(InputError, match="the split 'val' has 4 images: there is no image 4"):
        made.split("val").features(np.array([0, 4]))


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_are_copied_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, dtype: type):
    monkeypatch.setattr(preparation, "_BLOCK", block)
    names = karpathy(tmp_path / "k.json", {"val": 3, "train": 6})
    order = np.random.default_rng(0).permutation(9)
    rows = numbers(9, 3, dtype)
    told: list[tuple[int, int]] = []
    source = table([names[image] for image in order], rows)
    data = prepare(
        read_captions(tmp_path / "k.json"),
        source,
        tmp_path / "out",
        SETTINGS,
        on_progress=lambda *now: told.append(now),
    )
    assert data.vectors.dtype == dtype
    expected = np.empty_like(rows)
    expected[order] = rows
    assert np.array_equal(data.vectors, np.concatenate([expected[3:], expected[:3]]))
    assert data.split("val").features(np.arange(3)).dtype == np.float32
    assert [done for done, _ in told] == [min(9, done) for done in range(block, 9 + block, block)]
    data.verify()


def test_images_are_held_out(tmp_path: Path):
    names = karpathy(tmp_path / "k.json", {"train": 20, "val": 5})
    read, features = read_captions(tmp_path / "k.json"), table(names)

    def held(seed: int, count: int = 4) -> CaptionData:
        settings = PreparationSettings(more_than=0, hold_out=count, data_seed=seed)
        return prepare(read, features, tmp_path / f"{seed}-{count}", settings)

    data, more = held(0), held(0, 6)
    assert data.splits == {"train": 16, "val": 4, "test": 5}
    assert data.split("test").names == names[20:]
    assert sorted([*data.split("train").names, *data.split("val").names]) == names[:20]
    assert set(data.split("val").names) < set(more.split("val").names)
    assert data.split("val").names == sorted(data.split("val").names)  # in the order of the file
    assert set(held(1).split("val").names) != set(data.split("val").names)
    # A word of the images that are held out is not learnt for their sake.
    train = {token for labels in data.split("train").labels for label in labels for token in label}
    assert train == set(range(1, data.vocabulary.size - 1))
    with pytest.raises(InputError, match="--hold-out 20: there are only 20 images to train on"):
        held(0, 20)
    karpathy(tmp_path / "k.json", SPLITS)
    for splits, message in [
        (SPLITS, "there are 2 test images with captions"),
        ({"train": 9}, "there are no val images"),
    ]:
        names = karpathy(tmp_path / "k.json", splits)
        settings = PreparationSettings(more_than=0, hold_out=2)
        with pytest.raises(InputError, match=message):
            prepare(read_captions(tmp_path / "k.json"), table(names), tmp_path / "x", settings)


def test_images_without_captions_are_left_out(tmp_path: Path):
    names = [f"{letter}.jpg" for letter in "abcdef"]
    flickr(tmp_path / "token.txt", names[:4])
    (tmp_path / "train.txt").write_text("a.jpg\nb.jpg\ne.jpg\n")
    (tmp_path / "test.txt").write_text("f.jpg\n")
    lists = {split: tmp_path / f"{split}.txt" for split in ("train", "test")}
    warnings: list[str] = []
    data = prepare(
        read_captions(tmp_path / "token.txt", lists), table(names), tmp_path / "out", SETTINGS, warn=warnings.append
    )
    assert data.splits == {"train": 2}
    assert warnings == [
        f"{tmp_path / 'train.txt'}: left out 1 images that have no captions",
        f"{tmp_path / 'test.txt'}: left out 1 images that have no captions",
        "left out 2 images with captions that are in no split",
    ]
    # With neither captions nor features, nobody knows the image.
    (tmp_path / "test.txt").write_text("f.jpg\ng.jpg\nh.jpg\n")
    read = read_captions(tmp_path / "token.txt", lists)
    with pytest.raises(InputError, match=r"test\.txt, line 2: the image 'g\.jpg' has neither .*, and 1 more have not"):
        prepare(read, table(names), tmp_path / "other", SETTINGS)
    warnings.clear()
    prepare(read, table(names), tmp_path / "other", SETTINGS, skip_bad=True, warn=warnings.append)
    assert f"{tmp_path / 'test.txt'}: left out 3 images that have no captions" in warnings


def test_an_image_whose_captions_are_all_bad_is_left_out(tmp_path: Path):
    names = karpathy(tmp_path / "k.json", {"train": 5})
    table_of = json.loads((tmp_path / "k.json").read_text())
    table_of["images"][2]["sentences"] = [{"tokens": ["."]}]
    table_of["images"][4]["sentences"] = []
    (tmp_path / "k.json").write_text(json.dumps(table_of))
    warnings: list[str] = []
    read = read_captions(tmp_path / "k.json", skip_bad=True)
    data = prepare(read, table(names), tmp_path / "out", SETTINGS, warn=warnings.append)
    assert data.names == [names[0], names[1], names[3]]
    assert warnings[0].startswith("left out 1 bad entries, the first: ")
    assert warnings[1] == f"left out 2 images that have no captions, the first being {names[2]!r}"


def test_missing_features(tmp_path: Path):
    names = karpathy(tmp_path / "k.json", {"train": 5, "val": 2})
    read = read_captions(tmp_path / "k.json")
    with pytest.raises(InputError, match=f"no features for 2 of 7 images, the first being '{names[1]}'"):
        prepare(read, table([names[0], *names[2:6]]), tmp_path / "out", SETTINGS)
    warnings: list[str] = []
    features = table([names[0], *names[2:6]])
    data = prepare(read, features, tmp_path / "out", SETTINGS, skip_bad=True, warn=warnings.append)
    assert data.splits == {"train": 4, "val": 1}
    assert warnings == [f"left out for want of features: 2 of 7 images, the first being {names[1]!r}"]
    with pytest.raises(InputError, match="no image to train on has captions and features"):
        prepare(read, table(names[5:]), tmp_path / "x", SETTINGS, skip_bad=True)


def test_two_images_cannot_share_features(tmp_path: Path):
    flickr(tmp_path / "t.txt", ["a.jpg", "a.png", "b.jpg"])
    with pytest.raises(InputError, match=r"the features of 'a\.png' are also those of another image"):
        prepare(read_captions(splits={"train": tmp_path / "t.txt"}), table(["a", "b"]), tmp_path / "x", SETTINGS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers(tmp_path: Path, value: float):
    names = karpathy(tmp_path / "k.json", {"train": 5})
    rows = numbers(5)
    rows[3, 2] = value
    with pytest.raises(InputError, match=f"the features of '{names[3]}' have entries that are not finite"):
        prepare(read_captions(tmp_path / "k.json"), table(names, rows), tmp_path / "out", SETTINGS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.json"]


def test_nothing_is_left_of_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = karpathy(tmp_path / "k.json", {"train": 5})
    read = read_captions(tmp_path / "k.json")

    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(InputError, match=r"cannot write the folder .*out: No space left on device"):
            prepare(read, table(names), tmp_path / "out", SETTINGS)
    with pytest.raises(InputError, match="no word occurs more than 999 times"):
        prepare(read, table(names), tmp_path / "out", PreparationSettings(more_than=999))
    with pytest.raises(InputError, match=r"there is no folder .*nowhere of images"):
        prepare(read, table(names), tmp_path / "out", photos=tmp_path / "nowhere")
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.json"]


def test_only_an_empty_folder_is_filled(tmp_path: Path):
    names = karpathy(tmp_path / "k.json", {"train": 5})
    read = read_captions(tmp_path / "k.json")
    (tmp_path / "empty").mkdir()
    prepare(read, table(names), tmp_path / "empty", SETTINGS)
    for place, message in [
        ("empty", "is not empty: name a new"),
        ("k.json", "is not empty"),
        ("k.json/x", "cannot use"),
    ]:
        with pytest.raises(InputError, match=message):
            prepare(read, table(names), tmp_path / place, SETTINGS)
    CaptionData.open(tmp_path / "empty").verify()


def test_photos_are_found(tmp_path: Path):
    names = karpathy(tmp_path / "k.json", {"train": 3})
    photos = tmp_path / "photos"
    (photos / "val2014").mkdir(parents=True)
    (photos / names[0]).write_bytes(b"")
    (photos / "val2014" / names[1]).write_bytes(b"")
    read = read_captions(tmp_path / "k.json")
    split = prepare(read, table(names), tmp_path / "out", SETTINGS, photos=photos).split("train")
    assert [split.photo(image) for image in range(3)] == [photos / names[0], photos / "val2014" / names[1], None]


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no meta": (lambda out: (out / "meta.json").unlink(), "is no prepared data set of captions"),
    "no JSON": (lambda out: (out / "meta.json").write_text("{"), "is damaged"),
    "no object": (lambda out: (out / "meta.json").write_text("[]"), "is damaged"),
    "no UTF-8": (lambda out: (out / "meta.json").write_bytes(b"\xff"), "is damaged"),
    "without keys": (lambda out: (out / "meta.json").write_text("{}"), "is damaged"),
    "other version": (
        lambda out: change_json(out / "meta.json", lambda meta: meta.update(version=0)),
        r"for other code \(captions, version 0, not captions, version 1\)",
    ),
    "other kind": (lambda out: change_json(out / "meta.json", lambda meta: meta.update(kind="x")), "for other code"),
    "changed words": (lambda out: flip(out / "vocabulary.txt"), r"vocabulary\.txt is not what was written"),
    "changed tokens": (lambda out: flip(out / "tokens.npy"), r"tokens\.npy is not what was written"),
    "missing array": (lambda out: (out / "images.npy").unlink(), r"No such file or directory \(.*images\.npy\)"),
    "missing features": (lambda out: (out / "features.npy").unlink(), "No such file"),
    "features cut short": (
        lambda out: (out / "features.npy").write_bytes((out / "features.npy").read_bytes()[:-9]),
        "is damaged",
    ),
    "other features": (lambda out: np.save(out / "features.npy", numbers(15, 5)), "is not of the shape"),
}


@pytest.fixture
def copy(made: CaptionData, tmp_path: Path) -> Path:
    for file in made.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_or_foreign_folder_is_said_to_be_so(copy: Path, kind: str):
    CaptionData.open(copy).verify()
    damage, message = DAMAGE[kind]
    damage(copy)
    with pytest.raises(InputError, match=message) as failure:
        CaptionData.open(copy)
    assert str(failure.value).startswith(str(copy))


def test_changed_features_are_noticed_by_a_check(copy: Path):
    flip(copy / "features.npy")
    data = CaptionData.open(copy)
    with pytest.raises(InputError, match=r"features\.npy is not what was written"):
        data.verify()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ids", lambda ids: np.zeros_like(ids), "ids are there twice"),
        ("ids", lambda ids: ids[1:], "of different lengths"),
        ("tokens", lambda tokens: tokens + 10_000, "a word is not in the vocabulary"),
        ("tokens", lambda tokens: tokens * 0, "a word is not in the vocabulary"),
        ("captions", lambda bounds: bounds[::-1].copy(), "the captions do not begin and end"),
        ("images", lambda bounds: np.full_like(bounds, 3), "the images do not begin and end"),
        ("features", lambda rows: rows * np.nan, "features that are no numbers"),
    ],
)
def test_parts_that_do_not_belong_together_are_noticed(
    copy: Path, name: str, change: Callable[[np.ndarray], np.ndarray], message: str
):
    """Even if somebody has made digests that fit."""
    path = copy / f"{name}.npy"
    np.save(path, change(np.load(path)))
    fitting = {"digest": digest(path)} if name == "features" else {path.name: digest(path)}
    change_json(copy / "meta.json", lambda meta: meta["features" if name == "features" else "digests"].update(fitting))
    with pytest.raises(InputError, match=f"is no sound data set: .*{message}"):
        CaptionData.open(copy).verify()
