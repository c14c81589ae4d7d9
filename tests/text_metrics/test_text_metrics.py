"""CIDEr-D, CIDEr, BLEU and ROUGE-L equal their plain twins and the public evaluation on random sequences."""

import math

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.text_metrics import Bleu, Cider, DocumentFrequencies, References, RougeL, Tokens, ngrams
from tests.support.errors import refused
from tests.support.text_metrics import (
    PublicScores,
    plain_bleu,
    plain_cider,
    plain_frequencies,
    plain_matches,
    plain_rouge,
    text,
)

Groups = list[list[list[int]]]


def sequences(random: np.random.Generator, words: int, longest: int, count: int) -> list[list[int]]:
    return [random.integers(words, size=random.integers(longest + 1)).tolist() for _ in range(count)]


def corpus(seed: int) -> tuple[Groups, list[list[int]]]:
    """References of a few images and a hypothesis for each, of few words, so that many repeat, or of many."""
    random = np.random.default_rng(seed)
    words = int(random.choice([1, 2, 3, 6, 30]))
    groups = [sequences(random, words, 9, int(random.integers(1, 6))) for _ in range(random.integers(1, 7))]
    hypotheses = sequences(random, words + 1, 9, len(groups))  # one word is unknown
    for image, group in enumerate(groups):
        if random.random() < 0.3:
            hypotheses[image] = group[0]
    return groups, hypotheses


SEEDS = range(60)


def test_every_metric_is_its_formula():
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        references, images, frequencies = References(groups), range(len(groups)), plain_frequencies(groups)
        pairs = list(zip(hypotheses, groups, strict=True))
        for variant in ("D", "plain"):
            plain = [plain_cider(tokens, group, frequencies, len(groups), variant, 2) for tokens, group in pairs]
            scores = Cider(references, variant=variant, sigma=2).scores(hypotheses, images)
            assert scores == pytest.approx(plain, abs=1e-12)
        plain = [plain_rouge(tokens, group) for tokens, group in pairs]
        assert RougeL(references).scores(hypotheses, images) == pytest.approx(plain, abs=1e-12)
        matches, bleu = [plain_matches(tokens, group) for tokens, group in pairs], Bleu(references)
        assert bleu.scores(hypotheses, images) == pytest.approx(np.array([plain_bleu(*m) for m in matches]), abs=1e-12)
        right, every, lengths, closest = zip(*matches, strict=True)
        together = plain_bleu(np.sum(right, 0), np.sum(every, 0), sum(lengths), sum(closest))
        assert bleu.corpus(hypotheses, images) == pytest.approx(np.array(together), abs=1e-12)


def test_cider_with_the_frequencies_of_another_collection():
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        others, _ = corpus(seed + 1)
        table, frequencies = plain_frequencies(others), DocumentFrequencies.of(References(others))
        made = DocumentFrequencies.of_table(table, len(others))
        assert frequencies.table() == made.table() == table
        scores = Cider(References(groups), frequencies).scores(hypotheses, range(len(groups)))
        assert np.array_equal(Cider(References(groups), made).scores(hypotheses, range(len(groups))), scores)
        for score, tokens, group in zip(scores, hypotheses, groups, strict=True):
            assert score == pytest.approx(plain_cider(tokens, group, table, len(others)), abs=1e-12)


def test_all_are_what_the_public_evaluation_computes():
    pytest.importorskip("pycocoevalcap")
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        if not any(tokens for group in groups for tokens in group):
            continue  # which it does not support
        references, images = References(groups), range(len(groups))
        public = PublicScores([[text(tokens) for tokens in group] for group in groups], list(map(text, hypotheses)))
        cider, bleu, rouge = Cider(references), Bleu(references), RougeL(references)
        assert cider.scores(hypotheses, images) == pytest.approx(public.cider, abs=1e-9)
        assert cider.corpus(hypotheses, images) == pytest.approx(public.cider_corpus, abs=1e-9)
        assert bleu.scores(hypotheses, images) == pytest.approx(public.bleu, abs=1e-9)
        assert bleu.corpus(hypotheses, images) == pytest.approx(public.bleu_corpus, abs=1e-9)
        assert rouge.scores(hypotheses, images) == pytest.approx(public.rouge, abs=1e-9)
        assert rouge.corpus(hypotheses, images) == pytest.approx(public.rouge.mean(), abs=1e-9)


def test_known_values():
    groups = [[[1, 2, 3, 4, 5]], [[6, 7, 8, 9]]]
    references = References(groups)
    same = [group[0] for group in groups]
    assert Cider(references).scores(same, [0, 1]) == pytest.approx([10, 10])
    assert Cider(references).scores(same, [1, 0]).tolist() == [0, 0]
    assert Bleu(references).corpus(same, [0, 1]) == pytest.approx(np.ones(4))
    assert RougeL(references).scores([[1, 3, 5], [9, 6]], [0, 1]) == pytest.approx(
        [2.44 * 0.6 / (0.6 + 1.44), 2.44 * 0.5 * 0.25 / (0.25 + 1.44 * 0.5)]
    )
    # One token more, in one of two orders of n-grams as good as before: 3 of 4 words, 2 of 3 pairs, …
    assert Bleu(references).scores([[6, 7, 8, 1]], [1])[0] == pytest.approx(
        [0.75, math.sqrt(0.75 * 2 / 3), (0.75 * 2 / 3 * 0.5) ** (1 / 3), 0], abs=1e-3
    )


