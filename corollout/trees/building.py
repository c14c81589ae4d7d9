"""Trees from an order of the tokens, from their frequencies, or from other trees."""

import heapq

import numpy as np
import torch

from corollout.errors import InputError
from corollout.noise import ORDER, Noise, bits
from corollout.trees.tree import Tree, check_frequencies, least_depth


def balanced_tree(tokens: int | np.ndarray, max_depth: int | None = None) -> Tree:
    """A tree of the minimal depth ⌈log₂ V⌉ over V tokens, in the order of their ids or in a given order.

    The two halves of every subtree differ by at most one token. ``max_depth`` is only checked.
    """
    order = np.arange(tokens) if isinstance(tokens, int) else np.asarray(tokens)
    if order.ndim != 1 or len(order) == 0:
        raise InputError("a balanced tree needs at least one token, and the order as a one-dimensional array")
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise InputError(f"an order of {len(order):,} tokens must have each id from 0 to {len(order) - 1} exactly once")
    check_max_depth(len(order), max_depth)
    return Tree(balanced_children(order))


def permuted(tree: Tree, seed: int, max_depth: int | None = None) -> Tree:
    """The same shape with the tokens shuffled: a tree without any knowledge of them (tree_RD in the paper).

    The same seed gives the same tree everywhere. With ``max_depth`` the shape is that of :func:`limited`.
    """
    if max_depth is not None:
        tree = limited(tree, max_depth)
    key = Noise(seed).keys(torch.zeros(1, dtype=torch.int64), ORDER)
    new_token = bits(key, torch.zeros_like(key), tree.size)[0].numpy().argsort(kind="stable")
    return Tree(relabelled(tree.children, new_token))


def limited(tree: Tree, max_depth: int) -> Tree:
    """The tree with no token deeper than ``max_depth``: subtrees that are too deep are rebuilt balanced.

    A subtree rooted at depth d has to fit into max_depth − d. If it does not, the split at its root is kept as long as
    both sides can still be made to fit; otherwise the whole subtree becomes a balanced one over the same tokens in the
    same order. So everything that is not too deep stays as it was, and changes are made as far down as possible.
    """
    check_max_depth(tree.size, max_depth)
    if tree.depth <= max_depth:
        return tree
    # ⌈log₂ k⌉ > r is k > 2^r; no tree has 2^62 tokens.
    too_large = tree.leaf_counts > np.int64(1) << (max_depth - tree.node_depths.astype(np.int64)).clip(0, 62)
    splits_badly = too_large[np.maximum(tree.children, 0)] & (tree.children >= 0)
    return rebalanced(tree, splits_badly[:, 0] | splits_badly[:, 1])


def huffman_tree(frequencies: np.ndarray, max_depth: int | None = None) -> Tree:
    """A tree of minimal expected depth Σ p_v length_v, by Huffman's algorithm; frequencies need not sum to 1.

    With ``max_depth`` it is optimal among the trees that are not deeper (package-merge, Larmore and Hirschberg 1990).
    Among optimal trees without a limit it is one of the shallowest. Tokens that never occur are the deepest.
    """
    weights = check_frequencies(frequencies)
    check_max_depth(len(weights), max_depth)
    # Sums stay finite, and scaling by a power of two is exact: equal weights stay equal.
    weights = np.ldexp(weights, -np.frexp(weights.max())[1])
    tree = Tree.of(children_of_merges(_huffman_merges(weights)))
    if max_depth is None or tree.depth <= max_depth:
        return tree
    return Tree.of(children_of_merges(_merges_of_lengths(_limited_lengths(weights, max_depth))))


def check_max_depth(size: int, max_depth: int | None) -> None:
    """Reject a depth that is too small for this number of tokens."""
    if max_depth is not None and max_depth < least_depth(size):
        raise InputError(
            f"{size:,} tokens do not fit into a tree of depth {max_depth}: max_depth must be at least "
            f"⌈log₂ {size}⌉ = {least_depth(size)}"
        )


def balanced_children(order: np.ndarray) -> np.ndarray:
    """The children, in preorder, of a balanced tree over some tokens; the left half may be the larger one."""
    children = np.empty((len(order) - 1, 2), np.int32)
    node, start, end = np.array([[0], [0], [len(order)]])[:, : len(children)]
    while len(node):
        left = (end - start + 1) // 2
        middle = start + left
        # The left subtree has left − 1 inner nodes.
        halves = [(node + 1, start, middle), (node + left, middle, end)]
        for bit, (number, begin, stop) in enumerate(halves):
            children[node, bit] = np.where(stop - begin > 1, number, ~order[begin])
        node, start, end = np.hstack(halves)
        node, start, end = np.stack([node, start, end])[:, end - start > 1]
    return children


def relabelled(children: np.ndarray, token: np.ndarray) -> np.ndarray:
    """The same inner nodes with ``token[t]`` instead of token t."""
    return np.where(children < 0, ~token[np.maximum(~children, 0)], children)


def rebalanced(tree: Tree, where: np.ndarray) -> Tree:
    """The tree with the subtrees of all inner nodes in the mask ``where`` rebuilt balanced."""
    children = tree.children.copy()
    end = 0
    for node in where.nonzero()[0].tolist():
        if node < end:  # inside a subtree that was just rebuilt
            continue
        part = balanced_children(tree.tokens(node))
        end = node + len(part)
        children[node:end] = np.where(part >= 0, part + node, part)
    return Tree(children)


def children_of_merges(merges: np.ndarray) -> np.ndarray:
    """The children of a tree built bottom-up; its inner nodes are numbered from the last merge, the root, to the first.

    Row i of ``merges`` joins two of the tokens 0 … V − 1 and of the clusters V + j made by rows j < i.
    """
    size = len(merges) + 1
    return np.where(merges < size, ~merges, 2 * size - 2 - merges)[::-1]


def _huffman_merges(weights: np.ndarray) -> np.ndarray:
    # Of equal weights the oldest comes first: single tokens, then small clusters.
    heap = [(weight, token) for token, weight in enumerate(weights.tolist())]
    heapq.heapify(heap)
    merges = np.empty((len(weights) - 1, 2), np.int64)
    for step in range(len(merges)):
        (first, one), (second, other) = heapq.heappop(heap), heapq.heappop(heap)
        merges[step] = one, other
        heapq.heappush(heap, (first + second, len(weights) + step))
    return merges


def _limited_lengths(weights: np.ndarray, max_depth: int) -> np.ndarray:
    """Lengths of the best codes of at most ``max_depth`` bits, by package-merge.

    A row of coins, sorted by weight, holds the tokens and the packages, which are pairs of coins of the previous row.
    The cheapest 2V − 2 coins of the last row are bought; buying a package buys both of its coins in the previous row.
    A token's length is the number of rows in which it is bought.
    """
    tokens = weights.argsort(kind="stable")
    row = weights[tokens]
    packaged = []  # for each row, which coins are packages
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
    """Merges that put each token at its depth; requires Σ 2^−length = 1."""
    merges: list[np.ndarray] = []
    made, row = len(lengths), np.empty(0, np.int64)
    for length in range(int(lengths.max()), 0, -1):
        merges.append(np.concatenate([(lengths == length).nonzero()[0], row]).reshape(-1, 2))
        row = np.arange(made, made + len(merges[-1]))
        made += len(row)
    return np.concatenate(merges)
