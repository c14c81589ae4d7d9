"""Public files of captions, good and bad."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.tasks.captioning.arrays import CaptionArrays
from corollout.tasks.captioning.gathering import Captions
from corollout.tasks.captioning.json_lists import entries
from corollout.tasks.captioning.names import match
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.text import tokenize
from tests.support.caption_files import coco, flickr, karpathy, sentences

# However busy the machine is.
LEISURELY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def said(read: Captions) -> dict[str, list[list[str]]]:
    """Everything as plain lists of words."""
    return {
        name: [[read.words[token] for token in caption] for caption in read.arrays.of(place)]
        for place, name in enumerate(read.names)
    }


def expected(number: int) -> list[list[str]]:
    return [tokenize(text) for text in sentences(number)]


# The three formats


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
    assert [tuple(listed) for listed in read.without] == [
        ("8_x.jpg", str(tmp_path / "test.txt"), 1),
        ("9_x.jpg", str(tmp_path / "test.txt"), 2),
    ]


def test_other_ways_to_give_splits(tmp_path: Path):
    coco(tmp_path / "all.json", [5, 3, 9])
    (tmp_path / "train.txt").write_text("9\n5\n")
    assert read_captions(tmp_path / "all.json", {"train": tmp_path / "train.txt"}).splits.tolist() == [0, -1, 0]
    flickr(tmp_path / "a.txt", ["a.jpg", "b.jpg"])
    flickr(tmp_path / "b.txt", ["c.jpg"])
    read = read_captions(splits={"train": tmp_path / "a.txt", "val": tmp_path / "b.txt"})
    assert (read.names, read.splits.tolist()) == (["a.jpg", "b.jpg", "c.jpg"], [0, 0, 1])


def test_words_that_are_cut_already_stay_as_they_are(tmp_path: Path):
    """Reading tokens and joining them gives the words of the raw text."""
    text = "A dog doesn't run, it sits: there ."
    (tmp_path / "a.txt").write_text(f"a.jpg#0\t{text}\na.jpg#1\t{' '.join(tokenize(text))}\n")
    one, other = said(read_captions(splits={"train": tmp_path / "a.txt"}))["a.jpg"]
    assert one == other


# Bad files: one sentence each


def broken(change: Callable[[list[Any]], Any]) -> str:
    """A file in Karpathy's format with a mistake."""
    images: list[Any] = [
        {"filename": f"{name}.jpg", "split": "train", "sentences": [{"tokens": ["a", name]}, {"tokens": ["one", name]}]}
        for name in ("dog", "cat", "cow")
    ]
    change(images)
    return json.dumps({"images": images})


