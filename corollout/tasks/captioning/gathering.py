"""Captions as they are read, word by word into arrays."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.arrays import SPLITS, CaptionArrays
from corollout.tasks.captioning.names import NO_NUMBER
from corollout.tasks.captioning.text import tokenize

NO_SPLIT = -1


class Listed(NamedTuple):
    """An image that a list of a split names although it has no captions."""

    name: str
    file: str
    line: int


@dataclass(frozen=True)
class Captions:
    """Images of caption files, in the order of the files, and what is said of them."""

    names: list[str]
    numbers: np.ndarray  # int64[image]: COCO's, or NO_NUMBER
    splits: np.ndarray  # int8[image]: its place in SPLITS, or NO_SPLIT
    words: list[str]
    arrays: CaptionArrays  # tokens are places in ``words``; an image may have no caption
    bad: list[str] = field(default_factory=list)  # what was wrong with each entry that was left out
    without: list[Listed] = field(default_factory=list)


class Gathering:
    """Collects images and captions in any order; with ``skip_bad``, a bad entry is counted instead of refused."""

    def __init__(self, skip_bad: bool = False):
        self._skip_bad = skip_bad
        self._places: dict[str, int] = {}  # of images, by name
        self._words: dict[str, int] = {}
        self._numbers, self._splits = array("q"), array("b")
        self._tokens, self._lengths, self._images = array("i"), array("i"), array("i")
        self._bad: list[str] = []

    def image(self, name: str, split: str | None = None, number: int | None = None) -> int:
        """A new image; its place."""
        _check_text(name)
        if name.splitlines() != [name]:
            raise InputError(f"{name!r} cannot be the name of an image")
        if name in self._places:
            raise InputError(f"the image {name!r} is there twice")
        if number is not None and not 0 <= number < 2**63:
            raise InputError(f"{number} cannot be the number of an image")
        self._numbers.append(NO_NUMBER if number is None else number)
        self._splits.append(NO_SPLIT if split is None else SPLITS.index(split))
        return self._places.setdefault(name, len(self._places))

    def place(self, name: str) -> int | None:
        """The place of an image that is there already."""
        return self._places.get(name)

    def caption(self, image: int, text: str) -> None:
        """What is said of an image."""
        _check_text(text)
        words = tokenize(text)
        if not words:
            raise InputError(f"no word in the caption {text!r}")
        self._tokens.extend([self._words.setdefault(word, len(self._words)) for word in words])
        self._lengths.append(len(words))
        self._images.append(image)

    def refuse(self, where: str, error: InputError) -> None:
        """What is wrong with an entry: an error, or one more that is left out."""
        text = f"{where}: {error}"
        if not self._skip_bad:
            raise InputError(f"{text} (--skip-bad leaves such entries out)") from error
        self._bad.append(text)

    def captions(self) -> Captions:
        """All of it, captions by image."""
        owners = np.array(self._images, np.int64)
        read = CaptionArrays(np.array(self._tokens, np.int32), _bounds(self._lengths), np.arange(len(owners) + 1))
        grouped = read.take(np.argsort(owners, kind="stable"))
        images = _bounds(np.bincount(owners, minlength=len(self._places)))
        return Captions(
            list(self._places),
            np.array(self._numbers, np.int64),
            np.array(self._splits, np.int8),
            list(self._words),
            CaptionArrays(grouped.tokens, grouped.captions, images),
            self._bad,
        )


def _check_text(text: str) -> None:
    """JSON can escape half a character, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{text!r} is no Unicode text") from error


def _bounds(lengths: "array[int] | np.ndarray") -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])
