"""Captions of images in three flat arrays: a million captions must not become a million Python objects.

Names of images are matched: ``val2014/COCO_val2014_000000391895.jpg``, its stem and COCO's number 391895 are the same.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from corollout.errors import InputError
from corollout.files import read_lines
from corollout.tasks.captioning.tokenizer import tokenize

SPLITS = ("train", "val", "test")
NO_SPLIT = NO_NUMBER = -1
_NUMBER = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,18})")


@dataclass(frozen=True)
class CaptionArrays:
    """Images, each with some captions, each of which is a sequence of word ids."""

    tokens: np.ndarray  # int32[token]: all captions, concatenated
    captions: np.ndarray  # int64[caption + 1]: where each caption begins in ``tokens``, and the end of the last one
    images: np.ndarray  # int64[image + 1]: where each image's captions begin in ``captions``, likewise

    def __len__(self) -> int:
        return len(self.images) - 1

    @property
    def counts(self) -> np.ndarray:
        """The number of captions of each image."""
        return np.diff(self.images)

    def of(self, image: int) -> list[list[int]]:
        """The captions of an image as lists."""
        first, last = self.images[image : image + 2].tolist()
        bounds = self.captions[first : last + 1].tolist()
        tokens = self.tokens[bounds[0] : bounds[-1]].tolist()
        return [tokens[start - bounds[0] : end - bounds[0]] for start, end in pairwise(bounds)]

    def caption(self, index: int) -> list[int]:
        """One caption, counted over all images."""
        start, end = self.captions[index : index + 2].tolist()
        return self.tokens[start:end].tolist()

    def take(self, images: np.ndarray) -> "CaptionArrays":
        """Some images with their captions, in the given order."""
        captions, image_bounds = _ranges(self.images, images)
        tokens, caption_bounds = _ranges(self.captions, captions)
        return CaptionArrays(self.tokens[tokens], caption_bounds, image_bounds)

    def problem(self) -> str | None:
        """Why the arrays do not fit together, or None if they do."""
        for inner, outer, name in ((self.images, self.captions, "image"), (self.captions, self.tokens, "caption")):
            size = len(outer) - (name == "image")
            if len(inner) == 0 or inner[0] != 0 or inner[-1] != size or (np.diff(inner) < 1).any():
                return f"the bounds of the {name}s are inconsistent"
        return None


def _ranges(bounds: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices in all chosen ranges, concatenated, and the bounds of these ranges among them."""
    starts, lengths = bounds[chosen], bounds[chosen + 1] - bounds[chosen]
    ends = _bounds(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths), ends


def _bounds(lengths: "array[int] | np.ndarray") -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])


@dataclass(frozen=True)
class Captions:
    """The images of caption files, in the order of the files, with their captions."""

    names: list[str]
    numbers: np.ndarray  # int64[image]: COCO's, or NO_NUMBER
    splits: np.ndarray  # int8[image]: an index into SPLITS, or NO_SPLIT
    words: list[str]
    arrays: CaptionArrays  # tokens are indices into ``words``; an image may have no caption
    bad: list[str] = field(default_factory=list)  # the problem of each entry that was skipped
    # Name, file and line of each image that is in the list of a split but has no captions.
    without_captions: list[tuple[str, str, int]] = field(default_factory=list)


