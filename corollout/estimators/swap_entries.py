"""The entries of coefficients of some branches, compiled, from the uniform numbers of their cells.

Whether an action that is no candidate is one of b's others depends on its a = ln π alone, which grows with its uniform
number u: a − φ_b ≤ o holds if u ≤ 1 − exp(−s exp(o + φ_b)), where s is the sum of the exponential numbers. Logarithms
are computed in steps that round, so a limit has a margin: only actions within it, and candidates, need their a.
"""

from typing import no_type_check

import numpy as np

from corollout.estimators.swap_candidates import limits_of
from corollout.estimators.swap_loops import (
    STRIDE,
    Cell,
    find_others,
    first_at_least,
    longer,
    runner_up_sums,
    true_action_sums,
    wins_swap,
)
from corollout.noise import uniform_compiled
from corollout.numba_cache import numba

# The uniform number of an action that is listed elsewhere.
_LISTED = 2.0


@no_type_check
@numba.njit(cache=True)
def _limits(o, phi, size, scale, errors, kind, eps):
    """The limits of uniform numbers that follow from those of exponential numbers, u = 1 − exp(−e)."""
    low, high = limits_of(o, phi, size, scale, errors, eps)
    return kind(-np.expm1(-low) * (1 - 2 * eps)), kind(-np.expm1(-high) * (1 + 2 * eps))


@no_type_check
@numba.njit(cache=True)
def _o(u, scale, phi):
    """a − φ in double precision, which is closer to the rounded one than a margin is wide."""
    return np.log(-np.log1p(-np.float64(u)) / np.float64(scale)) - phi


@no_type_check
@numba.njit(cache=True, nogil=True)
def expected_entries(lists, cells, keys, steps, vocab):
    """About how many entries there will be, without those among candidates, so that lists need not grow."""
    candidate, logit, action, _, _ = lists
    scale, trues, runners_up, _, first, last, begin, end = cells
    expected = 0.0
    for r in range(len(scale)):
        index, phi = candidate[first[r] : last[r]], logit[first[r] : last[r]]
        z, z2 = first_at_least(index, trues[r]), first_at_least(index, runners_up[r])
        o_z = _o(uniform_compiled(keys[r], steps[r], trues[r]), scale[r], phi[z])
        o_z2 = _o(uniform_compiled(keys[r], steps[r], runners_up[r]), scale[r], phi[z2])
        for t in range(begin[r], end[r]):
            b, rest = first_at_least(index, action[t]), vocab - len(index)
            share = -np.expm1(-scale[r] * np.exp(o_z + phi[b]))
            if b == z2:
                of_true = -np.expm1(-scale[r] * np.exp(o_z2 + phi[z]))
                share = min(max(share, of_true), 1 - max(of_true - share, 0.0))
            expected += vocab if b == z else share * rest
    return int(1.02 * expected) + STRIDE


@no_type_check
@numba.njit(cache=True)
def _find_between(u, low, high, low_2, high_2, out, count):
    """Append the positions between one pair of limits or the other to ``out``; return it and its length."""
    for start in range(0, len(u), STRIDE):
        part = u[start : start + STRIDE]
        new = 0
        for i in range(len(part)):
            new += ((part[i] > low) & (part[i] <= high)) | ((part[i] > low_2) & (part[i] <= high_2))
        if new:
            out = longer(out, count, new)
            for i in range(len(part)):
                if (low < part[i] <= high) or (low_2 < part[i] <= high_2):
                    out[count] = start + i
                    count += 1
    return out, count


@no_type_check
@numba.njit(cache=True, nogil=True)
def list_exact(lists, cells, u, errors):
    """The uniform numbers whose a is needed: of each cell's candidates, then of those that its branches leave in doubt.

    Also how many there are of each cell, the positions in doubt, how many of these each branch has, and the limits of
    each branch. The numbers of all these but the doubtful ones are then marked as listed. If the true action is a
    branch, all actions count as candidates.
    """
    candidate, logit, action, _, _ = lists
    scale, trues, runners_up, _, first, last, begin, end = cells
    kind, eps, vocab = u.dtype.type, np.finfo(u.dtype).eps, u.shape[1]
    branches = end[-1] - begin[0] if len(end) else 0
    lengths, limits = np.zeros(len(u), np.int64), np.zeros((branches, 2), u.dtype)
    doubts, doubtful, count = np.zeros(branches, np.int64), np.empty(0, np.int32), 0
    exact, size = np.empty(0, u.dtype), 0
    for r in range(len(u)):
        row, index, phi = u[r], candidate[first[r] : last[r]], logit[first[r] : last[r]]
        kept = action[begin[r] : end[r]]
        before = size
        if len(index) == vocab or np.any(kept == trues[r]):
            exact = longer(exact, size, vocab)
            exact[size : size + vocab] = row
            size += vocab
        else:
            exact = longer(exact, size, len(index))
            z, z2 = first_at_least(index, trues[r]), first_at_least(index, runners_up[r])
            total = np.float64(scale[r])
            o_z, o_z2 = _o(row[index[z]], total, phi[z]), _o(row[index[z2]], total, phi[z2])
            sizes = np.float64(abs(phi[z])) + np.float64(abs(phi[z2]))
            for b in range(len(index)):
                exact[size + b] = row[index[b]]
                row[index[b]] = _LISTED
            size += len(index)
            start = count
            for t in range(len(kept)):
                b = first_at_least(index, kept[t])
                low, high = _limits(o_z, phi[b], sizes, total, errors, kind, eps)
                low_2, high_2 = _limits(o_z2, phi[z], sizes, total, errors, kind, eps) if b == z2 else (low, high)
                k = begin[r] + t - begin[0]
                limits[k, 0], limits[k, 1] = low, low_2
                earlier = count
                doubtful, count = _find_between(row, low, high, low_2, high_2, doubtful, count)
                doubts[k] = count - earlier
            exact = longer(exact, size, count - start)
            for i in range(start, count):
                exact[size] = row[doubtful[i]]
                size += 1
        lengths[r] = size - before
    return exact[:size], lengths, doubtful[:count], doubts, limits


