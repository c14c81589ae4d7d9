"""Images go by several names: ``val2014/COCO_val2014_000000391895.jpg``, its stem, and COCO's number 391895 are one."""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

_NUMBER = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,18})")

NO_NUMBER = -1


def file_name(name: str) -> str:
    """A name without the folders before it."""
    return re.split(r"[/\\]", name)[-1]


def stem(name: str) -> str:
    """The file's name without its ending."""
    return re.sub(r"(?<=.)\.[^.]*$", "", file_name(name))


def number(name: str) -> int | None:
    """The number in names such as ``391895``, ``000000391895.jpg`` and ``COCO_val2014_000000391895.jpg``."""
    found = _NUMBER.fullmatch(stem(name))
    return int(found[1]) if found else None


def match(names: Sequence[str], numbers: Sequence[int], known: Sequence[str]) -> np.ndarray:
    """Where each image is among the known names, or −1; its number, if it has one, is COCO's.

    Images are matched by file name, by stem or by number: by the first of these that finds them all, or else by the one
    that finds most of them. All go the same way, lest one image be taken for another whose name is its number. What
    two known names share names neither of them.
    """
    best = np.full(len(names), -1)
    for mine, theirs in _ways(names, numbers, known):
        table: dict[Hashable, int] = {}
        for place, key in enumerate(theirs):
            table[key] = -1 if key is None or key in table else place
        found = np.array([table.get(key, -1) for key in mine], np.int64)
        if (found >= 0).all():
            return found
        if (found >= 0).sum() > (best >= 0).sum():
            best = found
    return best


def _ways(
    names: Sequence[str], numbers: Sequence[int], known: Sequence[str]
) -> Iterator[tuple[Sequence[Hashable], Sequence[Hashable]]]:
    by_name: list[Callable[[str], Hashable]] = [file_name, stem]
    for key in by_name:
        yield [key(name) for name in names], [key(name) for name in known]
    own = [number(name) if given == NO_NUMBER else given for name, given in zip(names, numbers, strict=True)]
    yield own, [number(name) for name in known]
