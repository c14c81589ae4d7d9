"""ROUGE-L: the longest common subsequence, not necessarily contiguous, of a hypothesis and its references.

With P the subsequence's share of the hypothesis and R its share of the reference, each maximised over the references,

    ROUGE-L = (1 + β²) P R / (R + β² P),     β = 1.2

(Lin 2004, with the β and the two maxima of the public evaluation of captions). An empty sequence matches another empty
one and nothing else.
"""

from functools import partial
from typing import no_type_check

import numpy as np

from corollout.numba_cache import numba
from corollout.row_threads import by_rows
from corollout.text_metrics.references import Hypotheses, Images, References

BETA = 1.2


class RougeL:
    """ROUGE-L. The value of a corpus is the mean."""

    def __init__(self, references: References):
        self.references = references

    def scores(self, hypotheses: Hypotheses, images: Images) -> np.ndarray:
        """float64[hypothesis]."""
        tokens, indices = self.references.batch(hypotheses, images)
        scores = np.zeros(len(tokens))
        references = (self.references.groups, self.references.tokens.flat, self.references.tokens.starts)
        by_rows(partial(_score, tokens.flat, *references), 1000, tokens.starts[:-1], tokens.starts[1:], indices, scores)
        return scores

    def corpus(self, hypotheses: Hypotheses, images: Images) -> float:
        return float(self.scores(hypotheses, images).mean())


@no_type_check
@numba.njit(cache=True, nogil=True)
def _score(flat, groups, references, reference_starts, starts, ends, indices, scores):
    lengths = np.empty((ends - starts).max() + 1 if len(starts) else 1, np.int64)
    for h in range(len(starts)):
        mine = flat[starts[h] : ends[h]]
        precision, recall = 0.0, 0.0
        for r in range(groups[indices[h]], groups[indices[h] + 1]):
            other = references[reference_starts[r] : reference_starts[r + 1]]
            if len(mine) == 0 or len(other) == 0:
                common = len(mine) == len(other)
            else:
                common = _common(mine, other, lengths)
            precision = max(precision, common / max(len(mine), 1))
            recall = max(recall, common / max(len(other), 1))
        if precision > 0:
            scores[h] = (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _common(a, b, lengths):
    """The length of the longest common subsequence; ``lengths[i]`` is that of a's first i tokens and b's so far."""
    lengths[: len(a) + 1] = 0
    for token in b:
        diagonal = 0
        for i in range(len(a)):
            above = lengths[i + 1]
            if a[i] == token:
                lengths[i + 1] = diagonal + 1
            elif lengths[i] > above:
                lengths[i + 1] = lengths[i]
            diagonal = above
    return lengths[len(a)]
