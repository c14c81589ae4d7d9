"""Genuine word vectors, where there are any: in the folder COROLLOUT_CAPTION_DATA, or in ../shared/data."""

import os
from pathlib import Path

import pytest

from corollout.trees import cluster_tree, word_vectors

FOLDER = Path(os.environ.get("COROLLOUT_CAPTION_DATA", Path(__file__).parents[2] / "../shared/data"))


def test_glove():
    path = FOLDER / "glove" / "glove.6B.50d.subset.txt"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    lines = path.read_text("utf-8").splitlines()
    words = [line.split(" ")[0] for line in lines[:1500]]
    vectors, found = word_vectors(path, [*words, "<unk>"])
    assert found.sum() == 1500
    assert vectors[7].tolist() == pytest.approx([float(number) for number in lines[7].split(" ")[1:]])
    tree = cluster_tree(vectors)
    assert tree.depth < 25

    def near(word: str) -> set[str]:
        """The smallest cluster of more than ten words around a word."""
        node = [node for node, _ in tree.path(words.index(word)) if tree.leaf_counts[node] > 10][-1]
        return {words[token] for token in tree.tokens(node) if token < len(words)}

    assert {"two", "four", "six"} <= near("three")
    assert {"june", "march"} <= near("july")
