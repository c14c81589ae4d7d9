"""The candidates of a cell, and the others of each among the actions that are none, compiled.

The logarithms of most actions are not needed. A float's bits bound its logarithm, so that a pass without logarithms
leaves few actions that can be z or z₂. An action that is no candidate never wins a comparison, so that it is one of b's
others if and only if its a = ln π is below a limit, hence its exponential number e = s π below s exp(o_z + φ_b).
Logarithms are computed in steps that round, so a limit has a margin: what is within it needs its a.
"""

from typing import no_type_check

import numpy as np

from corollout.estimators.swap_loops import STRIDE, Cell, few_others, first_at_least, longer, plus
from corollout.numba_cache import numba

_LANES = 256
_LN2 = float(np.log(2.0))
# ln(1 + x) is between x ln 2 and this much more if x is between 0 and 1; and room for rounding.
_BITS_ERROR = 0.0597 + 0.01
# Exponential numbers are smaller.
_LARGEST = 64.0
# With wider margins there may be too many doubts, and the order of limits is not that of logits.
_WIDEST = 1e-3
# If more than this fraction of all actions are candidates, all count as such.
_MANY = 1 / 8


@no_type_check
@numba.njit(cache=True, inline="always")
def _score_below(e, phi):
    """At most ln e − φ: log₂ of a number 2ᵏ(1 + x) is at least k + x, its bits."""
    bits = np.float32(np.float32(e).view(np.int32))
    return bits * np.float32(_LN2 * 2.0**-23) - np.float32(127 * _LN2) - phi


@no_type_check
@numba.njit(cache=True)
def _scores_below(e, phi, scores, lows):
    """The least score and the least e of each lane, that is of every _LANES-th action; and whether φ is valid.

    There are no branches and no reductions: the inner loop is vectorised.
    """
    kind = e.dtype.type
    scores[:], lows[:] = np.inf, np.inf
    invalid = np.zeros(_LANES, np.int32)
    for start in range(0, len(e), _LANES):
        e_part, phi_part = e[start : start + _LANES], phi[start : start + _LANES]
        for i in range(len(e_part)):
            score = kind(_score_below(e_part[i], phi_part[i]))
            invalid[i] |= not score > -np.inf
            scores[i] = score if score < scores[i] else scores[i]
            lows[i] = e_part[i] if e_part[i] < lows[i] else lows[i]
    return not invalid.any()


@no_type_check
@numba.njit(cache=True)
def _two_smallest(e, phi, scale, scores):
    """z, z₂, and the three smallest o in double precision; of the third only that it is not smaller."""
    low, second = np.inf, np.inf
    for lane in range(_LANES):
        if scores[lane] < low:
            low, second = scores[lane], low
        else:
            second = min(second, scores[lane])
    z, z2, o_z, o_z2, o_3 = -1, -1, np.inf, np.inf, np.inf
    limit = second + _BITS_ERROR + 8 * np.finfo(e.dtype).eps * (abs(low) + abs(second))
    for lane in range(_LANES):
        if scores[lane] <= limit:
            for i in range(lane, len(e), _LANES):
                if _score_below(e[i], phi[i]) <= limit:
                    o = np.log(np.float64(e[i]) / scale) - phi[i]
                    if o < o_z:
                        z, z2, o_z, o_z2, o_3 = i, z, o, o_z, o_z2
                    elif o < o_z2:
                        z2, o_z2, o_3 = i, o, o_z2
                    elif o < o_3:
                        o_3 = o
    # What was not looked at is above the limit.
    return z, z2, o_z, o_z2, min(o_3, limit - np.log(scale))


@no_type_check
@numba.njit(cache=True)
def _least_without(e, lows, z):
    """The least e but that of z."""
    least = e.dtype.type(np.inf)
    for lane in range(_LANES):
        if lane != z % _LANES:
            least = min(least, lows[lane])
    for i in range(z % _LANES, len(e), _LANES):
        if i != z:
            least = min(least, e[i])
    return np.float64(least)


@no_type_check
@numba.njit(cache=True)
def _find_candidates(phi, bound, z, z2, out):
    """Write the indices where φ ≥ its bound, z and z₂ to ``out``; return their number."""
    count = 0
    for start in range(0, len(phi), STRIDE):
        part = phi[start : start + STRIDE]
        new = (start <= z < start + len(part)) + (start <= z2 < start + len(part))
        for i in range(len(part)):
            new += part[i] >= bound
        if new:
            for m in range(start, start + len(part)):
                if phi[m] >= bound or m in (z, z2):
                    out[count] = m
                    count += 1
    return count


