"""Prepared data sets have everything that was read, image by image, and damage is noticed."""

import errno
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.events import Event
from corollout.files import file_digest
from corollout.tasks.captioning import preparation
from corollout.tasks.captioning.captions import Captions
from corollout.tasks.captioning.dataset import CaptionData, TargetColumn
from corollout.tasks.captioning.neighbours import consensus, nearest
from corollout.tasks.captioning.preparation import image_ids, prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.settings import PreparationSettings
from corollout.tasks.captioning.tokenizer import tokenize
from corollout.text_metrics import Cider, DocumentFrequencies, References
from tests.support.caption_files import flickr, karpathy, listen, numbers, sentences, table
from tests.support.errors import refused

SPLITS = {"train": 6, "restval": 3, "val": 4, "test": 2}
SETTINGS = PreparationSettings(more_than=2, longest=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CaptionData:
    folder = tmp_path_factory.mktemp("captions")
    names = karpathy(folder / "dataset.json", SPLITS)
    features = table([str(100 + number) for number in reversed(range(len(names)))])
    facts = {"why": "a test"}
    return prepare(read_captions(folder / "dataset.json"), features, folder / "out", SETTINGS, facts=facts)


def small(folder: Path, train: int = 5, **others: int) -> tuple[list[str], Captions]:
    names = karpathy(folder / "k.json", {"train": train, **others})
    return names, read_captions(folder / "k.json")


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


def test_words_of_all_captions_may_be_counted(tmp_path: Path):
    """As the paper's authors count them."""
    names, read = small(tmp_path, 3, val=8, test=4)
    vocabularies = []
    for choice, images in (("train", range(3)), ("all", range(15))):
        settings = replace(SETTINGS, count_words=choice)
        data = prepare(read, table(names), tmp_path / choice, settings)
        counts = Counter(word for number in images for text in sentences(number) for word in tokenize(text))
        frequent = sorted((word for word in counts if counts[word] > 2), key=lambda word: (-counts[word], word))
        assert data.vocabulary.words[1 : data.vocabulary.size - 1] == tuple(frequent)
        assert data.meta["count_words"] == choice
        vocabularies.append(set(frequent))
    assert vocabularies[0] < vocabularies[1]


def test_a_column_has_every_caption(made: CaptionData):
    for split in (made.split("train"), made.split("val").first(2)):
        flat = [label for labels in split.labels for label in labels]
        assert split.caption_count == len(flat) == 5 * len(split)
        assert list(TargetColumn(split)) == flat
        assert split.image_of_caption.tolist() == [image for image in range(len(split)) for _ in range(5)]


def test_facts_about_it(made: CaptionData):
    references = made.split("train").references
    assert (len(references), references[-1]) == (9, list(references)[8])
    with pytest.raises(IndexError):
        references[9]
    assert (made.width, made.longest, made.photos) == (6, 4, None)
    assert (made.splits, made.meta["made"]) == ({"train": 9, "val": 4, "test": 2}, {"why": "a test"})
    made.verify()
    assert made.split("train").photo(0) is None
    for name in ("train", "val", "test"):
        split = made.split(name)
        assert np.array_equal(split.ids, image_ids(list(split.names)))
        torch.from_numpy(split.ids)  # without a warning
    refused(r"has no split 'dev'; it has train, val, test", made.split, "dev")
    refused("the split 'val' has 4 images, not 5", made.split("val").first, 5)
    refused("the split 'val' has 4 images, not an image 4", made.split("val").features, np.array([0, 4]))


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_are_copied_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, dtype: type):
    monkeypatch.setattr(preparation, "_BLOCK", block)
    names = karpathy(tmp_path / "k.json", {"val": 3, "train": 6})
    order = np.random.default_rng(0).permutation(9)
    rows = numbers(9, 3, dtype)
    events: list[Event] = []
    source = table([names[image] for image in order], rows)
    data = prepare(read_captions(tmp_path / "k.json"), source, tmp_path / "out", SETTINGS, on_event=events.append)
    assert data.vectors.dtype == dtype
    expected = np.empty_like(rows)
    expected[order] = rows
    assert np.array_equal(data.vectors, np.concatenate([expected[3:], expected[:3]]))
    assert data.split("val").features(np.arange(3)).dtype == np.float32
    assert [event.record["done"] for event in events] == [min(9, done) for done in range(block, 9 + block, block)]
    data.verify()


def test_images_are_held_out(tmp_path: Path):
    names, read = small(tmp_path, 20, val=5)
    features = table(names)

    def held(seed: int, count: int = 4) -> CaptionData:
        settings = PreparationSettings(more_than=0, hold_out=count, data_seed=seed)
        return prepare(read, features, tmp_path / f"{seed}-{count}", settings)

    data = held(0)
    train, val, test = (list(data.split(name).names) for name in ("train", "val", "test"))
    assert (len(val), test, sorted([*train, *val])) == (4, names[20:], names[:20])
    assert val == sorted(val)  # in the order of the file
    assert set(val) < set(held(0, 6).split("val").names)
    assert val != held(1).split("val").names
    # Words of images that are held out are not learned.
    learned = {token for labels in data.split("train").labels for label in labels for token in label}
    assert learned == set(range(1, data.vocabulary.size - 1))
    refused("--hold-out 20: there are only 20 training images", held, 0, 20)
    for splits, message in [(SPLITS, "there are already 2 test images"), ({"train": 9}, "there are no val images")]:
        names = karpathy(tmp_path / "k.json", splits)
        settings = PreparationSettings(more_than=0, hold_out=2)
        refused(message, prepare, read_captions(tmp_path / "k.json"), table(names), tmp_path / "x", settings)


