"""The n-grams of groups of token sequences, as trees that are searched by hashing.

A node is an n-gram of one to four tokens; its children are the n-grams with one token more. So an n-gram that is not in
a tree has no descendants there, and a node is told by two numbers, its parent and its last token, which are compared
whole: no two n-grams are ever taken for one.

The trees of all groups share their arrays. Those of a group lie together, parents before children.
"""

from dataclasses import dataclass
from typing import no_type_check

import numba
import numpy as np

from corollout.text_metrics.tokens import Tokens

LONGEST = 4
NONE = -1  # a node that is not there; the parent of an n-gram of one token

_TOKEN_BITS = 32
_TOKEN_MASK = (1 << _TOKEN_BITS) - 1
_MULTIPLIER = -7046029254386353131  # 2⁶⁴ / golden ratio, as a signed number


@dataclass(frozen=True)
class NGrams:
    """A tree for each group. ``keys`` has each node's parent and token, ``slots`` is a hash table of them."""

    keys: np.ndarray  # int64[node]
    first: np.ndarray  # int64[group + 1]: where the nodes of a group begin
    slots: np.ndarray  # int32[slot]: a node, or NONE
    parts: np.ndarray  # int64[group + 1]: where the slots of a group begin; their number is a power of 2

    @classmethod
    def of(cls, tokens: Tokens, groups: np.ndarray) -> "NGrams":
        """Those of sequences ``groups[g]`` to ``groups[g + 1] - 1`` for each group g."""
        lengths = tokens.lengths
        each = sum((np.maximum(lengths - n, 0) for n in range(LONGEST)), np.zeros_like(lengths))
        before = np.concatenate(([0], np.cumsum(each)))[groups]
        keys = np.empty(before[-1], np.int64)  # if all were different
        first = np.zeros(len(groups), np.int64)
        _collect(tokens.flat, tokens.starts, groups, np.diff(before), keys, first)
        keys = keys[: first[-1]].copy()
        parts = np.zeros_like(first)
        _measure(first, parts)
        slots = np.full(parts[-1], NONE, np.int32)
        _place(keys, first, slots, parts)
        return cls(keys, first, slots, parts)

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, others: "NGrams") -> np.ndarray:
        """int32[node of the others]: where each of their n-grams is in the one tree that is here, or NONE."""
        found = np.empty(len(others), np.int32)
        _find(others.keys, self.keys, self.slots, found)
        return found

    def depths(self) -> np.ndarray:
        """int8[node]: the length of each n-gram, less one."""
        depths = np.empty(len(self), np.int8)
        _find_depths(self.keys, depths)
        return depths


@no_type_check
@numba.njit(cache=True, nogil=True)
def _table_size(nodes):
    """Slots for so many nodes: a power of 2, and some of them are free."""
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
def token_of(key):
    return key & _TOKEN_MASK


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _key(parent, token):
    return (np.int64(parent + 1) << _TOKEN_BITS) | np.int64(token)


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _slot(keys, slots, start, size, key):
    """The slot where the node with this key is, or would be put."""
    mixed = key * _MULTIPLIER
    place = (mixed ^ (mixed >> 32)) & (size - 1)
    while slots[start + place] >= 0 and keys[slots[start + place]] != key:
        place = (place + 1) & (size - 1)
    return start + place


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def child(keys, slots, start, size, parent, token):
    """The node of a parent and a token, or NONE."""
    return np.int64(slots[_slot(keys, slots, start, size, _key(parent, token))])


@no_type_check
@numba.njit(cache=True, nogil=True)
def count_repetitions(tokens, times):
    """times[i, n] = how often the n + 1 tokens from place i on occur, or 0 if they occur at an earlier place too.

    Every pair of places is compared, which takes less time than anything cleverer for up to a thousand tokens.
    """
    for i in range(len(tokens)):
        most = min(LONGEST, len(tokens) - i)
        known = 0  # so many tokens from here on were seen before
        for j in range(i):
            if tokens[j] != tokens[i]:
                continue
            same = 1
            while same < most and tokens[j + same] == tokens[i + same]:
                same += 1
            for n in range(known, same):
                times[j, n] += 1  # nothing before j was as long, so j is its first place
            known = max(known, same)
        for n in range(LONGEST):
            times[i, n] = 1 if known <= n < most else 0


@no_type_check
@numba.njit(cache=True, nogil=True)
def _collect(flat, starts, groups, most, keys, first):
    """Write the nodes of all groups; ``most`` is how many n-grams a group has, repetitions included."""
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
                    place = _slot(keys, slots, 0, size, key)
                    if slots[place] < 0:
                        slots[place] = count
                        keys[count] = key
                        count += 1
                    parent = np.int64(slots[place])
        first[g + 1] = count


@no_type_check
@numba.njit(cache=True, nogil=True)
def _measure(first, parts):
    for g in range(len(first) - 1):
        parts[g + 1] = parts[g] + _table_size(first[g + 1] - first[g])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _place(keys, first, slots, parts):
    for g in range(len(first) - 1):
        for node in range(first[g], first[g + 1]):
            slots[_slot(keys, slots, parts[g], parts[g + 1] - parts[g], keys[node])] = node


@no_type_check
@numba.njit(cache=True, nogil=True)
def _find(other_keys, keys, slots, found):
    for node in range(len(other_keys)):
        parent, token = parent_of(other_keys[node]), token_of(other_keys[node])
        if parent < 0:
            found[node] = child(keys, slots, 0, len(slots), NONE, token)
        elif found[parent] < 0:
            found[node] = NONE
        else:
            found[node] = child(keys, slots, 0, len(slots), np.int64(found[parent]), token)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _find_depths(keys, depths):
    for node in range(len(keys)):
        parent = parent_of(keys[node])
        depths[node] = 0 if parent < 0 else depths[parent] + 1
