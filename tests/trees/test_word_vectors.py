"""Word vectors from text files."""

from pathlib import Path

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.trees import word_vectors

WORDS = ["<end>", "dog", "dogs", "snowboarders", "a", "unheard", "<unk>"]
TEXT = "the 1 2\ndog 3 4.5\nsnowboard 1 0\nsnowboarder 3e0 -2\na -1 -1\n. . 9 9\n"


def write(folder: Path, text: str | bytes, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(path: Path, words: list[str] = WORDS) -> str:
    with pytest.raises(InputError) as error:
        word_vectors(path, words)
    return str(error.value)


def test_words_and_their_vectors(tmp_path: Path):
    vectors, found = word_vectors(write(tmp_path, TEXT), WORDS)
    assert found.tolist() == [False, True, False, False, True, False, False]
    assert vectors.dtype == np.float32
    assert vectors[1].tolist() == [3, 4.5]
    assert vectors[4].tolist() == [-1, -1]


def test_unknown_words_stand_with_their_relatives(tmp_path: Path):
    text = "snowboard 1 0\nsnowboarder 3 -2\nsnowmen 5 5\nsnow 7 7\nunhappy 2 2\ndog 4 4\n"
    strangers = ["snowboarders", "snowboarding", "snowing", "unheard", "dogs", "unhappiness", "snowblindness"]
    vectors, found = word_vectors(write(tmp_path, text), [*strangers, *text.split()[::3]])
    assert found.tolist() == [False] * 7 + [True] * 6
    everybody = vectors[7:].mean(0)
    assert vectors[0].tolist() == [3, -2]  # snowboarder
    assert vectors[1].tolist() == [2, -1]  # snowboard, snowboarder
    assert vectors[2].tolist() == [4, 2.5]  # all with snow
    assert vectors[3] == pytest.approx(everybody)  # three letters are too few
    assert vectors[4] == pytest.approx(everybody)
    assert vectors[5].tolist() == [2, 2]  # unhapp
    assert vectors[6] == pytest.approx(everybody)  # snowb, which is less than half the word


@pytest.mark.parametrize(
    "text",
    [
        "6 2\n" + TEXT,  # word2vec
        "6 2\r\n" + TEXT.replace("\n", " \r\n"),  # a blank at the end of each line, as some programs write it
        TEXT.replace(" ", "\t"),
        "\N{BYTE ORDER MARK}" + TEXT,
        TEXT.removesuffix("\n"),
        TEXT + "dog 0 0\n",  # the first one counts
    ],
)
def test_forms_of_the_same_file(tmp_path: Path, text: str):
    plain, known = word_vectors(write(tmp_path, TEXT), WORDS)
    vectors, found = word_vectors(write(tmp_path, text, "other.txt"), WORDS)
    assert np.array_equal(vectors, plain)
    assert np.array_equal(found, known)


def test_words_with_blanks_and_other_alphabets(tmp_path: Path):
    text = "Hund 1 2\n. . . 3 4\nStraße 5 6\nnb\N{NO-BREAK SPACE}sp 7 8\n"
    vectors, found = word_vectors(write(tmp_path, text), [". . .", "Straße", "nb\N{NO-BREAK SPACE}sp"])
    assert found.all()
    assert vectors.tolist() == [[3, 4], [5, 6], [7, 8]]


def test_lines_of_other_words_need_not_be_text(tmp_path: Path):
    vectors, _ = word_vectors(write(tmp_path, b"\xff\xfe 1 2\ndog 3 4\n"), ["dog"])
    assert vectors.tolist() == [[3, 4]]


def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path):
    path = tmp_path / "vectors.txt"
    for text, said in (
        ("the 1 2\ndog 3\n", f"{path}, line 2: expected a word and 2 numbers, found 2 entries; the file may be cut"),
        ("the 1 2\n\ndog 3 4\n", f"{path}, line 2: expected a word and 2 numbers, found 0 entries"),
        ("the 1 2\ndog 3 x\n", f"{path}, line 2: expected 2 numbers after the word: could not convert"),
        ("the 1 2\ndog 3 nan\n", f"{path}, line 2: an entry of the vector is not a finite number"),
        ("the 1 2\ndog 3 1e60\n", f"{path}, line 2: an entry of the vector is not a finite number"),
        ("3 2\nthe 1 2\ndog 3 4\n", f"{path} has vectors of 2 words, but its first line says 3"),
        ("2 0\nthe\ndog\n", f"{path}, line 1: vectors without numbers"),
        ("0 2\n", f"{path} is empty"),
        ("", f"{path} is empty"),
        ("the\ndog\n", f"{path}, line 1: expected a word and its vector"),
        ("the 1 2\n", f"{path} has a vector for none of the 7 words"),
    ):
        assert said in refusal(write(tmp_path, text))
    assert f"cannot read the word vectors {tmp_path / 'absent'}: No such file" in refusal(tmp_path / "absent")
    assert "Is a directory" in refusal(tmp_path)
