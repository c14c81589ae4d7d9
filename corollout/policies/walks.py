"""Walks down a vocabulary tree and products along its paths, compiled: nothing is computed but for the nodes met.

An inner node n has the logit φ = w_n · x + b_n, and its bit is 1 with probability σ(φ). The bit at depth i of a walk is
1 if the i-th uniform number of (key, step) is below σ(φ), so that every walk of one key and step shares them.
"""

from typing import no_type_check

import numba
import numpy as np

from corollout.noise import uniform_compiled


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
def best_tokens(children, weight, bias, outputs, log_probs, tokens):
    """Each row's most probable tokens, exactly: no token is more probable than a node above it.

    The nodes known but not entered form a heap by their probability; whatever comes out first is the best there is.
    """
    count = tokens.shape[1]
    for r in range(len(outputs)):
        heap_value = np.empty(64, np.float64)
        heap_node = np.empty(64, np.int64)
        heap_value[0], heap_node[0] = 0.0, 0 if len(children) else -1
        size, found = 1, 0
        while found < count:
            value, node = heap_value[0], heap_node[0]
            size -= 1
            _sift_down(heap_value, heap_node, size)
            if node < 0:
                log_probs[r, found], tokens[r, found] = value, ~node
                found += 1
                continue
            phi = np.float64(_logit(weight, bias, outputs[r], node))
            if size + 2 > len(heap_value):
                heap_value = np.concatenate((heap_value, np.empty_like(heap_value)))
                heap_node = np.concatenate((heap_node, np.empty_like(heap_node)))
            for bit in range(2):
                gain = _log_sigmoid(phi if bit else -phi)
                _sift_up(heap_value, heap_node, size, value + gain, np.int64(children[node, bit]))
                size += 1


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sift_up(values, nodes, place, value, node):
    """Put something into the heap, whose first ``place`` are taken."""
    while place > 0:
        above = (place - 1) // 2
        if values[above] >= value:
            break
        values[place], nodes[place] = values[above], nodes[above]
        place = above
    values[place], nodes[place] = value, node


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sift_down(values, nodes, size):
    """Close the gap at the top of the heap with its last entry, which stands at ``size``."""
    value, node, place = values[size], nodes[size], 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and values[below + 1] > values[below]:
            below += 1
        if values[below] <= value:
            break
        values[place], nodes[place] = values[below], nodes[below]
        place = below
    values[place], nodes[place] = value, node


@no_type_check
@numba.njit(cache=True, nogil=True)
def first_tokens(children, weight, bias, outputs, log_prob, rank, keys, steps, ranks, log_probs, tokens):
    """Each row's first tokens in a sample without replacement: as ``best_tokens``, by perturbed log-probabilities."""
    count = tokens.shape[1]
    for r in range(len(outputs)):
        heap_value, heap_place = np.empty(64, np.float64), np.empty(64, np.int64)
        # What the heap's places stand for: a node with its log-probability.
        node_of, value_of = np.empty(64, np.int64), np.empty(64, np.float64)
        node_of[0], value_of[0] = 0 if len(children) else -1, log_prob[r]
        heap_value[0], heap_place[0] = rank[r], 0
        size, known, found = 1, 1, 0
        while found < count:
            most, place = heap_value[0], heap_place[0]
            size -= 1
            _sift_down(heap_value, heap_place, size)
            node, value = node_of[place], value_of[place]
            if node < 0:
                ranks[r, found], log_probs[r, found], tokens[r, found] = most, value, ~node
                found += 1
                continue
            if known + 2 > len(node_of):
                heap_value = np.concatenate((heap_value, np.empty_like(heap_value)))
                heap_place = np.concatenate((heap_place, np.empty_like(heap_place)))
                node_of = np.concatenate((node_of, np.empty_like(node_of)))
                value_of = np.concatenate((value_of, np.empty_like(value_of)))
            phi = np.float64(_logit(weight, bias, outputs[r], node))
            left, right = value + _log_sigmoid(-phi), value + _log_sigmoid(phi)
            free_left = left - np.log(-np.log1p(-uniform_compiled(keys[r], steps[r], 2 * node)))
            free_right = right - np.log(-np.log1p(-uniform_compiled(keys[r], steps[r], 2 * node + 1)))
            highest = max(free_left, free_right)
            for bit in range(2):
                free = free_right if bit else free_left
                node_of[known], value_of[known] = children[node, bit], right if bit else left
                _sift_up(heap_value, heap_place, size, _given_maximum(free, highest, most), known)
                size += 1
                known += 1


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
