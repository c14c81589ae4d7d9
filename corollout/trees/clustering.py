"""Trees from vectors of the tokens: tokens that are alike share most of their paths.

The paper calls them tree_WV, if the vectors are word vectors, and tree_DIS, if they are a captioner's embeddings.
"""

from typing import Literal, get_args

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from corollout.errors import InputError
from corollout.trees.building import check_max_depth, children_of_merges, limited, rebalanced, relabelled
from corollout.trees.tree import Tree, preorder, renumbered

Method = Literal["ward", "complete", "average"]
_BYTES_OF_A_PAIR = 16  # a distance, which scipy copies once
_SAME_HEIGHT = 1e-9  # merges whose heights differ by a smaller part than this one happen at the same height
_GROUP = 256  # so many tokens or fewer are clustered, not cut in two
_SMALLEST_PART = 8  # a cut leaves at least an eighth on each side: a few outliers shall not cost a level each
_POWER_STEPS, _MEANS_STEPS = 8, 16


def cluster_memory(size: int) -> int:
    """The bytes that :func:`cluster_tree` needs for V tokens, about 8 V²: all distances, twice."""
    return _BYTES_OF_A_PAIR * (size * (size - 1) // 2)


def cluster_tree(
    vectors: np.ndarray, method: str = "ward", max_depth: int | None = None, memory: float | int = 4e9
) -> Tree:
    """The tree of agglomerative clustering: the two nearest clusters are joined, again and again, until one is left.

    ``vectors`` is [token, dimension]; distances are Euclidean, between clusters by Ward's criterion (``"ward"``), by
    their two most distant members (``"complete"``) or by the mean over all pairs (``"average"``). Where several
    merges are equally near, as those of equal vectors are, their subtree is balanced.

    It takes time and memory in V²: about 8 V² bytes (V = 10,000: 0.8 GB, V = 50,000: 20 GB). More than ``memory``
    bytes are refused; :func:`bisect_tree` needs no more than a copy of the vectors. With ``max_depth``, see
    :func:`corollout.trees.limited`.
    """
    if method not in get_args(Method):
        raise InputError(f"no method of clustering is called {method!r}: choose one of {', '.join(get_args(Method))}")
    vectors = _checked(vectors)
    check_max_depth(len(vectors), max_depth)
    if cluster_memory(len(vectors)) > memory:
        raise InputError(
            f"clustering {len(vectors):,} tokens needs {cluster_memory(len(vectors)) / 1e9:,.1f} GB of memory, and "
            f"{memory / 1e9:,.1f} are allowed: take the method bisect (bisect_tree), or allow more (memory=…)"
        )
    tree = _clustered(vectors, method)
    return tree if max_depth is None else limited(tree, max_depth)


def bisect_tree(vectors: np.ndarray, max_depth: int | None = None) -> Tree:
    """The tree of recursive bisection: 2-means cuts the tokens in two, then each part, until parts are small.

    The means start from a cut through the centre across the principal axis, so nothing is random. No part is smaller
    than an eighth of both, so that there are O(log V) cuts above a token. Parts of up to 256 tokens are clustered by
    Ward's criterion.
    Memory is about that of the vectors (one copy of them, besides V numbers), time is about V · dimension · depth:
    this is for vocabularies for which :func:`cluster_tree` is too large. With ``max_depth`` a cut is moved along its
    axis as far as is needed for both parts to fit; small parts are treated as by :func:`corollout.trees.limited`.
    """
    vectors = _checked(vectors)
    check_max_depth(len(vectors), max_depth)
    order = np.arange(len(vectors))
    children = np.empty((len(vectors) - 1, 2), np.int32)
    waiting = [(0, 0, len(vectors), max_depth)] if len(vectors) > 1 else []
    while waiting:
        node, start, end, room = waiting.pop()
        part = order[start:end]
        if len(part) <= _GROUP:
            tree = _clustered(vectors[part], "ward")
            tree = tree if room is None else limited(tree, room)
            below = relabelled(tree.children, part)
            children[node : node + len(below)] = np.where(below >= 0, below + node, below)
            continue
        along, left = _cut(vectors[part])
        if room is not None:
            most = 1 << min(room - 1, 62)
            left = min(max(left, len(part) - most), most)
        part[:] = part[along]
        room = None if room is None else room - 1
        for bit, number, begin, stop in ((0, node + 1, start, start + left), (1, node + left, start + left, end)):
            if stop - begin == 1:
                children[node, bit] = ~order[begin]
            else:
                children[node, bit] = number
                waiting.append((number, begin, stop, room))
    return Tree(children)


def _checked(vectors: np.ndarray) -> np.ndarray:
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InputError(f"vectors are an array [token, dimension], not one of shape {vectors.shape}")
    vectors = vectors if vectors.dtype == np.float32 else vectors.astype(np.float64, copy=False)
    # Row by row would be slow, and a mask of all entries large: a sum is finite if no entry is otherwise.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = (~np.isfinite(vectors.sum(1))).nonzero()[0]
    for token in suspects:
        if not np.isfinite(vectors[token]).all():
            raise InputError(f"the vector of token {token} has entries that are not finite numbers")
    return vectors


def _clustered(vectors: np.ndarray, method: str) -> Tree:
    if len(vectors) == 1:
        return Tree(np.empty((0, 2), np.int32))
    distances = pdist(vectors)
    if not np.isfinite(distances.max()):
        raise InputError("the vectors are so large that their distances are not finite: scale them down")
    merges = linkage(distances, method)
    children = children_of_merges(merges[:, :2].astype(np.int64))
    number = preorder(children)
    tied = np.empty(len(children), bool)
    tied[number] = _tied(merges)[::-1]
    tree = Tree(renumbered(children, number))
    return rebalanced(tree, tied & (tree.leaf_counts > 2))


def _tied(merges: np.ndarray) -> np.ndarray:
    """Which clusters have come about by merges at one height only, so that these could have been any others."""
    size, heights = len(merges) + 1, merges[:, 2].tolist()
    lowest: list[float] = []
    for (one, other), height in zip(merges[:, :2].astype(np.int64).tolist(), heights, strict=True):
        lowest.append(min([height, *(lowest[part - size] for part in (one, other) if part >= size)]))
    return merges[:, 2] - np.array(lowest) <= _SAME_HEIGHT * merges[:, 2]


def _cut(vectors: np.ndarray) -> tuple[np.ndarray, int]:
    """The order of vectors along an axis, and how many of them are on the one side of the best cut across it.

    The vectors are overwritten.
    """
    halves = np.arange(len(vectors)), (len(vectors) + 1) // 2
    if not np.ptp(vectors, axis=0).any():
        return halves
    # Whatever their size, squares shall be neither zero nor infinite.
    vectors /= max(vectors.max(), -vectors.min())
    vectors -= vectors.mean(0, dtype=np.float64)
    vectors /= max(vectors.max(), -vectors.min())
    axis = vectors[np.einsum("td,td->t", vectors, vectors).argmax()]
    for _ in range(_POWER_STEPS):
        axis = (vectors @ axis) @ vectors
        axis /= np.linalg.norm(axis)
    along = vectors @ axis
    right, total = along > 0, vectors.sum(0)
    for _ in range(_MEANS_STEPS):
        count = int(right.sum())
        if count in (0, len(vectors)):  # the vectors differ by no more than rounding
            return halves
        above = right.astype(vectors.dtype) @ vectors
        upper, lower = above / count, (total - above) / (len(vectors) - count)
        along = vectors @ (upper - lower)
        before, right = right, along > (upper - lower) @ (upper + lower) / 2
        if np.array_equal(before, right):
            break
    left, least = len(vectors) - int(right.sum()), len(vectors) // _SMALLEST_PART
    return along.argsort(kind="stable"), min(max(left, least), len(vectors) - least)
