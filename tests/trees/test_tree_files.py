"""Trees on disk."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.trees import Tree, balanced_tree, load_tree, save_tree, words_digest
from tests.support.tree_reference import Nested, nested_trees, tree_of

WORDS = ["<end>", "a", "dog", "Straße", "<unk>"]


def refusal(path: Path, words: list[str] | None = None) -> str:
    with pytest.raises(InputError) as error:
        load_tree(path, words)
    return str(error.value)


@settings(max_examples=30, deadline=None)
@given(nested_trees(), st.text())
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, pairs: Nested, builder: str):
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    tree = tree_of(pairs)
    save_tree(path, tree, builder)
    stored = load_tree(path)
    assert (stored.tree, stored.builder, stored.vocabulary) == (tree, builder, None)
    assert stored.tree.children.dtype == np.int32


def test_the_same_tree_is_the_same_file(tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other, other):
        save_tree(path, balanced_tree(5), "balanced", WORDS)
    assert one.read_bytes() == other.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_a_tree_belongs_to_its_words(tmp_path: Path):
    path = tmp_path / "tree"
    save_tree(path, balanced_tree(5), "balanced", WORDS)
    assert load_tree(path, WORDS).vocabulary == words_digest(WORDS)
    assert "is a tree of another vocabulary with 5 words as well: build it again" in refusal(path, WORDS[::-1])
    assert refusal(path, WORDS[:4]) == f"{path} has 5 tokens, but the vocabulary has 4"
    with pytest.raises(InputError, match="the tree has 3 tokens, but the vocabulary has 5"):
        save_tree(path, balanced_tree(3), "balanced", WORDS)
    # Words are told apart, wherever one ends and the next begins.
    assert words_digest(["ab", "c"]) != words_digest(["a", "bc"])
    save_tree(path, balanced_tree(5), "balanced")
    assert load_tree(path, WORDS).vocabulary is None
    assert "has 5 tokens" in refusal(path, WORDS[:4])


def test_damage_is_noticed(tmp_path: Path):
    path, broken = tmp_path / "tree", tmp_path / "broken"
    tree = balanced_tree(5)
    save_tree(path, tree, "balanced", WORDS)
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        broken.write_bytes(data[:length])
        assert str(broken) in refusal(broken)
    broken.write_bytes(data.replace(b'"I32"', b'"U32"'))  # the same bytes, taken for other numbers
    assert "does not match its digest" in refusal(broken)
    sound = load_tree(path)
    said = []
    for place in range(len(data)):
        broken.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            assert load_tree(broken) == sound  # blanks that fill the header up
        except InputError as error:
            said.append(str(error))
    assert len(said) > len(data) - 10
    assert all(str(broken) in sentence for sentence in said)


def test_foreign_files_are_refused(tmp_path: Path):
    path = tmp_path / "tree"
    children = {"children": np.array([[-1, -2]], np.int32)}
    about = {"kind": "vocabulary tree", "version": 1, "builder": "me", "vocabulary": None}
    for data, said in (
        (b"", "is damaged, or no file of a tree"),
        (b"PK\x03\x04 something else", "is damaged, or no file of a tree"),
        (safetensors.numpy.save(children), "is a safetensors file, but not of a vocabulary tree"),
        (safetensors.numpy.save(children, {"corollout": "[]"}), "not of a vocabulary tree"),
        (safetensors.numpy.save(children, {"corollout": "{"}), "is damaged, or no file of a tree"),
        (
            safetensors.numpy.save(children, {"corollout": json.dumps(about | {"version": 2})}),
            "is a vocabulary tree of version 2, and this code reads 1",
        ),
        (safetensors.numpy.save(children, {"corollout": json.dumps(about)}), "does not match its digest"),
        (
            safetensors.numpy.save({"other": children["children"]}, {"corollout": json.dumps(about)}),
            "is damaged, or no file of a tree",
        ),
    ):
        path.write_bytes(data)
        assert said in refusal(path)
        assert refusal(path).endswith("build it again with `corollout tree build`")
    assert f"cannot read the tree {tmp_path / 'absent'}: No such file" in refusal(tmp_path / "absent")
    assert "cannot read the tree" in refusal(tmp_path)


def test_a_place_that_cannot_be_written(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot write the tree .*: No such file or directory"):
        save_tree(tmp_path / "absent" / "tree", Tree(np.array([[-1, -2]])), "me")
