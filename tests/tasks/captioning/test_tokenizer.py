"""The words of captions are those of the public evaluation's tokeniser; they and their ids are a vocabulary."""

import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corollout.tasks.captioning.tokenizer import tokenize
from corollout.tasks.captioning.vocabulary import Vocabulary
from tests.support.errors import refused

CASES = {
    # Case and punctuation
    "A Cat sits, then; it JUMPS!": "a cat sits then it jumps",
    "A sign says \"stop\" - or 'go' ...": "a sign says stop or go",
    "Is it a bird? A plane?? No!!": "is it a bird a plane ?? no !!",
    "  two   dogs\tand\na  bone .": "two dogs and a bone",
    "kites--three of them---in the sky": "kites three of them in the sky",
    "a bench (painted green) [empty]": "a bench -lrb- painted green -rrb- -lsb- empty -rsb-",
    "": "",
    " . ": "",
    # Apostrophes
    "the dog's ball and the boys' bats": "the dog 's ball and the boys bats",
    "it isn't raining and they can't won't DON'T stop": "it is n't raining and they ca n't wo n't do n't stop",
    "I'm sure he'd say we've seen what they'll see": "i 'm sure he 'd say we 've seen what they 'll see",
    "a clock at five o'clock near the l'Orange hotel": "a clock at five o'clock near the l'orange hotel",
    "yes ma'am, c'mon y'all": "yes ma'am c'mon y' all",
    "rock 'n' roll of the '90s, get 'em": "rock 'n' roll of the '90s get 'em",
    "a 'quoted' word and a 6' fence": "a quoted word and a 6 fence",
    "it’s “curly” – isn’t it…": "it 's curly is n't it",
    # Words in two
    "you cannot, but are gonna and gotta": "you can not but are gon na and got ta",
    "wannabe cooks": "wannabe cooks",
    # Hyphens and slashes
    "a black-and-white close-up of a T-shirt": "a black-and-white close-up of a t-shirt",
    "half- eaten, pre-and -post": "half eaten pre-and post",
    "a table/desk and/or red/white/blue shelf w/ books": "a table/desk and/or red/white/blue shelf w / books",
    "a well-lit/dark hall": "a well-lit/dark hall",
    # Full stops
    "on St. Mary and 5th Ave. by Dr. Low vs. Mr. Hay": "on st. mary and 5th ave. by dr. low vs. mr. hay",
    "the U.S. flag, an old T.V. and a D.V.D player": "the u.s. flag an old t.v. and a d.v.d player",
    "seen at 5 p.m. in the U.K.": "seen at 5 p.m. in the u.k.",
    "a dog on the grass.A cat.": "a dog on the grass.a cat",
    "a sign with the letter K.": "a sign with the letter k",
    "letter B. The letter C. stands": "letter b the letter c. stands",
    "bus no. 9, with no. Then fig. 2": "bus no. 9 with no then fig. 2",
    "in Tex. but not in tex.": "in tex. but not in tex",
    "cats, dogs, etc.": "cats dogs etc.",
    "grass., trees": "grass. trees",
    # Numbers
    "a clock at 12:43, 1,000 people, 3.5 metres": "a clock at 12:43 1,000 people 3.5 metres",
    "at 10:30am, 5pm, the 21st, a 4x4, the 1950s and 1920's": ("at 10:30 am 5pm the 21st a 4x4 the 1950s and 1920 's"),
    "2 1/2 cups, ½ a pie, a 3/4-inch bolt": "2 1/2 cups 1/2 a pie a 3/4-inch bolt",
    "the 7-piece set for $5.99 or £4 or 50%": "the 7-piece set for $ 5.99 or # 4 or 50 %",
    "on 10/29/2011 or 10-29-2011": "on 10/29/2011 or 10-29-2011",
    # Names and signs
    "a man & a woman at A&W and x&y": "a man & a woman at a&w and x & y",
    "#1 at www.example.com or me@example.com #fun @home": "# 1 at www.example.com or me@example.com #fun @home",
    "a <unk> in a tree, 4 < 5": "a <unk> in a tree 4 < 5",
    "smile :) wink ;-)": "smile :-rrb- wink ;--rrb-",
    "a café, a piñata and crème brûlée": "a café a piñata and crème brûlée",
    "salt &amp; pepper": "salt & pepper",
    "look!a bird,too": "look!a bird too",
}