class Collector:
    """Collects images and captions in any order; with ``skip_bad``, bad entries are counted instead of rejected."""

    def __init__(self, skip_bad: bool = False):
        self._skip_bad = skip_bad
        self.names: dict[str, int] = {}  # indices of images
        self._words: dict[str, int] = {}
        self._numbers, self._splits = array("q"), array("b")
        self._tokens, self._lengths, self._images = array("i"), array("i"), array("i")
        self._bad: list[str] = []

    def add_image(self, name: str, split: str | None = None, number: int | None = None) -> int:
        """Add an image and return its index."""
        _check_unicode(name)
        if name.splitlines() != [name]:
            raise InputError(f"{name!r} is not a valid image name")
        if name in self.names:
            raise InputError(f"the image {name!r} occurs twice")
        if number is not None and not 0 <= number < 2**63:
            raise InputError(f"{number} is not a valid image number")
        self._numbers.append(NO_NUMBER if number is None else number)
        self._splits.append(NO_SPLIT if split is None else SPLITS.index(split))
        return self.names.setdefault(name, len(self.names))

    def add_caption(self, image: int, text: str) -> None:
        _check_unicode(text)
        words = tokenize(text)
        if not words:
            raise InputError(f"the caption {text!r} has no words")
        self._tokens.extend([self._words.setdefault(word, len(self._words)) for word in words])
        self._lengths.append(len(words))
        self._images.append(image)

    def reject(self, where: str, error: InputError) -> None:
        """Raise the error of an entry, or count the entry as skipped."""
        text = f"{where}: {error}"
        if not self._skip_bad:
            raise InputError(f"{text} (use --skip-bad to skip such entries)") from error
        self._bad.append(text)

    def captions(self) -> Captions:
        """All images and captions, grouped by image."""
        owners = np.array(self._images, np.int64)
        flat = CaptionArrays(np.array(self._tokens, np.int32), _bounds(self._lengths), np.arange(len(owners) + 1))
        images = _bounds(np.bincount(owners, minlength=len(self.names)))
        arrays = replace(flat.take(np.argsort(owners, kind="stable")), images=images)
        numbers, splits = np.array(self._numbers, np.int64), np.array(self._splits, np.int8)
        return Captions(list(self.names), numbers, splits, list(self._words), arrays, self._bad)


def _check_unicode(text: str) -> None:
    """JSON can escape half of a surrogate pair, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{text!r} is not valid Unicode") from error


def file_name(name: str) -> str:
    """A name without its folders."""
    return re.split(r"[/\\]", name)[-1]


def stem(name: str) -> str:
    """The file name without its suffix."""
    return re.sub(r"(?<=.)\.[^.]*$", "", file_name(name))


def number(name: str) -> int | None:
    """The number in names such as ``391895``, ``000000391895.jpg`` and ``COCO_val2014_000000391895.jpg``."""
    match = _NUMBER.fullmatch(stem(name))
    return int(match[1]) if match else None


def match(names: Sequence[str], numbers: Sequence[int], known: Sequence[str]) -> np.ndarray:
    """The index of each image among the known names, or −1; ``numbers`` are COCO's, or NO_NUMBER.

    Images are matched by file name, by stem or by number: by the first of these that finds all of them, or else by the
    one that finds most. All images are matched in the same way, so that none is mistaken for another whose name is its
    number. A key that two known names share matches neither.
    """
    best = np.full(len(names), -1)
    for key in (file_name, stem, number):
        wanted = [key(name) for name in names]
        if key is number:
            wanted = [own if given == NO_NUMBER else given for own, given in zip(wanted, numbers, strict=True)]
        table: dict[str | int | None, int] = {}
        for index, own in enumerate(map(key, known)):
            table[own] = -1 if own is None or own in table else index
        indices = np.array([table.get(one, -1) for one in wanted], np.int64)
        if (indices >= 0).all():
            return indices
        if (indices >= 0).sum() > (best >= 0).sum():
            best = indices
    return best


def read_names(path: Path) -> list[str]:
    """The names in a file with one name per line, all different."""
    lines: dict[str, int] = {}
    for line, text in enumerate(read_lines(path), 1):
        name = text.strip()
        if not name:
            raise InputError(f"{path}, line {line}: expected the name of an image, not an empty line")
        if name in lines:
            raise InputError(f"{path}, line {line}: the name {name!r} is also on line {lines[name]}")
        lines[name] = line
    if not lines:
        raise InputError(f"{path} is empty: expected names of images, one per line")
    return list(lines)
