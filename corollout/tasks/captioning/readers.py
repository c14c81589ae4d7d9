"""Caption files in the public formats.

Karpathy's ``dataset_*.json``, which includes the splits:

    {"images": [{"filename": "COCO_val2014_000000391895.jpg", "cocoid": 391895, "split": "test",
                 "sentences": [{"tokens": ["a", "man", …], "raw": "A man …"}, …]}, …]}

COCO's annotations, one file per split:

    {"images": [{"id": 391895, "file_name": "COCO_val2014_000000391895.jpg"}, …],
     "annotations": [{"image_id": 391895, "caption": "A man …"}, …]}

Flickr's ``token.txt``, and one list of image names per split:

    2513260012_03d33305cf.jpg#0<TAB>A black dog is running after a white dog in the snow .
"""

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any, get_args

import numpy as np

from corollout.errors import InputError
from corollout.files import read_text
from corollout.tasks.captioning.captions import NO_NUMBER, NO_SPLIT, SPLITS, Captions, Collector, match, read_names
from corollout.tasks.captioning.settings import Format

_KARPATHY_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
_FLICKR_LINE = re.compile(r"([^\t]+)#(\d+)\t(.*)")


def read_captions(
    captions: Path | None = None,
    splits: Mapping[str, Path] | None = None,
    format: Format | None = None,
    skip_bad: bool = False,
) -> Captions:
    """Read one file of ``captions``, or one file per split.

    With ``captions``, ``splits`` are lists of image names, unless the file includes the splits; without, they are the
    files. The format is detected unless given. A bad entry is an error, or is skipped with ``skip_bad``.
    """
    files = dict(splits or {})
    if unknown := [split for split in files if split not in SPLITS]:
        raise InputError(f"unknown split {unknown[0]!r}: choose from {', '.join(SPLITS)}")
    collector = Collector(skip_bad)
    if captions is None:
        if "train" not in files:
            raise InputError("no captions: give a file with --captions, or one per split with --train and --val")
        for split, path in files.items():
            _read(collector, path, split, format)
        return _checked(collector.captions(), " and ".join(map(str, files.values())))
    has_splits = _read(collector, captions, None, format) == "karpathy"
    if has_splits and files:
        raise InputError(f"{captions} includes the splits: leave out --{next(iter(files))}")
    if not has_splits and "train" not in files:
        raise InputError(f"{captions} has no splits: give lists of its images with --train, --val and --test")
    read = _checked(collector.captions(), str(captions))
    return read if has_splits else _with_lists(read, files)


def _checked(read: Captions, source: str) -> Captions:
    if len(read.arrays.captions) == 1:
        raise InputError(f"no captions in {source}" + (f"; the first bad entry: {read.bad[0]}" if read.bad else ""))
    return read


def _read(collector: Collector, path: Path, split: str | None, format: Format | None) -> Format:
    text = read_text(path)
    format = format or _detect(path, text)
    if format == "karpathy" and split is not None:
        raise InputError(f"{path} includes the splits: give it with --captions instead of --{split}")
    {"karpathy": _read_karpathy, "coco": _read_coco, "flickr": _read_flickr}[format](collector, path, text, split)
    return format


def _detect(path: Path, text: str) -> Format:
    """The format of a file, judged by its first entry."""
    if text[:1000].lstrip().startswith("{"):
        first = next(json_entries(path, text, "images"), None)
        if isinstance(first, dict):
            return "karpathy" if "sentences" in first else "coco"
    elif _FLICKR_LINE.fullmatch(text.lstrip().partition("\n")[0].rstrip()):
        return "flickr"
    known = ", ".join(get_args(Format))
    raise InputError(f"{path} is not in a known format ({known}); if it is, name the format with --format")


def _read_karpathy(collector: Collector, path: Path, text: str, split: str | None) -> None:
    for count, entry in enumerate(json_entries(path, text, "images"), 1):
        where = f"{path}, image {count}"
        try:
            name, sentences = _field(entry, "filename", str), _field(entry, "sentences", list)
            group = _field(entry, "split", str)
            if group not in _KARPATHY_SPLITS:
                raise InputError(f"unknown split {group!r}: expected one of {', '.join(_KARPATHY_SPLITS)}")
            number = entry.get("cocoid", entry.get("imgid"))
            image = collector.add_image(name, _KARPATHY_SPLITS[group], number if isinstance(number, int) else None)
        except InputError as error:
            collector.reject(where, error)
            continue
        for position, sentence in enumerate(sentences, 1):
            try:
                collector.add_caption(image, _sentence(sentence))
            except InputError as error:
                collector.reject(f"{where} ({name}), sentence {position}", error)