@no_type_check
@numba.njit(cache=True)
def _count_below(u, limit):
    count = 0
    for i in range(len(u)):
        count += u[i] <= limit
    return count


@no_type_check
@numba.njit(cache=True)
def _append(entries, count, target, coordinate, number):
    branches, coordinates, values = entries
    branches[count], coordinates[count], values[count] = target, coordinate, number
    return count + (number != 0)


@no_type_check
@numba.njit(cache=True)
def _append_below(entries, count, target, u, limits, values):
    """Append an entry for each position: of the first value up to the first limit, of the second up to the second …

    Limits ascend. Positions above the last have none, nor have those whose value is zero.
    """
    branches, coordinates, numbers = entries
    first, end, of_part = count, np.uint64(count), np.empty(STRIDE, numbers.dtype)
    for start in range(0, len(u), STRIDE):
        part = u[start : start + STRIDE]
        new = 0
        for i in range(len(part)):
            number = values[0] if part[i] <= limits[0] else values[1] if part[i] <= limits[1] else values[2]
            of_part[i] = number if part[i] <= limits[2] else 0
            new += of_part[i] != 0
        if new:
            for i in range(len(part)):
                coordinates[end], numbers[end] = start + i, of_part[i]
                end += np.uint64(of_part[i] != 0)
    branches[first:end] = target
    return np.int64(end)


@no_type_check
@numba.njit(cache=True)
def _with_room(entries, count, more):
    branches, coordinates, values = entries
    return longer(branches, count, more), longer(coordinates, count, more), longer(values, count, more)


@no_type_check
@numba.njit(cache=True)
def _append_others(entries, count, target, cell, b, rest):
    """Append the entries of b's others that are no candidates; b is neither z nor z₂."""
    u, limits, doubtful, doubtful_a = rest
    limit = limits[0]
    w_b, o_z, inclusive = cell.w[b], cell.o_z, b < cell.z
    number = _count_below(u, limit)
    entries = _with_room(entries, count, number + len(doubtful) + 1)
    before = u[doubtful]
    for i in range(len(doubtful)):
        u[doubtful[i]] = _LISTED
        o_b = doubtful_a[i] - cell.phi[b]
        if o_b < o_z or (o_b == o_z and inclusive):
            count = _append(entries, count, target, doubtful[i], w_b)
    count = _append_below(entries, count, target, u, (limit, limit, limit), (w_b, w_b, w_b))
    u[doubtful] = before
    return entries, count