def test_images_without_captions_are_left_out(tmp_path: Path):
    names = [f"{letter}.jpg" for letter in "abcdef"]
    flickr(tmp_path / "token.txt", names[:4])
    (tmp_path / "train.txt").write_text("a.jpg\nb.jpg\ne.jpg\n")
    (tmp_path / "test.txt").write_text("f.jpg\n")
    lists = {split: tmp_path / f"{split}.txt" for split in ("train", "test")}
    warnings: list[str] = []
    read = read_captions(tmp_path / "token.txt", lists)
    data = prepare(read, table(names), tmp_path / "out", SETTINGS, on_event=listen(warnings))
    assert data.splits == {"train": 2}
    assert warnings == [
        f"{tmp_path / 'train.txt'}: skipped 1 images without captions",
        f"{tmp_path / 'test.txt'}: skipped 1 images without captions",
        "skipped 2 images with captions that are in no split",
    ]
    # An image without captions and features is unknown.
    (tmp_path / "test.txt").write_text("f.jpg\ng.jpg\nh.jpg\n")
    read = read_captions(tmp_path / "token.txt", lists)
    with pytest.raises(InputError, match=r"test\.txt, line 2: the image 'g\.jpg' has neither .* nor do 1 others"):
        prepare(read, table(names), tmp_path / "other", SETTINGS)
    warnings.clear()
    prepare(read, table(names), tmp_path / "other", SETTINGS, skip_bad=True, on_event=listen(warnings))
    assert f"{tmp_path / 'test.txt'}: skipped 3 images without captions" in warnings


def test_an_image_whose_captions_are_all_bad_is_left_out(tmp_path: Path):
    names, _ = small(tmp_path)

    def spoil(content: dict[str, Any]) -> None:
        content["images"][2]["sentences"] = [{"tokens": ["."]}]
        content["images"][4]["sentences"] = []

    change_json(tmp_path / "k.json", spoil)
    warnings: list[str] = []
    read = read_captions(tmp_path / "k.json", skip_bad=True)
    data = prepare(read, table(names), tmp_path / "out", SETTINGS, on_event=listen(warnings))
    assert data.names == [names[0], names[1], names[3]]
    assert warnings[0].startswith("skipped 1 bad entries; the first: ")
    assert warnings[1] == f"skipped 2 images without captions; the first: {names[2]!r}"


