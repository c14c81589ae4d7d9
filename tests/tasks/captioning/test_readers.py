"""Public files of captions, good and bad."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.tasks.captioning.captions import CaptionArrays, Captions, match
from corollout.tasks.captioning.readers import json_entries, read_captions
from corollout.tasks.captioning.tokenizer import tokenize
from tests.support.caption_files import coco, flickr, karpathy, sentences
from tests.support.errors import refused

LEISURELY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def said(read: Captions) -> dict[str, list[list[str]]]:
    """Everything as plain lists of words."""
    return {
        name: [[read.words[token] for token in caption] for caption in read.arrays.of(place)]
        for place, name in enumerate(read.names)
    }


def expected(number: int) -> list[list[str]]:
    return [tokenize(text) for text in sentences(number)]


def test_karpathy(tmp_path: Path):
    names = karpathy(tmp_path / "dataset.json", {"train": 2, "restval": 1, "val": 1, "test": 2})
    read = read_captions(tmp_path / "dataset.json")
    assert read.splits.tolist() == [0, 0, 0, 1, 2, 2]
    assert read.numbers.tolist() == list(range(100, 106))
    assert said(read) == {name: expected(number) for number, name in enumerate(names)}


def test_raw_sentences_will_do_and_imgid_is_a_number(tmp_path: Path):
    image = {"filename": "a.jpg", "imgid": 7, "split": "train", "sentences": [{"raw": "Two dogs, running!"}]}
    (tmp_path / "a.json").write_text("\N{BYTE ORDER MARK}" + json.dumps({"images": [image]}), "utf-8")
    read = read_captions(tmp_path / "a.json")
    assert said(read) == {"a.jpg": [["two", "dogs", "running"]]}
    assert read.numbers.tolist() == [7]


def test_coco_has_a_file_for_each_split(tmp_path: Path):
    coco(tmp_path / "a.json", [5, 3, 9])
    coco(tmp_path / "b.json", [4])
    read = read_captions(splits={"train": tmp_path / "a.json", "test": tmp_path / "b.json"})
    assert read.names == ["000000000005.jpg", "000000000003.jpg", "000000000009.jpg", "000000000004.jpg"]
    assert read.splits.tolist() == [0, 0, 0, 2]
    assert list(said(read).values()) == [expected(number) for number in (5, 3, 9, 4)]


def test_flickr_has_lists(tmp_path: Path):
    names = [f"{number}_x.jpg" for number in range(6)]
    flickr(tmp_path / "token.txt", names)
    (tmp_path / "train.txt").write_text("4_x.jpg\r\n0_x.jpg\r\n5_x.jpg\r\n")
    (tmp_path / "val.txt").write_text("2_x\n")  # by stem
    (tmp_path / "test.txt").write_text("8_x.jpg\n9_x.jpg\n")
    lists = {split: tmp_path / f"{split}.txt" for split in ("train", "val", "test")}
    read = read_captions(tmp_path / "token.txt", lists)
    assert read.splits.tolist() == [0, -1, 1, -1, 0, 0]
    assert said(read) == {name: expected(number) for number, name in enumerate(names)}
    listed = str(tmp_path / "test.txt")
    assert read.without_captions == [("8_x.jpg", listed, 1), ("9_x.jpg", listed, 2)]


def test_other_ways_to_give_splits(tmp_path: Path):
    coco(tmp_path / "all.json", [5, 3, 9])
    (tmp_path / "train.txt").write_text("9\n5\n")
    assert read_captions(tmp_path / "all.json", {"train": tmp_path / "train.txt"}).splits.tolist() == [0, -1, 0]
    flickr(tmp_path / "a.txt", ["a.jpg", "b.jpg"])
    flickr(tmp_path / "b.txt", ["c.jpg"])
    read = read_captions(splits={"train": tmp_path / "a.txt", "val": tmp_path / "b.txt"})
    assert (read.names, read.splits.tolist()) == (["a.jpg", "b.jpg", "c.jpg"], [0, 0, 1])


def broken(change: Callable[[list[Any]], Any]) -> str:
    """A file in Karpathy's format with a mistake."""
    images: list[Any] = [
        {"filename": f"{name}.jpg", "split": "train", "sentences": [{"tokens": ["a", name]}, {"tokens": ["one", name]}]}
        for name in ("dog", "cat", "cow")
    ]
    change(images)
    return json.dumps({"images": images})


def sentence(**entry: Any) -> str:
    return broken(lambda images: images[0]["sentences"].append(entry))


def annotated(*annotations: dict[str, Any], images: Sequence[tuple[int, str]] = ((1, "a.jpg"),)) -> str:
    """COCO's annotations: a good one, and others."""
    entries = [{"image_id": 1, "caption": "a dog"}, *annotations]
    return json.dumps({"images": [{"id": id, "file_name": name} for id, name in images], "annotations": entries})


