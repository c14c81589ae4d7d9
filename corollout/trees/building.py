"""Trees from nothing but an order of the tokens, from their frequencies, or from other trees."""

import heapq

import numpy as np
import torch

from corollout.errors import InputError
from corollout.noise import ORDER, Noise, bits
from corollout.trees.tree import Tree, check_frequencies, least_depth


def balanced_tree(tokens: int | np.ndarray, max_depth: int | None = None) -> Tree:
    """A tree of the least possible depth ⌈log₂ V⌉ over V tokens, in the order of their ids or in a given order.

    Every subtree's halves differ by one token at most. ``max_depth`` can only be refused.
    """
    order = np.arange(tokens) if isinstance(tokens, int) else np.asarray(tokens)
    if order.ndim != 1 or len(order) == 0:
        raise InputError("a balanced tree needs at least one token, and their order as a list")
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise InputError(f"an order of {len(order):,} tokens has each number from 0 to {len(order) - 1} exactly once")
    check_max_depth(len(order), max_depth)
    return Tree(balanced_children(order))


def permuted(tree: Tree, seed: int, max_depth: int | None = None) -> Tree:
    """The same shape with the tokens shuffled: a tree that knows nothing of them (tree_RD of the paper).

    The same seed gives the same tree everywhere. With ``max_depth`` the shape is that of :func:`limited`.
    """
    if max_depth is not None:
        tree = limited(tree, max_depth)
    key = Noise(seed).keys(torch.zeros(1, dtype=torch.int64), ORDER)
    new_token = bits(key, torch.zeros_like(key), tree.size)[0].numpy().argsort(kind="stable")
    return Tree(relabelled(tree.children, new_token))


def limited(tree: Tree, max_depth: int) -> Tree:
    """The tree with no token deeper than that: subtrees that are too deep are rebuilt balanced.

    A subtree that hangs at depth d has to fit into max_depth − d. Of one that does not, the root's split is kept if
    both sides can still be made to fit; else the whole subtree becomes a balanced one over the same tokens in the
    same order from left to right. So all that is not too deep stays as it was, and what is changed is changed as far
    down as can be.
    """
    check_max_depth(tree.size, max_depth)
    if tree.depth <= max_depth:
        return tree
    room = max_depth - tree.node_depths.astype(np.int64)
    # ⌈log₂ k⌉ > r is k > 2^r; no tree has 2^62 tokens.
    too_large = tree.leaf_counts > np.int64(1) << room.clip(0, 62)
    splits_badly = too_large[np.maximum(tree.children, 0)] & (tree.children >= 0)
    return rebalanced(tree, splits_badly[:, 0] | splits_badly[:, 1])


def huffman_tree(frequencies: np.ndarray, max_depth: int | None = None) -> Tree:
    """A tree of the least expected depth Σ p_v length_v, by Huffman's algorithm; frequencies need not sum to 1.

    With ``max_depth`` it is the best among the trees that are not deeper (package-merge, Larmore and Hirschberg
    1990). Of unlimited trees that are equally good it is one that is least deep. Tokens that never occur are no less
    deep than any other.
    """
    weights = check_frequencies(frequencies)
    check_max_depth(len(weights), max_depth)
    # Sums are finite, and by a power of two they stay as exact as they are: equal ones stay equal.
    weights = np.ldexp(weights, -np.frexp(weights.max())[1])
    tree = merged(_huffman_merges(weights))
    if max_depth is None or tree.depth <= max_depth:
        return tree
    return merged(_merges_of_lengths(_limited_lengths(weights, max_depth)))


def check_max_depth(size: int, max_depth: int | None) -> None:
    """Refuse a depth at which so many tokens do not fit."""
    if max_depth is not None and max_depth < least_depth(size):
        raise InputError(
            f"{size:,} tokens do not fit into a tree of depth {max_depth}: max_depth must be at least "
            f"⌈log₂ {size}⌉ = {least_depth(size)}"
        )


