"""CIDEr-D, CIDEr, BLEU and ROUGE-L: equal to the plain twins and to the public evaluation, whatever the sequences."""

import math

import numpy as np
import pytest
import torch

from corollout.errors import InputError
from corollout.rewards import Reward
from corollout.text_metrics.bleu import Bleu
from corollout.text_metrics.cider import Cider, CiderReward
from corollout.text_metrics.frequencies import DocumentFrequencies
from corollout.text_metrics.references import References
from corollout.text_metrics.rouge import RougeL
from corollout.text_metrics.tokens import Tokens
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
    """References of a few images, and a hypothesis for each; few words, so that much is repeated, or many."""
    random = np.random.default_rng(seed)
    words = int(random.choice([1, 2, 3, 6, 30]))
    groups = [sequences(random, words, 9, int(random.integers(1, 6))) for _ in range(random.integers(1, 7))]
    hypotheses = sequences(random, words + 1, 9, len(groups))  # one word is unknown
    for image, group in enumerate(groups):
        if random.random() < 0.3:
            hypotheses[image] = group[0]
    return groups, hypotheses


SEEDS = range(60)


@pytest.mark.parametrize("kind", ["D", "plain"])
def test_cider_is_its_formula(kind):
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        frequencies = plain_frequencies(groups)
        scores = Cider(References(groups), kind=kind, sigma=2).scores(hypotheses, range(len(groups)))
        for score, tokens, group in zip(scores, hypotheses, groups, strict=True):
            assert score == pytest.approx(plain_cider(tokens, group, frequencies, len(groups), kind, 2), abs=1e-12)


def test_cider_with_the_frequencies_of_another_collection():
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        others, _ = corpus(seed + 1)
        frequencies = DocumentFrequencies.of(References(others))
        scores = Cider(References(groups), frequencies).scores(hypotheses, range(len(groups)))
        table = plain_frequencies(others)
        assert frequencies.table() == table
        for score, tokens, group in zip(scores, hypotheses, groups, strict=True):
            assert score == pytest.approx(plain_cider(tokens, group, table, len(others)), abs=1e-12)


def test_bleu_is_its_formula():
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        bleu, images = Bleu(References(groups)), range(len(groups))
        matches = [plain_matches(tokens, group) for tokens, group in zip(hypotheses, groups, strict=True)]
        assert bleu.scores(hypotheses, images) == pytest.approx(np.array([plain_bleu(*m) for m in matches]), abs=1e-12)
        right, every, lengths, closest = zip(*matches, strict=True)
        together = plain_bleu(np.sum(right, 0), np.sum(every, 0), sum(lengths), sum(closest))
        assert bleu.corpus(hypotheses, images) == pytest.approx(np.array(together), abs=1e-12)


def test_rouge_is_its_formula():
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        scores = RougeL(References(groups)).scores(hypotheses, range(len(groups)))
        for score, tokens, group in zip(scores, hypotheses, groups, strict=True):
            assert score == pytest.approx(plain_rouge(tokens, group), abs=1e-12)


def test_all_are_what_the_public_evaluation_computes():
    pytest.importorskip("pycocoevalcap")
    for seed in SEEDS:
        groups, hypotheses = corpus(seed)
        if not any(tokens for group in groups for tokens in group):
            continue  # which it cannot do
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


def test_repeating_words_costs_more_in_cider_d():
    references = References([[[1, 2, 3]], [[4, 5]]])
    once, often = [[1, 2, 3]], [[1, 2, 3] * 4]
    plain, clipped = Cider(references, kind="plain"), Cider(references)
    assert (
        plain.corpus(once, [0]) == pytest.approx(clipped.corpus(once, [0])) == pytest.approx(7.5)
    )  # there is no n = 4
    assert plain.corpus(often, [0]) > 0.6 * plain.corpus(once, [0])
    assert clipped.corpus(often, [0]) < 0.1 * clipped.corpus(once, [0])


def test_a_single_image_has_no_rare_ngrams():
    references = References([[[1, 2, 3], [1, 2]]])
    assert Cider(references).scores([[1, 2, 3], [], [7]], [0, 0, 0]).tolist() == [0, 0, 0]


