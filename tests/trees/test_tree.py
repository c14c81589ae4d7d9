"""Trees, their numbering and codes; balanced, permuted, limited and Huffman trees against their slow twins."""

import re
from fractions import Fraction
from math import log2

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import corollout.trees.tree as module
from corollout.errors import InputError
from corollout.trees import Tree, balanced_tree, entropy, huffman_tree, limited, permuted
from corollout.trees.tree import least_depth
from tests.support import tree_reference as plain
from tests.support.errors import refused
from tests.support.tree_reference import Nested, nested, nested_trees, shapes, tree_of

SMALL = Tree(np.array([[1, -1], [-4, 2], [-2, -3]]))  # ((3, (1, 2)), 0)


def test_a_small_tree_by_hand():
    assert nested(SMALL) == ((3, (1, 2)), 0)
    assert (SMALL.depths.tolist(), SMALL.histogram.tolist()) == ([1, 3, 3, 2], [0, 1, 1, 2])
    assert SMALL.path(2) == [(0, False), (1, True), (2, True)]
    assert SMALL.token_of([0, 1, 1]) == SMALL.token_of(np.array([False, True, True])) == 2
    codes = SMALL.codes
    assert (codes.nodes.dtype, codes.bits.dtype, codes.lengths.dtype) == (np.int32, np.bool_, np.int32)
    assert SMALL.expected_depth(np.array([6, 1, 0, 1])) == pytest.approx((6 * 1 + 3 + 2) / 8)


@settings(max_examples=60, deadline=None)
@given(nested_trees())
@example(0)  # one token needs no decision
def test_every_token_is_reached_by_its_code_and_no_other(pairs: Nested):
    tree = tree_of(pairs)
    assert nested(tree) == pairs
    assert tree.order.tolist() == plain.tokens(pairs)
    assert tree.depth == plain.height(pairs)
    paths = plain.plain_paths(tree)
    assert sorted(paths) == list(range(tree.size))
    assert len({tuple(bit for _, bit in path) for path in paths.values()}) == tree.size
    assert sum(Fraction(1, 2 ** int(length)) for length in tree.depths) == 1
    codes = tree.codes
    assert codes.nodes.shape == codes.bits.shape == (tree.size, tree.depth)
    for token, path in paths.items():
        assert tree.path(token) == path
        assert tree.token_of([bit for _, bit in path]) == token
        row = zip(codes.nodes[token].tolist(), codes.bits[token].tolist(), strict=True)
        assert list(row) == path + [(0, False)] * (tree.depth - len(path))
        assert codes.lengths[token] == tree.depths[token] == len(path)
    for node in range(tree.size - 1):
        below = [token for token, path in paths.items() if node in [step for step, _ in path]]
        assert sorted(tree.tokens(node).tolist()) == sorted(below)
        assert tree.leaf_counts[node] == len(below)
        steps = {step for path in paths.values() for step, (other, _) in enumerate(path) if other == node}
        assert steps == {tree.node_depths[node]}


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
        refused(r"numbered in preorder: use Tree.of", Tree, shuffled)


@settings(max_examples=60, deadline=None)
@given(st.data(), nested_trees())
def test_no_tree_is_less_deep_than_the_entropy(data: st.DataObject, pairs: Nested):
    tree = tree_of(pairs)
    counts = st.lists(st.integers(0, 1000), min_size=tree.size, max_size=tree.size).filter(any)
    frequencies = np.array(data.draw(counts))
    p = frequencies / frequencies.sum()
    assert entropy(frequencies) == pytest.approx(-sum(x * log2(x) for x in p if x > 0), abs=1e-9)
    expected = sum(p[token] * len(path) for token, path in plain.plain_paths(tree).items())
    assert tree.expected_depth(frequencies) == pytest.approx(expected)
    assert tree.expected_depth(frequencies) >= entropy(frequencies) - 1e-9
    assert tree.expected_depth(frequencies) == pytest.approx(tree.expected_depth(frequencies * 1e305), rel=1e-12)
    assert tree.depth >= least_depth(tree.size) >= log2(tree.size)


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([[-1, -1]], "token 0 occurs twice"),
        ([[1, 1], [-1, -2]], "inner node 1 occurs twice"),
        ([[-1, -3]], "inner node 0 has the child token 2, but there are only 1 inner nodes and 2 tokens"),
        ([[-1, 2], [-2, -3]], "inner node 0 has the child inner node 2, but there are only 2"),
        ([[-1, 1], [-2, 0]], "inner node 0 is the root"),
        ([[-1, -2], [2, -3], [1, -4]], "2 inner nodes of the tree are not reachable from the root"),
        ([[0.5, 1.0]], "integers with two children per row, not float64"),
        ([[-1, -2, -3]], "two children per row, not int64 of shape (1, 3)"),
    ],
)
def test_invalid_trees(children: list, message: str):
    for make in (Tree, Tree.of):
        refused(re.escape(message), make, np.array(children))


