"""A vocabulary tree: a full binary tree whose leaves are the tokens, and the code of every token in it.

The path from the root to a token takes one binary decision at each inner node. V tokens make V − 1 inner nodes (paper,
section 3.2). Inner nodes are numbered in preorder: the root is 0, followed by its left and then its right subtree. So
the subtree of node n with k leaves has the nodes n … n + k − 2 and can be replaced in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corollout.errors import InputError

# Codes are padded to the longest: for a tree that is almost a chain there would be V² entries.
_MOST_CODE_BYTES = 4 << 30
_BYTES_OF_A_BIT = 5  # int32 for the node, bool for the bit


@dataclass(frozen=True)
class Codes:
    """The path to each token: at ``nodes[token, i]`` it takes the branch ``bits[token, i]``, for i < lengths[token].

    Paths are padded with node 0 and bit False, so that both are valid indices.
    """

    nodes: np.ndarray  # int32[V, D]
    bits: np.ndarray  # bool[V, D]
    lengths: np.ndarray  # int32[V]


@dataclass(frozen=True, eq=False)
class Tree:
    """A full binary tree over the tokens 0 … V − 1.

    ``children[n, b]`` is the child c of inner node n for bit b: an inner node if c ≥ 0, else the token −1 − c. A single
    token has no inner node and an empty path.
    """

    children: np.ndarray  # int32[V − 1, 2]

    def __post_init__(self) -> None:
        children = _checked(self.children)
        if not np.array_equal(preorder(children), np.arange(len(children))):
            raise InputError("the inner nodes of a tree must be numbered in preorder: use Tree.of(children)")
        children.flags.writeable = False
        object.__setattr__(self, "children", children)

    @classmethod
    def of(cls, children: np.ndarray) -> "Tree":
        """A tree from inner nodes in any order, with the root as 0."""
        children = _checked(children)
        return cls(renumbered(children, preorder(children)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and np.array_equal(self.children, other.children)

    def __hash__(self) -> int:
        return hash(self.children.tobytes())

    @property
    def size(self) -> int:
        """V, the number of tokens."""
        return len(self.children) + 1

    @cached_property
    def depth(self) -> int:
        """D, the number of decisions on the longest path."""
        return int(self.depths.max())

    @cached_property
    def leaf_counts(self) -> np.ndarray:
        """int64[V − 1]: the number of tokens below each inner node."""
        return _leaf_counts(self.children, self._levels)

    @cached_property
    def depths(self) -> np.ndarray:
        """int32[V]: the number of decisions on the path to each token."""
        depths = np.zeros(self.size, np.int32)
        for depth, level in enumerate(self._levels, 1):
            below = self.children[level]
            depths[~below[below < 0]] = depth
        return depths

    @cached_property
    def node_depths(self) -> np.ndarray:
        """int32[V − 1]: the number of decisions on the path to each inner node."""
        depths = np.zeros(len(self.children), np.int32)
        for depth, level in enumerate(self._levels):
            depths[level] = depth
        return depths

    @property
    def histogram(self) -> np.ndarray:
        """int64[D + 1]: the number of tokens at each depth."""
        return np.bincount(self.depths)

    def expected_depth(self, frequencies: np.ndarray) -> float:
        """Σ p_v length_v: mean decisions for tokens drawn with these frequencies, which need not sum to 1."""
        return float(probabilities(frequencies, self.size) @ self.depths)

    @cached_property
    def order(self) -> np.ndarray:
        """int32[V]: the tokens from left to right."""
        return self._layout[0]

    def tokens(self, node: int) -> np.ndarray:
        """The tokens below an inner node, from left to right."""
        if not 0 <= node < len(self.children):
            raise InputError(f"a tree of {self.size:,} tokens has no inner node {node}")
        first = self._layout[1][node]
        return self.order[first : first + self.leaf_counts[node]]

    def path(self, token: int) -> list[tuple[int, bool]]:
        """The inner nodes on the path to a token, each with the bit taken there."""
        if not 0 <= token < self.size:
            raise InputError(f"a tree of {self.size:,} tokens has no token {token}")
        path: list[tuple[int, bool]] = []
        node = 0 if self.size > 1 else -1
        while node >= 0:
            bit = bool(self._position[token] >= self._middles[node])
            path.append((node, bit))
            node = int(self.children[node, int(bit)])
        return path

    def token_of(self, bits: Sequence[bool] | Sequence[int] | np.ndarray) -> int:
        """The token that a code leads to."""
        node = 0 if self.size > 1 else -1
        for position, bit in enumerate(bits):
            if node < 0:
                raise InputError(f"the code has {len(bits)} bits but reaches a token after {position}")
            if bit not in (0, 1):
                raise InputError(f"bit {position} of the code must be 0 or 1, not {bit}")
            node = int(self.children[node, int(bit)])
        if node >= 0:
            raise InputError(f"the code of {len(bits)} bits ends at inner node {node}, before reaching a token")
        return ~node

    @cached_property
    def codes(self) -> Codes:
        """The paths of all tokens, padded to the longest."""
        needed = _BYTES_OF_A_BIT * self.size * self.depth
        if needed > _MOST_CODE_BYTES:
            raise InputError(
                f"the codes of {self.size:,} tokens at depths of up to {self.depth:,} would take "
                f"{needed / 1e9:,.0f} GB: build the tree with max_depth"
            )
        nodes = np.zeros((self.size, self.depth), np.int32)
        bits = np.zeros((self.size, self.depth), bool)
        tokens, at = np.arange(self.size), np.zeros(self.size, np.int32)
        for step in range(self.depth):
            going = self.depths[tokens] > step
            tokens, at = tokens[going], at[going]
            bit = self._position[tokens] >= self._middles[at]
            nodes[tokens, step], bits[tokens, step] = at, bit
            at = self.children[at, bit.astype(np.int8)]
        return Codes(nodes, bits, self.depths)

    @cached_property
    def _levels(self) -> list[np.ndarray]:
        return _levels(self.children)

    @cached_property
    def _layout(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens from left to right, and the position of each inner node's first token in this order."""
        order, first = np.zeros(self.size, np.int32), np.zeros(len(self.children), np.int64)
        for level in self._levels:
            left, right = self.children[level].T
            begin = first[level]
            for child, start in ((left, begin), (right, begin + _below(left, self.leaf_counts))):
                inner = child >= 0
                first[child[inner]] = start[inner]
                order[start[~inner]] = ~child[~inner]
        return order, first

    @cached_property
    def _middles(self) -> np.ndarray:
        """The position in ``order`` where the right half of each inner node begins."""
        return self._layout[1] + _below(self.children[:, 0], self.leaf_counts)

    @cached_property
    def _position(self) -> np.ndarray:
        """The position of each token in ``order``."""
        return self.order.argsort()