@no_type_check
@numba.njit(cache=True)
def _append_runner_up(entries, count, target, cell, index, both, sums, rest):
    """Append all entries of the runner-up, plus a constant if that makes more of them zero.

    ``both`` are S[z₂] and S[z].
    """
    u, limits, doubtful, doubtful_a = rest
    z, z2, o_z, o_z2 = cell.z, cell.z2, cell.o_z, cell.o_z2
    w_z, w_2 = np.float64(cell.w[z]), np.float64(cell.w[z2])
    runner_up_sums(cell, sums)
    if len(cell.a) < cell.vocab:
        sums[z2], sums[z] = both
    number = cell.vocab - len(cell.a) - len(doubtful)
    before = u[doubtful]
    for j in doubtful:
        u[j] = _LISTED
    # The actions with small u win with z₂ where z₂ is the reference, and leave z the winner where z is.
    wins, leaves = (_count_below(u, limits[0]), _count_below(u, limits[1])) if number else (0, 0)
    more = max(leaves - wins, 0) - (number - max(wins, leaves))
    for b in range(len(cell.a)):
        more += np.int64(sums[b] == -w_z) - np.int64(sums[b] == 0)
    shift = w_z if more > 0 else 0.0
    most = number - max(leaves - wins, 0) if more > 0 else max(wins, leaves)
    entries = _with_room(entries, count, most + len(cell.a) + len(doubtful) + 1)
    for b in range(len(cell.a)):
        count = _append(entries, count, target, index[b], sums[b] + shift)
    for i in range(len(doubtful)):
        o_2, o_true = doubtful_a[i] - cell.phi[z2], doubtful_a[i] - cell.phi[z]
        of_2 = w_2 if o_2 < o_z or (o_2 == o_z and z2 < z) else 0.0
        of_z = w_z if o_true < o_z2 or (o_true == o_z2 and z < z2) else 0.0
        count = _append(entries, count, target, doubtful[i], of_2 - of_z + shift)
    if number:
        kind = cell.w.dtype.type
        low, high = min(limits[0], limits[1]), max(limits[0], limits[1])
        between = w_2 if limits[0] > limits[1] else -w_z
        values = kind(w_2 - w_z + shift), kind(between + shift), kind(shift)
        count = _append_below(entries, count, target, u, (low, high, u.dtype.type(1)), values)
    u[doubtful] = before
    return entries, count


@no_type_check
@numba.njit(cache=True, nogil=True)
def write(lists, cells, u, exact, work, target, entries, count):
    """Append the entries of the branches ``begin`` to ``end`` of cells with the candidates ``first`` to ``last``.

    Of candidates that are branches, ``target`` is the position; before and afterwards all are −1.
    """
    candidate, logit, action, position, own = lists
    _, trues, runners_up, of_true, first, last, begin, end = cells
    logs, weights, lengths, doubtful, doubts, limits = exact
    sums, visited, vocab = work.sums, work.visited, u.shape[1]
    start, doubt = 0, 0
    for r in range(len(u)):
        listed, phi = candidate[first[r] : last[r]], logit[first[r] : last[r]]
        index = listed
        kept = action[begin[r] : end[r]]
        whole = np.any(kept == trues[r])
        if whole:
            index, phi = work.identity, work.phi
            phi[:] = -np.inf
            for c in range(len(listed)):
                phi[listed[c]] = logit[first[r] + c]
        z, z2 = first_at_least(index, trues[r]), first_at_least(index, runners_up[r])
        a, w = logs[start : start + len(index)], weights[start : start + len(index)]
        rest_a = logs[start + len(index) : start + lengths[r]]
        start += lengths[r]
        a_z = a[z]
        o_z, o_z2 = a_z - phi[z], a[z2] - phi[z2]
        a[z] = np.inf
        cell = Cell(phi, a, w, z, z2, a_z, o_z, o_z2, vocab)
        visited[: len(index)] = whole
        for t in range(len(kept)):
            b = first_at_least(index, kept[t])
            target[b] = position[begin[r] + t]
            visited[b] = whole or b != z2
        visited[z] = False
        listed_b, listed_j = find_others(cell, work, True)
        entries = _with_room(entries, count, len(listed_b) + 1)
        for i in range(len(listed_b)):
            b = listed_b[i]
            if target[b] >= 0 and b != z2:
                count = _append(entries, count, target[b], index[listed_j[i]], w[b])
        for t in range(len(kept)):
            b, k = first_at_least(index, kept[t]), begin[r] + t - begin[0]
            entries = _with_room(entries, count, 3)
            rest = u[r], limits[k], doubtful[doubt : doubt + doubts[k]], rest_a[: doubts[k]]
            doubt += doubts[k]
            rest_a = rest_a[doubts[k] :]
            if b == z:
                true_action_sums(cell, listed_b, listed_j, sums)
                entries = _with_room(entries, count, vocab + 1)
                for v in range(vocab):
                    count = _append(entries, count, target[b], v, sums[v])
            elif b == z2:
                both = own[begin[r] + t], of_true[r]
                entries, count = _append_runner_up(entries, count, target[b], cell, index, both, sums, rest)
            else:
                if wins_swap(a_z - phi[b], a[b] - phi[z], o_z2, b < z2, b < z):
                    count = _append(entries, count, target[b], index[z], w[b])
                count = _append(entries, count, target[b], index[b], own[begin[r] + t])
                if len(index) < vocab:
                    entries, count = _append_others(entries, count, target[b], cell, b, rest)
        target[: len(index)] = -1
    return entries, count


@no_type_check
@numba.njit(cache=True, nogil=True)
def copy_runs(values, lengths, starts, out):
    """Copy consecutive runs of these lengths to these places."""
    first = 0
    for k in range(len(lengths)):
        run, place = values[first : first + lengths[k]], out[starts[k] : starts[k] + lengths[k]]
        for i in range(len(run)):
            place[i] = run[i]
        first += lengths[k]
