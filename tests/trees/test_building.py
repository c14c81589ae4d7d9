"""Balanced, permuted, limited and Huffman trees against their slow twins."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corollout.errors import InputError
from corollout.trees import balanced_tree, huffman_tree, least_depth, limited, permuted
from tests.support.tree_reference import (
    Nested,
    best_lengths,
    height,
    nested,
    nested_trees,
    plain_balanced,
    plain_limited,
    shapes,
    tree_of,
)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 70).flatmap(lambda size: st.permutations(range(size))))
def test_a_balanced_tree_is_halved_again_and_again(order: list[int]):
    tree = balanced_tree(np.array(order))
    assert nested(tree) == plain_balanced(order)
    assert tree.depth == least_depth(len(order))
    assert tree.depth - tree.depths.min() <= 1
    assert nested(balanced_tree(len(order))) == plain_balanced(range(len(order)))


@settings(max_examples=100, deadline=None)
@given(st.data(), nested_trees())
def test_a_limited_tree_is_rebuilt_where_it_is_too_deep(data: st.DataObject, pairs: Nested):
    tree = tree_of(pairs)
    limit = data.draw(st.integers(least_depth(tree.size), max(tree.depth, least_depth(tree.size)) + 1))
    made = limited(tree, limit)
    assert nested(made) == plain_limited(pairs, limit)
    assert made.depth <= limit
    assert made.order.tolist() == tree.order.tolist()
    if height(pairs) <= limit:
        assert made == tree


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 33])
def test_a_depth_is_possible_from_log2_on(size: int):
    least = next(depth for depth in range(99) if 2**depth >= size)
    tree, frequencies = balanced_tree(size), np.arange(size)
    for build in (
        lambda depth: balanced_tree(size, depth),
        lambda depth: permuted(tree, 1, depth),
        lambda depth: limited(tree, depth),
        lambda depth: huffman_tree(frequencies, depth),
    ):
        assert build(least).depth == least
        with pytest.raises(InputError) as error:
            build(least - 1)
        assert f"{size} tokens do not fit into a tree of depth {least - 1}: max_depth must be at least" in str(
            error.value
        )
        assert str(error.value).endswith(f"⌈log₂ {size}⌉ = {least}")


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
    assert len(set(orders)) > 300
    firsts = np.bincount([order[0] for order in orders], minlength=6)
    assert firsts.min() > 60
    assert orders[0] == (4, 2, 0, 1, 5, 3)


def test_a_limited_permutation_has_the_limited_shape():
    tree = huffman_tree(2.0 ** -np.arange(12))
    assert tree.depth == 11
    made = permuted(tree, 3, 5)
    assert list(shapes(made)) == list(shapes(limited(tree, 5)))


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
        least, deepest = best_lengths(counts, most)
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
    assert np.dot(tree.depths, shares) == pytest.approx(best_lengths(shares, limit)[0], rel=1e-9)


def test_a_limit_that_does_not_bind_costs_nothing():
    counts = np.random.default_rng(0).zipf(1.4, 500)
    free = huffman_tree(counts)
    assert huffman_tree(counts, free.depth) == free
    costs = [huffman_tree(counts, depth).expected_depth(counts) for depth in range(9, free.depth + 1)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == free.expected_depth(counts) < costs[0]
    assert huffman_tree(counts, 9).depth == 9


def test_tokens_that_never_occur_are_deep():
    tree = huffman_tree(np.array([0, 50, 0, 30, 20]))
    assert tree.depths[[0, 2]].tolist() == [tree.depth] * 2
    assert tree.depths.argmin() == 1


def test_bad_orders_and_frequencies():
    for build, said in (
        (lambda: balanced_tree(0), "at least one token"),
        (lambda: balanced_tree(-3), "at least one token"),
        (lambda: balanced_tree(np.zeros((2, 2))), "their order as a list"),
        (lambda: balanced_tree(np.array([0, 2])), "an order of 2 tokens has each number from 0 to 1 exactly once"),
        (lambda: balanced_tree(np.array([0, 0])), "exactly once"),
        (lambda: huffman_tree(np.array([])), "not an array of shape (0,)"),
        (lambda: huffman_tree(np.array([1, np.nan])), "the frequency of token 1 is nan"),
        (lambda: huffman_tree(np.array([np.inf, 1])), "the frequency of token 0 is inf: it must be a finite number"),
        (lambda: huffman_tree(np.array([1, -1])), "the frequency of token 1 is -1.0"),
        (lambda: permuted(balanced_tree(2), True), "the seed must be a whole number"),
    ):
        with pytest.raises(InputError) as error:
            build()
        assert said in str(error.value)