@no_type_check
@numba.njit(cache=True)
def margin_of(o, phi, size, errors, eps):
    """By how much a − φ and o may be off together.

    A logarithm, a quotient and a difference are off by no more than a few units in the last place; ``size`` is at least
    that of the logits that o was computed from.
    """
    return errors * eps * (size + abs(o) + abs(phi) + 4)


@no_type_check
@numba.njit(cache=True)
def limits_of(o, phi, size, scale, errors, eps):
    """If e is below the first number, a − φ < o; if it is above the second, a − φ > o."""
    margin = margin_of(o, phi, size, errors, eps)
    low, high = scale * np.exp(o + phi - margin), scale * np.exp(o + phi + margin)
    return min(low, _LARGEST) * (1 - 2 * eps), min(high, _LARGEST) * (1 + 2 * eps)


@no_type_check
@numba.njit(cache=True)
def _below(e, low, high):
    """How many numbers are at most the one and the other, and the sum of the former."""
    members, near, total = 0, 0, 0.0
    for i in range(len(e)):
        member = e[i] <= low
        members += member
        near += e[i] <= high
        total = plus(total, np.float64(e[i]) if member else 0.0)
    return members, near, total


@no_type_check
@numba.njit(cache=True)
def _find_between(e, low, high, out, count):
    """Append the numbers above one limit and up to another to a list of ``count`` numbers; return its length."""
    for start in range(0, len(e), _LANES):
        part = e[start : start + _LANES]
        new = np.int32(0)
        for i in range(len(part)):
            new += np.int32((part[i] > low) & (part[i] <= high))
        if new:
            for i in range(len(part)):
                if low < part[i] <= high:
                    out[count] = part[i]
                    count += 1
    return count


@no_type_check
@numba.njit(cache=True)
def _keep_below(e, limit, out):
    """Write the numbers up to a limit to ``out``, which may be the same list; return how many there are."""
    count, kept = np.uint64(0), np.empty(STRIDE, np.uint8)
    for start in range(0, len(e), STRIDE):
        part = e[start : start + STRIDE]
        for i in range(len(part)):
            kept[i] = part[i] <= limit
        if kept[: len(part)].any():
            for i in range(len(part)):
                out[count] = part[i]
                count += np.uint64(kept[i])
    return np.int64(count)


@no_type_check
@numba.njit(cache=True)
def _find_rest(e, cell, size, scale, errors, work, members, totals, doubts):
    """For each b, |O_b| and Σ_{j ∈ O_b} e_j among the actions that are no candidates, and all b and e_j in doubt.

    O_z are the actions that can be swapped with z so that z wins. The e of candidates are listed as inf.
    """
    phi, z, o_z, o_z2 = cell.phi, cell.z, cell.o_z, cell.o_z2
    kind, eps = e.dtype.type, np.finfo(e.dtype).eps
    list_e, levels, order = work.list_a, work.list_phi[: len(phi)], work.order
    levels[:] = phi
    levels[z] += o_z2 - o_z  # the logit that has the limit of z with o_z
    doubt_b, doubt_e, count = doubts
    few = few_others(cell, len(e))
    room = kind(1.01)  # the limits of lower levels may be rounded to a little more
    many = 0
    for b in range(len(phi)):
        if levels[b] >= few:
            order[many] = b
            many += 1
    others, length = e, len(e)
    for b in order[:many][np.argsort(-levels[order[:many]])]:
        low, high = limits_of(o_z2 if b == z else o_z, phi[b], size, scale, errors, eps)
        low, high = kind(low), kind(high)
        members[b], near, totals[b] = _below(others[:length], low, high)
        if near > members[b]:
            doubt_b, doubt_e = longer(doubt_b, count, near - members[b]), longer(doubt_e, count, near - members[b])
            earlier, count = count, _find_between(others[:length], low, high, doubt_e, count)
            doubt_b[earlier:count] = b
        if 4 * near < length:
            length = _keep_below(others[:length], high * room, list_e)
            others = list_e
    # To the other actions only the few smallest matter.
    high = kind(limits_of(o_z, few, size, scale, errors, eps)[1]) if few < np.inf else kind(_LARGEST)
    near = np.sort(list_e[: _keep_below(others[:length], high * room, list_e)])
    sums = np.zeros(len(near) + 1)
    for i in range(len(near)):
        sums[i + 1] = sums[i] + near[i]
    for b in range(len(phi)):
        if levels[b] < few:
            low, high = limits_of(o_z2 if b == z else o_z, phi[b], size, scale, errors, eps)
            first = first_at_least(near, kind(low))
            members[b], totals[b] = first, sums[first]
            while first < len(near) and near[first] <= kind(high):
                doubt_b, doubt_e = longer(doubt_b, count, 1), longer(doubt_e, count, 1)
                doubt_b[count], doubt_e[count] = b, near[first]
                count += 1
                first += 1
    return doubt_b, doubt_e, count


