"""CIDEr-D and CIDEr: the n-grams that a sequence shares with the references of its image, weighted by their rarity.

The weight of an n-gram in a sequence is its count times ln(images) − ln(max(1, df)), where df is its document
frequency. CIDEr is 10 times the mean, over n = 1 … 4 and over the references, of the cosine between the weights of the
hypothesis and of the reference (Vedantam et al. 2015). CIDEr-D clips each weight of the hypothesis to that of the
reference and multiplies each cosine by exp(−Δ²/2σ²), where Δ is the difference in length: repeating words does not pay.
"""

from functools import partial
from typing import Literal, no_type_check

import numpy as np

from corollout.errors import InputError
from corollout.numba_cache import numba
from corollout.row_threads import by_rows
from corollout.text_metrics.ngrams import LONGEST, NONE, child, count_repetitions, parent_of
from corollout.text_metrics.references import DocumentFrequencies, Hypotheses, Images, References

VARIANTS = ("D", "plain")


class Cider:
    """CIDEr-D (``variant="D"``), or CIDEr without clipping and length penalty (``variant="plain"``).

    Document frequencies are those of the references unless others are given. The value of a corpus is the mean.
    """

    def __init__(
        self,
        references: References,
        frequencies: DocumentFrequencies | None = None,
        variant: Literal["D", "plain"] = "D",
        sigma: float | int = 6.0,
    ):
        if variant not in VARIANTS:
            raise InputError(f"unknown variant of CIDEr {variant!r}: choose one of {', '.join(VARIANTS)}")
        if not sigma > 0:
            raise InputError(f"sigma must be positive, not {sigma}")
        self.references, self.variant = references, variant
        self.frequencies = DocumentFrequencies.of(references) if frequencies is None else frequencies
        self._sigma = float(sigma)
        self._weights = self.frequencies.weights()
        self._same = self.frequencies.ngrams.find(references.ngrams)
        self._norms = np.zeros((len(references.tokens), LONGEST))
        held = (references.occurrences, references.holders, references.times)
        _sum_squares(references.ngrams.keys, *held, self._weights[self._same], self._norms)
        np.sqrt(self._norms, out=self._norms)

    def scores(self, hypotheses: Hypotheses, images: Images) -> np.ndarray:
        """float64[hypothesis]: each against the references of its image."""
        index, tokens, indices = self.references, *self.references.batch(hypotheses, images)
        scores = np.zeros(len(tokens))
        longest = max(tokens.lengths.max(initial=0), index.tokens.lengths.max(initial=0))
        # The factor of a cosine for each difference in length.
        penalties = np.exp(-(np.arange(longest + 1) ** 2) / (2 * self._sigma**2))
        if self.variant == "plain":
            penalties[:] = 1
        image_trees = (index.ngrams.keys, index.ngrams.slots, index.ngrams.parts, self._same)
        tree = (self.frequencies.ngrams.keys, self.frequencies.ngrams.slots, self._weights)
        references = (index.groups, index.tokens.lengths, self._norms, index.occurrences, index.holders, index.times)
        loop = partial(_score, tokens.flat, *image_trees, *tree, *references, self.variant == "D", penalties)
        by_rows(loop, 1000, tokens.starts[:-1], tokens.starts[1:], indices, scores)
        return scores

    def corpus(self, hypotheses: Hypotheses, images: Images) -> float:
        return float(self.scores(hypotheses, images).mean())


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sum_squares(keys, occurrences, holders, times, weights, sums):
    depths = np.empty(len(keys), np.int8)
    for node in range(len(keys)):
        parent = parent_of(keys[node])
        depths[node] = 0 if parent < 0 else depths[parent] + 1
        for entry in range(occurrences[node], occurrences[node + 1]):
            sums[holders[entry], depths[node]] += (times[entry] * weights[node]) ** 2


@no_type_check
@numba.njit(cache=True, nogil=True)
def _score(
    flat, image_keys, image_slots, parts, same, keys, slots, weights, groups, lengths, reference_norms, occurrences,
    holders, times, clipped, penalties, starts, ends, indices, scores,
):  # fmt: skip
    repetitions = np.empty(((ends - starts).max() if len(starts) else 0, LONGEST), np.int32)
    products = np.empty(((groups[1:] - groups[:-1]).max() if len(starts) else 0, LONGEST))
    norms = np.empty(LONGEST)
    for h in range(len(starts)):
        image, tokens = indices[h], flat[starts[h] : ends[h]]
        first, references = groups[image], groups[image + 1] - groups[image]
        part, part_size = parts[image], parts[image + 1] - parts[image]
        count_repetitions(tokens, repetitions)
        products[:references] = 0
        norms[:] = 0
        for i in range(len(tokens)):
            in_image, in_all = np.int64(NONE), np.int64(NONE)
            for n in range(min(LONGEST, len(tokens) - i)):
                # An n-gram of the image's tree needs no search in the large one; a missing node has no descendants.
                if n == 0 or in_image >= 0:
                    in_image = child(image_keys, image_slots, part, part_size, in_image, tokens[i + n])
                if in_image >= 0:
                    in_all = np.int64(same[in_image])
                elif n == 0 or in_all >= 0:
                    in_all = child(keys, slots, 0, len(slots), in_all, tokens[i + n])
                count = repetitions[i, n]
                if count == 0:
                    continue
                weight = weights[in_all]
                norms[n] += (count * weight) ** 2
                if in_image >= 0:
                    for entry in range(occurrences[in_image], occurrences[in_image + 1]):
                        mine = min(count, times[entry]) if clipped else count
                        products[holders[entry] - first, n] += mine * times[entry] * weight**2
        total = 0.0
        for n in range(LONGEST):
            norms[n] = np.sqrt(norms[n])
        for r in range(references):
            cosines = 0.0
            for n in range(LONGEST):
                if products[r, n] > 0:
                    cosines += products[r, n] / (norms[n] * reference_norms[first + r, n])
            total += cosines * penalties[abs(len(tokens) - lengths[first + r])]
        scores[h] = 10 * total / (LONGEST * references)