def test_the_batch_does_not_matter():
    random = np.random.default_rng(0)
    groups = [sequences(random, 40, 12, 5) for _ in range(30)]
    hypotheses, images = sequences(random, 40, 12, 3000), random.integers(30, size=3000)
    width = max(map(len, hypotheses))
    padded = np.array([tokens + [99] * (width - len(tokens)) for tokens in hypotheses])
    packed = Tokens.padded(padded, np.array([len(tokens) for tokens in hypotheses]))
    references = References(groups)
    for metric in (Cider(references), Cider(references, kind="plain"), Bleu(references), RougeL(references)):
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


# Document frequencies


def test_frequencies_from_a_table():
    groups, hypotheses = corpus(11)
    table = plain_frequencies(groups)
    made = DocumentFrequencies.of_table(table, len(groups))
    assert made.table() == table
    references, images = References(groups), range(len(groups))
    assert np.array_equal(
        Cider(references, made).scores(hypotheses, images), Cider(references).scores(hypotheses, images)
    )


@pytest.mark.parametrize(
    ("table", "images", "said"),
    [
        ({(): 1}, 2, "1 to 4 tokens"),
        ({(1, 2, 3, 4, 5): 1}, 2, "1 to 4 tokens"),
        ({(1,): 3}, 2, "cannot be in 3 of 2 images"),
        ({(1,): -1}, 2, "cannot be in -1"),
        ({}, 0, "one image or more"),
    ],
)
def test_a_table_that_cannot_be(table: dict[tuple[int, ...], int], images: int, said: str):
    with pytest.raises(InputError, match=said):
        DocumentFrequencies.of_table(table, images)


# What is refused


@pytest.mark.parametrize(
    ("hypotheses", "images", "said"),
    [
        ([[1]], [0, 1], "1 hypotheses need an image each, not 2"),
        ([[1], [2]], [0, 2], "there is no image 2: the references are those of images 0 to 1"),
        ([[1]], [-1], "there is no image -1"),
        ([[1]], np.array([0.5]), "whole numbers, not by float64"),
        ([[1, -2]], [0], "from 0 to 2147483647, but there is -2"),
        ([[2**31]], [0], "there is 2147483648"),
        ([[2**70]], [0], "token ids must be"),
    ],
)
def test_hypotheses_that_do_not_fit(hypotheses, images, said: str):
    references = References([[[1, 2]], [[3]]])
    for metric in (Cider(references), Bleu(references), RougeL(references)):
        with pytest.raises(InputError, match=said):
            metric.scores(hypotheses, images)


def test_other_things_that_do_not_fit():
    with pytest.raises(InputError, match="image 1 has no references"):
        References([[[1]], []])
    references = References([[[1]]])
    with pytest.raises(InputError, match="sigma must be positive"):
        Cider(references, sigma=0)
    with pytest.raises(InputError, match="one image or more"):
        Cider(References([]))
    for tokens, lengths in (
        (np.zeros((2, 3)), np.array([1, 1])),
        (np.zeros(3, int), np.array([1, 1, 1])),
        (np.zeros((2, 3), int), np.array([1])),
        (np.zeros((2, 3), int), np.array([4, 0])),
        (np.zeros((2, 3), int), np.array([-1, 0])),
    ):
        with pytest.raises(InputError):
            Tokens.padded(tokens, lengths)


# As a reward

END = 0


@pytest.fixture
def cider_reward() -> CiderReward:
    groups = [[[1, 2, 3], [1, 2]], [[4, 2]], [[5, 6, 1, 7]]]
    return CiderReward(References([[*tokens, END] for tokens in group] for group in groups), None, END)


def test_the_end_counts_as_a_word_if_it_was_reached(cider_reward: CiderReward):
    tokens = [[1, 2], [1, 2], [4, 2]]
    values = Reward(cider_reward)(tokens, [7, 8, 9], {"image": [0, 0, 1]}, [True, False, True]).values.tolist()
    assert values == cider_reward.cider.scores([[1, 2, END], [1, 2], [4, 2, END]], [0, 0, 1]).tolist()
    assert values[0] > values[1] > 0
    assert tokens == [[1, 2], [1, 2], [4, 2]]
    without = CiderReward(cider_reward.cider.references)
    assert without(tokens, [0, 0, 1], [True] * 3) == cider_reward(tokens, [0, 0, 1], [False] * 3)


def test_the_reward_can_be_sent_to_a_worker(cider_reward: CiderReward):
    Reward(cider_reward, workers=1).close()  # it is made ready for them, or refused, before any starts
