"""How many captions a second does CIDEr-D take? The compiled metric against the reference scorer, on one thread.

A batch as in training: hypotheses of about ten words for 50 images with five references each. Words are drawn by Zipf's
law; a hypothesis is a reference of its image with some words drawn anew. Everybody has the references and the document
frequencies, those of the 50 images, ready beforehand, and must give the same values.

Ours gets token ids, as an array or as Python lists; the packing of lists is timed. The reference scorer is that of
``pycocoevalcap``, unchanged. It gets strings, and its references as counts of n-grams, so that what is timed is the
counting of n-grams in hypotheses and ``compute_cider``, which weighs the references anew for every hypothesis. It takes
one hypothesis for each image at a time, since it would count an image with several as several images.

With document frequencies of thousands of images the table of n-grams does not fit into the processor's cache; that is
timed as well, without an opponent.
"""

from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress

from benchmarks.harness import Contestant, Result, Target, figure, milliseconds, time_alternately
from corollout.errors import InputError
from corollout.rewards.cider import Cider
from corollout.rewards.frequencies import DocumentFrequencies
from corollout.rewards.references import References
from corollout.rewards.tokens import Tokens

SEED = 1
IMAGES, REFERENCES = 50, 5
WORDS, SHORTEST, LONGEST = 9487, 8, 13
CHANGED = 0.4  # share of a reference's words that are drawn anew
LEAST_SPEEDUP = 100
MOST_DIFFERENCE = 1e-9


class Sizes(NamedTuple):
    rounds: int  # hypotheses for each image
    plain: int  # how many of them the reference scorer does in one measurement
    collection: int  # images of the large collection
    repetitions: int


FULL = Sizes(rounds=400, plain=20, collection=5000, repetitions=11)
QUICK = Sizes(rounds=4, plain=2, collection=60, repetitions=2)

ARRAY, LISTS, LARGE, REFERENCE = "ours, array in", "ours, lists in", "ours, lists in, large collection", "pycocoevalcap"


class Problem(NamedTuple):
    """Hypotheses in rounds of one for each image, and what the contestants know beforehand."""

    sizes: Sizes
    lists: list[list[int]]
    tokens: Tokens
    images: np.ndarray
    cider: Cider
    large: Cider
    texts: list[str]
    scorer: Any  # the reference scorer, with references and document frequencies


def make_problem(sizes: Sizes) -> Problem:
    random = np.random.default_rng(SEED)
    groups = [[_sentence(random) for _ in range(REFERENCES)] for _ in range(sizes.collection)]
    references = References(groups[:IMAGES])
    cider = Cider(references)
    images = np.tile(np.arange(IMAGES), sizes.rounds)
    lists = [_hypothesis(random, groups[image]) for image in images.tolist()]
    lengths = np.array([len(tokens) for tokens in lists])
    padded = np.zeros((len(lists), LONGEST), np.int64)
    padded[np.arange(LONGEST) < lengths[:, None]] = np.concatenate(lists)
    return Problem(
        sizes,
        lists,
        Tokens.padded(padded, lengths),
        images,
        cider,
        Cider(references, DocumentFrequencies.of(References(groups))),
        [_text(tokens) for tokens in lists[: IMAGES * sizes.plain]],
        _reference_scorer([[_text(tokens) for tokens in group] for group in groups[:IMAGES]]),
    )


def _sentence(random: np.random.Generator) -> list[int]:
    return _words(random, int(random.integers(SHORTEST, LONGEST + 1)))


def _words(random: np.random.Generator, count: int) -> list[int]:
    """Ranks 1 to WORDS with probability about 1 / rank."""
    return (np.exp(random.random(count) * np.log(WORDS + 1))).astype(int).tolist()


def _hypothesis(random: np.random.Generator, group: list[list[int]]) -> list[int]:
    tokens = group[random.integers(REFERENCES)]
    return np.where(random.random(len(tokens)) < CHANGED, _words(random, len(tokens)), tokens).tolist()


def _text(tokens: list[int]) -> str:
    return " ".join(f"word{token}" for token in tokens)


def _reference_scorer(groups: list[list[str]]) -> Any:
    try:
        from pycocoevalcap.cider.cider_scorer import CiderScorer
    except ImportError as error:
        raise InputError("the opponent is missing: install pycocoevalcap, as `make install` does") from error
    scorer = CiderScorer()
    for group in groups:
        scorer += (None, group)
    scorer.compute_doc_freq()
    return scorer


def score_array(problem: Problem) -> np.ndarray:
    return problem.cider.scores(problem.tokens, problem.images)


def score_lists(problem: Problem) -> np.ndarray:
    return problem.cider.scores(problem.lists, problem.images)


def score_with_large_collection(problem: Problem) -> np.ndarray:
    return problem.large.scores(problem.lists, problem.images)


def score_plainly(problem: Problem) -> np.ndarray:
    """The first rounds only, by the reference scorer."""
    from pycocoevalcap.cider.cider_scorer import cook_test

    scores = []
    for start in range(0, len(problem.texts), IMAGES):
        problem.scorer.ctest = [cook_test(text) for text in problem.texts[start : start + IMAGES]]
        scores += problem.scorer.compute_cider()
    return np.array(scores)


CONTESTANTS = {ARRAY: score_array, LISTS: score_lists, LARGE: score_with_large_collection, REFERENCE: score_plainly}


def check(problem: Problem) -> float:
    """Everybody with the same frequencies finds the same values; return the largest difference."""
    wanted = score_plainly(problem)
    if not wanted.max() > 1:
        raise AssertionError("the hypotheses have nothing in common with their references")
    differences = [np.abs(CONTESTANTS[name](problem)[: len(wanted)] - wanted).max() for name in (ARRAY, LISTS)]
    if not max(differences) <= MOST_DIFFERENCE:
        raise AssertionError(f"the values differ by up to {max(differences)}")
    return float(max(differences))


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    problem = make_problem(sizes)
    difference = check(problem)
    timings = time_alternately(
        [Contestant(name, 1, lambda call=call: call(problem)) for name, call in CONTESTANTS.items()],
        sizes.repetitions,
        progress,
        "cider",
    )
    counts = {timing.name: len(problem.texts if timing.name == REFERENCE else problem.lists) for timing in timings}
    rates = {timing.name: counts[timing.name] / timing.median for timing in timings}
    return {
        "benchmark": "cider",
        "quick": quick,
        "settings": {**sizes._asdict(), "images": IMAGES, "references_per_image": REFERENCES, "words": WORDS},
        "seeds": {"words": SEED},
        "timings": [{"hypotheses": counts[timing.name], **timing.record()} for timing in timings],
        "measurements": {
            "hypotheses_per_second": rates,
            "speedups": {name: rates[name] / rates[REFERENCE] for name in rates},
            "largest_difference": difference,
            "ngrams_of_the_large_collection": len(problem.large.frequencies.ngrams),
        },
        "targets": [
            Target(
                f"at least {LEAST_SPEEDUP} times as fast as the reference scorer ({LISTS})",
                rates[LISTS] / rates[REFERENCE],
                LEAST_SPEEDUP,
                at_least=True,
                judged=not quick,
            ).record(),
        ],
        "table": [
            {
                "contestant": timing.name,
                "hypotheses": f"{counts[timing.name]:,}",
                "ms (quartiles)": milliseconds(timing),
                "hypotheses / s": figure(rates[timing.name]),
                "× reference": figure(rates[timing.name] / rates[REFERENCE]),
            }
            for timing in timings
        ],
    }
