"""Trees and word vectors on disk."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.trees import Tree, balanced_tree, files, load_tree, save_tree, word_vectors
from corollout.trees.files import words_digest
from tests.support.errors import refused
from tests.support.tree_reference import Nested, nested_trees, tree_of

WORDS = ["<end>", "a", "dog", "Straße", "<unk>"]


@settings(max_examples=30, deadline=None)
@given(nested_trees(), st.text())
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, pairs: Nested, builder: str):
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    tree = tree_of(pairs)
    save_tree(path, tree, builder)
    stored, data = load_tree(path), path.read_bytes()
    assert (stored.tree, stored.builder, stored.vocabulary) == (tree, builder, None)
    assert stored.tree.children.dtype == np.int32
    save_tree(path, tree, builder)
    assert path.read_bytes() == data


def test_a_tree_belongs_to_its_words(tmp_path: Path):
    path = tmp_path / "tree"
    save_tree(path, balanced_tree(5), "balanced", WORDS)
    assert load_tree(path, WORDS).vocabulary == words_digest(WORDS)
    refused("is a tree of another vocabulary of 5 words: build it again", load_tree, path, WORDS[::-1])
    refused(f"{path} has 5 tokens, but the vocabulary has 4", load_tree, path, WORDS[:4])
    refused("the tree has 3 tokens, but the vocabulary has 5", save_tree, path, balanced_tree(3), "balanced", WORDS)
    # The boundaries of words matter.
    assert words_digest(["ab", "c"]) != words_digest(["a", "bc"])


def test_damage_is_noticed(tmp_path: Path):
    path, broken = tmp_path / "tree", tmp_path / "broken"
    tree = balanced_tree(5)
    save_tree(path, tree, "balanced", WORDS)
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        broken.write_bytes(data[:length])
        refused(str(broken), load_tree, broken)
    broken.write_bytes(data.replace(b'"I32"', b'"U32"'))  # the same bytes with another type
    refused("numbers of the type U32", load_tree, broken)
    intact, noticed = load_tree(path), 0
    for index in range(len(data)):
        broken.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        try:
            assert load_tree(broken) == intact  # padding of the header
        except InputError as error:
            noticed += str(broken) in str(error)
    assert noticed > len(data) - 10


def test_foreign_files_are_refused(tmp_path: Path):
    path = tmp_path / "tree"
    array = np.array([[-1, -2]], np.int32)
    about = {"kind": "vocabulary tree", "version": 1, "builder": "me", "vocabulary": None}

    def tree(meta: str, name: str = "children") -> bytes:
        return safetensors.numpy.save({name: array}, {"corollout": meta})

    damaged = "is damaged or not a vocabulary tree"
    for data, message in (
        (b"", damaged),
        (b"PK\x03\x04 something else", damaged),
        (safetensors.numpy.save({"children": array}), "is a safetensors file but not a vocabulary tree"),
        (tree("[]"), "not a vocabulary tree"),
        (tree("{"), damaged),
        (tree(json.dumps(about | {"version": 2})), "is a tree of format version 2, not 1"),
        (tree(json.dumps(about)), "does not match its digest"),
        (tree(json.dumps(about), "other"), damaged),
    ):
        path.write_bytes(data)
        refused(f"{message}.* build it again with `corollout tree build`$", load_tree, path)
    refused(f"cannot read the tree {tmp_path / 'absent'}: No such file", load_tree, tmp_path / "absent")
    refused("cannot read the tree", load_tree, tmp_path)
    with pytest.raises(InputError, match=r"cannot write the tree .*: No such file or directory"):
        save_tree(tmp_path / "absent" / "tree", Tree(np.array([[-1, -2]])), "me")


@pytest.mark.parametrize(
    ("array", "change", "message"),
    [
        ([[-1, -2]], {"builder": None}, "how the tree was built"),
        ([[-1, -2]], {"builder": 3}, "how the tree was built"),
        ([[-1, -2]], {"vocabulary": ["x"]}, "how the tree was built"),
        ([[-1, -1]], {}, "token 0 occurs twice"),
        ([[-1, -3]], {}, "there are only"),
        ([[0, -1]], {}, "is the root"),
        ([[-1, -2], [1, -3]], {}, "not reachable"),  # a cycle
        ([[2, -1], [-2, -3], [1, -4]], {}, "preorder"),
        ([-1, -2], {}, "two children per row"),
        ([[[-1, -2]]], {}, "two children per row"),
    ],
)
def test_what_is_not_a_tree_is_refused_even_if_its_digest_is_right(
    tmp_path: Path, array: list[Any], change: dict[str, Any], message: str
):
    about = {"kind": "vocabulary tree", "version": 1, "builder": "me", "vocabulary": None} | change
    about = {name: value for name, value in about.items() if value is not None or name == "vocabulary"}
    children = np.array(array, np.int32)
    about["digest"] = files._digest(about, children)
    path = tmp_path / "tree"
    path.write_bytes(safetensors.numpy.save({"children": children}, {"corollout": json.dumps(about)}))
    assert str(path) in refused(message, load_tree, path)


@pytest.mark.parametrize("text", ["1" * 5000 + " 2\ndog 1 2\n", "dog " + "1" * 5_000_000])
def test_word_vectors_with_absurd_lines_are_refused(tmp_path: Path, text: str):
    refused(r"vectors\.txt", word_vectors, write(tmp_path, text), ["dog"])


def test_word_vectors_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COROLLOUT_MAX_ARRAY_BYTES", "40")
    refused("7 vectors of 2 numbers has 56 bytes", word_vectors, write(tmp_path, TEXT), KNOWN)


KNOWN = ["<end>", "dog", "dogs", "snowboarders", "a", "unheard", "<unk>"]
TEXT = "the 1 2\ndog 3 4.5\nsnowboard 1 0\nsnowboarder 3e0 -2\na -1 -1\n. . 9 9\n"


def write(folder: Path, text: str | bytes, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_words_and_their_vectors(tmp_path: Path):
    vectors, found = word_vectors(write(tmp_path, TEXT), KNOWN)
    assert found.nonzero()[0].tolist() == [1, 4]
    assert (vectors.dtype, vectors[found].tolist()) == (np.float32, [[3, 4.5], [-1, -1]])


def test_unknown_words_get_the_vectors_of_their_relatives(tmp_path: Path):
    text = "snowboard 1 0\nsnowboarder 3 -2\nsnowmen 5 5\nsnow 7 7\nunhappy 2 2\ndog 4 4\n"
    unknown = ["snowboarders", "snowboarding", "snowing", "unheard", "dogs", "unhappiness", "snowblindness"]
    vectors, found = word_vectors(write(tmp_path, text), [*unknown, *text.split()[::3]])
    assert found.tolist() == [False] * 7 + [True] * 6
    mean = vectors[7:].mean(0)
    # Those of snowboarder; of snowboard and snowboarder; of all with snow; of unhapp…
    assert vectors[[0, 1, 2, 5]].tolist() == [[3, -2], [2, -1], [4, 2.5], [2, 2]]
    # Three letters are too few; snowb is less than half the word.
    assert vectors[[3, 4, 6]] == pytest.approx(np.stack([mean] * 3))


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
    plain, known = word_vectors(write(tmp_path, TEXT), KNOWN)
    vectors, found = word_vectors(write(tmp_path, text, "other.txt"), KNOWN)
    assert np.array_equal(vectors, plain)
    assert np.array_equal(found, known)


def test_words_with_blanks_and_other_alphabets(tmp_path: Path):
    text = "Hund 1 2\n. . . 3 4\nStraße 5 6\nnb\N{NO-BREAK SPACE}sp 7 8\n"
    vectors, found = word_vectors(write(tmp_path, text), [". . .", "Straße", "nb\N{NO-BREAK SPACE}sp"])
    assert found.all()
    assert vectors.tolist() == [[3, 4], [5, 6], [7, 8]]
    vectors, _ = word_vectors(write(tmp_path, b"\xff\xfe 1 2\ndog 3 4\n"), ["dog"])  # other lines need not be text
    assert vectors.tolist() == [[3, 4]]


def test_errors_name_file_and_line(tmp_path: Path):
    path = tmp_path / "vectors.txt"
    for text, message in (
        ("the 1 2\ndog 3\n", f"{path}, line 2: expected a word and 2 numbers, not 2 entries; the file may be cut"),
        ("the 1 2\n\ndog 3 4\n", f"{path}, line 2: expected a word and 2 numbers, not 0 entries"),
        ("the 1 2\ndog 3 x\n", f"{path}, line 2: expected 2 numbers after the word: could not convert"),
        ("the 1 2\ndog 3 nan\n", f"{path}, line 2: the vector has a non-finite entry"),
        ("the 1 2\ndog 3 1e60\n", f"{path}, line 2: the vector has a non-finite entry"),
        ("3 2\nthe 1 2\ndog 3 4\n", f"{path} has vectors of 2 words, but its header says 3"),
        ("2 0\nthe\ndog\n", f"{path}, line 1: the dimension must be at least 1"),
        ("0 2\n", f"{path} is empty"),
        ("", f"{path} is empty"),
        ("the\ndog\n", f"{path}, line 1: expected a word and its vector"),
        ("the 1 2\n", f"{path} has vectors for none of the 7 words"),
    ):
        refused(re.escape(message), word_vectors, write(tmp_path, text), KNOWN)
    refused(f"cannot read the word vectors {tmp_path / 'absent'}: No", word_vectors, tmp_path / "absent", KNOWN)
    refused("Is a directory", word_vectors, tmp_path, KNOWN)
