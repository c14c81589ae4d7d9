"""BLEU-1 to BLEU-4: the share of a hypothesis's n-grams that its references have, for sequences or a whole corpus.

Of the g_k n-grams of k tokens, c_k are right: each as often as the reference that has it most often has it. With the
hypothesis's length l and the length r of a reference, the one closest to it,

    BLEU-n = (Π_k c_k / g_k)^(1/n) · min(1, exp(1 − r / l)),     k = 1 … n

(Papineni et al. 2002). For a corpus, c, g, l and r are those of all hypotheses together. Small numbers keep divisors
from 0, as in the public evaluation of captions.
"""

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numba
import numpy as np

from corollout.row_threads import by_rows
from corollout.text_metrics.ngrams import LONGEST, NONE, child, count_repetitions
from corollout.text_metrics.references import Hypotheses, References

_SMALL, _TINY = 1e-9, 1e-15


class Bleu:
    """BLEU-1, BLEU-2, BLEU-3 and BLEU-4."""

    def __init__(self, references: References):
        self.references = references

    def scores(self, hypotheses: Hypotheses, images: Sequence[int] | np.ndarray) -> np.ndarray:
        """float64[hypothesis, 4]: of each hypothesis by itself."""
        return _bleu(self._matches(hypotheses, images))

    def corpus(self, hypotheses: Hypotheses, images: Sequence[int] | np.ndarray) -> np.ndarray:
        """float64[4]: of all hypotheses together."""
        return _bleu(_Matches(*(part.sum(0) for part in self._matches(hypotheses, images))))

    def _matches(self, hypotheses: Hypotheses, images: Sequence[int] | np.ndarray) -> "_Matches":
        tokens, places = self.references.batch(hypotheses, images)
        right = np.zeros((len(tokens), LONGEST), np.int64)
        closest = np.zeros(len(tokens), np.int64)
        known = self.references
        trees = (known.ngrams.keys, known.ngrams.slots, known.ngrams.parts)
        references = (known.groups, known.tokens.lengths, known.occurrences, known.times)

        def loop(starts: np.ndarray, ends: np.ndarray, *rows: np.ndarray) -> None:
            _count(tokens.flat, *trees, *references, starts, ends, *rows)

        by_rows(loop, 1000, tokens.starts[:-1], tokens.starts[1:], places, right, closest)
        lengths = tokens.lengths
        return _Matches(right, np.maximum(lengths[:, None] - np.arange(LONGEST), 0), lengths, closest)


class _Matches(NamedTuple):
    """c_k, g_k, l and r, of hypotheses or of a corpus."""

    right: np.ndarray
    all: np.ndarray
    length: np.ndarray
    closest: np.ndarray


def _bleu(matches: _Matches) -> np.ndarray:
    shares = (matches.right + _TINY) / (matches.all + _SMALL)
    values = np.cumprod(shares, -1) ** (1 / np.arange(1, LONGEST + 1))
    ratio = (matches.length + _TINY) / (matches.closest + _SMALL)
    return values * np.exp(np.minimum(1 - 1 / ratio, 0))[..., None]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _count(flat, keys, slots, parts, groups, lengths, occurrences, times, starts, ends, places, right, closest):
    own_times = np.empty(((ends - starts).max() if len(starts) else 0, LONGEST), np.int32)
    for h in range(len(starts)):
        image, length = places[h], ends[h] - starts[h]
        tokens = flat[starts[h] : ends[h]]
        count_repetitions(tokens, own_times)
        for i in range(length):
            node = np.int64(NONE)
            for n in range(min(LONGEST, length - i)):
                node = child(keys, slots, parts[image], parts[image + 1] - parts[image], node, tokens[i + n])
                if node < 0:
                    break
                if own_times[i, n]:
                    most = times[occurrences[node] : occurrences[node + 1]].max()
                    right[h, n] += min(most, own_times[i, n])
        nearest = lengths[groups[image]]
        for r in range(groups[image], groups[image + 1]):
            apart, least = abs(lengths[r] - length), abs(nearest - length)
            if apart < least or (apart == least and lengths[r] < nearest):
                nearest = lengths[r]
        closest[h] = nearest
