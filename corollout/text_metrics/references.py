"""References, indexed once to be compared with hypotheses, and the document frequencies of their n-grams."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import no_type_check

import numpy as np

from corollout.errors import InputError
from corollout.numba_cache import numba
from corollout.text_metrics.ngrams import (
    LARGEST_ID,
    LONGEST,
    NONE,
    TOKEN_MASK,
    NGrams,
    Tokens,
    child,
    count_repetitions,
    parent_of,
)

Hypotheses = Sequence[Sequence[int]] | Tokens
Images = Sequence[int] | np.ndarray  # the index of each hypothesis's image


class References:
    """The references of each image: ``References([[[5, 2, 9], [5, 7]], [[4, 4, 2]], …])``.

    An "image" is anything with at least one reference. A hypothesis names its image by the index in this list.

    Each image has a tree of the n-grams of its references, and each node of it a list of the references that contain
    the n-gram and how often: ``holders`` and ``times``, from ``occurrences[node]`` on.
    """

    def __init__(self, groups: Iterable[Sequence[Sequence[int]]]):
        captions: list[Sequence[int]] = []
        ends = [0]
        for image, group in enumerate(groups):
            if len(group) == 0:
                raise InputError(f"image {image} has no references: leave it out or give it at least one")
            captions += group
            ends.append(len(captions))
        self.tokens = Tokens.pack(captions)
        self.groups = np.array(ends, np.int64)  # where each image's references begin
        self.ngrams = NGrams.of(self.tokens, self.groups)
        nodes, holders, times = np.empty((3, LONGEST * len(self.tokens.flat)), np.int32)
        trees = (self.ngrams.keys, self.ngrams.slots, self.ngrams.parts)
        count = _list(self.tokens.flat, self.tokens.starts, self.groups, *trees, nodes, holders, times)
        order = np.argsort(nodes[:count], kind="stable")
        self.holders, self.times = holders[order], times[order]
        self.occurrences = np.zeros(len(self.ngrams) + 1, np.int64)
        np.cumsum(np.bincount(nodes[:count], minlength=len(self.ngrams)), out=self.occurrences[1:])

    def __len__(self) -> int:
        return len(self.groups) - 1

    def batch(self, hypotheses: Hypotheses, images: Images) -> tuple[Tokens, np.ndarray]:
        """Hypotheses and the indices of their images as arrays, checked against each other."""
        tokens = hypotheses if isinstance(hypotheses, Tokens) else Tokens.pack(hypotheses)
        indices = images if isinstance(images, np.ndarray) else np.fromiter(images, np.int64, len(images))
        if indices.shape != (len(tokens),):
            raise InputError(f"{len(tokens)} hypotheses need one image each, not {indices.size} images")
        if len(indices) and indices.dtype.kind not in "iu":
            raise InputError(f"images are given as integers, not as {indices.dtype}")
        indices = indices.astype(np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise InputError(f"there are no references for image {wrong}, only for images 0 to {len(self) - 1}")
        return tokens, indices


@dataclass(frozen=True)
class DocumentFrequencies:
    """In how many of all images a reference contains an n-gram; n-grams that are not listed are in none."""

    ngrams: NGrams  # a single tree
    counts: np.ndarray  # int64[node]
    images: int

    @classmethod
    def of(cls, references: References) -> "DocumentFrequencies":
        if len(references) == 0:
            raise InputError("document frequencies need the references of at least one image")
        ngrams = NGrams.of(references.tokens, references.groups[[0, -1]])
        counts = np.bincount(ngrams.find(references.ngrams), minlength=len(ngrams))
        return cls(ngrams, counts, len(references))

    @classmethod
    def of_table(cls, table: Mapping[tuple[int, ...], int], images: int) -> "DocumentFrequencies":
        """From n-grams and the number of images that contain each of them."""
        if not 1 <= images <= LARGEST_ID:
            raise InputError(f"document frequencies need at least one image and at most {LARGEST_ID}, not {images}")
        for ngram, count in table.items():
            if not 1 <= len(ngram) <= LONGEST:
                raise InputError(f"an n-gram has 1 to {LONGEST} tokens, not {len(ngram)}: {ngram}")
            if not 0 <= count <= images:
                raise InputError(f"the n-gram {ngram} is said to be in {count} of {images} images")
        tokens = Tokens.pack(list(table))
        ngrams = NGrams.of(tokens, np.array([0, len(tokens)]))
        counts = np.zeros(len(ngrams), np.int64)
        values = np.fromiter(table.values(), np.int64, len(table))
        _write_counts(tokens.flat, tokens.starts, values, ngrams.keys, ngrams.slots, counts)
        return cls(ngrams, counts, images)

    def table(self) -> dict[tuple[int, ...], int]:
        """All n-grams that occur, with the number of images."""
        parents, tokens = parent_of(self.ngrams.keys).tolist(), (self.ngrams.keys & TOKEN_MASK).tolist()
        names: list[tuple[int, ...]] = []
        for parent, token in zip(parents, tokens, strict=True):
            names.append((*names[parent], token) if parent >= 0 else (token,))
        return {name: count for name, count in zip(names, self.counts.tolist(), strict=True) if count}

    def weights(self) -> np.ndarray:
        """ln(images) − ln(max(1, df)) of every node; last, where the index NONE finds it, that of any other n-gram."""
        return np.log(self.images) - np.log(np.maximum(np.append(self.counts, 1), 1))


@no_type_check
@numba.njit(cache=True, nogil=True)
def _list(flat, starts, groups, keys, slots, parts, nodes, holders, times):
    """For every n-gram of every reference: its node, the reference, and how often it occurs there."""
    count = 0
    repetitions = np.empty(((starts[1:] - starts[:-1]).max() if len(starts) > 1 else 0, LONGEST), np.int32)
    for g in range(len(groups) - 1):
        for s in range(groups[g], groups[g + 1]):
            tokens = flat[starts[s] : starts[s + 1]]
            count_repetitions(tokens, repetitions)
            for i in range(len(tokens)):
                node = np.int64(NONE)
                for n in range(min(LONGEST, len(tokens) - i)):
                    node = child(keys, slots, parts[g], parts[g + 1] - parts[g], node, tokens[i + n])
                    if repetitions[i, n]:
                        nodes[count], holders[count], times[count] = node, s, repetitions[i, n]
                        count += 1
    return count


@no_type_check
@numba.njit(cache=True, nogil=True)
def _write_counts(flat, starts, values, keys, slots, counts):
    for s in range(len(values)):
        node = np.int64(NONE)
        for i in range(starts[s], starts[s + 1]):
            node = child(keys, slots, 0, len(slots), node, flat[i])
        counts[node] = values[s]