BAD_ENTRIES = {
    "empty caption": (sentence(tokens=["."]), r"image 1 \(dog\.jpg\), sentence 3: the caption '\.' has no words"),
    "twice": (broken(lambda images: images[2].update(filename="dog.jpg")), r"the image 'dog\.jpg' occurs twice"),
    "unknown split": (broken(lambda images: images[1].update(split="dev")), "image 2: unknown split 'dev'"),
    "no name": (broken(lambda images: images[0].pop("filename")), "image 1: filename: expected text, not None"),
    "empty name": (broken(lambda images: images[0].update(filename="")), "image 1: '' is not a valid image name"),
    "half a character in a name": (broken(lambda images: images[0].update(filename="\ud800")), "is not valid Unicode"),
    "half a character": (sentence(tokens=["a", "\ud83d"]), r"sentence 3: 'a \\ud83d' is not valid Unicode"),
    "wild number": (broken(lambda images: images[0].update(cocoid=2**70)), "is not a valid image number"),
    "no list": (broken(lambda images: images[2].update(sentences="x")), "sentences: expected a list, not 'x'"),
    "no object": (broken(lambda images: images.insert(1, 17)), "image 2: expected an object with filename, not 17"),
    "no words": (sentence(tokens=["a", 3]), r"sentence 3: tokens: expected words, not \['a', 3\]"),
    "neither": (sentence(), "sentence 3: raw: expected text, not None"),
    "coco, caption of no image": (annotated({"image_id": 2, "caption": "b"}), "annotation 2: the file has no image"),
    "coco, id twice": (annotated(images=[(1, "a.jpg"), (1, "b.jpg")]), "image 2: the id 1 occurs twice"),
    "coco, empty": (annotated({"image_id": 1, "caption": " "}), "annotation 2: the caption ' ' has no words"),
    "coco, number as text": (annotated({"image_id": "1", "caption": "b"}), "image_id: expected an integer, not '1'"),
    "flickr, no tab": ("a.jpg#0\ta dog\n\na.jpg#1 a cat\n", "line 3: expected NAME#NUMBER, a tab and a caption"),
    "flickr, empty": ("a.jpg#0\ta dog\na.jpg#1\t.\n", r"line 2: the caption '\.' has no words"),
    "flickr, twice": ("a.jpg#0\ta dog\na.jpg#0\ta cat\n", "line 2: the caption a.jpg#0 occurs twice"),
}


@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_a_bad_entry_is_named_or_skipped(tmp_path: Path, kind: str):
    text, message = BAD_ENTRIES[kind]
    path = tmp_path / "captions"
    path.write_text(text)
    options: dict[str, Any] = {"captions": path} if "split" in text else {"splits": {"train": path}}
    said = refused(message, read_captions, **options)
    read = read_captions(**options, skip_bad=True)
    assert said == f"{read.bad[0]} (use --skip-bad to skip such entries)"
    assert said.startswith(f"{path}, ")
    assert (len(read.bad), len(read.arrays.captions) > 1) == (1, True)


