"""Word vectors from text files of GloVe, word2vec and fastText."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from corollout.errors import InputError
from corollout.files import is_utf16, os_errors
from corollout.limits import ARRAY_BYTES

_SHORTEST_STEM = 4  # letters that related words share at least
_LONGEST_LINE = 1 << 22  # bytes: enough for vectors of a hundred thousand numbers
_BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}".encode()


def word_vectors(path: Path | str, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """float32[word, dimension] and bool[word]: the vectors of words, and which of them the file contains.

    Each line is a word and its numbers, separated by blanks; a first line with the number of words and the dimension
    is allowed. If a word occurs twice, the first line counts. A word that is missing gets the mean vector of the words
    that share the longest prefix with it, at least four letters and half the word, or else the mean of all vectors.
    Words with the same vector are neighbours in a tree.
    """
    table = _read(Path(path), set(words))
    if not table:
        raise InputError(f"{path} has vectors for none of the {len(words):,} words: check language, case and encoding")
    dimension = len(next(iter(table.values())))
    ARRAY_BYTES.check(
        4 * len(words) * dimension, f"{path}: the array of {len(words):,} vectors of {dimension:,} numbers"
    )
    known = np.array([word in table for word in words], bool)
    vectors = np.empty((len(words), dimension), np.float32)
    vectors[known] = [table[word] for word in words if word in table]
    names = sorted(table)
    alphabetical = np.stack([table[name] for name in names])
    mean = alphabetical.mean(0, dtype=np.float64)
    for index in (~known).nonzero()[0].tolist():
        near = alphabetical[_relatives(words[index], names)]
        vectors[index] = near.mean(0, dtype=np.float64) if len(near) else mean
    return vectors, known


def _read(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """The vectors of some words. Other lines, which are most of them, are only checked for their length."""
    names = {word.encode(): word for word in wanted}
    table: dict[str, np.ndarray] = {}
    promised: int | None = None  # number of words, from the header
    dimension = lines = 0
    with os_errors(f"read the word vectors {path}"), path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
            if len(raw) > _LONGEST_LINE:
                raise InputError(f"{path}, line {number}: more than {_LONGEST_LINE:,} bytes, too long for word vectors")
            if number == 1 and is_utf16(raw):
                raise InputError(f"cannot read the word vectors {path}: they seem to be UTF-16; save them as UTF-8")
            line = raw.replace(b"\t", b" ").rstrip(b" \r\n")
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
                entries = line.split(b" ")
                dimension = len(entries) - 1
                if dimension == 0:
                    raise InputError(f"{path}, line 1: expected a word and its vector, separated by blanks")
                if dimension == 1 and all(entry.isdigit() and len(entry) <= 18 for entry in entries):
                    promised, dimension = map(int, entries)
                    if dimension == 0:
                        raise InputError(f"{path}, line 1: the dimension must be at least 1")
                    continue
            blanks = line.count(b" ")
            if blanks < dimension:
                what = f"expected a word and {dimension} numbers, not {blanks + 1 if line else 0} entries"
                raise InputError(f"{path}, line {number}: {what}; the file may be cut short")
            lines += 1
            # From the right, because some files have words that contain blanks.
            entries = line.rsplit(b" ", dimension) if blanks > dimension else line.split(b" ")
            word = names.get(entries[0])
            if word is not None and word not in table:
                table[word] = _numbers(entries[1:], path, number)
    if promised is not None and lines != promised:
        raise InputError(f"{path} has vectors of {lines:,} words, but its header says {promised:,}: download it again")
    if lines == 0:
        raise InputError(f"{path} is empty: expected a word and its vector on each line")
    return table


def _numbers(entries: list[bytes], path: Path, line: int) -> np.ndarray:
    try:
        vector = np.array([float(entry) for entry in entries])
    except ValueError as error:
        reason = str(error)[:100]
        raise InputError(f"{path}, line {line}: expected {len(entries)} numbers after the word: {reason}") from error
    with np.errstate(over="ignore"):
        vector = vector.astype(np.float32)
    if not np.isfinite(vector).all():
        raise InputError(f"{path}, line {line}: the vector has a non-finite entry")
    return vector


def _relatives(word: str, names: list[str]) -> slice:
    """Which of the names, in alphabetical order, share the longest prefix with a word; none if it is too short."""
    index = bisect_left(names, word)
    # No name shares a longer prefix than the ones right before and after it.
    pairs = (zip(word, other, strict=False) for other in names[max(index - 1, 0) : index + 1])
    letters = max(len(list(takewhile(lambda pair: pair[0] == pair[1], both))) for both in pairs)
    if letters < max(_SHORTEST_STEM, len(word) / 2):
        return slice(0)
    return slice(bisect_left(names, word[:letters]), bisect_left(names, word[:letters] + "\U0010ffff"))
