"""A vocabulary tree: a full binary tree whose leaves are the tokens, and the code of every token in it.

Walking from the root to a token takes one binary decision at each inner node. V tokens make V − 1 inner nodes (paper,
section 3.2). Inner nodes are numbered in preorder: the root is 0, a node's left subtree follows it, then its right
one. So the subtree of node n with k leaves has the nodes n … n + k − 2, and can be exchanged for another one in
place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corollout.errors import InputError

# Codes are padded to the deepest token's: a tree that is almost a chain would need V² of them.
_MOST_CODE_BYTES = 4 << 30
_BYTES_OF_A_BIT = 5  # int32 for the node, bool for the bit


@dataclass(frozen=True)
class Codes:
    """The path to each token: at ``nodes[token, i]`` it takes the branch ``bits[token, i]``, for i < lengths[token].

    Beyond its length a path is padded with node 0 and bit False, so that both may be used as indices.
    """

    nodes: np.ndarray  # int32[V, D]
    bits: np.ndarray  # bool[V, D]
    lengths: np.ndarray  # int32[V]


@dataclass(frozen=True, eq=False)
class Tree:
    """A full binary tree over the tokens 0 … V − 1.

    ``children[n, b]`` is where bit b leads from inner node n: an inner node if it is ≥ 0, the token −1 − c if it is c
    < 0. A single token has no inner node, and the empty path.
    """

    children: np.ndarray  # int32[V − 1, 2]

    def __post_init__(self) -> None:
        own = _checked(self.children)
        number = preorder(own)
        if not np.array_equal(number, np.arange(len(own))):
            raise InputError("the inner nodes of a tree are numbered in preorder: Tree.of(children) does that")
        own.flags.writeable = False
        object.__setattr__(self, "children", own)

    @classmethod
    def of(cls, children: np.ndarray) -> "Tree":
        """A tree whose inner nodes are numbered in any order, the root being 0."""
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
        """D, the most decisions that lead to a token."""
        return int(self.depths.max())

    @cached_property
    def leaf_counts(self) -> np.ndarray:
        """int64[V − 1]: how many tokens are below each inner node."""
        return _leaf_counts(self.children, self._levels)

    @cached_property
    def depths(self) -> np.ndarray:
        """int32[V]: how many decisions lead to each token."""
        depths = np.zeros(self.size, np.int32)
        for depth, level in enumerate(self._levels, 1):
            below = self.children[level]
            depths[~below[below < 0]] = depth
        return depths

    @cached_property
    def node_depths(self) -> np.ndarray:
        """int32[V − 1]: how many decisions lead to each inner node."""
        depths = np.zeros(len(self.children), np.int32)
        for depth, level in enumerate(self._levels):
            depths[level] = depth
        return depths

    @property
    def histogram(self) -> np.ndarray:
        """int64[D + 1]: how many tokens there are at each depth."""
        return np.bincount(self.depths)

    def expected_depth(self, frequencies: np.ndarray) -> float:
        """Σ p_v length_v: decisions for a token that is drawn by these frequencies, which need not sum to 1."""
        return float(probabilities(frequencies, self.size) @ self.depths)

    @cached_property
    def order(self) -> np.ndarray:
        """int32[V]: the tokens from left to right."""
        return self._places[0]

    def tokens(self, node: int) -> np.ndarray:
        """The tokens below an inner node, from left to right."""
        self._check_node(node)
        first = self._places[1][node]
        return self.order[first : first + self.leaf_counts[node]]

    def path(self, token: int) -> list[tuple[int, bool]]:
        """The inner nodes on the way to a token, each with the bit that is taken there."""
        if not 0 <= token < self.size:
            raise InputError(f"a tree of {self.size:,} tokens has no token {token}")
        place = self._position[token]
        path: list[tuple[int, bool]] = []
        node = 0 if self.size > 1 else -1
        while node >= 0:
            bit = bool(place >= self._middles[node])
            path.append((node, bit))
            node = int(self.children[node, int(bit)])
        return path

    def token_of(self, bits: Sequence[bool] | Sequence[int] | np.ndarray) -> int:
        """The token to which a code leads."""
        node = 0 if self.size > 1 else -1
        for place, bit in enumerate(bits):
            if node < 0:
                raise InputError(f"the code has {len(bits)} bits, but leads to a token after {place}")
            if bit not in (0, 1):
                raise InputError(f"bit {place} of the code is {bit}, neither 0 nor 1")
            node = int(self.children[node, int(bit)])
        if node >= 0:
            raise InputError(f"the code of {len(bits)} bits ends at inner node {node}, before it leads to a token")
        return ~node

    @cached_property
    def codes(self) -> Codes:
        """The paths of all tokens, padded to the longest."""
        needed = _BYTES_OF_A_BIT * self.size * self.depth
        if needed > _MOST_CODE_BYTES:
            raise InputError(
                f"the codes of {self.size:,} tokens that are up to {self.depth:,} deep would take "
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

    def _check_node(self, node: int) -> None:
        if not 0 <= node < len(self.children):
            raise InputError(f"a tree of {self.size:,} tokens has no inner node {node}")

    @cached_property
    def _levels(self) -> list[np.ndarray]:
        return _levels(self.children)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens from left to right, and where in this order those of each inner node begin."""
        order = np.zeros(self.size, np.int32)
        first = np.zeros(len(self.children), np.int64)
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
        """Where in ``order`` the right half of each inner node begins."""
        return self._places[1] + _below(self.children[:, 0], self.leaf_counts)

    @cached_property
    def _position(self) -> np.ndarray:
        """Where each token stands in ``order``."""
        position = np.empty(self.size, np.int64)
        position[self.order] = np.arange(self.size)
        return position


