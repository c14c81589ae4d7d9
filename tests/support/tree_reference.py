"""Vocabulary trees the slow and obvious way: a tree is a token, or a pair of trees."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from math import ceil

import numpy as np
from hypothesis import strategies as st

from corollout.trees import Tree

Nested = int | tuple["Nested", "Nested"]


def nested(tree: Tree) -> Nested:
    """A tree as pairs of pairs."""

    def below(child: int) -> Nested:
        return ~child if child < 0 else (below(int(tree.children[child, 0])), below(int(tree.children[child, 1])))

    return below(0 if tree.size > 1 else -1)


def tokens(tree: Nested) -> list[int]:
    return [tree] if isinstance(tree, int) else [*tokens(tree[0]), *tokens(tree[1])]


def height(tree: Nested) -> int:
    return 0 if isinstance(tree, int) else 1 + max(map(height, tree))


def tree_of(tree: Nested) -> Tree:
    """Nodes numbered as they are met, from the root to the left."""
    children: list[list[int]] = []

    def number(part: Nested) -> int:
        if isinstance(part, int):
            return ~part
        row = [0, 0]
        children.append(row)
        own = len(children) - 1
        row[:] = number(part[0]), number(part[1])
        return own

    number(tree)
    return Tree(np.array(children, np.int32).reshape(-1, 2))


def plain_paths(tree: Tree) -> dict[int, list[tuple[int, bool]]]:
    """The path of every token, by a walk through the whole tree."""
    found: dict[int, list[tuple[int, bool]]] = {}

    def walk(child: int, path: list[tuple[int, bool]]) -> None:
        if child < 0:
            found[~child] = path
            return
        for bit in (False, True):
            walk(int(tree.children[child, int(bit)]), [*path, (child, bit)])

    walk(0 if tree.size > 1 else -1, [])
    return found


def plain_balanced(order: Sequence[int]) -> Nested:
    if len(order) == 1:
        return order[0]
    half = ceil(len(order) / 2)
    return plain_balanced(order[:half]), plain_balanced(order[half:])


def plain_limited(tree: Nested, room: int) -> Nested:
    """The docstring of ``limited``, sentence by sentence."""
    if isinstance(tree, int) or height(tree) <= room:
        return tree
    if all(len(tokens(side)) <= 2 ** (room - 1) for side in tree):
        return plain_limited(tree[0], room - 1), plain_limited(tree[1], room - 1)
    return plain_balanced(tokens(tree))


@cache
def length_sets(size: int, longest: int) -> tuple[tuple[int, ...], ...]:
    """All ways to be deep for the leaves of full binary trees, from the least deep leaf to the deepest."""

    def of(count: int, room: int) -> set[tuple[int, ...]]:
        if count == 1:
            return {(0,)}
        if room == 0:
            return set()
        found = set()
        for left in range(1, count // 2 + 1):
            for one in of(left, room - 1):
                for other in of(count - left, room - 1):
                    found.add(tuple(sorted(depth + 1 for depth in (*one, *other))))
        return found

    return tuple(of(size, longest))


def best_lengths(weights: Sequence[float], longest: int) -> tuple[float, int]:
    """The least Σ w length of any tree, and how deep the least deep tree is that has it."""
    heavy_first = sorted(weights, reverse=True)
    costs = [
        (sum(w * n for w, n in zip(heavy_first, lengths, strict=True)), max(lengths))
        for lengths in length_sets(len(weights), longest)
    ]
    least = min(cost for cost, _ in costs)
    return least, min(deepest for cost, deepest in costs if cost <= least * (1 + 1e-12))


def plain_clusters(vectors: np.ndarray, method: str) -> set[frozenset[int]]:
    """All clusters of agglomerative clustering, by the definition of each distance."""

    def distance(one: frozenset[int], other: frozenset[int]) -> float:
        a, b = vectors[sorted(one)], vectors[sorted(other)]
        pairs = np.linalg.norm(a[:, None] - b[None], axis=2)
        if method == "ward":
            return float(len(a) * len(b) / (len(a) + len(b)) * ((a.mean(0) - b.mean(0)) ** 2).sum())
        return float(pairs.max() if method == "complete" else pairs.mean())

    clusters = [frozenset([token]) for token in range(len(vectors))]
    made: set[frozenset[int]] = set()
    while len(clusters) > 1:
        one, other = min(combinations(clusters, 2), key=lambda pair: distance(*pair))
        made.add(one | other)
        clusters = [cluster for cluster in clusters if cluster not in (one, other)] + [one | other]
    return made


def clusters_of(tree: Tree) -> set[frozenset[int]]:
    return {frozenset(tree.tokens(node).tolist()) for node in range(tree.size - 1)}


def shapes(tree: Tree) -> Iterator[tuple[int, int]]:
    """The tree without its tokens."""
    yield from (tuple(max(child, -1) for child in row) for row in tree.children.tolist())


@st.composite
def nested_trees(draw: st.DrawFn, most: int = 24) -> Nested:
    """Trees of any shape over shuffled tokens, chains among them."""
    order: list[int] = draw(st.permutations(range(draw(st.integers(1, most)))))
    lopsided = draw(st.booleans())

    def build(part: list[int]) -> Nested:
        if len(part) == 1:
            return part[0]
        cut = draw(st.sampled_from([1, len(part) - 1])) if lopsided else draw(st.integers(1, len(part) - 1))
        return build(part[:cut]), build(part[cut:])

    return build(order)
