"""CIDEr-D and CIDEr: what a sequence has in common with the references of its image, rare n-grams counting for more.

The weight of an n-gram in a sequence is how often it is there times ln(images) − ln(max(1, df)), where df is its
document frequency. CIDEr is 10 times the mean, over n = 1 … 4 and over the references, of the cosine between the
weights of the hypothesis and those of the reference (Vedantam et al. 2015). In CIDEr-D, a weight of the hypothesis
counts up to that of the reference, and each cosine is multiplied by exp(−Δ²/2σ²), Δ being the difference of lengths:
it does not pay to repeat words.
"""

from collections.abc import Sequence
from typing import Literal, no_type_check

import numba
import numpy as np

from corollout.errors import InputError
from corollout.row_threads import by_rows
from corollout.text_metrics.frequencies import DocumentFrequencies
from corollout.text_metrics.ngrams import LONGEST, NONE, child, count_repetitions
from corollout.text_metrics.references import Hypotheses, References

KINDS = ("D", "plain")


class Cider:
    """CIDEr-D (``kind="D"``), or CIDEr without clipping and length penalty (``kind="plain"``).

    Document frequencies are those of the references, unless others are given. The value of a corpus is the mean.
    """

    def __init__(
        self,
        references: References,
        frequencies: DocumentFrequencies | None = None,
        kind: Literal["D", "plain"] = "D",
        sigma: float | int = 6.0,
    ):
        if kind not in KINDS:
            raise InputError(f"no CIDEr is called {kind!r}: choose one of {', '.join(KINDS)}")
        if not sigma > 0:
            raise InputError(f"sigma must be positive, not {sigma}")
        self.references, self.kind = references, kind
        self.frequencies = DocumentFrequencies.of(references) if frequencies is None else frequencies
        self._sigma = float(sigma)
        self._weights = self.frequencies.weights()
        self._same = self.frequencies.ngrams.find(references.ngrams)
        self._norms = np.zeros((len(references.tokens), LONGEST))
        held = (references.occurrences, references.holders, references.times)
        _sum_squares(references.ngrams.depths(), *held, self._weights[self._same], self._norms)
        np.sqrt(self._norms, out=self._norms)

    def scores(self, hypotheses: Hypotheses, images: Sequence[int] | np.ndarray) -> np.ndarray:
        """float64[hypothesis]: of each against the references of its image."""
        known, tokens, places = self.references, *self.references.batch(hypotheses, images)
        scores = np.zeros(len(tokens))
        longest = max(tokens.lengths.max(initial=0), known.tokens.lengths.max(initial=0))
        penalties = self._penalties(int(longest))
        image_trees = (known.ngrams.keys, known.ngrams.slots, known.ngrams.parts, self._same)
        tree = (self.frequencies.ngrams.keys, self.frequencies.ngrams.slots, self._weights)
        references = (known.groups, known.tokens.lengths, self._norms, known.occurrences, known.holders, known.times)

        def loop(starts: np.ndarray, ends: np.ndarray, *rows: np.ndarray) -> None:
            _score(tokens.flat, *image_trees, *tree, *references, self.kind == "D", penalties, starts, ends, *rows)

        by_rows(loop, 1000, tokens.starts[:-1], tokens.starts[1:], places, scores)
        return scores

    def corpus(self, hypotheses: Hypotheses, images: Sequence[int] | np.ndarray) -> float:
        return float(self.scores(hypotheses, images).mean())

    def _penalties(self, longest: int) -> np.ndarray:
        """What a cosine is multiplied by, for each difference of lengths."""
        if self.kind == "plain":
            return np.ones(longest + 1)
        return np.exp(-(np.arange(longest + 1) ** 2) / (2 * self._sigma**2))


class CiderReward:
    """CIDEr-D as a reward, with the end of a sequence for a word.

    The references have the end token as their last, and a sequence gets it if it ended by itself. Without it, a policy
    learns to stop in the middle of a sentence. Data sets need a column ``image``: its place in the references.
    """

    def __init__(self, references: References, frequencies: DocumentFrequencies | None = None, end: int | None = None):
        self.cider = Cider(references, frequencies)
        self.end = end

    def __call__(self, sequences: list[list[int]], image: Sequence[int], finished: Sequence[bool]) -> list[float]:
        if self.end is not None:
            end = [self.end]
            sequences = [tokens + end if done else tokens for tokens, done in zip(sequences, finished, strict=True)]
        return self.cider.scores(sequences, image).tolist()


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sum_squares(depths, occurrences, holders, times, weights, sums):
    for node in range(len(depths)):
        for place in range(occurrences[node], occurrences[node + 1]):
            sums[holders[place], depths[node]] += (times[place] * weights[node]) ** 2


@no_type_check
@numba.njit(cache=True, nogil=True)
def _score(
    flat, image_keys, image_slots, parts, same, keys, slots, weights, groups, lengths, reference_norms, occurrences,
    holders, times, clipped, penalties, starts, ends, places, scores,
):  # fmt: skip
    own_times = np.empty(((ends - starts).max() if len(starts) else 0, LONGEST), np.int32)
    products = np.empty(((groups[1:] - groups[:-1]).max() if len(starts) else 0, LONGEST))
    norms = np.empty(LONGEST)
    for h in range(len(starts)):
        image, tokens = places[h], flat[starts[h] : ends[h]]
        first, references = groups[image], groups[image + 1] - groups[image]
        part, part_size = parts[image], parts[image + 1] - parts[image]
        count_repetitions(tokens, own_times)
        products[:references] = 0
        norms[:] = 0
        for i in range(len(tokens)):
            in_image, in_all = np.int64(NONE), np.int64(NONE)
            for n in range(min(LONGEST, len(tokens) - i)):
                # What an image's tree has needs no search in the large one; below a node that is missing nothing is.
                if n == 0 or in_image >= 0:
                    in_image = child(image_keys, image_slots, part, part_size, in_image, tokens[i + n])
                if in_image >= 0:
                    in_all = np.int64(same[in_image])
                elif n == 0 or in_all >= 0:
                    in_all = child(keys, slots, 0, len(slots), in_all, tokens[i + n])
                count = own_times[i, n]
                if count == 0:
                    continue
                weight = weights[in_all]
                norms[n] += (count * weight) ** 2
                if in_image >= 0:
                    for place in range(occurrences[in_image], occurrences[in_image + 1]):
                        mine = min(count, times[place]) if clipped else count
                        products[holders[place] - first, n] += mine * times[place] * weight**2
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