def test_the_batch_does_not_matter():
    random = np.random.default_rng(0)
    groups = [sequences(random, 40, 12, 5) for _ in range(30)]
    hypotheses, images = sequences(random, 40, 12, 3000), random.integers(30, size=3000)
    width = max(map(len, hypotheses))
    padded = np.array([tokens + [99] * (width - len(tokens)) for tokens in hypotheses])
    packed = Tokens.padded(padded, np.array([len(tokens) for tokens in hypotheses]))
    references = References(groups)
    for metric in (Cider(references), Cider(references, variant="plain"), Bleu(references), RougeL(references)):
        scores = metric.scores(hypotheses, images)
        assert np.array_equal(metric.scores(packed, images), scores)
        one = [metric.scores(hypotheses[i : i + 1], images[i : i + 1]) for i in range(50)]
        assert np.array_equal(np.concatenate(one), scores[:50])
        torch.set_num_threads(2)
        try:
            assert np.array_equal(metric.scores(hypotheses, images), scores)
        finally:
            torch.set_num_threads(1)
        assert len(metric.scores([], [])) == 0
        assert len(metric.scores([], np.array([]))) == 0


def test_ngrams_are_never_mixed_up():
    """Ids as large as they may be, and so close together that sums and products of them meet."""
    random = np.random.default_rng(3)
    ids = np.concatenate([2**31 - 1 - np.arange(40), np.arange(40) << 16, np.arange(40)])
    groups = [[ids[random.integers(120, size=15)].tolist() for _ in range(4)] for _ in range(60)]
    assert DocumentFrequencies.of(References(groups)).table() == plain_frequencies(groups)
    flat = [tokens for group in groups for tokens in group]
    images = np.arange(60).repeat(4)
    frequencies = plain_frequencies(groups)
    scores = Cider(References(groups)).scores(flat, images)
    for score, tokens, image in zip(scores[::7], flat[::7], images[::7], strict=True):
        assert score == pytest.approx(plain_cider(tokens, groups[image], frequencies, 60), abs=1e-12)


@pytest.mark.parametrize(
    ("table", "images", "message"),
    [
        ({(): 1}, 2, "1 to 4 tokens"),
        ({(1, 2, 3, 4, 5): 1}, 2, "1 to 4 tokens"),
        ({(1,): 3}, 2, "in 3 of 2 images"),
        ({(1,): -1}, 2, "in -1 of"),
        ({}, 0, "at least one image"),
    ],
)
def test_invalid_frequency_tables(table: dict[tuple[int, ...], int], images: int, message: str):
    refused(message, DocumentFrequencies.of_table, table, images)


@pytest.mark.parametrize(
    ("hypotheses", "images", "message"),
    [
        ([[1]], [0, 1], "1 hypotheses need one image each, not 2"),
        ([[1], [2]], [0, 2], "no references for image 2, only for images 0 to 1"),
        ([[1]], [-1], "image -1"),
        ([[1]], np.array([0.5]), "integers, not as float64"),
        ([[1, -2]], [0], "from 0 to 2147483647, not -2"),
        ([[2**31]], [0], "not 2147483648"),
        ([[2**70]], [0], "token ids must be"),
    ],
)
def test_invalid_hypotheses(hypotheses, images, message: str):
    references = References([[[1, 2]], [[3]]])
    for metric in (Cider(references), Bleu(references), RougeL(references)):
        refused(message, metric.scores, hypotheses, images)


def test_other_invalid_arguments():
    refused("image 1 has no references", References, [[[1]], []])
    refused("sigma must be positive", Cider, References([[[1]]]), sigma=0)
    refused("at least one image", Cider, References([]))
    for shape, dtype, lengths in (
        ((2, 3), float, [1, 1]),
        (3, int, [1, 1, 1]),
        ((2, 3), int, [1]),
        ((2, 3), int, [4, 0]),
        ((2, 3), int, [-1, 0]),
    ):
        with pytest.raises(InputError):
            Tokens.padded(np.zeros(shape, dtype), np.array(lengths))


def test_repetitions_are_counted_in_long_sequences_as_in_short_ones():
    random = np.random.default_rng(0)
    for length, words in ((0, 2), (1, 2), (3, 1), (40, 2), (300, 5), (900, 40)):
        tokens = random.integers(0, words, length).astype(np.int32)
        slow, fast = np.full((2, length, ngrams.LONGEST), -7, np.int32)
        ngrams.count_repetitions(tokens, slow)
        ngrams._count_in_tree(tokens, fast)
        assert np.array_equal(slow, fast)


@pytest.mark.parametrize(
    ("flat", "starts"), [([1, 2], [0, 3]), ([1, 2], [0, -1, 2]), ([1, 2], [1, 2]), ([1, 2], []), ([-1, 2], [0, 2])]
)
def test_sequences_that_reach_beyond_their_tokens_are_refused(flat: list[int], starts: list[int]):
    with pytest.raises(InputError, match="starts"):
        ngrams.Tokens(np.array(flat, np.int32), np.array(starts, np.int64))
