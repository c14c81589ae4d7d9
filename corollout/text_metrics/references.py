"""Reference sequences, indexed once: what the text metrics compare hypotheses with."""

from collections.abc import Iterable, Sequence
from typing import no_type_check

import numba
import numpy as np

from corollout.errors import InputError
from corollout.text_metrics.ngrams import LONGEST, NONE, NGrams, child, count_repetitions
from corollout.text_metrics.tokens import Tokens

Hypotheses = Sequence[Sequence[int]] | Tokens


class References:
    """The references of each image: ``References([[[5, 2, 9], [5, 7]], [[4, 4, 2]], …])``.

    "Images" are whatever has references; each has one or more. A hypothesis names its image by the place in this list.

    For each image there is a tree of the n-grams of its references, and for each of its nodes the references that have
    the n-gram, with how often they have it: ``holders`` and ``times``, from ``occurrences[node]`` on.
    """

    def __init__(self, groups: Iterable[Sequence[Sequence[int]]]):
        captions: list[Sequence[int]] = []
        ends = [0]
        for image, group in enumerate(groups):
            if len(group) == 0:
                raise InputError(f"image {image} has no references: leave it out, or give it one or more")
            captions += group
            ends.append(len(captions))
        self.tokens = Tokens.pack(captions)
        self.groups = np.array(ends, np.int64)  # where the references of an image begin
        self.ngrams = NGrams.of(self.tokens, self.groups)
        nodes, holders, times = self._occurrences()
        order = np.argsort(nodes, kind="stable")
        self.holders, self.times = holders[order], times[order]
        self.occurrences = np.zeros(len(self.ngrams) + 1, np.int64)
        np.cumsum(np.bincount(nodes, minlength=len(self.ngrams)), out=self.occurrences[1:])

    def __len__(self) -> int:
        return len(self.groups) - 1

    def batch(self, hypotheses: Hypotheses, images: Sequence[int] | np.ndarray) -> tuple[Tokens, np.ndarray]:
        """Hypotheses and the images they belong to, as arrays that fit together."""
        tokens = hypotheses if isinstance(hypotheses, Tokens) else Tokens.pack(hypotheses)
        places = images if isinstance(images, np.ndarray) else np.fromiter(images, np.int64, len(images))
        if places.shape != (len(tokens),):
            raise InputError(f"{len(tokens)} hypotheses need an image each, not {places.size} images")
        if len(places) and places.dtype.kind not in "iu":
            raise InputError(f"images are named by whole numbers, not by {places.dtype}")
        places = places.astype(np.int64)
        if len(places) and not 0 <= places.min() <= places.max() < len(self):
            wrong = places[(places < 0) | (places >= len(self))][0]
            raise InputError(f"there is no image {wrong}: the references are those of images 0 to {len(self) - 1}")
        return tokens, places

    def _occurrences(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The nodes of all n-grams of all references, the reference, and how often it has the n-gram."""
        nodes, holders, times = (np.empty(LONGEST * len(self.tokens.flat), np.int32) for _ in range(3))
        trees = (self.ngrams.keys, self.ngrams.slots, self.ngrams.parts)
        count = _list(self.tokens.flat, self.tokens.starts, self.groups, *trees, nodes, holders, times)
        return nodes[:count], holders[:count], times[:count]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _list(flat, starts, groups, keys, slots, parts, nodes, holders, times):
    count = 0
    own_times = np.empty(((starts[1:] - starts[:-1]).max() if len(starts) > 1 else 0, LONGEST), np.int32)
    for g in range(len(groups) - 1):
        for s in range(groups[g], groups[g + 1]):
            tokens = flat[starts[s] : starts[s + 1]]
            count_repetitions(tokens, own_times)
            for i in range(len(tokens)):
                node = np.int64(NONE)
                for n in range(min(LONGEST, len(tokens) - i)):
                    node = child(keys, slots, parts[g], parts[g + 1] - parts[g], node, tokens[i + n])
                    if own_times[i, n]:
                        nodes[count], holders[count], times[count] = node, s, own_times[i, n]
                        count += 1
    return count
