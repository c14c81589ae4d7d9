"""Word vectors from the usual text files: GloVe's, word2vec's and fastText's."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from corollout.errors import InputError

_FEWEST_LETTERS = 4  # of a beginning by which words are taken to be related
_BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}".encode()


def word_vectors(path: Path | str, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """float32[word, dimension] and bool[word]: the vectors of words, and for which of them the file has one.

    Each line is a word and its numbers, with blanks between them; a first line with the number of words and the
    dimension is allowed. Of a word that is there twice the first line counts. A word that the file does not have gets
    the mean vector of its relatives: the words with a vector that begin like it, for as long as any does, but at
    least for four letters and for half the word. Without relatives it gets the mean of all. Words that get the same
    vector are neighbours in a tree.
    """
    found = _read(Path(path), set(words))
    if not found:
        raise InputError(
            f"{path} has a vector for none of the {len(words):,} words: is it of the same language and case?"
        )
    known = np.array([word in found for word in words], bool)
    vectors = np.empty((len(words), len(next(iter(found.values())))), np.float32)
    vectors[known] = [found[word] for word in words if word in found]
    relatives = _Relatives(found)
    for place in (~known).nonzero()[0].tolist():
        vectors[place] = relatives.mean(words[place])
    return vectors, known


def _read(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """The vectors of some words. Lines of other words are only counted and measured: most words are others."""
    names = {word.encode(): word for word in wanted}
    found: dict[str, np.ndarray] = {}
    promised: int | None = None  # lines, by the header
    dimension = lines = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                line = raw.replace(b"\t", b" ").rstrip(b" \r\n")
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                    promised, dimension = _first_line(line, path)
                    if promised is not None:
                        continue
                blanks = line.count(b" ")
                if blanks < dimension:
                    what = f"expected a word and {dimension} numbers, found {blanks + 1 if line else 0} entries"
                    raise InputError(f"{path}, line {number}: {what}; the file may be cut short")
                lines += 1
                # From the right: some files have words with blanks in them.
                entries = line.rsplit(b" ", dimension) if blanks > dimension else line.split(b" ")
                word = names.get(entries[0])
                if word is not None and word not in found:
                    found[word] = _numbers(entries[1:], path, number)
    except OSError as error:
        raise InputError(f"cannot read the word vectors {path}: {error.strerror or error}") from error
    if promised is not None and lines != promised:
        raise InputError(f"{path} has vectors of {lines:,} words, but its first line says {promised:,}: get it again")
    if lines == 0:
        raise InputError(f"{path} is empty: expected a word and its vector in each line")
    return found


def _first_line(line: bytes, path: Path) -> tuple[int | None, int]:
    """How many lines the header promises, if it is one, and how many numbers belong to a word."""
    entries = line.split(b" ")
    if len(entries) == 2 and all(entry.isdigit() for entry in entries):
        count, dimension = map(int, entries)
        if dimension == 0:
            raise InputError(f"{path}, line 1: vectors without numbers")
        return count, dimension
    if len(entries) < 2:
        raise InputError(f"{path}, line 1: expected a word and its vector, with blanks between them")
    return None, len(entries) - 1


def _numbers(entries: list[bytes], path: Path, line: int) -> np.ndarray:
    try:
        vector = np.array([float(entry) for entry in entries])
    except ValueError as error:
        raise InputError(f"{path}, line {line}: expected {len(entries)} numbers after the word: {error}") from error
    with np.errstate(over="ignore"):
        vector = vector.astype(np.float32)
    if not np.isfinite(vector).all():
        raise InputError(f"{path}, line {line}: an entry of the vector is not a finite number")
    return vector


class _Relatives:
    """Words with vectors, in alphabetical order."""

    def __init__(self, vectors: dict[str, np.ndarray]):
        self._words = sorted(vectors)
        self._vectors = np.stack([vectors[word] for word in self._words])
        self._mean = self._vectors.mean(0, dtype=np.float64)

    def mean(self, word: str) -> np.ndarray:
        """The mean vector of the words that share the longest beginning with this one; else the mean of all."""
        place = bisect_left(self._words, word)
        # Nobody shares more letters than the words before and after it.
        near = self._words[max(place - 1, 0) : place + 1]
        letters = max(_letters_shared(word, other) for other in near)
        if letters < max(_FEWEST_LETTERS, len(word) / 2):
            return self._mean
        shared = word[:letters]
        first = bisect_left(self._words, shared)
        end = bisect_left(self._words, shared + "\U0010ffff", first)
        return self._vectors[first:end].mean(0, dtype=np.float64)


def _letters_shared(one: str, other: str) -> int:
    """How many letters two words have in common at their beginnings."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
