"""Trees from vectors of the tokens: similar tokens share most of their paths.

The paper calls them tree_WV if the vectors are word vectors, and tree_DIS if they are a captioner's embeddings.
"""

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from corollout.errors import InputError
from corollout.trees.building import check_max_depth, children_of_merges, limited, rebalanced, relabelled
from corollout.trees.tree import Tree, preorder, renumbered

METHODS = ("ward", "complete", "average")
_BYTES_OF_A_PAIR = 16  # a distance; scipy copies it once
_SAME_HEIGHT = 1e-9  # relative difference up to which two merges count as tied
_GROUP = 256  # tokens up to which a part is clustered instead of cut in two
_SMALLEST_PART = 8  # a cut leaves at least an eighth on each side: outliers must not cost a level each
_POWER_STEPS, _MEANS_STEPS = 8, 16


def cluster_memory(size: int) -> int:
    """The memory in bytes that :func:`cluster_tree` needs for V tokens, about 8 V²: all distances, twice."""
    return _BYTES_OF_A_PAIR * (size * (size - 1) // 2)


def cluster_tree(
    vectors: np.ndarray, method: str = "ward", max_depth: int | None = None, memory: float | int = 4e9
) -> Tree:
    """The tree of agglomerative clustering: the two nearest clusters are joined until one is left.

    ``vectors`` is [token, dimension]; distances are Euclidean, between clusters by Ward's criterion (``"ward"``), by
    their two most distant members (``"complete"``) or by the mean over all pairs (``"average"``). Where merges are
    tied, as for equal vectors, their subtree is balanced.

    Time and memory are quadratic: about 8 V² bytes (V = 10,000: 0.8 GB, V = 50,000: 20 GB). More than ``memory`` bytes
    are refused; :func:`bisect_tree` needs only a copy of the vectors. For ``max_depth`` see
    :func:`corollout.trees.limited`.
    """
    if method not in METHODS:
        raise InputError(f"unknown clustering method {method!r}: choose one of {', '.join(METHODS)}")
    vectors = _checked(vectors)
    check_max_depth(len(vectors), max_depth)
    if (needed := cluster_memory(len(vectors))) > memory:
        raise InputError(
            f"clustering {len(vectors):,} tokens needs {needed / 1e9:,.1f} GB of memory, and {memory / 1e9:,.1f} GB "
            "are allowed: use the method bisect (bisect_tree), or allow more (memory=…)"
        )
    tree = _clustered(vectors, method)
    return tree if max_depth is None else limited(tree, max_depth)


def bisect_tree(vectors: np.ndarray, max_depth: int | None = None) -> Tree:
    """The tree of recursive bisection: 2-means cuts the tokens in two, then each part, until parts are small.

    The means start from a cut through the centre across the principal axis, so nothing is random. A part has at least
    an eighth of the tokens, so that there are O(log V) cuts above a token. Parts of up to 256 tokens are clustered by
    Ward's criterion. Memory is one copy of the vectors, time about V · dimension · depth: use this for vocabularies
    that are too large for :func:`cluster_tree`. With ``max_depth`` a cut is moved along its axis until both parts fit;
    small parts are treated as by :func:`corollout.trees.limited`.
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
        part[:] = part[along]
        if room is not None:
            room -= 1
            most = 1 << min(room, 62)
            left = min(max(left, len(part) - most), most)
        for bit, number, begin, stop in ((0, node + 1, start, start + left), (1, node + left, start + left, end)):
            children[node, bit] = number if stop - begin > 1 else ~order[begin]
            if stop - begin > 1:
                waiting.append((number, begin, stop, room))
    return Tree(children)


def _checked(vectors: np.ndarray) -> np.ndarray:
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InputError(f"vectors must be an array [token, dimension], not of shape {vectors.shape}")
    vectors = vectors if vectors.dtype == np.float32 else vectors.astype(np.float64, copy=False)
    # Checking row by row would be slow, and a mask of all entries large: check the sums first.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = (~np.isfinite(vectors.sum(1))).nonzero()[0]
    if wrong := [token for token in suspects if not np.isfinite(vectors[token]).all()]:
        raise InputError(f"the vector of token {wrong[0]} has non-finite entries")
    return vectors


def _clustered(vectors: np.ndarray, method: str) -> Tree:
    if len(vectors) == 1:
        return Tree(np.empty((0, 2), np.int32))
    distances = pdist(vectors)
    if not np.isfinite(distances.max()):
        raise InputError("the distances between the vectors are not finite: scale the vectors down")
    merges = linkage(distances, method)
    children = children_of_merges(merges[:, :2].astype(np.int64))
    number = preorder(children)
    tied = np.empty(len(children), bool)
    tied[number] = _tied(merges)[::-1]
    tree = Tree(renumbered(children, number))
    return rebalanced(tree, tied & (tree.leaf_counts > 2))


def _tied(merges: np.ndarray) -> np.ndarray:
    """Which clusters consist of tied merges only, whose order is arbitrary."""
    size, heights = len(merges) + 1, merges[:, 2].tolist()
    lowest: list[float] = []
    for (one, other), height in zip(merges[:, :2].astype(np.int64).tolist(), heights, strict=True):
        lowest.append(min([height, *(lowest[part - size] for part in (one, other) if part >= size)]))
    return merges[:, 2] - np.array(lowest) <= _SAME_HEIGHT * merges[:, 2]


def _cut(vectors: np.ndarray) -> tuple[np.ndarray, int]:
    """The order of the vectors along an axis, and how many are to the left of the best cut across it.

    The vectors are overwritten.
    """
    halves = np.arange(len(vectors)), (len(vectors) + 1) // 2
    if not np.ptp(vectors, axis=0).any():
        return halves
    # Scaled so that squares neither underflow nor overflow.
    vectors /= max(vectors.max(), -vectors.min())
    vectors -= vectors.mean(0, dtype=np.float64)
    if not vectors.any():  # the vectors differ only by rounding
        return halves
    vectors /= max(vectors.max(), -vectors.min())
    axis = vectors[np.einsum("td,td->t", vectors, vectors).argmax()]
    for _ in range(_POWER_STEPS):
        axis = (vectors @ axis) @ vectors
        axis /= np.linalg.norm(axis)
    along = vectors @ axis
    right, total = along > 0, vectors.sum(0)
    for _ in range(_MEANS_STEPS):
        count = int(right.sum())
        if count in (0, len(vectors)):  # as above
            return halves
        above = right.astype(vectors.dtype) @ vectors
        upper, lower = above / count, (total - above) / (len(vectors) - count)
        along = vectors @ (upper - lower)
        before, right = right, along > (upper - lower) @ (upper + lower) / 2
        if np.array_equal(before, right):
            break
    left, least = len(vectors) - int(right.sum()), len(vectors) // _SMALLEST_PART
    return along.argsort(kind="stable"), min(max(left, least), len(vectors) - least)
