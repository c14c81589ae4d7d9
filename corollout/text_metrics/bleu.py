"""BLEU-1 to BLEU-4: the share of a hypothesis's n-grams that its references contain, for sequences or a whole corpus.

Of the g_k n-grams of length k, c_k match: each at most as often as in the reference where it is most frequent. With
the hypothesis's length l and the length r of the reference closest to it in length,

    BLEU-n = (Π_k c_k / g_k)^(1/n) · min(1, exp(1 − r / l)),     k = 1 … n

(Papineni et al. 2002). For a corpus, c, g, l and r are sums over all hypotheses. Small constants keep divisors from
0, as in the public evaluation of captions.
"""

from functools import partial
from typing import no_type_check

import numpy as np

from corollout.numba_cache import numba
from corollout.row_threads import by_rows
from corollout.text_metrics.ngrams import LONGEST, NONE, child, count_repetitions
from corollout.text_metrics.references import Hypotheses, Images, References

_SMALL, _TINY = 1e-9, 1e-15
Counts = np.ndarray | np.int64  # of each hypothesis, or of a corpus


class Bleu:
    """BLEU-1, BLEU-2, BLEU-3 and BLEU-4."""

    def __init__(self, references: References):
        self.references = references

    def scores(self, hypotheses: Hypotheses, images: Images) -> np.ndarray:
        """float64[hypothesis, 4]: of each hypothesis separately."""
        return _bleu(*self._matches(hypotheses, images))

    def corpus(self, hypotheses: Hypotheses, images: Images) -> np.ndarray:
        """float64[4]: of all hypotheses together."""
        return _bleu(*(part.sum(0) for part in self._matches(hypotheses, images)))

    def _matches(self, hypotheses: Hypotheses, images: Images) -> tuple[np.ndarray, ...]:
        """c_k, g_k, l and r of each hypothesis."""
        tokens, indices = self.references.batch(hypotheses, images)
        matching = np.zeros((len(tokens), LONGEST), np.int64)
        closest = np.zeros(len(tokens), np.int64)
        index = self.references
        trees = (index.ngrams.keys, index.ngrams.slots, index.ngrams.parts)
        references = (index.groups, index.tokens.lengths, index.occurrences, index.times)
        loop = partial(_count, tokens.flat, *trees, *references)
        by_rows(loop, 1000, tokens.starts[:-1], tokens.starts[1:], indices, matching, closest)
        lengths = tokens.lengths
        return matching, np.maximum(lengths[:, None] - np.arange(LONGEST), 0), lengths, closest


def _bleu(matching: np.ndarray, total: np.ndarray, length: Counts, closest: Counts) -> np.ndarray:
    values = np.cumprod((matching + _TINY) / (total + _SMALL), -1) ** (1 / np.arange(1, LONGEST + 1))
    ratio = (length + _TINY) / (closest + _SMALL)
    return values * np.exp(np.minimum(1 - 1 / ratio, 0))[..., None]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _count(flat, keys, slots, parts, groups, lengths, occurrences, times, starts, ends, indices, matching, closest):
    repetitions = np.empty(((ends - starts).max() if len(starts) else 0, LONGEST), np.int32)
    for h in range(len(starts)):
        image, length = indices[h], ends[h] - starts[h]
        tokens = flat[starts[h] : ends[h]]
        count_repetitions(tokens, repetitions)
        for i in range(length):
            node = np.int64(NONE)
            for n in range(min(LONGEST, length - i)):
                node = child(keys, slots, parts[image], parts[image + 1] - parts[image], node, tokens[i + n])
                if node < 0:
                    break
                if repetitions[i, n]:
                    most = times[occurrences[node] : occurrences[node + 1]].max()
                    matching[h, n] += min(most, repetitions[i, n])
        nearest = lengths[groups[image]]
        for r in range(groups[image], groups[image + 1]):
            apart, least = abs(lengths[r] - length), abs(nearest - length)
            if apart < least or (apart == least and lengths[r] < nearest):
                nearest = lengths[r]
        closest[h] = nearest