def probabilities(frequencies: np.ndarray, size: int) -> np.ndarray:
    """Frequencies of all tokens over their sum."""
    values = check_frequencies(frequencies)
    if len(values) != size:
        raise InputError(f"there are frequencies of {len(values):,} tokens, but the tree has {size:,}")
    largest = values.max()
    if largest == 0:
        raise InputError("all frequencies are zero: they say nothing about how often a token occurs")
    values = values / largest  # whatever their size, the sum is finite
    return values / values.sum()


def check_frequencies(frequencies: np.ndarray) -> np.ndarray:
    """Frequencies as float64, if they are some."""
    values = np.asarray(frequencies, np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"frequencies are one number for each token, not an array of shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        token = int(wrong.argmax())
        raise InputError(f"the frequency of token {token} is {values[token]}: it must be a finite number ≥ 0")
    return values


def entropy(frequencies: np.ndarray) -> float:
    """−Σ p_v log₂ p_v in bits: no tree has a smaller expected depth."""
    p = probabilities(frequencies, len(frequencies))
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum()) + 0.0


def least_depth(size: int) -> int:
    """⌈log₂ V⌉: no tree over V tokens is less deep."""
    return (size - 1).bit_length()


def preorder(children: np.ndarray) -> np.ndarray:
    """The number that each inner node has in preorder."""
    levels = _levels(children)
    reached = sum(map(len, levels))
    if reached < len(children):
        raise InputError(f"{len(children) - reached:,} inner nodes of the tree cannot be reached from the root")
    counts = _leaf_counts(children, levels)
    number = np.zeros(len(children), np.int64)
    for level in levels:
        left, right = children[level].T
        for child, step in ((left, 1), (right, _below(left, counts))):
            inner = child >= 0
            number[child[inner]] = (number[level] + step)[inner]
    return number


def renumbered(children: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The same tree with other numbers of its inner nodes."""
    out = np.empty_like(children)
    out[number] = np.where(children >= 0, number[np.maximum(children, 0)], children) if len(children) else children
    return out


def _checked(children: np.ndarray) -> np.ndarray:
    """A copy, if every inner node but the root and every token is exactly one node's child."""
    if children.ndim != 2 or children.shape[1] != 2 or not np.issubdtype(children.dtype, np.integer):
        raise InputError(
            f"a tree is an array of whole numbers with two children in each row, not {children.dtype} of shape "
            f"{children.shape}"
        )
    inner = len(children)
    if inner >= np.iinfo(np.int32).max:
        raise InputError(f"a tree of {inner + 1:,} tokens is too large")
    entries = children.ravel().astype(np.int64)
    strange = (entries < -1 - inner) | (entries >= inner)
    if strange.any():
        place = int(strange.argmax())
        raise InputError(
            f"inner node {place // 2} has the child {_name(int(entries[place]))}, but there are only "
            f"{inner:,} inner nodes and {inner + 1:,} tokens"
        )
    times = np.bincount(entries + inner + 1, minlength=2 * inner + 1)
    if inner and times[inner + 1]:
        raise InputError("inner node 0 is the root, which must not be a child")
    if (times > 1).any():
        raise InputError(f"{_name(int(times.argmax()) - inner - 1)} of the tree is there twice")
    # 2 (V − 1) children, all different, are all V tokens and all V − 2 other inner nodes.
    return children.astype(np.int32)


def _name(child: int) -> str:
    return f"inner node {child}" if child >= 0 else f"token {~child}"


def _levels(children: np.ndarray) -> list[np.ndarray]:
    """The inner nodes by their depth, from the root on, as far as they can be reached."""
    levels: list[np.ndarray] = []
    level = np.zeros(min(len(children), 1), np.int64)
    while len(level):
        levels.append(level)
        below = children[level].ravel()
        level = below[below >= 0]
    return levels


def _leaf_counts(children: np.ndarray, levels: list[np.ndarray]) -> np.ndarray:
    counts = np.ones(len(children), np.int64)
    for level in reversed(levels):
        counts[level] = _below(children[level], counts).sum(1)
    return counts


def _below(child: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How many tokens there are below children, tokens themselves included."""
    return np.where(child >= 0, counts[np.maximum(child, 0)], 1) if len(counts) else np.ones_like(child)
