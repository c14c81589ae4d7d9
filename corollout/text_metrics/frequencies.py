"""Document frequencies: in how many images' references an n-gram occurs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import no_type_check

import numba
import numpy as np

from corollout.errors import InputError
from corollout.text_metrics.ngrams import LONGEST, NONE, NGrams, child, parent_of, token_of
from corollout.text_metrics.references import References
from corollout.text_metrics.tokens import Tokens


@dataclass(frozen=True)
class DocumentFrequencies:
    """How many of so many images have a reference with an n-gram; what is not there is in none."""

    ngrams: NGrams  # of one group
    counts: np.ndarray  # int64[node]
    images: int

    @classmethod
    def of(cls, references: References) -> "DocumentFrequencies":
        if len(references) == 0:
            raise InputError("document frequencies need the references of one image or more")
        ngrams = NGrams.of(references.tokens, references.groups[[0, -1]])
        counts = np.bincount(ngrams.find(references.ngrams), minlength=len(ngrams))
        return cls(ngrams, counts, len(references))

    @classmethod
    def of_table(cls, table: Mapping[tuple[int, ...], int], images: int) -> "DocumentFrequencies":
        """From n-grams and in how many of the images each of them is."""
        for ngram, count in table.items():
            if not 1 <= len(ngram) <= LONGEST:
                raise InputError(f"an n-gram has 1 to {LONGEST} tokens, not {len(ngram)}: {ngram}")
            if not 0 <= count <= images:
                raise InputError(f"the n-gram {ngram} cannot be in {count} of {images} images")
        if images < 1:
            raise InputError(f"document frequencies need one image or more, not {images}")
        tokens = Tokens.pack(list(table))
        ngrams = NGrams.of(tokens, np.array([0, len(tokens)]))
        counts = np.zeros(len(ngrams), np.int64)
        values = np.fromiter(table.values(), np.int64, len(table))
        _write_counts(tokens.flat, tokens.starts, values, ngrams.keys, ngrams.slots, counts)
        return cls(ngrams, counts, images)

    def table(self) -> dict[tuple[int, ...], int]:
        """All n-grams that are in an image or more."""
        parents, tokens = parent_of(self.ngrams.keys).tolist(), token_of(self.ngrams.keys).tolist()
        names: list[tuple[int, ...]] = []
        for parent, token in zip(parents, tokens, strict=True):
            names.append((*names[parent], token) if parent >= 0 else (token,))
        return {name: count for name, count in zip(names, self.counts.tolist(), strict=True) if count}

    def weights(self) -> np.ndarray:
        """ln(images) − ln(max(1, df)) of every node, and at the end, where NONE finds it, that of any other n-gram."""
        return np.log(self.images) - np.log(np.maximum(np.append(self.counts, 1), 1))


@no_type_check
@numba.njit(cache=True, nogil=True)
def _write_counts(flat, starts, values, keys, slots, counts):
    for s in range(len(values)):
        node = np.int64(NONE)
        for i in range(starts[s], starts[s + 1]):
            node = child(keys, slots, 0, len(slots), node, flat[i])
        counts[node] = values[s]