def test_a_tree_cannot_be_changed():
    children = np.array([[-1, -2]])
    tree = Tree(children)
    children[0] = -2, -1
    assert tree.path(0) == [(0, False)]
    with pytest.raises(ValueError, match="read-only"):
        tree.children[0, 0] = 5
    assert tree != Tree(children)
    assert tree != "tree"


def test_invalid_arguments():
    for question, message in (
        (lambda: SMALL.path(4), "a tree of 4 tokens has no token 4"),
        (lambda: SMALL.path(-1), "no token -1"),
        (lambda: SMALL.tokens(3), "no inner node 3"),
        (lambda: SMALL.token_of([0]), "the code of 1 bits ends at inner node 1, before reaching a token"),
        (lambda: SMALL.token_of([1, 0]), "the code has 2 bits but reaches a token after 1"),
        (lambda: SMALL.token_of([2]), "bit 0 of the code must be 0 or 1, not 2"),
        (lambda: SMALL.expected_depth(np.ones(3)), "frequencies of 3 tokens, but the tree has 4"),
        (lambda: SMALL.expected_depth(np.zeros(4)), "all frequencies are zero"),
        (lambda: SMALL.expected_depth(np.array([1, np.nan, 1, 1])), "token 1 must be a finite number ≥ 0, not nan"),
        (lambda: SMALL.expected_depth(np.array([1, 1, 1, -2])), "frequency of token 3 must be"),
        (lambda: entropy(np.ones((2, 2))), "one number per token, not an array of shape (2, 2)"),
    ):
        refused(re.escape(message), question)


def test_codes_that_are_too_large(monkeypatch: pytest.MonkeyPatch):
    tree = balanced_tree(1000)
    monkeypatch.setattr(module, "_MOST_CODE_BYTES", 5 * 1000 * 10 - 1)
    with pytest.raises(InputError, match=r"codes of 1,000 tokens at depths of up to 10 .*: build the tree with max_d"):
        _ = tree.codes
    monkeypatch.setattr(module, "_MOST_CODE_BYTES", 5 * 1000 * 10)
    assert tree.codes.nodes.nbytes + tree.codes.bits.nbytes == 5 * 1000 * 10


def test_a_long_chain():
    size = 3000  # deeper than Python's stack
    chain = np.array([[~node, node + 1] for node in range(size - 1)])
    chain[-1, 1] = ~(size - 1)
    tree = Tree(chain)
    assert tree.depth == size - 1
    assert tree.path(size - 1) == [(node, True) for node in range(size - 1)]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 70).flatmap(lambda size: st.permutations(range(size))))
def test_a_balanced_tree_is_halved_recursively(order: list[int]):
    tree = balanced_tree(np.array(order))
    assert nested(tree) == plain.plain_balanced(order)
    assert tree.depth == least_depth(len(order))
    assert tree.depth - tree.depths.min() <= 1
    assert nested(balanced_tree(len(order))) == plain.plain_balanced(range(len(order)))