BAD_FILES = {
    "not UTF-8": (b'{"images":\n [{"file_name": "caf\xe9"', r"not UTF-8 text \(line 2, byte 32"),
    "cut short": (b'{"images": [{"id": 1, "file_name": "a.jpg"}, {"i', "line 1, column 47: not valid JSON"),
    "cut short between": (b'{"images": [{"id": 1, "file_name": "a.jpg"}', "column 44: not valid JSON: Expecting ','"),
    "no object": (b'{"images": [], 17: 3}', "not valid JSON"),
    "a list": (b'[{"image_id": 1}]', r"not in a known format \(karpathy, coco, flickr\)"),
    "an empty object": (b"{}", "not in a known format"),
    "something else": (b"image,caption\na.jpg,A dog\n", "not in a known format"),
    "a long number": (b'{"images": [' + b"1" * 5000 + b"]}", "a number too long"),
    "too deep": (b'{"images": ' + b"[" * 100_000, "nested too deeply"),
    "no caption at all": (b'{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []}', "no captions in"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(tmp_path: Path, kind: str):
    content, message = BAD_FILES[kind]
    (tmp_path / "captions").write_bytes(content)
    splits = {"train": tmp_path / "captions"}
    for skip_bad in (False, True):
        assert str(splits["train"]) in refused(message, read_captions, splits=splits, skip_bad=skip_bad)


def test_a_given_format_is_not_detected(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a.jpg#0\t.\n")
    with pytest.raises(InputError, match=r"no captions in .*a\.txt; the first bad entry: .*line 1: the caption"):
        read_captions(splits={"train": tmp_path / "a.txt"}, skip_bad=True)
    (tmp_path / "a.txt").write_text("\n\nsomething strange\na.jpg#0\ta dog\n")
    refused("not in a known format", read_captions, splits={"train": tmp_path / "a.txt"}, skip_bad=True)
    read = read_captions(splits={"train": tmp_path / "a.txt"}, format="flickr", skip_bad=True)
    assert (read.names, len(read.bad)) == (["a.jpg"], 1)


def test_files_and_splits_must_fit_together(tmp_path: Path):
    one, two, three = (tmp_path / name for name in ("k.json", "f.txt", "list.txt"))
    karpathy(one, {"train": 1})
    flickr(two, ["a.jpg", "b.jpg"])
    three.write_text("a.jpg\n")
    lists = {"train": three}
    for options, message in [
        ({}, "no captions: give a file with --captions"),
        ({"splits": {"val": two}}, "no captions: give a file with --captions"),
        ({"captions": one, "splits": lists}, "includes the splits: leave out --train"),
        ({"splits": {"train": one}}, "give it with --captions instead of --train"),
        ({"captions": two}, "has no splits: give lists"),
        ({"captions": two, "splits": {"dev": three}}, "unknown split 'dev'"),
        ({"captions": tmp_path / "absent"}, "cannot read .*absent: No such file"),
        ({"splits": {"train": two, "val": two}}, "line 1: the image 'a.jpg' occurs"),
        ({"captions": two, "splits": {**lists, "val": three}}, r"list\.txt, line 1: the image 'a\.jpg' is also in"),
    ]:
        refused(message, read_captions, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a.jpg\nb.jpg\na.jpg\n", "line 3: the name 'a.jpg' is also on line 1"),
        (b"a.jpg\n\nb.jpg\n", "line 2: expected the name of an image, not an empty line"),
        (b"", "is empty: expected names of images"),
        (b"a.jpg\n\xff.jpg\n", r"not UTF-8 text \(line 2, byte 7"),
    ],
)
def test_bad_lists(tmp_path: Path, content: bytes, message: str):
    flickr(tmp_path / "f.txt", ["a.jpg", "b.jpg"])
    (tmp_path / "list.txt").write_bytes(content)
    refused(message, read_captions, tmp_path / "f.txt", {"train": tmp_path / "list.txt"})


LEAVES = st.sampled_from([None, True, -3, 0.5, "", "a", 'quote " and \\', "]}", "é"])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LEAVES.map(str), inner, max_size=2),
    max_leaves=5,
)


@LEISURELY
@given(st.dictionaries(st.sampled_from(["images", "x", "y"]), JSON), st.sampled_from([None, 1]))
def test_entries_are_those_of_the_whole_file(table: dict[str, Any], indent: int | None):
    found = table.get("images")
    text = " " + json.dumps(table, indent=indent) + "\n"
    assert list(json_entries(Path("x"), text, "images")) == (found if isinstance(found, list) else [])


@LEISURELY
@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3), max_size=6), st.data())
def test_arrays_are_lists(groups: list[list[list[int]]], data: st.DataObject):
    def packed(groups: list[list[list[int]]]) -> CaptionArrays:
        captions = [caption for group in groups for caption in group]
        tokens = [token for caption in captions for token in caption]
        bounds = (np.cumsum([0, *map(len, parts)]) for parts in (captions, groups))
        return CaptionArrays(np.array(tokens, np.int32), *bounds)

    arrays = packed(groups)
    assert [arrays.of(image) for image in range(len(arrays))] == groups
    assert arrays.counts.tolist() == [len(group) for group in groups]
    flat = [caption for group in groups for caption in group]
    assert [arrays.caption(place) for place in range(len(flat))] == flat
    whole = all(group and all(group) for group in groups)
    assert (arrays.problem() is None) == whole
    if groups:
        order = data.draw(st.lists(st.integers(0, len(groups) - 1)))
        taken, wanted = arrays.take(np.array(order, np.int64)), packed([groups[image] for image in order])
        assert all(np.array_equal(vars(taken)[name], vars(wanted)[name]) for name in vars(wanted))


@pytest.mark.parametrize(
    ("names", "numbers", "known", "places"),
    [
        (["a.jpg", "b.jpg"], [-1, -1], ["b.jpg", "x/a.jpg"], [1, 0]),
        (["a.jpg", "b.jpg"], [-1, -1], ["b", "a.npy"], [1, 0]),
        (["COCO_val2014_000000000042.jpg", "x.jpg"], [-1, 7], ["7", "train2017/000000000042.jpg"], [1, 0]),
        (["x.jpg", "y.jpg"], [3, 4], ["COCO_train2014_000000000004", "3"], [1, 0]),
        # One way for all: the number of the first is the name of the second, and the first is missing.
        (["a.jpg", "12.jpg", "c.jpg"], [12, 5, 6], ["12.jpg", "c.jpg"], [-1, 0, 1]),
        # A key that two share matches neither.
        (["a.jpg", "b.jpg"], [-1, -1], ["a.png", "a.gif", "b.png"], [-1, 2]),
        (["a.jpg"], [-1], [], [-1]),
        (["archive.tar.gz"], [-1], ["archive.tar.png"], [0]),
    ],
)
def test_names_are_matched(names: list[str], numbers: list[int], known: list[str], places: list[int]):
    assert match(names, numbers, known).tolist() == places
