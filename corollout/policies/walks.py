"""Walks down a vocabulary tree and products along its paths, compiled: nothing is computed except for the nodes met.

An inner node n has the logit φ = w_n · x + b_n, and its bit is 1 with probability σ(φ). The bit at depth i of a walk is
1 if the i-th uniform number of (key, step) is below σ(φ), so that every walk of one key and step shares them.
"""

from typing import no_type_check

import numpy as np

from corollout.noise import uniform_compiled
from corollout.numba_cache import numba


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always", fastmath={"reassoc", "contract", "nsz"})
def _logit(weight, bias, x, node):
    total = bias[node]
    for i in range(len(x)):
        total += weight[node, i] * x[i]
    return total


@no_type_check
@numba.njit(cache=True, nogil=True)
def walk(children, depths, weight, bias, outputs, start, keys, steps, greedy, tokens, logits):
    """Walk from the node ``start`` of each row to a token; the logits met are written at their depths."""
    for r in range(len(outputs)):
        node = start[r]
        depth = depths[node] if node >= 0 else 0
        while node >= 0:
            phi = _logit(weight, bias, outputs[r], node)
            logits[r, depth] = phi
            if greedy[r]:
                bit = 1 if phi > 0 else 0
            else:
                bit = 1 if uniform_compiled(keys[r], steps[r], depth) < 1 / (1 + np.exp(-np.float64(phi))) else 0
            node = children[node, bit]
            depth += 1
        tokens[r] = ~node


@no_type_check
@numba.njit(cache=True, nogil=True)
def path_logits(nodes, lengths, weight, bias, outputs, tokens, out):
    """The logits on the way to each row's token."""
    for r in range(len(outputs)):
        token = tokens[r]
        for i in range(lengths[token]):
            out[r, i] = _logit(weight, bias, outputs[r], nodes[token, i])


@no_type_check
@numba.njit(cache=True, nogil=True)
def path_gradients(nodes, lengths, weight, outputs, tokens, outer, d_outputs, d_weight, d_bias):
    """What ``path_logits`` passes back; all rows add to the gradients of the same nodes."""
    for r in range(len(outputs)):
        token = tokens[r]
        for i in range(lengths[token]):
            g = outer[r, i]
            if g == 0:
                continue
            node = nodes[token, i]
            d_bias[node] += g
            for k in range(outputs.shape[1]):
                d_outputs[r, k] += g * weight[node, k]
                d_weight[node, k] += g * outputs[r, k]


@no_type_check
@numba.njit(cache=True, nogil=True)
def first_tokens(children, weight, bias, perturb, outputs, log_prob, rank, keys, steps, ranks, log_probs, tokens):
    """Each row's first tokens by log-probability or, if perturbed, those of a sample without replacement.

    ``log_prob`` and ``rank`` are those of the root. No token ranks above a node that it is below, so the nodes known
    but not entered form a heap by their rank: what comes out first is the best of all.
    """
    count = tokens.shape[1]
    for r in range(len(outputs)):
        heap_rank, heap_entry = np.empty(64, np.float64), np.empty(64, np.int64)
        # The entries of the heap: nodes with their log-probabilities.
        node_of, value_of = np.empty(64, np.int64), np.empty(64, np.float64)
        node_of[0], value_of[0] = 0 if len(children) else -1, log_prob[r]
        heap_rank[0], heap_entry[0] = rank[r], 0
        size, entries, done = 1, 1, 0
        while done < count:
            highest, entry = heap_rank[0], heap_entry[0]
            size -= 1
            _sift_down(heap_rank, heap_entry, size)
            node, value = node_of[entry], value_of[entry]
            if node < 0:
                ranks[r, done], log_probs[r, done], tokens[r, done] = highest, value, ~node
                done += 1
                continue
            if entries + 2 > len(node_of):
                heap_rank = np.concatenate((heap_rank, np.empty_like(heap_rank)))
                heap_entry = np.concatenate((heap_entry, np.empty_like(heap_entry)))
                node_of = np.concatenate((node_of, np.empty_like(node_of)))
                value_of = np.concatenate((value_of, np.empty_like(value_of)))
            phi = np.float64(_logit(weight, bias, outputs[r], node))
            left, right = value + _log_sigmoid(-phi), value + _log_sigmoid(phi)
            left_rank, right_rank = left, right
            if perturb:
                free_left = left - np.log(-np.log1p(-uniform_compiled(keys[r], steps[r], 2 * node)))
                free_right = right - np.log(-np.log1p(-uniform_compiled(keys[r], steps[r], 2 * node + 1)))
                maximum = max(free_left, free_right)
                left_rank = _given_maximum(free_left, maximum, highest)
                right_rank = _given_maximum(free_right, maximum, highest)
            for bit in range(2):
                node_of[entries], value_of[entries] = children[node, bit], right if bit else left
                _sift_up(heap_rank, heap_entry, size, right_rank if bit else left_rank, entries)
                size += 1
                entries += 1


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sift_up(ranks, entries, index, rank, entry):
    """Add an entry to a heap of ``index`` entries."""
    while index > 0:
        above = (index - 1) // 2
        if ranks[above] >= rank:
            break
        ranks[index], entries[index] = ranks[above], entries[above]
        index = above
    ranks[index], entries[index] = rank, entry


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sift_down(ranks, entries, size):
    """Close the gap at the top of the heap with its last entry, at index ``size``."""
    rank, entry, index = ranks[size], entries[size], 0
    while 2 * index + 1 < size:
        below = 2 * index + 1
        if below + 1 < size and ranks[below + 1] > ranks[below]:
            below += 1
        if ranks[below] <= rank:
            break
        ranks[index], entries[index] = ranks[below], entries[below]
        index = below
    ranks[index], entries[index] = rank, entry


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _log_sigmoid(x):
    return min(x, 0.0) - np.log1p(np.exp(-abs(x)))


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _given_maximum(free, highest, most):
    """One of Gumbel numbers whose maximum is ``highest``, as it is given that the maximum is ``most``."""
    if free == highest:
        return most
    v = most - free + np.log(-np.expm1(free - highest))
    return most - max(v, 0.0) - np.log1p(np.exp(-abs(v)))
