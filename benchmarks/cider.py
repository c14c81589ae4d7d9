"""How many captions a second does CIDEr-D take? The compiled metric against the reference scorer, on one thread.

There are two batches for 50 images with five references each. One is what an ARS-20 update really asks for: the
rollouts of a captioner that has learnt generated scenes for a while. The other has the vocabulary of COCO: hypotheses
of about ten words, drawn by Zipf's law; each is a reference of its image with some words drawn anew. Everybody has the
references and the document frequencies, those of the 50 images, ready beforehand, and must give the same values.

Ours gets token ids, as an array or as Python lists; the packing of lists is timed. The reference scorer is that of
``pycocoevalcap``, unchanged. It gets strings, and its references as counts of n-grams, so that what is timed is the
counting of n-grams in hypotheses and ``compute_cider``, which weighs the references anew for every hypothesis. It takes
one hypothesis for each image at a time, since it would count an image with several as several images.

With document frequencies of thousands of images the table of n-grams does not fit into the processor's cache; that is
timed as well, on the second batch, without an opponent.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress

from benchmarks.harness import Contestant, Result, Target, figure, milliseconds, time_alternately
from corollout.errors import InputError
from corollout.estimators import make_estimator
from corollout.noise import Noise
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.tasks.captioning.scenes import make_scenes
from corollout.tasks.captioning.settings import ModelSettings
from corollout.tasks.captioning.spec import CAPTIONS
from corollout.tasks.captioning.task import CaptionTask
from corollout.text_metrics import Cider, DocumentFrequencies, References, Tokens
from corollout.training.estimates import estimate
from corollout.training.mle import MLETrainer

SEED = 1
IMAGES, REFERENCES = 50, 5
WORDS, SHORTEST, LONGEST = 9487, 8, 13
CHANGED = 0.4  # share of a reference's words that are drawn anew
LEAST_SPEEDUP = 100
MOST_DIFFERENCE = 1e-9


class Sizes(NamedTuple):
    rounds: int  # hypotheses for each image
    plain: int  # how many of them the reference scorer does in one measurement
    collection: int  # images of the large collection, and scenes to learn from
    mle_updates: int  # updates by maximum likelihood
    repetitions: int


FULL = Sizes(rounds=400, plain=20, collection=5000, mle_updates=300, repetitions=11)
QUICK = Sizes(rounds=4, plain=2, collection=60, mle_updates=5, repetitions=2)
UPDATE, ZIPF = "rollouts of ARS-20", "COCO's vocabulary"

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


def drawn(sizes: Sizes) -> tuple[list[list[list[int]]], list[list[int]]]:
    """References of the whole collection, and hypotheses for its first images, in rounds."""
    random = np.random.default_rng(SEED)
    groups = [[_sentence(random) for _ in range(REFERENCES)] for _ in range(sizes.collection)]
    return groups, [_hypothesis(random, groups[image]) for _ in range(sizes.rounds) for image in range(IMAGES)]


def rolled_out(sizes: Sizes) -> tuple[list[list[list[int]]], list[list[int]]]:
    """The same of generated scenes, with the sequences of one ARS-20 update for hypotheses, in as many rounds as all
    images have."""
    with tempfile.TemporaryDirectory() as folder:
        data = make_scenes(Path(folder) / "scenes", {"train": sizes.collection}, seed=SEED)
        settings = CAPTIONS.scale("tiny")
        task = CaptionTask(data.folder, ModelSettings(**settings["model"]))
        engine = task.engine(SEED)
        assert isinstance(engine.policy, CaptionPolicy)
        optimizer = torch.optim.Adam(engine.policy.parameters(), settings["pretrain"]["learning_rate"])
        for _ in MLETrainer(engine, task.mle_data, optimizer, batch_size=50, seed=SEED).run(updates=sizes.mle_updates):
            pass
        batch = task.train.columns.batch(range(IMAGES))
        made = estimate(engine, batch, task.reward(), make_estimator("ars-20"), Noise(SEED))
        groups = [[list(caption) for caption in group] for group in task.train.data.references]
    contexts = made.trajectories.contexts
    owners = torch.cat([contexts, contexts[made.plan.branches.parent]]).tolist()
    said: list[list[list[int]]] = [[] for _ in range(IMAGES)]
    for image, tokens in zip(owners, made.trajectories.lists() + made.completed.lists(), strict=True):
        said[image].append(tokens)
    rounds = min(map(len, said))
    return groups, [said[image][number] for number in range(rounds) for image in range(IMAGES)]


def make_problem(
    sizes: Sizes, make: Callable[[Sizes], tuple[list[list[list[int]]], list[list[int]]]] = drawn
) -> Problem:
    groups, lists = make(sizes)
    references = References(groups[:IMAGES])
    cider = Cider(references)
    images = np.tile(np.arange(IMAGES), len(lists) // IMAGES)
    lengths = np.array([len(tokens) for tokens in lists])
    padded = np.zeros((len(lists), lengths.max()), np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(lists)
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
    if not wanted.max() > 0:
        raise AssertionError("the hypotheses have nothing in common with their references")
    differences = [np.abs(CONTESTANTS[name](problem)[: len(wanted)] - wanted).max() for name in (ARRAY, LISTS)]
    if not max(differences) <= MOST_DIFFERENCE:
        raise AssertionError(f"the values differ by up to {max(differences)}")
    return float(max(differences))


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    problems = {UPDATE: make_problem(sizes, rolled_out), ZIPF: make_problem(sizes, drawn)}
    differences = {name: check(problem) for name, problem in problems.items()}
    contestants = {UPDATE: (ARRAY, LISTS, REFERENCE), ZIPF: tuple(CONTESTANTS)}
    all_timings = {
        name: time_alternately(
            [
                Contestant(one, 1, lambda one=one, problem=problem: CONTESTANTS[one](problem))
                for one in contestants[name]
            ],
            sizes.repetitions,
            progress,
            f"cider, {name}",
        )
        for name, problem in problems.items()
    }
    counts = {
        name: {
            one.name: len(problems[name].texts if one.name == REFERENCE else problems[name].lists) for one in timings
        }
        for name, timings in all_timings.items()
    }
    rates = {
        name: {timing.name: counts[name][timing.name] / timing.median for timing in timings}
        for name, timings in all_timings.items()
    }
    return {
        "benchmark": "cider",
        "quick": quick,
        "settings": {**sizes._asdict(), "images": IMAGES, "references_per_image": REFERENCES, "words": WORDS},
        "seeds": {"words, scenes, weights and noise": SEED},
        "timings": [
            {"batch": name, "hypotheses": counts[name][timing.name], **timing.record()}
            for name, timings in all_timings.items()
            for timing in timings
        ],
        "measurements": {
            "hypotheses_per_second": rates,
            "speedups": {
                name: {one: rate / by_name[REFERENCE] for one, rate in by_name.items()}
                for name, by_name in rates.items()
            },
            "largest_difference": differences,
            "ngrams_of_the_large_collection": len(problems[ZIPF].large.frequencies.ngrams),
        },
        "targets": [
            Target(
                f"at least {LEAST_SPEEDUP} times as fast as the reference scorer ({name}; {LISTS})",
                by_name[LISTS] / by_name[REFERENCE],
                LEAST_SPEEDUP,
                at_least=True,
                judged=not quick,
            ).record()
            for name, by_name in rates.items()
        ],
        "table": [
            {
                "batch": name,
                "contestant": timing.name,
                "hypotheses": f"{counts[name][timing.name]:,}",
                "ms (quartiles)": milliseconds(timing),
                "hypotheses / s": figure(rates[name][timing.name]),
                "× reference": figure(rates[name][timing.name] / rates[name][REFERENCE]),
            }
            for name, timings in all_timings.items()
            for timing in timings
        ],
    }
