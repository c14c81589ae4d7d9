"""Words and their ids."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.tasks.captioning.vocabulary import Vocabulary

# However busy the machine is.
LEISURELY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CAPTIONS = [["a", "dog", "runs"], ["a", "dog", "sits"], ["a", "cat"], ["the", "cat"]]


def test_frequent_words_come_first_and_rare_ones_last():
    vocabulary = Vocabulary.build(CAPTIONS, 1, [["zebra", "dog"], ["emu"]])
    assert vocabulary.words == ("<end>", "a", "cat", "dog", "<unk>", "runs", "sits", "the", "emu", "zebra")
    assert vocabulary.size == 5


def test_ids_and_labels():
    vocabulary = Vocabulary.build(CAPTIONS, 1, [["zebra"]])
    ids = vocabulary.encode(["a", "zebra", "runs", "dog", "never", "<end>", "<unk>"])
    assert ids == [1, 8, 5, 3, 4, 4, 4]
    assert vocabulary.label(ids, 4) == [1, 4, 4, 3]
    assert vocabulary.label(ids, 16) == [1, 4, 4, 3, 4, 4, 4]
    assert vocabulary.text(ids[:4]) == "a zebra runs dog"
    assert vocabulary.text([1, 3, 0, 2, 0]) == "a dog"
    assert vocabulary.text([]) == ""


@LEISURELY
@given(
    st.lists(st.lists(st.sampled_from(["<end>", "<unk>", *"abcdefg"]), max_size=6), min_size=1, max_size=12),
    st.integers(0, 3),
)
def test_every_word_is_where_its_count_says(captions: list[list[str]], more_than: int):
    counts = Counter(word for caption in captions for word in caption if word not in ("<end>", "<unk>"))
    if max(counts.values(), default=0) <= more_than:
        with pytest.raises(InputError, match="no word occurs more than"):
            Vocabulary.build(captions, more_than)
        return
    vocabulary = Vocabulary.build(captions, more_than)
    inside = vocabulary.words[1 : vocabulary.size - 1]
    assert set(inside) == {word for word, count in counts.items() if count > more_than}
    assert sorted(inside, key=lambda word: (-counts[word], word)) == list(inside)
    assert set(vocabulary.words) == {"<end>", "<unk>", *counts}
    for caption in captions:
        for word, number in zip(caption, vocabulary.encode(caption), strict=True):
            assert vocabulary.words[number] == ("<unk>" if word == "<end>" else word)


def test_it_is_kept_as_text(tmp_path: Path):
    vocabulary = Vocabulary.build([["a", "naïve", "a\N{NO-BREAK SPACE}b", "日本"], ["a"]], 0)
    vocabulary.save(tmp_path / "words.txt")
    assert Vocabulary.load(tmp_path / "words.txt") == vocabulary


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<end>\na\nb\n", "it must be <end>, then some words, then <unk>"),
        (b"a\n<unk>\n", "it must be <end>"),
        (b"<end>\n<unk>\nb\n", "it must be <end>"),
        (b"", "it must be <end>"),
        (b"<end>\na\n<unk>\na\n", "a word is there twice: 'a'"),
        (b"<end>\n\xff\n<unk>\n", "is no UTF-8 text"),
        (None, "cannot read the vocabulary .*: No such file"),
    ],
)
def test_other_files_are_no_vocabularies(tmp_path: Path, content: bytes | None, said: str):
    if content is not None:
        (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(InputError, match=said):
        Vocabulary.load(tmp_path / "words.txt")
