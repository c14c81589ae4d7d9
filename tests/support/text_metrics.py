"""The text metrics as plain Python, and those of the public evaluation."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

Sequences = Sequence[Sequence[int]]


def ngrams(tokens: Sequence[int], n: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def plain_frequencies(groups: Sequence[Sequences]) -> dict[tuple[int, ...], int]:
    counts = Counter()
    for group in groups:
        counts.update({ngram for tokens in group for n in (1, 2, 3, 4) for ngram in ngrams(tokens, n)})
    return dict(counts)


def plain_cider(
    tokens: Sequence[int],
    group: Sequences,
    frequencies: Mapping[tuple[int, ...], int],
    images: int,
    variant: str = "D",
    sigma: float = 6.0,
) -> float:
    def weights(tokens: Sequence[int], n: int) -> dict[tuple[int, ...], float]:
        return {
            ngram: count * (math.log(images) - math.log(max(1, frequencies.get(ngram, 0))))
            for ngram, count in ngrams(tokens, n).items()
        }

    total = 0.0
    for n in (1, 2, 3, 4):
        mine = weights(tokens, n)
        for reference in group:
            other = weights(reference, n)
            product = 0.0
            for ngram in mine.keys() & other.keys():
                weight = min(mine[ngram], other[ngram]) if variant == "D" else mine[ngram]
                product += weight * other[ngram]
            norms = math.hypot(*mine.values()) * math.hypot(*other.values())
            cosine = product / norms if norms else 0.0
            if variant == "D":
                cosine *= math.exp(-((len(tokens) - len(reference)) ** 2) / (2 * sigma**2))
            total += cosine
    return 10 * total / (4 * len(group))


def plain_matches(tokens: Sequence[int], group: Sequences) -> tuple[list[int], list[int], int, int]:
    """For n = 1 … 4 the matching and all n-grams; the length, and that of the closest reference."""
    right, every = [], []
    for n in (1, 2, 3, 4):
        own = ngrams(tokens, n)
        others = [ngrams(reference, n) for reference in group]
        right.append(sum(min(count, max(other[ngram] for other in others)) for ngram, count in own.items()))
        every.append(max(0, len(tokens) - n + 1))
    return right, every, len(tokens), min((abs(len(r) - len(tokens)), len(r)) for r in group)[1]


def plain_bleu(right: Sequence[int], every: Sequence[int], length: int, closest: int) -> list[float]:
    values, product = [], 1.0
    for n in (1, 2, 3, 4):
        product *= (right[n - 1] + 1e-15) / (every[n - 1] + 1e-9)
        values.append(product ** (1 / n))
    ratio = (length + 1e-15) / (closest + 1e-9)
    return [value * math.exp(1 - 1 / ratio) if ratio < 1 else value for value in values]


def plain_rouge(tokens: Sequence[int], group: Sequences) -> float:
    def common(a: Sequence[int], b: Sequence[int]) -> int:
        if not a or not b:
            return 0
        if a[0] == b[0]:
            return 1 + common(a[1:], b[1:])
        return max(common(a[1:], b), common(a, b[1:]))

    # An empty text has one word, the empty one.
    own, others = list(tokens) or [-1], [list(reference) or [-1] for reference in group]
    lengths = [common(own, other) for other in others]
    precision = max(lengths) / len(own)
    recall = max(length / len(other) for length, other in zip(lengths, others, strict=True))
    return 2.44 * precision * recall / (recall + 1.44 * precision) if max(lengths) else 0.0


def text(tokens: Sequence[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


class PublicScores:
    """pycocoevalcap's scores of one hypothesis for each image."""

    def __init__(self, groups: Sequence[Sequence[str]], hypotheses: Sequence[str]):
        from pycocoevalcap.bleu.bleu_scorer import BleuScorer
        from pycocoevalcap.cider.cider_scorer import CiderScorer
        from pycocoevalcap.rouge.rouge import Rouge

        cider, bleu = CiderScorer(), BleuScorer(n=4)
        for group, hypothesis in zip(groups, hypotheses, strict=True):
            cider += (hypothesis, list(group))
            bleu += (hypothesis, list(group))
        self.cider_corpus, self.cider = cider.compute_score()
        self.bleu_corpus, bleus = bleu.compute_score(option="closest")
        self.bleu = np.array(bleus).T
        self.rouge = np.array([Rouge().calc_score([h], list(g)) for g, h in zip(groups, hypotheses, strict=True)])