@no_type_check
@numba.njit(cache=True)
def _sum_below(e, limit):
    total = 0.0
    for i in range(len(e)):
        total = plus(total, np.float64(e[i]) if e[i] <= limit else 0.0)
    return total


@no_type_check
@numba.njit(cache=True, nogil=True)
def list_candidates(phis, lines, e, scale, tokens, errors, work, found, exact):
    """The exponential numbers whose a is needed: of each cell's candidates, then of those that are in doubt.

    Also how many there are of each cell, its number of candidates, and the candidates that the doubts are about. With
    the candidates, ``found`` receives their logits and, among the actions that are none, |O_b| and Σ_{j ∈ O_b} w_j of
    each. ``exact`` is a buffer, and ``e`` is overwritten.

    All actions count as candidates if many are, if rounding decides what z or z₂ is, or if the true action is a branch:
    its coefficients depend on all actions one by one.
    """
    candidate, logit, members, weight = found
    cells, vocab = e.shape
    kind, eps = e.dtype.type, np.finfo(e.dtype).eps
    scores, lows = np.empty(_LANES, e.dtype), np.empty(_LANES, e.dtype)
    lengths, counts, of_rest = np.zeros(cells, np.int64), np.zeros(cells, np.int64), np.zeros(cells)
    doubt_b, doubt_e = np.empty(0, np.int32), np.empty(0, e.dtype)
    size, first, doubts = 0, 0, 0
    for r in range(cells):
        phi, row, total = phis[lines[r]], e[r], np.float64(scale[r])
        index, cell_phi = candidate[first : first + vocab], logit[first : first + vocab]
        count, before = vocab, size
        if _scores_below(row, phi, scores, lows):
            z, z2, o_z, o_z2, o_3 = _two_smallest(row, phi, total, scores)
            if z == tokens[r] and o_z2 < np.inf:
                sizes = np.float64(abs(phi[z])) + np.float64(abs(phi[z2]))
                # No logit of a candidate is larger than |o_z| and the logarithm of the smallest e together.
                largest = max(abs(o_z), abs(o_z2))
                margin = margin_of(largest, largest + _LARGEST, sizes, errors, eps)
                if margin < min(_WIDEST, o_z2 - o_z, o_3 - o_z2):
                    lowest = np.log(_least_without(row, lows, z) / total)
                    # Others lead to m if a_j − φ_m ≤ o_z, z if a_z − φ_m ≤ o_z₂.
                    bound = min(lowest - o_z, o_z + phi[z] - o_z2) - 2 * margin
                    count = _find_candidates(phi, kind(bound), z, z2, index)
        if count > _MANY * vocab:
            count = vocab
            exact = longer(exact, size, vocab)
            exact[size : size + vocab] = row
            cell_phi[:] = phi
            for b in range(vocab):
                index[b] = b
            size += vocab
        else:
            index, cell_phi = index[:count], cell_phi[:count]
            exact = longer(exact, size, count)
            for b in range(count):
                m = index[b]
                exact[size + b], cell_phi[b], row[m] = row[m], phi[m], np.inf
            size += count
            z, z2 = first_at_least(index, z), first_at_least(index, z2)
            cell = Cell(cell_phi, row, row, z, z2, 0.0, o_z, o_z2, vocab)
            some_members, some_weight, earlier = members[first : first + count], weight[first : first + count], doubts
            doubt_b, doubt_e, doubts = _find_rest(
                row, cell, sizes, total, errors, work, some_members, some_weight, (doubt_b, doubt_e, doubts)
            )
            for b in range(count):
                some_weight[b] = some_members[b] / vocab - some_weight[b] / total
            of_rest[r] = (vocab - count) / vocab - _sum_below(row, kind(_LARGEST)) / total
            exact = longer(exact, size, doubts - earlier)
            for i in range(earlier, doubts):
                exact[size] = doubt_e[i]
                size += 1
        lengths[r] = size - before
        counts[r] = count
        first += count
    return exact[:size], lengths, counts, of_rest, doubt_b[:doubts]