def balanced_children(order: np.ndarray) -> np.ndarray:
    """The children in preorder of a balanced tree over some tokens; of two halves, the left one may be larger."""
    children = np.empty((len(order) - 1, 2), np.int32)
    node, start, end = (np.array([number]) for number in (0, 0, len(order)))
    if len(order) == 1:
        return children
    while len(node):
        left = (end - start + 1) // 2
        middle = start + left
        # The left subtree has left − 1 inner nodes.
        halves = [(node + 1, start, middle), (node + left, middle, end)]
        for bit, (number, begin, stop) in enumerate(halves):
            children[node, bit] = np.where(stop - begin > 1, number, ~order[begin])
        node, start, end = (np.concatenate(parts) for parts in zip(*halves, strict=True))
        large = end - start > 1
        node, start, end = node[large], start[large], end[large]
    return children


def relabelled(children: np.ndarray, token: np.ndarray) -> np.ndarray:
    """The same inner nodes with ``token[t]`` in the place of token t."""
    return np.where(children < 0, ~token[np.maximum(~children, 0)], children)


def rebalanced(tree: Tree, where: np.ndarray) -> Tree:
    """The tree with the subtrees of those inner nodes made balanced for which ``where`` is true."""
    children = tree.children.copy()
    end = 0
    for node in where.nonzero()[0].tolist():
        if node < end:  # inside a subtree that is balanced already
            continue
        part = balanced_children(tree.tokens(node))
        end = node + len(part)
        children[node:end] = np.where(part >= 0, part + node, part)
    return Tree(children)


def merged(merges: np.ndarray) -> Tree:
    """A tree from below: row i joins two of the tokens 0 … V − 1 and of the clusters V + j that row j < i has made."""
    return Tree.of(children_of_merges(merges))


def children_of_merges(merges: np.ndarray) -> np.ndarray:
    """The children of inner nodes that are numbered from the last merge, which is the root, to the first."""
    size = len(merges) + 1
    return np.where(merges < size, ~merges, 2 * size - 2 - merges)[::-1]


def _huffman_merges(weights: np.ndarray) -> np.ndarray:
    # Of equal weights, the one that has been there longer comes first: single tokens, then small clusters.
    heap = [(weight, place) for place, weight in enumerate(weights.tolist())]
    heapq.heapify(heap)
    merges = np.empty((len(weights) - 1, 2), np.int64)
    for step in range(len(merges)):
        (first, one), (second, other) = heapq.heappop(heap), heapq.heappop(heap)
        merges[step] = one, other
        heapq.heappush(heap, (first + second, len(weights) + step))
    return merges


def _limited_lengths(weights: np.ndarray, max_depth: int) -> np.ndarray:
    """Lengths of the best codes of at most ``max_depth`` bits, by package-merge.

    A row of coins holds the tokens and the packages, which are pairs of the row before, by weight. Of the last row,
    2V − 2 coins are bought; whoever buys a package buys both coins of it in the row before. A token's length is in
    how many rows it is bought.
    """
    tokens = weights.argsort(kind="stable")
    row = weights[tokens]
    packaged = []  # for each row, which of its coins are packages
    for _ in range(max_depth - 1):
        pairs = row[: len(row) // 2 * 2].reshape(-1, 2).sum(1)
        coins = np.concatenate([weights[tokens], pairs])
        by_weight = coins.argsort(kind="stable")  # tokens before packages of equal weight
        packaged.append(by_weight >= len(tokens))
        row = coins[by_weight]
    lengths = np.zeros(len(weights), np.int64)
    bought = 2 * len(weights) - 2
    for is_package in reversed(packaged):
        packages = int(is_package[:bought].sum())
        lengths[tokens[: bought - packages]] += 1
        bought = 2 * packages
    lengths[tokens[:bought]] += 1
    return lengths


def _merges_of_lengths(lengths: np.ndarray) -> np.ndarray:
    """Merges that put each token at its depth; Σ 2^−length must be 1."""
    size = len(lengths)
    merges: list[np.ndarray] = []
    made = size
    row = np.empty(0, np.int64)
    for length in range(int(lengths.max()), 0, -1):
        pairs = np.concatenate([(lengths == length).nonzero()[0], row]).reshape(-1, 2)
        merges.append(pairs)
        row = np.arange(made, made + len(pairs))
        made += len(pairs)
    return np.concatenate(merges)
