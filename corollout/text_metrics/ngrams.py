"""Token sequences in flat arrays, and the n-grams of groups of them as hashed prefix trees.

A node is an n-gram of one to four tokens; its children are the n-grams with one more token. An n-gram that is missing
from a tree has no descendants in it, and a node is identified by two numbers, its parent and its last token, which are
compared in full: two n-grams are never confused.

The trees of all groups share their arrays. The nodes of a group are contiguous, parents before children.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import no_type_check

import numpy as np

from corollout.errors import InputError
from corollout.numba_cache import numba

LONGEST = 4
NONE = -1  # a missing node; the parent of an n-gram of one token
LARGEST_ID = 2**31 - 1
_INVALID_ID = f"token ids must be from 0 to {LARGEST_ID}, not {{}}"

_TOKEN_BITS = 32
TOKEN_MASK = (1 << _TOKEN_BITS) - 1
_MANY = 1000  # tokens from which on a sequence is indexed to count its n-grams
_MULTIPLIER = -7046029254386353131  # 2⁶⁴ / golden ratio, as a signed number


@dataclass(frozen=True)
class Tokens:
    """Sequences of token ids, concatenated: sequence i is ``flat[starts[i] : starts[i + 1]]``."""

    flat: np.ndarray  # int32[token]
    starts: np.ndarray  # int64[sequence + 1]

    def __post_init__(self) -> None:
        # The compiled loops rely on this for every index.
        flat, starts = self.flat, self.starts
        if (flat.dtype, flat.ndim, starts.dtype, starts.ndim) != (np.int32, 1, np.int64, 1) or len(starts) == 0:
            raise InputError("expected tokens int32[token] and starts int64[sequence + 1]: use Tokens.pack")
        if starts[0] != 0 or starts[-1] != len(flat) or (np.diff(starts) < 0).any() or flat.min(initial=0) < 0:
            raise InputError(f"the starts of sequences must ascend from 0 to {len(flat)}, and token ids from 0")

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]]) -> "Tokens":
        """From lists of token ids."""
        starts = np.fromiter(accumulate(map(len, sequences), initial=0), np.int64, len(sequences) + 1)
        try:
            flat = np.fromiter(chain.from_iterable(sequences), np.int64, int(starts[-1]))
        except OverflowError:
            raise InputError(_INVALID_ID.format("a larger one")) from None
        return cls(_checked(flat), starts)

    @classmethod
    def padded(cls, tokens: np.ndarray, lengths: np.ndarray) -> "Tokens":
        """From an integer array [sequence, step]; of row i, only the first ``lengths[i]`` tokens count."""
        if tokens.ndim != 2 or lengths.shape != tokens.shape[:1] or tokens.dtype.kind not in "iu":
            raise InputError(
                f"expected integers [sequence, step] and a length for each sequence, not {tokens.dtype} "
                f"{list(tokens.shape)} and {list(lengths.shape)}"
            )
        rows, width = tokens.shape
        if rows and not 0 <= lengths.min() <= lengths.max() <= width:
            raise InputError(f"lengths must be from 0 to {width}, the width of the array")
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return cls(_checked(tokens[np.arange(width) < lengths[:, None]]), starts)


@dataclass(frozen=True)
class NGrams:
    """A tree for each group: ``keys`` has each node's parent and token, ``slots`` is a hash table of the nodes."""

    keys: np.ndarray  # int64[node]
    first: np.ndarray  # int64[group + 1]: where each group's nodes begin
    slots: np.ndarray  # int32[slot]: a node, or NONE
    parts: np.ndarray  # int64[group + 1]: where each group's slots begin; a power of 2 for each

    @classmethod
    def of(cls, tokens: Tokens, groups: np.ndarray) -> "NGrams":
        """Group g consists of the sequences ``groups[g]`` to ``groups[g + 1] - 1``."""
        each = np.maximum(tokens.lengths[:, None] - np.arange(LONGEST), 0).sum(1)
        before = np.concatenate(([0], np.cumsum(each)))[groups]
        keys = np.empty(before[-1], np.int64)  # enough if all n-grams differ
        first, parts = np.zeros((2, len(groups)), np.int64)
        _collect(tokens.flat, tokens.starts, groups, np.diff(before), keys, first, parts)
        keys, slots = keys[: first[-1]].copy(), np.full(parts[-1], NONE, np.int32)
        _fill_tables(keys, first, slots, parts)
        return cls(keys, first, slots, parts)

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, others: "NGrams") -> np.ndarray:
        """int32[node of ``others``]: the node of each of their n-grams in this, a single tree, or NONE."""
        nodes = np.empty(len(others), np.int32)
        _find(others.keys, self.keys, self.slots, nodes)
        return nodes


