"""The reward of a text: agreement with the references and coverage of the slots, half and half.

    reward = 0.5 · (1 − exp(−CIDEr-D / 2)) + 0.5 · F1

CIDEr-D has no upper end that texts reach: against all references but itself, a human reference has 1.9 in the median
and 5.2 at the 99th percentile. The exponential puts these at 0.61 and 0.93. Document frequencies are always those of
the training references. F1 is that of the slots (`slots.py`): a missing slot and a wrong one cost the same.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.language_models.e2e import Example
from benchmarks.language_models.slots import SlotMatcher
from corollout.text_metrics import Cider, DocumentFrequencies, References

CIDER_WEIGHT, COVERAGE_WEIGHT, CIDER_SCALE = 0.5, 0.5, 2.0
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


class Score(NamedTuple):
    reward: float
    cider: float  # CIDEr-D from 0 to 10
    coverage: float  # F1 of the slots


class TextReward:
    """Scores texts for some of the ``examples``; ``train`` gives the document frequencies."""

    measures = Score._fields

    def __init__(self, examples: Sequence[Example], train: Sequence[Example]):
        self.examples = examples
        self.matcher = SlotMatcher([*train, *examples])
        self._ids: dict[str, int] = {}
        frequencies = DocumentFrequencies.of(References(self._references(train)))
        self._cider = Cider(References(self._references(examples)), frequencies)
        self._unknown = len(self._ids)

    def _references(self, examples: Iterable[Example]) -> list[list[list[int]]]:
        return [
            [[self._ids.setdefault(word, len(self._ids)) for word in words(text)] for text in example.references]
            for example in examples
        ]

    @property
    def prompts(self) -> list[str]:
        return [example.prompt for example in self.examples]

    def scores(self, texts: Sequence[str], indices: Sequence[int]) -> list[Score]:
        """The score of each text for the example with that index."""
        tokens = [[self._ids.get(word, self._unknown) for word in words(text)] for text in texts]
        ciders = self._cider.scores(tokens, indices).tolist()
        coverages = [
            self.matcher.f1(text, self.examples[index].slots) for text, index in zip(texts, indices, strict=True)
        ]
        return [Score(mix(*pair), *pair) for pair in zip(ciders, coverages, strict=True)]


def mix(cider: float, coverage: float) -> float:
    return CIDER_WEIGHT * (1 - math.exp(-cider / CIDER_SCALE)) + COVERAGE_WEIGHT * coverage


def words(text: str) -> list[str]:
    """Small letters; signs are words of their own."""
    return _WORD.findall(text.lower())
