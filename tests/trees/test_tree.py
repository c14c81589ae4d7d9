"""A tree, its numbering, its codes and what is no tree."""

from fractions import Fraction
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corollout.trees.tree as module
from corollout.errors import InputError
from corollout.trees import Tree, balanced_tree, entropy, least_depth
from tests.support.tree_reference import Nested, height, nested, nested_trees, plain_paths, tokens, tree_of

SMALL = Tree(np.array([[1, -1], [-4, 2], [-2, -3]]))  # ((3, (1, 2)), 0)


def test_a_small_tree_by_hand():
    assert nested(SMALL) == ((3, (1, 2)), 0)
    assert (SMALL.size, SMALL.depth) == (4, 3)
    assert SMALL.depths.tolist() == [1, 3, 3, 2]
    assert SMALL.histogram.tolist() == [0, 1, 1, 2]
    assert SMALL.order.tolist() == [3, 1, 2, 0]
    assert SMALL.leaf_counts.tolist() == [4, 3, 2]
    assert SMALL.node_depths.tolist() == [0, 1, 2]
    assert SMALL.tokens(1).tolist() == [3, 1, 2]
    assert SMALL.path(2) == [(0, False), (1, True), (2, True)]
    assert SMALL.token_of([0, 1, 1]) == SMALL.token_of(np.array([False, True, True])) == 2
    codes = SMALL.codes
    assert codes.nodes.tolist() == [[0, 0, 0], [0, 1, 2], [0, 1, 2], [0, 1, 0]]
    assert codes.bits.tolist() == [[True, False, False], [False, True, False], [False, True, True], [False] * 3]
    assert codes.lengths.tolist() == [1, 3, 3, 2]
    assert (codes.nodes.dtype, codes.bits.dtype, codes.lengths.dtype) == (np.int32, np.bool_, np.int32)
    assert SMALL.expected_depth(np.array([6, 1, 0, 1])) == pytest.approx((6 * 1 + 3 + 2) / 8)


def test_one_token_needs_no_decision():
    one = Tree(np.empty((0, 2), np.int32))
    assert (one.size, one.depth, one.depths.tolist(), one.path(0)) == (1, 0, [0], [])
    assert one.token_of([]) == 0
    assert one.codes.nodes.shape == one.codes.bits.shape == (1, 0)
    assert one.order.tolist() == [0]
    assert one.expected_depth(np.ones(1)) == entropy(np.ones(1)) == least_depth(1) == 0
    assert one.histogram.tolist() == [1]
    assert one.leaf_counts.shape == one.node_depths.shape == (0,)


@settings(max_examples=60, deadline=None)
@given(nested_trees())
def test_every_token_is_reached_by_its_code_and_no_other(pairs: Nested):
    tree = tree_of(pairs)
    assert nested(tree) == pairs
    assert tree.order.tolist() == tokens(pairs)
    assert tree.depth == height(pairs)
    paths = plain_paths(tree)
    assert sorted(paths) == list(range(tree.size))
    assert len({tuple(bit for _, bit in path) for path in paths.values()}) == tree.size
    assert sum(Fraction(1, 2 ** int(length)) for length in tree.depths) == 1
    codes = tree.codes
    assert codes.nodes.shape == codes.bits.shape == (tree.size, tree.depth)
    for token, path in paths.items():
        assert tree.path(token) == path
        assert tree.token_of([bit for _, bit in path]) == token
        padding = [(0, False)] * (tree.depth - len(path))
        row = zip(codes.nodes[token].tolist(), codes.bits[token].tolist(), strict=True)
        assert list(row) == path + padding
        assert codes.lengths[token] == tree.depths[token] == len(path)
    for node in range(tree.size - 1):
        below = [token for token, path in paths.items() if node in [step for step, _ in path]]
        assert sorted(tree.tokens(node).tolist()) == sorted(below)
        assert tree.leaf_counts[node] == len(below)
        assert {path.index((node, bit)) for path in paths.values() for bit in (False, True) if (node, bit) in path} == {
            tree.node_depths[node]
        }


@settings(max_examples=40, deadline=None)
@given(nested_trees(), st.randoms(use_true_random=False))
def test_any_numbering_becomes_preorder(pairs: Nested, random):
    tree = tree_of(pairs)
    inner = list(range(1, tree.size - 1))
    random.shuffle(inner)
    number = np.array([0, *inner][: tree.size - 1], np.int64)
    shuffled = np.empty_like(tree.children)
    for node, row in enumerate(tree.children.tolist()):
        shuffled[number[node]] = [number[child] if child >= 0 else child for child in row]
    assert Tree.of(shuffled) == tree
    assert hash(Tree.of(shuffled)) == hash(tree)
    if not np.array_equal(shuffled, tree.children):
        with pytest.raises(InputError, match=r"numbered in preorder: Tree.of"):
            Tree(shuffled)