def test_missing_features(tmp_path: Path):
    names, read = small(tmp_path, val=2)
    with pytest.raises(InputError, match=f"no features for 2 of 7 images; the first: '{names[1]}'"):
        prepare(read, table([names[0], *names[2:6]]), tmp_path / "out", SETTINGS)
    warnings: list[str] = []
    features = table([names[0], *names[2:6]])
    data = prepare(read, features, tmp_path / "out", SETTINGS, skip_bad=True, on_event=listen(warnings))
    assert data.splits == {"train": 4, "val": 1}
    assert warnings == [f"skipped for lack of features: 2 of 7 images; the first: {names[1]!r}"]
    refused("no training image has both", prepare, read, table(names[5:]), tmp_path / "x", SETTINGS, skip_bad=True)
    flickr(tmp_path / "t.txt", ["a.jpg", "a.png", "b.jpg"])
    with pytest.raises(InputError, match=r"'a\.png' and another image match the same features"):
        prepare(read_captions(splits={"train": tmp_path / "t.txt"}), table(["a", "b"]), tmp_path / "x", SETTINGS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_no_numbers(tmp_path: Path, value: float):
    (names, read), rows = small(tmp_path), numbers(5)
    rows[3, 2] = value
    refused(f"of '{names[3]}' are not all finite", prepare, read, table(names, rows), tmp_path / "out", SETTINGS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.json"]


def test_nothing_is_left_of_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names, read = small(tmp_path)

    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(
            InputError,
            match=r"cannot write the folder .*out: the disk is full, and nothing half",
        ):
            prepare(read, table(names), tmp_path / "out", SETTINGS)
    with pytest.raises(InputError, match="no word occurs more than 999 times"):
        prepare(read, table(names), tmp_path / "out", PreparationSettings(more_than=999))
    with pytest.raises(InputError, match=r"the folder of images .*nowhere does not exist"):
        prepare(read, table(names), tmp_path / "out", photos=tmp_path / "nowhere")
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.json"]


def test_photos_are_found(tmp_path: Path):
    names, read = small(tmp_path, 3)
    photos = tmp_path / "photos"
    (photos / "val2014").mkdir(parents=True)
    (photos / names[0]).write_bytes(b"")
    (photos / "val2014" / names[1]).write_bytes(b"")
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


def change_meta(**changes: object) -> Callable[[Path], None]:
    return lambda out: change_json(out / "meta.json", lambda meta: meta.update(changes))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no meta": (lambda out: (out / "meta.json").unlink(), "is not a prepared data set of captions"),
    "no JSON": (lambda out: (out / "meta.json").write_text("{"), "not valid JSON"),
    "no object": (lambda out: (out / "meta.json").write_text("[]"), "another format"),
    "other version": (change_meta(version=0), r"another format \('captions', version 0, not 'captions', version 1\)"),
    "other kind": (change_meta(kind="x"), "another format"),
    "changed words": (lambda out: flip(out / "vocabulary.txt"), r"vocabulary\.txt has changed"),
    "changed tokens": (lambda out: flip(out / "tokens.npy"), r"tokens\.npy has changed"),
    "missing array": (
        lambda out: (out / "images.npy").unlink(),
        r"cannot read .*images\.npy: No such file or directory",
    ),
    "missing features": (lambda out: (out / "features.npy").unlink(), "No such file"),
    "features cut short": (lambda out: os.truncate(out / "features.npy", 400), "is damaged"),
    "no splits": (change_meta(splits=[]), "no valid splits"),
    "splits of text": (change_meta(splits={"train": "12"}), "no valid splits"),
    "negative split": (change_meta(splits={"train": 20, "val": -5}), "no valid splits"),
    "longest of text": (change_meta(longest="16"), "no valid splits or longest"),
    "no digests": (change_meta(digests=None), "no valid digests"),
    "features as a list": (change_meta(features=[1]), "no valid features"),
    "photos as a number": (change_meta(photos=7), "no valid photos"),
    "made by a list": (change_meta(made=[]), "no valid made"),
    "other features": (lambda out: np.save(out / "features.npy", numbers(15, 5)), "the shape of features"),
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
    assert str(copy) in refused(message, CaptionData.open, copy)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ids", lambda ids: np.zeros_like(ids), "the same id"),
        ("ids", lambda ids: ids[1:], "have different lengths"),
        ("tokens", lambda tokens: tokens + 10_000, "a word is not in the vocabulary"),
        ("tokens", lambda tokens: tokens * 0, "a word is not in the vocabulary"),
        ("captions", lambda bounds: bounds[::-1].copy(), "bounds of the captions"),
        ("captions", lambda bounds: np.append(bounds[:-1], bounds[-1] + 5), "bounds of the captions"),
        ("images", lambda bounds: np.full_like(bounds, 3), "bounds of the images"),
        ("images", lambda bounds: bounds[:0], "bounds of the images"),
        ("images", lambda bounds: bounds.astype(np.float64), "expected an array of int64"),
        ("tokens", lambda tokens: tokens.astype(np.int64), "expected an array of int32"),
        ("ids", lambda ids: ids.astype(object), "header cannot be read"),
        ("features", np.asfortranarray, "row-major"),
        ("features", lambda rows: rows * np.nan, "non-finite features"),
    ],
)
def test_parts_that_do_not_belong_together_are_noticed(
    copy: Path, name: str, change: Callable[[np.ndarray], np.ndarray], message: str
):
    """Even if the digests fit."""
    path = copy / f"{name}.npy"
    np.save(path, change(np.load(path)))
    fitting = {"digest": file_digest(path)} if name == "features" else {path.name: file_digest(path)}
    change_json(copy / "meta.json", lambda meta: meta["features" if name == "features" else "digests"].update(fitting))
    with pytest.raises(InputError, match=f"is damaged: .*{message}"):
        CaptionData.open(copy).verify()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> CaptionData:
    folder = tmp_path_factory.mktemp("neighbours")
    names, read = small(folder, 12, val=3)
    features = np.random.default_rng(0).normal(size=(len(names), 6)).astype(np.float32)
    return prepare(read, table(names, features), folder / "out", PreparationSettings(more_than=0))


def test_the_nearest_have_the_largest_cosines(images: CaptionData):
    train, val = images.split("train"), images.split("val")
    found = nearest(train, val, 4)
    known, asked = train.features(np.arange(12)), val.features(np.arange(3))
    for image, row in enumerate(found.tolist()):
        cosines = known @ asked[image] / np.linalg.norm(known, axis=1)
        assert row == sorted(range(12), key=lambda i: -cosines[i])[:4]


def test_the_consensus_agrees_best_with_all_candidates(images: CaptionData):
    train, val = images.split("train"), images.split("val")
    frequencies = DocumentFrequencies.of(References(train.references))
    for image, chosen in enumerate(consensus(train, val, 3)):
        candidates = [c for i in nearest(train, val, 3)[image].tolist() for c in train.references[i]]
        one = Cider(References([candidates]), frequencies)
        scores = [float(one.scores([caption], [0])[0]) for caption in candidates]
        assert chosen == candidates[int(np.argmax(scores))]


def test_no_more_neighbours_than_images(images: CaptionData):
    refused("k must be from 1 to 12", nearest, images.split("train"), images.split("val"), 13)