def probabilities(frequencies: np.ndarray, size: int) -> np.ndarray:
    """Frequencies of all tokens, divided by their sum."""
    values = check_frequencies(frequencies)
    if len(values) != size:
        raise InputError(f"there are frequencies of {len(values):,} tokens, but the tree has {size:,} tokens")
    if values.max() == 0:
        raise InputError("all frequencies are zero: at least one must be positive")
    values = values / values.max()  # the sum stays finite
    return values / values.sum()


def check_frequencies(frequencies: np.ndarray) -> np.ndarray:
    """Frequencies as float64; rejects anything else."""
    values = np.asarray(frequencies, np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"frequencies must be one number per token, not an array of shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        token = int(wrong.argmax())
        raise InputError(f"the frequency of token {token} must be a finite number ≥ 0, not {values[token]}")
    return values


def entropy(frequencies: np.ndarray) -> float:
    """−Σ p_v log₂ p_v in bits, a lower bound of the expected depth of any tree."""
    p = probabilities(frequencies, len(frequencies))
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum()) + 0.0  # not −0


def least_depth(size: int) -> int:
    """⌈log₂ V⌉, the minimal depth of a tree over V tokens."""
    return (size - 1).bit_length()


def preorder(children: np.ndarray) -> np.ndarray:
    """The preorder number of each inner node."""
    levels = _levels(children)
    reached = sum(map(len, levels))
    if reached < len(children):
        raise InputError(f"{len(children) - reached:,} inner nodes of the tree are not reachable from the root")
    counts = _leaf_counts(children, levels)
    number = np.zeros(len(children), np.int64)
    for level in levels:
        left, right = children[level].T
        for child, step in ((left, 1), (right, _below(left, counts))):
            inner = child >= 0
            number[child[inner]] = (number[level] + step)[inner]
    return number


def renumbered(children: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The same tree with its inner nodes renumbered."""
    out = np.empty_like(children)
    out[number] = np.where(children >= 0, number[np.maximum(children, 0)], children) if len(children) else children
    return out


def _checked(children: np.ndarray) -> np.ndarray:
    """A copy, after checking that every token and every inner node but the root is exactly one node's child."""
    if children.ndim != 2 or children.shape[1] != 2 or not np.issubdtype(children.dtype, np.integer):
        given = f"{children.dtype} of shape {children.shape}"
        raise InputError(f"a tree must be an array of integers with two children per row, not {given}")
    inner = len(children)
    if inner >= np.iinfo(np.int32).max:
        raise InputError(f"a tree of {inner + 1:,} tokens is too large")
    entries = children.ravel().astype(np.int64)
    invalid = (entries < -1 - inner) | (entries >= inner)
    if invalid.any():
        node, child = int(invalid.argmax()) // 2, _name(int(entries[invalid][0]))
        sizes = f"{inner:,} inner nodes and {inner + 1:,} tokens"
        raise InputError(f"inner node {node} has the child {child}, but there are only {sizes}")
    times = np.bincount(entries + inner + 1, minlength=2 * inner + 1)
    if inner and times[inner + 1]:
        raise InputError("inner node 0 is the root and must not be a child")
    if (times > 1).any():
        raise InputError(f"{_name(int(times.argmax()) - inner - 1)} occurs twice in the tree")
    # 2 (V − 1) children, all different, are all V tokens and all V − 2 other inner nodes.
    return children.astype(np.int32)


def _name(child: int) -> str:
    return f"inner node {child}" if child >= 0 else f"token {~child}"


def _levels(children: np.ndarray) -> list[np.ndarray]:
    """The inner nodes reachable from the root, by depth."""
    levels = [np.zeros(min(len(children), 1), np.int64)]
    while len(levels[-1]):
        below = children[levels[-1]].ravel()
        levels.append(below[below >= 0])
    return levels[:-1]


def _leaf_counts(children: np.ndarray, levels: list[np.ndarray]) -> np.ndarray:
    counts = np.ones(len(children), np.int64)
    for level in reversed(levels):
        counts[level] = _below(children[level], counts).sum(1)
    return counts


def _below(child: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The number of tokens below each child; 1 for a token."""
    return np.where(child >= 0, counts[np.maximum(child, 0)], 1) if len(counts) else np.ones_like(child)
