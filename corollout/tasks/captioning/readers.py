"""Caption files in the public formats.

Karpathy's ``dataset_*.json``, which knows the splits:

    {"images": [{"filename": "COCO_val2014_000000391895.jpg", "cocoid": 391895, "split": "test",
                 "sentences": [{"tokens": ["a", "man", …], "raw": "A man …"}, …]}, …]}

COCO's annotations, a file for each split:

    {"images": [{"id": 391895, "file_name": "COCO_val2014_000000391895.jpg"}, …],
     "annotations": [{"image_id": 391895, "caption": "A man …"}, …]}

Flickr's ``token.txt``, and a list of image names for each split:

    2513260012_03d33305cf.jpg#0<TAB>A black dog is running after a white dog in the snow .
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, get_args

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.arrays import SPLITS
from corollout.tasks.captioning.files import read_names, read_text
from corollout.tasks.captioning.gathering import NO_SPLIT, Captions, Gathering, Listed
from corollout.tasks.captioning.json_lists import entries
from corollout.tasks.captioning.names import NO_NUMBER, match

Format = Literal["karpathy", "coco", "flickr"]
_KARPATHY_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
_FLICKR_LINE = re.compile(r"([^\t]+)#(\d+)\t(.*)")


def read_captions(
    captions: Path | None = None,
    splits: Mapping[str, Path] | None = None,
    format: Format | None = None,
    skip_bad: bool = False,
) -> Captions:
    """Read a file of captions whose splits are its own, or in a list of names for each; or a file for each split.

    ``splits`` has the lists if there is a file of ``captions``, and else the files. The format is recognised unless
    it is said. A bad entry is an error that names it, or is left out.
    """
    files = dict(splits or {})
    strange = [split for split in files if split not in SPLITS]
    if strange:
        raise InputError(f"no split is called {strange[0]!r}: choose from {', '.join(SPLITS)}")
    gathering = Gathering(skip_bad)
    if captions is None:
        if "train" not in files:
            raise InputError("no captions: name a file with --captions, or one for each split with --train and --val")
        for split, path in files.items():
            _read(gathering, path, split, format)
        return _checked(gathering.captions(), " and ".join(map(str, files.values())))
    has_splits = _read(gathering, captions, None, format) == "karpathy"
    if has_splits and files:
        raise InputError(f"{captions} has splits of its own: leave out --{next(iter(files))}")
    if not has_splits and "train" not in files:
        raise InputError(f"{captions} has no splits: name lists of its images with --train, --val and --test")
    read = _checked(gathering.captions(), str(captions))
    return read if has_splits else _listed(read, files)


def _checked(read: Captions, source: str) -> Captions:
    if len(read.arrays.captions) == 1:
        raise InputError(
            f"no captions in {source}" + (f", the first bad entry being {read.bad[0]}" if read.bad else "")
        )
    return read


def _read(gathering: Gathering, path: Path, split: str | None, format: Format | None) -> Format:
    text = read_text(path)
    known: Format = _recognised(path, text) if format is None else format
    readers: dict[Format, Callable[[Gathering, Path, str, str | None], None]]
    readers = {"karpathy": _read_karpathy, "coco": _read_coco, "flickr": _read_flickr}
    if known == "karpathy" and split is not None:
        raise InputError(f"{path} has splits of its own: name it with --captions instead of --{split}")
    readers[known](gathering, path, text, split)
    return known


def _recognised(path: Path, text: str) -> Format:
    """The format of a file, by its first entry."""
    if text[:1000].lstrip().startswith("{"):
        first = next(entries(path, text, "images"), None)
        if isinstance(first, dict):
            return "karpathy" if "sentences" in first else "coco"
    elif _FLICKR_LINE.fullmatch(text.lstrip().partition("\n")[0].rstrip()):
        return "flickr"
    known = ", ".join(get_args(Format))
    raise InputError(
        f"{path}: no format of captions that is known ({known}); if it is one of them, name it by --format"
    )


def _read_karpathy(gathering: Gathering, path: Path, text: str, split: str | None) -> None:
    for count, entry in enumerate(entries(path, text, "images"), 1):
        where = f"{path}, image {count}"
        try:
            name, sentences = _field(entry, "filename", str), _field(entry, "sentences", list)
            said = _field(entry, "split", str)
            if said not in _KARPATHY_SPLITS:
                raise InputError(f"unknown split {said!r}: expected one of {', '.join(_KARPATHY_SPLITS)}")
            number = entry.get("cocoid", entry.get("imgid"))
            image = gathering.image(name, _KARPATHY_SPLITS[said], number if isinstance(number, int) else None)
        except InputError as error:
            gathering.refuse(where, error)
            continue
        for place, sentence in enumerate(sentences, 1):
            try:
                gathering.caption(image, _sentence(sentence))
            except InputError as error:
                gathering.refuse(f"{where} ({name}), sentence {place}", error)


def _sentence(sentence: Any) -> str:
    if not isinstance(sentence, dict) or "tokens" not in sentence:
        return _field(sentence, "raw", str)
    tokens = _field(sentence, "tokens", list)
    if not all(isinstance(token, str) for token in tokens):
        raise InputError(f"tokens: expected words, not {short(tokens)}")
    return " ".join(tokens)


def _read_coco(gathering: Gathering, path: Path, text: str, split: str | None) -> None:
    images: dict[int, int] = {}
    for count, entry in enumerate(entries(path, text, "images"), 1):
        try:
            number = _field(entry, "id", int)
            if number in images:
                raise InputError(f"the id {number} is there twice")
            images[number] = gathering.image(_field(entry, "file_name", str), split, number)
        except InputError as error:
            gathering.refuse(f"{path}, image {count}", error)
    for count, entry in enumerate(entries(path, text, "annotations"), 1):
        try:
            number, caption = _field(entry, "image_id", int), _field(entry, "caption", str)
            if number not in images:
                raise InputError(f"no image of the file has the image_id {number}")
            gathering.caption(images[number], caption)
        except InputError as error:
            gathering.refuse(f"{path}, annotation {count}", error)


def _field(entry: Any, name: str, kind: type) -> Any:
    words = {str: "text", int: "a whole number", list: "a list"}
    if not isinstance(entry, dict):
        raise InputError(f"expected an object with {name}, not {short(entry)}")
    if not isinstance(entry.get(name), kind) or isinstance(entry[name], bool):
        raise InputError(f"{name}: expected {words[kind]}, not {short(entry.get(name))}")
    return entry[name]


def _read_flickr(gathering: Gathering, path: Path, text: str, split: str | None) -> None:
    seen: set[tuple[int, str]] = set()
    own: set[int] = set()  # an image that another file has captions of is there twice
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        try:
            parts = _FLICKR_LINE.fullmatch(content.removesuffix("\r"))
            if not parts:
                raise InputError(f"expected NAME#NUMBER, a tab and a caption, not {short(content)}")
            name, number, caption = parts.groups()
            image = gathering.place(name)
            if image is None or image not in own:
                image = gathering.image(name, split)
                own.add(image)
            if (image, number) in seen:
                raise InputError(f"the caption {name}#{number} is there twice")
            gathering.caption(image, caption)
            seen.add((image, number))
        except InputError as error:
            gathering.refuse(f"{path}, line {line}", error)


def _listed(read: Captions, lists: Mapping[str, Path]) -> Captions:
    """The same images in the splits in which lists have them."""
    splits = np.full(len(read.names), NO_SPLIT, np.int8)
    without: list[Listed] = []
    for split, path in lists.items():
        names = read_names(path)
        places = match(names, [NO_NUMBER] * len(names), read.names)
        for line, (name, place) in enumerate(zip(names, places.tolist(), strict=True), 1):
            if place < 0:
                without.append(Listed(name, str(path), line))
            elif splits[place] != NO_SPLIT:
                other = lists[SPLITS[splits[place]]]
                raise InputError(f"{path}, line {line}: the image {name!r} is in {other} too")
            else:
                splits[place] = SPLITS.index(split)
    return replace(read, splits=splits, without=without)