def _sentence(sentence: Any) -> str:
    if not isinstance(sentence, dict) or "tokens" not in sentence:
        return _field(sentence, "raw", str)
    tokens = _field(sentence, "tokens", list)
    if not all(isinstance(token, str) for token in tokens):
        raise InputError(f"tokens: expected words, not {short(tokens)}")
    return " ".join(tokens)


def _read_coco(collector: Collector, path: Path, text: str, split: str | None) -> None:
    images: dict[int, int] = {}
    for count, entry in enumerate(json_entries(path, text, "images"), 1):
        try:
            number = _field(entry, "id", int)
            if number in images:
                raise InputError(f"the id {number} occurs twice")
            images[number] = collector.add_image(_field(entry, "file_name", str), split, number)
        except InputError as error:
            collector.reject(f"{path}, image {count}", error)
    for count, entry in enumerate(json_entries(path, text, "annotations"), 1):
        try:
            number, caption = _field(entry, "image_id", int), _field(entry, "caption", str)
            if number not in images:
                raise InputError(f"the file has no image with the id {number}")
            collector.add_caption(images[number], caption)
        except InputError as error:
            collector.reject(f"{path}, annotation {count}", error)


def _field(entry: Any, name: str, kind: type) -> Any:
    names = {str: "text", int: "an integer", list: "a list"}
    if not isinstance(entry, dict):
        raise InputError(f"expected an object with {name}, not {short(entry)}")
    if not isinstance(entry.get(name), kind) or isinstance(entry[name], bool):
        raise InputError(f"{name}: expected {names[kind]}, not {short(entry.get(name))}")
    return entry[name]


def _read_flickr(collector: Collector, path: Path, text: str, split: str | None) -> None:
    seen: set[tuple[int, str]] = set()
    own: set[int] = set()  # images of this file; one of another file must not occur again
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        try:
            parts = _FLICKR_LINE.fullmatch(content.removesuffix("\r"))
            if not parts:
                raise InputError(f"expected NAME#NUMBER, a tab and a caption, not {short(content)}")
            name, number, caption = parts.groups()
            if collector.names.get(name) not in own:
                own.add(collector.add_image(name, split))
            image = collector.names[name]
            if (image, number) in seen:
                raise InputError(f"the caption {name}#{number} occurs twice")
            collector.add_caption(image, caption)
            seen.add((image, number))
        except InputError as error:
            collector.reject(f"{path}, line {line}", error)


def _with_lists(read: Captions, lists: Mapping[str, Path]) -> Captions:
    """The same images in the splits given by lists."""
    splits = np.full(len(read.names), NO_SPLIT, np.int8)
    without_captions: list[tuple[str, str, int]] = []
    for split, path in lists.items():
        names = read_names(path)
        images = match(names, [NO_NUMBER] * len(names), read.names)
        for line, (name, image) in enumerate(zip(names, images.tolist(), strict=True), 1):
            if image < 0:
                without_captions.append((name, str(path), line))
            elif splits[image] != NO_SPLIT:
                other = lists[SPLITS[splits[image]]]
                raise InputError(f"{path}, line {line}: the image {name!r} is also in {other}")
            else:
                splits[image] = SPLITS.index(split)
    return replace(read, splits=splits, without_captions=without_captions)


@contextmanager
def json_errors(path: Path) -> Generator[None]:
    """Says where a file is not valid JSON."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: nested too deeply, or a number too long, for a file of captions") from error


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def json_entries(path: Path, text: str, key: str) -> Iterator[Any]:
    """The entries of the list under a key of a JSON object, one by one, so that they are never in memory together."""

    def expect(marks: str, position: int) -> tuple[str, int]:
        """The next character, which must be one of these, and the position after it and the space around it."""
        position = _skip_space(text, position)
        mark = text[position : position + 1]
        if not mark or mark not in marks:
            raise json.JSONDecodeError(f"Expecting {marks[0]!r}", text, position)
        return mark, _skip_space(text, position + 1)

    with json_errors(path):
        mark, position = expect("{", 0)
        while mark != "}" and (mark == "," or text[position : position + 1] != "}"):
            name, position = _DECODER.raw_decode(text, position)
            if not isinstance(name, str):
                raise json.JSONDecodeError("Expecting property name", text, position)
            _, position = expect(":", position)
            if text[position : position + 1] != "[":
                position = _DECODER.raw_decode(text, position)[1]
            else:
                mark, position = expect("[", position)
                while mark != "]" and text[position : position + 1] != "]":
                    entry, position = _DECODER.raw_decode(text, position)
                    if name == key:
                        yield entry
                    mark, position = expect(",]", position)
                if mark != "]":
                    _, position = expect("]", position)
            mark, position = expect(",}", position)


def _skip_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return position if space is None else space.end()
