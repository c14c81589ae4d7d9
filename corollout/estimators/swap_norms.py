"""The branches of a cell and the norms of their coefficients, compiled, from its candidates."""

from typing import no_type_check

import numpy as np

from corollout.estimators.pseudo import two_smallest
from corollout.estimators.swap_loops import (
    STRIDE,
    Cell,
    find_others,
    plus,
    runner_up_sums,
    true_action_sums,
    wins_swap,
)
from corollout.numba_cache import numba

# Centred coefficients whose square is below this fraction of the plain square are zero up to rounding.
ROUNDING = 1e-12


@no_type_check
@numba.njit(cache=True)
def _least(a):
    least = a[0]
    for start in range(0, len(a), STRIDE):
        part = a[start : start + STRIDE]
        new = 0
        for i in range(len(part)):
            new += part[i] < least
        if new:
            for i in range(len(part)):
                least = min(least, part[i])
    return least


@no_type_check
@numba.njit(cache=True)
def _square_and_sum(sums):
    squares, plain = 0.0, 0.0
    for v in range(len(sums)):
        squares = plus(squares, sums[v] * sums[v])
        plain = plus(plain, sums[v])
    return squares, plain


@no_type_check
@numba.njit(cache=True)
def _count_above(phi, bound):
    count = 0
    for b in range(len(phi)):
        count += phi[b] >= bound
    return count


@no_type_check
@numba.njit(cache=True)
def _settle(cell, doubt_b, logs, weights, members, weight):
    """Add those that were in doubt to the others of the candidates that they are about."""
    for i in range(len(doubt_b)):
        b = doubt_b[i]
        o_b, o = logs[i] - cell.phi[b], cell.o_z2 if b == cell.z else cell.o_z
        if o_b < o or (o_b == o and b < (cell.z2 if b == cell.z else cell.z)):
            members[b] += 1
            weight[b] += weights[i]


@no_type_check
@numba.njit(cache=True, nogil=True)
def search(exact, tokens, vocab, work, found):
    """The first invalid cell or −1; of each z, z₂, S_{z₂}[z] and how many branches and candidates it has; all of these.

    The logarithms are overwritten.
    """
    logs, weights, lengths, counts, of_rest, doubt_b = exact
    candidate, logit, rest_members, rest_weight, action, norm, own = found
    sums, visited, cells = work.sums, work.visited, len(counts)
    true, runner_up, of_true = np.zeros(cells, np.int64), np.zeros(cells, np.int64), np.zeros(cells, logs.dtype)
    branches, candidates = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    bad, branch, first, start, doubt, kept = -1, 0, 0, 0, 0, 0
    kind, slack = logs.dtype.type, 4 * np.finfo(logs.dtype).eps
    for r in range(cells):
        count, whole, token = counts[r], counts[r] == vocab, tokens[r]
        index, phi = candidate[first : first + count], logit[first : first + count]
        a, w = logs[start : start + count], weights[start : start + count]
        rest = slice(start + count, start + lengths[r])
        of_others, of_weights = rest_members[first : first + count], rest_weight[first : first + count]
        doubts = doubt_b[doubt : doubt + lengths[r] - count]
        first, start, doubt = first + count, start + lengths[r], doubt + len(doubts)
        z, o_z, z2, o_z2 = two_smallest(a, phi)
        if not np.isfinite(o_z):
            bad = r
            break
        true[r], runner_up[r] = index[z], index[z2]
        if o_z2 == np.inf:
            continue
        a_z, phi_z, o_z, o_z2 = a[z], phi[z], kind(o_z), kind(o_z2)
        w_z, w_2 = np.float64(w[z]), np.float64(w[z2])
        a[z] = np.inf
        cell = Cell(phi, a, w, z, z2, a_z, o_z, o_z2, vocab)
        if not whole:
            _settle(cell, doubts, logs[rest], weights[rest], of_others, of_weights)
        listed = index[z] != token
        for b in range(count):
            visited[b] = b != z and (listed or b != z2)
        listed_b, listed_j = find_others(cell, work, listed)
        for b in range(count):
            if index[b] == token:
                continue
            if b == z:
                true_action_sums(cell, listed_b, listed_j, sums)
                squares, plain = _square_and_sum(sums[:count])
                own_sum = sums[z]
            elif b == z2:
                runner_up_sums(cell, sums)
                if not whole:
                    sums[z2] += of_weights[z2]
                    sums[z] += of_rest[r] - of_weights[z]
                squares, plain = _square_and_sum(sums[:count])
                if not whole:
                    # Of the two sets of others, one contains the other.
                    of_2, of_z = of_others[z2], of_others[z]
                    squares += of_2 * w_2 * w_2 + of_z * w_z * w_z - 2 * min(of_2, of_z) * w_2 * w_z
                    plain += of_2 * w_2 - of_z * w_z
                own_sum, of_true[r] = sums[z2], sums[z]
            else:
                win = wins_swap(a_z - phi[b], a[b] - phi_z, o_z2, b < z2, b < z)
                w_b, number = np.float64(w[b]), work.members[b] + win
                own_sum = work.weight[b] + (w_z if win else 0.0)
                if not whole:
                    number += of_others[b]
                    own_sum += of_weights[b]
                squares, plain = own_sum * own_sum + number * w_b * w_b, own_sum + number * w_b
            centred = squares - plain * plain / vocab
            if centred > ROUNDING * squares:
                action[branch], norm[branch], own[branch] = index[b], np.sqrt(centred), own_sum
                branch += 1
                branches[r] += 1
        # Others lead to m if a_j − φ_m ≤ o_z, z if a_z − φ_m ≤ o_z₂.
        bound = kind(-np.inf)
        if whole:
            lowest = _least(a)
            bound = lowest - o_z - slack * (abs(lowest) + abs(o_z))
            bound = kind(min(bound, a_z - o_z2 - slack * (abs(a_z) + abs(o_z2))))
        before = kept
        if whole and _count_above(phi, bound) == count and kept + count == first:
            kept = first
        else:
            for b in range(count):
                candidate[kept], logit[kept] = index[b], phi[b]
                kept += (phi[b] >= bound) | (b == z) | (b == z2)
        candidates[r] = kept - before
    of_branches = (action[:branch].copy(), norm[:branch].copy(), own[:branch].copy())
    of_candidates = (candidate[:kept].copy(), logit[:kept].copy())
    return bad, true, runner_up, of_true, branches, candidates, *of_branches, *of_candidates