def _checked(flat: np.ndarray) -> np.ndarray:
    if len(flat) and not 0 <= flat.min() <= flat.max() <= LARGEST_ID:
        raise InputError(_INVALID_ID.format(flat[(flat < 0) | (flat > LARGEST_ID)][0]))
    return flat.astype(np.int32)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _table_size(nodes):
    """How many slots a number of nodes gets: a power of 2, at least a quarter of them free."""
    size = 1
    while 3 * size < 4 * (nodes + 1):
        size *= 2
    return size


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def parent_of(key):
    return (key >> _TOKEN_BITS) - 1


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _key(parent, token):
    return (np.int64(parent + 1) << _TOKEN_BITS) | np.int64(token)


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _slot(keys, slots, start, size, key):
    """The slot that holds the node with this key, or where it would go."""
    mixed = key * _MULTIPLIER
    offset = (mixed ^ (mixed >> 32)) & (size - 1)
    while slots[start + offset] >= 0 and keys[slots[start + offset]] != key:
        offset = (offset + 1) & (size - 1)
    return start + offset


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def child(keys, slots, start, size, parent, token):
    """The node of a parent and a token, or NONE."""
    return np.int64(slots[_slot(keys, slots, start, size, _key(parent, token))])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _count_in_tree(tokens, times):
    """``count_repetitions`` in linear time."""
    most = LONGEST * len(tokens)
    size = _table_size(most)
    slots, keys, place = np.full(size, NONE, np.int32), np.empty(most, np.int64), np.empty(most, np.int64)
    count = 0
    for i in range(len(tokens)):
        parent = np.int64(NONE)
        times[i] = 0
        for n in range(min(LONGEST, len(tokens) - i)):
            key = _key(parent, tokens[i + n])
            slot = _slot(keys, slots, 0, size, key)
            if slots[slot] < 0:
                slots[slot] = count
                keys[count], place[count] = key, i
                count += 1
            parent = np.int64(slots[slot])
            times[place[parent], n] += 1


@no_type_check
@numba.njit(cache=True, nogil=True)
def count_repetitions(tokens, times):
    """times[i, n] = how often the n + 1 tokens from position i on occur, or 0 if they also occur earlier.

    All pairs of positions are compared: up to about a thousand tokens, nothing cleverer is faster.
    """
    if len(tokens) > _MANY:
        _count_in_tree(tokens, times)
        return
    for i in range(len(tokens)):
        most = min(LONGEST, len(tokens) - i)
        known = 0  # the longest n-gram at i that also occurs earlier
        for j in range(i):
            if tokens[j] != tokens[i]:
                continue
            same = 1
            while same < most and tokens[j + same] == tokens[i + same]:
                same += 1
            for n in range(known, same):
                times[j, n] += 1  # no earlier match was as long, so j is its first occurrence
            known = max(known, same)
        for n in range(LONGEST):
            times[i, n] = 1 if known <= n < most else 0


@no_type_check
@numba.njit(cache=True, nogil=True)
def _collect(flat, starts, groups, most, keys, first, parts):
    """Write the nodes of all groups and the sizes of their tables; group g has ``most[g]`` n-grams with repetitions."""
    slots = np.empty(_table_size(most.max() if len(most) else 0), np.int32)
    count = 0
    for g in range(len(most)):
        size = _table_size(most[g])
        slots[:size] = NONE
        for s in range(groups[g], groups[g + 1]):
            for i in range(starts[s], starts[s + 1]):
                parent = np.int64(NONE)
                for n in range(min(LONGEST, starts[s + 1] - i)):
                    key = _key(parent, flat[i + n])
                    slot = _slot(keys, slots, 0, size, key)
                    if slots[slot] < 0:
                        slots[slot] = count
                        keys[count] = key
                        count += 1
                    parent = np.int64(slots[slot])
        first[g + 1] = count
        parts[g + 1] = parts[g] + _table_size(first[g + 1] - first[g])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _fill_tables(keys, first, slots, parts):
    for g in range(len(first) - 1):
        for node in range(first[g], first[g + 1]):
            slots[_slot(keys, slots, parts[g], parts[g + 1] - parts[g], keys[node])] = node


@no_type_check
@numba.njit(cache=True, nogil=True)
def _find(other_keys, keys, slots, nodes):
    for node in range(len(other_keys)):
        parent = parent_of(other_keys[node])
        same = np.int64(NONE) if parent < 0 else np.int64(nodes[parent])
        nodes[node] = NONE
        if parent < 0 or same >= 0:
            nodes[node] = child(keys, slots, 0, len(slots), same, other_keys[node] & TOKEN_MASK)