@settings(max_examples=100, deadline=None)
@given(st.data(), nested_trees())
def test_a_limited_tree_is_rebuilt_where_it_is_too_deep(data: st.DataObject, pairs: Nested):
    tree = tree_of(pairs)
    limit = data.draw(st.integers(least_depth(tree.size), max(tree.depth, least_depth(tree.size)) + 1))
    made = limited(tree, limit)
    assert nested(made) == plain.plain_limited(pairs, limit)
    assert made.depth <= limit
    assert made.order.tolist() == tree.order.tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 33])
def test_the_minimal_depth(size: int):
    least = next(depth for depth in range(99) if 2**depth >= size)
    tree, frequencies = balanced_tree(size), np.arange(size)
    for build in (
        lambda depth: balanced_tree(size, depth),
        lambda depth: permuted(tree, 1, depth),
        lambda depth: limited(tree, depth),
        lambda depth: huffman_tree(frequencies, depth),
    ):
        assert build(least).depth == least
        message = f"{size} tokens do not fit into a tree of depth {least - 1}: .* at least ⌈log₂ {size}⌉ = {least}$"
        refused(message, build, least - 1)


@settings(max_examples=40, deadline=None)
@given(nested_trees(), st.integers(0, 2**40))
def test_a_permutation_keeps_the_shape(pairs: Nested, seed: int):
    tree = tree_of(pairs)
    made = permuted(tree, seed)
    assert list(shapes(made)) == list(shapes(tree))
    assert sorted(made.order) == sorted(tree.order)
    assert made == permuted(tree, seed)


def test_permutations_are_random_and_the_same_everywhere():
    tree = balanced_tree(6)
    orders = [tuple(permuted(tree, seed).order.tolist()) for seed in range(600)]
    assert np.bincount([order[0] for order in orders], minlength=6).min() > 60
    assert orders[0] == (4, 2, 0, 1, 5, 3)
    chain = huffman_tree(2.0 ** -np.arange(12))
    assert chain.depth == 11
    assert list(shapes(permuted(chain, 3, 5))) == list(shapes(limited(chain, 5)))


weights = st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 20, 100]), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(weights, st.integers(0, 3))
@example([0, 0, 0, 0, 0], 0)
@example([0, 0, 0, 1], 0)
@example([1, 1, 2, 3, 5, 8, 13, 21], 0)
def test_no_tree_is_better_than_huffmans(counts: list[int], spare: int):
    for limit in (None, least_depth(len(counts)) + spare):
        tree = huffman_tree(np.array(counts), limit)
        most = len(counts) if limit is None else limit
        least, deepest = plain.best_lengths(counts, most)
        assert np.dot(tree.depths, counts) == least
        assert tree.depth <= most
        if limit is None:
            assert tree.depth == deepest
        assert sum(Fraction(1, 2 ** int(depth)) for depth in tree.depths) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e308), min_size=2, max_size=7), st.integers(0, 2))
def test_frequencies_of_any_size(frequencies: list[float], spare: int):
    limit = least_depth(len(frequencies)) + spare
    tree = huffman_tree(np.array(frequencies), limit)
    scale = max(frequencies) or 1.0
    shares = [frequency / scale for frequency in frequencies]
    assert tree.depth <= limit
    assert np.dot(tree.depths, shares) == pytest.approx(plain.best_lengths(shares, limit)[0], rel=1e-9)


def test_invalid_orders_and_frequencies():
    for build, message in (
        (lambda: balanced_tree(0), "at least one token"),
        (lambda: balanced_tree(-3), "at least one token"),
        (lambda: balanced_tree(np.zeros((2, 2))), "as a one-dimensional array"),
        (lambda: balanced_tree(np.array([0, 2])), "an order of 2 tokens must have each id from 0 to 1 exactly once"),
        (lambda: balanced_tree(np.array([0, 0])), "exactly once"),
        (lambda: huffman_tree(np.array([])), "not an array of shape (0,)"),
        (lambda: huffman_tree(np.array([1, np.nan])), "not nan"),
        (lambda: huffman_tree(np.array([np.inf, 1])), "the frequency of token 0 must be a finite number ≥ 0, not inf"),
        (lambda: huffman_tree(np.array([1, -1])), "not -1.0"),
        (lambda: permuted(balanced_tree(2), True), "the seed must be"),
    ):
        refused(re.escape(message), build)