@settings(max_examples=60, deadline=None)
@given(st.data(), nested_trees())
def test_no_tree_is_less_deep_than_the_entropy(data: st.DataObject, pairs: Nested):
    tree = tree_of(pairs)
    counts = st.lists(st.integers(0, 1000), min_size=tree.size, max_size=tree.size).filter(any)
    frequencies = np.array(data.draw(counts))
    p = frequencies / frequencies.sum()
    assert entropy(frequencies) == pytest.approx(-sum(x * log2(x) for x in p if x > 0), abs=1e-9)
    assert tree.expected_depth(frequencies) == pytest.approx(
        sum(p[token] * len(path) for token, path in plain_paths(tree).items())
    )
    assert tree.expected_depth(frequencies) >= entropy(frequencies) - 1e-9
    assert tree.expected_depth(frequencies) == pytest.approx(tree.expected_depth(frequencies * 1e305), rel=1e-12)
    assert tree.depth >= least_depth(tree.size) >= log2(tree.size)


@pytest.mark.parametrize(
    ("children", "said"),
    [
        ([[-1, -1]], "token 0 of the tree is there twice"),
        ([[1, 1], [-1, -2]], "inner node 1 of the tree is there twice"),
        ([[-1, -3]], "inner node 0 has the child token 2, but there are only 1 inner nodes and 2 tokens"),
        ([[-1, 2], [-2, -3]], "inner node 0 has the child inner node 2, but there are only 2"),
        ([[-1, 1], [-2, 0]], "inner node 0 is the root"),
        ([[-1, -2], [2, -3], [1, -4]], "2 inner nodes of the tree cannot be reached from the root"),
        ([[0.5, 1.0]], "whole numbers with two children in each row, not float64"),
        ([[-1, -2, -3]], "two children in each row, not int64 of shape (1, 3)"),
    ],
)
def test_what_is_no_tree(children: list, said: str):
    for make in (Tree, Tree.of):
        with pytest.raises(InputError) as error:
            make(np.array(children))
        assert said in str(error.value)


def test_a_tree_cannot_be_changed():
    children = np.array([[-1, -2]])
    tree = Tree(children)
    children[0] = -2, -1
    assert tree.path(0) == [(0, False)]
    with pytest.raises(ValueError, match="read-only"):
        tree.children[0, 0] = 5
    assert tree != Tree(children)
    assert tree != "tree"


def test_bad_questions():
    for question, said in (
        (lambda: SMALL.path(4), "a tree of 4 tokens has no token 4"),
        (lambda: SMALL.path(-1), "no token -1"),
        (lambda: SMALL.tokens(3), "no inner node 3"),
        (lambda: SMALL.token_of([0]), "the code of 1 bits ends at inner node 1, before it leads to a token"),
        (lambda: SMALL.token_of([1, 0]), "the code has 2 bits, but leads to a token after 1"),
        (lambda: SMALL.token_of([2]), "bit 0 of the code is 2, neither 0 nor 1"),
        (lambda: SMALL.expected_depth(np.ones(3)), "frequencies of 3 tokens, but the tree has 4"),
        (lambda: SMALL.expected_depth(np.zeros(4)), "all frequencies are zero"),
        (lambda: SMALL.expected_depth(np.array([1, np.nan, 1, 1])), "frequency of token 1 is nan"),
        (lambda: SMALL.expected_depth(np.array([1, 1, 1, -2])), "frequency of token 3 is -2.0"),
        (lambda: entropy(np.ones((2, 2))), "one number for each token, not an array of shape (2, 2)"),
    ):
        with pytest.raises(InputError) as error:
            question()
        assert said in str(error.value)


def test_codes_that_would_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch):
    tree = balanced_tree(1000)
    monkeypatch.setattr(module, "_MOST_CODE_BYTES", 5 * 1000 * 10 - 1)
    with pytest.raises(InputError, match=r"codes of 1,000 tokens that are up to 10 deep .*: build the tree with max_d"):
        _ = tree.codes
    monkeypatch.setattr(module, "_MOST_CODE_BYTES", 5 * 1000 * 10)
    assert tree.codes.nodes.nbytes + tree.codes.bits.nbytes == 5 * 1000 * 10


def test_a_long_chain_is_no_problem():
    size = 3000  # deeper than Python's stack
    chain = np.array([[~node, node + 1] for node in range(size - 1)])
    chain[-1, 1] = ~(size - 1)
    tree = Tree(chain)
    assert tree.depth == size - 1
    assert tree.path(size - 1) == [(node, True) for node in range(size - 1)]