BAD_ENTRIES = {
    "empty caption": (
        broken(lambda images: images[1]["sentences"].append({"tokens": ["."]})),
        r"image 2 \(cat\.jpg\), sentence 3: no word in the caption '\.'",
    ),
    "twice": (
        broken(lambda images: images[2].update(filename="dog.jpg")),
        r"image 3: the image 'dog\.jpg' is there twice",
    ),
    "unknown split": (
        broken(lambda images: images[1].update(split="dev")),
        "image 2: unknown split 'dev': expected one of train, restval, val, test",
    ),
    "no name": (broken(lambda images: images[0].pop("filename")), "image 1: filename: expected text, not None"),
    "empty name": (broken(lambda images: images[0].update(filename="")), "image 1: '' cannot be the name"),
    "two lines": (broken(lambda images: images[0].update(filename="a\nb")), "cannot be the name of an image"),
    "half a character in a name": (broken(lambda images: images[0].update(filename="\ud800")), "is no Unicode text"),
    "half a character": (
        broken(lambda images: images[0]["sentences"].append({"tokens": ["a", "\ud83d"]})),
        r"sentence 3: 'a \\ud83d' is no Unicode text",
    ),
    "wild number": (broken(lambda images: images[0].update(cocoid=2**70)), "cannot be the number of an image"),
    "no list": (broken(lambda images: images[2].update(sentences="x")), "sentences: expected a list, not 'x'"),
    "no object": (broken(lambda images: images.insert(1, 17)), "image 2: expected an object with filename, not 17"),
    "no words": (
        broken(lambda images: images[0]["sentences"].append({"tokens": ["a", 3]})),
        r"image 1 \(dog\.jpg\), sentence 3: tokens: expected words, not \['a', 3\]",
    ),
    "neither": (
        broken(lambda images: images[0]["sentences"].append({})),
        "sentence 3: raw: expected text, not None",
    ),
    "coco, caption of no image": (
        '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": '
        '[{"image_id": 1, "caption": "a dog"}, {"image_id": 2, "caption": "a cat"}]}',
        "annotation 2: no image of the file has the image_id 2",
    ),
    "coco, id twice": (
        '{"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}], "annotations": '
        '[{"image_id": 1, "caption": "a dog"}]}',
        "image 2: the id 1 is there twice",
    ),
    "coco, empty": (
        '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": '
        '[{"image_id": 1, "caption": "a dog"}, {"image_id": 1, "caption": " "}]}',
        "annotation 2: no word in the caption ' '",
    ),
    "coco, number as text": (
        '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": '
        '[{"image_id": 1, "caption": "a dog"}, {"image_id": "1", "caption": "b"}]}',
        "annotation 2: image_id: expected a whole number, not '1'",
    ),
    "flickr, no tab": (
        "a.jpg#0\ta dog\n\na.jpg#1 a cat\n",
        "line 3: expected NAME#NUMBER, a tab and a caption, not 'a.jpg#1 a cat'",
    ),
    "flickr, empty": ("a.jpg#0\ta dog\na.jpg#1\t.\n", r"line 2: no word in the caption '\.'"),
    "flickr, twice": ("a.jpg#0\ta dog\na.jpg#0\ta cat\n", "line 2: the caption a.jpg#0 is there twice"),
}


@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_a_bad_entry_is_named_or_left_out(tmp_path: Path, kind: str):
    text, message = BAD_ENTRIES[kind]
    path = tmp_path / "captions"
    path.write_text(text)
    own_splits = "split" in text
    options: dict[str, Any] = {"captions": path} if own_splits else {"splits": {"train": path}}
    with pytest.raises(InputError, match=message) as failure:
        read_captions(**options)
    assert str(failure.value).startswith(f"{path}, ")
    assert "--skip-bad" in str(failure.value)
    read = read_captions(**options, skip_bad=True)
    assert len(read.bad) == 1
    assert read.bad[0].startswith(f"{path}, ")
    assert len(read.arrays.captions) > 1