@pytest.mark.parametrize(("caption", "words"), CASES.items())
def test_words(caption: str, words: str):
    assert tokenize(caption) == words.split()
    assert tokenize(f" {caption}\n") == words.split()


@pytest.mark.parametrize("caption", ["a dog's ball", "Mr. K. isn't here.", "two red/white t-shirts, 1/2 off!!"])
def test_words_stay_as_they_are(caption: str):
    words = tokenize(caption)
    assert tokenize(" ".join(words)) == words


def test_no_word_is_empty_or_has_a_space():
    for caption in ("a\u00a0b", "…'\"`", "a--b—c", "\u200b", "'", "´ \u2028 x", "a\0b", "😀 smiles"):
        assert all(word and not any(letter.isspace() for letter in word) for word in tokenize(caption))


COUNTS = Counter(["a", "dog", "runs", "a", "dog", "sits", "a", "cat", "the", "cat"])


def test_ids_and_labels():
    vocabulary = Vocabulary.from_counts({**COUNTS, "zebra": 0}, 1)
    ids = vocabulary.encode(["a", "zebra", "runs", "dog", "never", "<end>", "<unk>"])
    assert ids == [1, 8, 5, 3, 4, 4, 4]
    assert vocabulary.label(ids, 4) == [1, 4, 4, 3]
    assert vocabulary.label(ids, 16) == [1, 4, 4, 3, 4, 4, 4]
    assert vocabulary.text(ids[:4]) == "a zebra runs dog"
    assert vocabulary.text([1, 3, 0, 2, 0]) == "a dog"
    assert vocabulary.text([]) == ""


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["<end>", "<unk>", *"abcdefg"]), max_size=6), min_size=1, max_size=12),
    st.integers(0, 3),
)
def test_every_word_is_where_its_count_says(captions: list[list[str]], more_than: int):
    counts = Counter(word for caption in captions for word in caption if word not in ("<end>", "<unk>"))
    if max(counts.values(), default=0) <= more_than:
        refused("no word occurs more than", Vocabulary.from_counts, counts, more_than)
        return
    vocabulary = Vocabulary.from_counts(counts, more_than)
    inside = vocabulary.words[1 : vocabulary.size - 1]
    assert set(inside) == {word for word, count in counts.items() if count > more_than}
    assert sorted(inside, key=lambda word: (-counts[word], word)) == list(inside)
    assert set(vocabulary.words) == {"<end>", "<unk>", *counts}
    for caption in captions:
        for word, number in zip(caption, vocabulary.encode(caption), strict=True):
            assert vocabulary.words[number] == ("<unk>" if word == "<end>" else word)


def test_it_is_kept_as_text(tmp_path: Path):
    vocabulary = Vocabulary.from_counts({"a": 2, "naïve": 1, "a\N{NO-BREAK SPACE}b": 1, "日本": 1}, 0)
    vocabulary.save(tmp_path / "words.txt")
    assert Vocabulary.load(tmp_path / "words.txt") == vocabulary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<end>\na\nb\n", "expected <end>, then some words, then <unk>"),
        (b"<end>\n<unk>\nb\n", "expected <end>"),
        (b"<end>\na\n<unk>\na\n", "the word 'a' occurs twice"),
        (b"<end>\n\xff\n<unk>\n", "is not UTF-8 text"),
        (None, "cannot read the vocabulary .*: No such file"),
    ],
)
def test_invalid_files(tmp_path: Path, content: bytes | None, message: str):
    if content is not None:
        (tmp_path / "words.txt").write_bytes(content)
    refused(message, Vocabulary.load, tmp_path / "words.txt")


@pytest.mark.parametrize("piece", ["a,", "1.a.", "a+", "1.a,b-", "d'ab.", "x@-", "<a", "'", "a", "no.x+@"])
def test_the_time_is_linear_in_the_length(piece: str):
    """It takes about a second; in quadratic time, it would take minutes."""
    start = time.monotonic()
    assert tokenize(piece * (200_000 // len(piece))) is not None
    assert time.monotonic() - start < 20