BAD_FILES = {
    "not UTF-8": (b'{"images":\n [{"file_name": "caf\xe9"', r"line 2: byte 32 of the file is not UTF-8 text"),
    "cut short": (b'{"images": [{"id": 1, "file_name": "a.jpg"}, {"i', "line 1, column 47: not JSON"),
    "cut short between": (b'{"images": [{"id": 1, "file_name": "a.jpg"}', "line 1, column 44: not JSON, Expecting ','"),
    "no object": (b'{"images": [], 17: 3}', "not JSON"),
    "a list": (b'[{"image_id": 1}]', r"no format of captions that is known \(karpathy, coco, flickr\)"),
    "nothing": (b"", "no format of captions that is known"),
    "an empty object": (b"{}", "no format of captions that is known"),
    "something else": (b"image,caption\na.jpg,A dog\n", "no format of captions that is known"),
    "a long number": (b'{"images": [' + b"1" * 5000 + b"]}", "a number too long"),
    "too deep": (b'{"images": ' + b"[" * 100_000, "nested too deeply"),
    "no caption at all": (b'{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []}', "no captions in"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, kind: str):
    content, message = BAD_FILES[kind]
    (tmp_path / "captions").write_bytes(content)
    for skip_bad in (False, True):
        with pytest.raises(InputError, match=message) as failure:
            read_captions(splits={"train": tmp_path / "captions"}, skip_bad=skip_bad)
        assert str(tmp_path / "captions") in str(failure.value)


def test_only_bad_entries(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a.jpg#0\t.\n")
    with pytest.raises(InputError, match=r"no captions in .*a\.txt, the first bad entry being .*line 1: no word"):
        read_captions(splits={"train": tmp_path / "a.txt"}, skip_bad=True)


def test_a_format_that_is_said_is_taken_at_its_word(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n\nsomething strange\na.jpg#0\ta dog\n")
    with pytest.raises(InputError, match="no format of captions that is known"):
        read_captions(splits={"train": tmp_path / "a.txt"}, skip_bad=True)
    read = read_captions(splits={"train": tmp_path / "a.txt"}, format="flickr", skip_bad=True)
    assert (read.names, len(read.bad)) == (["a.jpg"], 1)


def test_files_and_splits_must_fit_together(tmp_path: Path):
    karpathy(tmp_path / "k.json", {"train": 1})
    flickr(tmp_path / "f.txt", ["a.jpg", "b.jpg"])
    (tmp_path / "list.txt").write_text("a.jpg\n")
    lists = {"train": tmp_path / "list.txt"}
    for options, message in [
        ({}, "no captions: name a file with --captions"),
        ({"splits": {"val": tmp_path / "f.txt"}}, "no captions: name a file with --captions"),
        ({"captions": tmp_path / "k.json", "splits": lists}, "has splits of its own: leave out --train"),
        ({"splits": {"train": tmp_path / "k.json"}}, "name it with --captions instead of --train"),
        ({"captions": tmp_path / "f.txt"}, "has no splits: name lists of its images with --train"),
        ({"captions": tmp_path / "f.txt", "splits": {"dev": tmp_path / "list.txt"}}, "no split is called 'dev'"),
        ({"captions": tmp_path / "absent"}, "cannot read .*absent: No such file"),
        ({"splits": {"train": tmp_path / "f.txt", "val": tmp_path / "f.txt"}}, "line 1: the image 'a.jpg' is there"),
        (
            {"captions": tmp_path / "f.txt", "splits": {**lists, "val": tmp_path / "list.txt"}},
            r"list\.txt, line 1: the image 'a\.jpg' is in .*list\.txt too",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            read_captions(**options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a.jpg\nb.jpg\na.jpg\n", "line 3: the name 'a.jpg' is in line 1 too"),
        (b"a.jpg\n\nb.jpg\n", "line 2: expected the name of an image, not an empty line"),
        (b"", "expected names of images, one a line, not an empty file"),
        (b"a.jpg\n\xff.jpg\n", "line 2: byte 7 of the file is not UTF-8"),
    ],
)
def test_bad_lists(tmp_path: Path, content: bytes, message: str):
    flickr(tmp_path / "f.txt", ["a.jpg", "b.jpg"])
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_captions(tmp_path / "f.txt", {"train": tmp_path / "list.txt"})


# Parts


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
    assert list(entries(Path("x"), text, "images")) == (found if isinstance(found, list) else [])


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
    assert (arrays.fault() is None) == whole
    if groups:
        order = data.draw(st.lists(st.integers(0, len(groups) - 1)))
        taken, wanted = arrays.take(np.array(order, np.int64)), packed([groups[image] for image in order])
        assert taken.tokens.tolist() == wanted.tokens.tolist()
        assert taken.captions.tolist() == wanted.captions.tolist()
        assert taken.images.tolist() == wanted.images.tolist()


@pytest.mark.parametrize(
    ("names", "numbers", "known", "places"),
    [
        (["a.jpg", "b.jpg"], [-1, -1], ["b.jpg", "x/a.jpg"], [1, 0]),
        (["a.jpg", "b.jpg"], [-1, -1], ["b", "a.npy"], [1, 0]),
        (["COCO_val2014_000000000042.jpg", "x.jpg"], [-1, 7], ["7", "train2017/000000000042.jpg"], [1, 0]),
        (["x.jpg", "y.jpg"], [3, 4], ["COCO_train2014_000000000004", "3"], [1, 0]),
        # One way for all: the number of the first is the name of the second, and the first is not there.
        (["a.jpg", "12.jpg", "c.jpg"], [12, 5, 6], ["12.jpg", "c.jpg"], [-1, 0, 1]),
        # Nobody is meant by what two have in common.
        (["a.jpg", "b.jpg"], [-1, -1], ["a.png", "a.gif", "b.png"], [-1, 2]),
        (["a.jpg"], [-1], [], [-1]),
        (["archive.tar.gz"], [-1], ["archive.tar.png"], [0]),
    ],
)
def test_names_are_matched(names: list[str], numbers: list[int], known: list[str], places: list[int]):
    assert match(names, numbers, known).tolist() == places
