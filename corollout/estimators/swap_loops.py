"""The compiled loops of ``all_references``. Loops without branches are vectorised."""

from typing import NamedTuple, no_type_check

import numpy as np

from corollout.estimators.pseudo import two_smallest
from corollout.numba_cache import numba

# Loops look at this many positions at a time.
_STRIDE = 128
# About the length of the sorted list of others.
_FEW = 48
# Centred coefficients whose square is below this fraction of the plain square are zero up to rounding.
ROUNDING = 1e-12


class Work(NamedTuple):
    """Buffers of a thread, of V numbers each."""

    sums: np.ndarray  # S of an action
    identity: np.ndarray  # 0 … V − 1
    positions: np.ndarray
    list_a: np.ndarray  # a list of others j: a, φ and w, and j
    list_phi: np.ndarray
    list_w: np.ndarray
    list_j: np.ndarray
    visited: np.ndarray  # of each candidate b: whether O_b is wanted, |O_b|, and Σ_{j ∈ O_b} w_j
    members: np.ndarray
    weight: np.ndarray
    order: np.ndarray

    @classmethod
    def make(cls, vocab: int, dtype: np.dtype) -> "Work":
        return cls(
            sums=np.empty(vocab),
            identity=np.arange(vocab, dtype=np.int32),
            positions=np.empty(vocab, np.int32),
            list_a=np.empty(vocab, dtype),
            list_phi=np.empty(vocab, dtype),
            list_w=np.empty(vocab, dtype),
            list_j=np.empty(vocab, np.int32),
            visited=np.empty(vocab, np.bool_),
            members=np.empty(vocab, np.int64),
            weight=np.empty(vocab),
            order=np.empty(vocab, np.int64),
        )


class Cell(NamedTuple):
    """The logits, a and w of a cell, where a_z is listed as inf, and its two smallest o."""

    phi: np.ndarray
    a: np.ndarray
    w: np.ndarray
    z: int
    z2: int
    a_z: float
    o_z: float
    o_z2: float


@no_type_check
@numba.njit(cache=True, nogil=True)
def divide(e, scale):
    for r in range(len(e)):
        total = scale[r]
        for i in range(e.shape[1]):
            e[r, i] /= total


@no_type_check
@numba.njit(cache=True, nogil=True)
def weigh(pi):
    """w = (1 − V π) / V, in place."""
    one, vocab = pi.dtype.type(1), pi.dtype.type(pi.shape[1])
    for r in range(len(pi)):
        for i in range(pi.shape[1]):
            pi[r, i] = (one - vocab * pi[r, i]) / vocab


@no_type_check
@numba.njit(cache=True, fastmath={"reassoc"})
def _plus(x, y):
    """A sum whose order does not matter, so that loops of it are vectorised."""
    return x + y


@no_type_check
@numba.njit(cache=True)
def _least(a):
    least = a[0]
    for start in range(0, len(a), _STRIDE):
        part = a[start : start + _STRIDE]
        new = 0
        for i in range(len(part)):
            new += part[i] < least
        if new:
            for i in range(len(part)):
                least = min(least, part[i])
    return least


@no_type_check
@numba.njit(cache=True, inline="always")
def _wins(o_m, o_j, o_z, before_true, before_other):
    """Whether m wins against z and j, both of which it may precede; or against z₂ and z."""
    return ((o_m < o_z) | ((o_m == o_z) & before_true)) & ((o_m < o_j) | ((o_m == o_j) & before_other))


@no_type_check
@numba.njit(cache=True)
def _scan(a, phi, w, a_m, phi_m, o_z, before_true, before_other):
    """Of these others: how many have a_j − φ_m ≤ o_z, how many m wins against, and the weights of the latter."""
    near, wins, weight = 0, 0, 0.0
    for i in range(len(a)):
        o_m, o_j = a[i] - phi_m, a_m - phi[i]
        near += o_m <= o_z
        win = _wins(o_m, o_j, o_z, before_true, before_other)
        wins += win
        weight = _plus(weight, np.float64(w[i]) if win else 0.0)
    return near, wins, weight


@no_type_check
@numba.njit(cache=True)
def _challenge(a, phi, members, weight, a_j, phi_j, w_j, o_z, before_true, before_other):
    """Add j to the others of the actions m that win against it; return how many have a_j − φ_m ≤ o_z."""
    near, w = 0, np.float64(w_j)
    for i in range(len(a)):
        o_m, o_j = a_j - phi[i], a[i] - phi_j
        near += o_m <= o_z
        win = _wins(o_m, o_j, o_z, before_true, before_other)
        members[i] += win
        weight[i] += w if win else 0.0
    return near


@no_type_check
@numba.njit(cache=True)
def _first(ascending, number):
    """The first position of an ascending list whose number is at least this one."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


@no_type_check
@numba.njit(cache=True)
def _near(a, phi_m, o_z, out):
    """Write the positions where a − φ_m ≤ o_z to ``out``; return their number."""
    count = 0
    for start in range(0, len(a), _STRIDE):
        part = a[start : start + _STRIDE]
        new = 0
        for i in range(len(part)):
            new += part[i] - phi_m <= o_z
        if new:
            for i in range(len(part)):
                out[count] = start + i
                count += part[i] - phi_m <= o_z
    return count


@no_type_check
@numba.njit(cache=True)
def _find_candidates(phi, bound, z, z2, out):
    """Write the indices where φ ≥ its bound, z and z₂ to ``out``; return their number."""
    count = 0
    for start in range(0, len(phi), _STRIDE):
        part = phi[start : start + _STRIDE]
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
def _longer(values, count, more):
    """The values, in a list at least twice as long if this one has no room for ``more`` than ``count`` of them."""
    if count + more <= len(values):
        return values
    longer = np.empty(2 * len(values) + more, values.dtype)
    for i in range(count):
        longer[i] = values[i]
    return longer


@no_type_check
@numba.njit(cache=True)
def _find_others(cell, index, logit, work, listed):
    """For each visited candidate b, |O_b| and Σ_{j ∈ O_b} w_j without z; and, if ``listed``, all b and j as two lists.

    In the cell's list, a_z = inf, so that z is never one of the others.
    """
    phi, a, w, z, o_z = cell.phi, cell.a, cell.w, cell.z, cell.o_z
    sums, identity, positions, list_a, list_phi, list_w, list_j, visited, members, weight, order = work
    vocab = len(a)
    listed_c, listed_j, count = np.empty(0, np.int32), np.empty(0, np.int32), 0
    # About _FEW of V exponential numbers are so small that they matter to an action with a lower logit than this.
    few = a.dtype.type(np.log(_FEW) - 2 * np.log(vocab) - o_z if vocab > _FEW else np.inf)
    many, rest = 0, 0
    for c in range(len(index)):
        members[c], weight[c] = 0, 0.0
        if visited[c]:
            if logit[c] >= few:
                order[many] = c
                many += 1
            else:
                rest += 1
    others_a, others_phi, others_w, others_j, size = a, phi, w, identity, vocab
    for c in order[:many][np.argsort(-logit[order[:many]])]:
        m = index[c]
        a_m, phi_m, before_true = a[m], logit[c], m < z
        cut = _first(others_j[:size], m)  # j < m, then j ≥ m
        near = 0
        for start, stop in ((0, cut), (cut, size)):
            parts = others_a[start:stop], others_phi[start:stop], others_w[start:stop]
            part_near, part_members, part_weight = _scan(*parts, a_m, phi_m, o_z, before_true, start == cut)
            near += part_near
            members[c] += part_members
            weight[c] += part_weight
        if listed:
            listed_c, listed_j = _longer(listed_c, count, members[c] + 1), _longer(listed_j, count, members[c] + 1)
            for i in range(size):
                j = others_j[i]
                listed_c[count], listed_j[count] = c, j
                count += _wins(others_a[i] - phi_m, a_m - others_phi[i], o_z, before_true, m < j)
        if 4 * near < size:
            size = _near(others_a[:size], phi_m, o_z, positions)
            for i in range(size):
                p = positions[i]
                list_a[i], list_phi[i], list_w[i], list_j[i] = others_a[p], others_phi[p], others_w[p], others_j[p]
            others_a, others_phi, others_w, others_j = list_a, list_phi, list_w, list_j
    if rest == 0:
        return listed_c[:count], listed_j[:count]
    # From here on the lists hold the candidates that are left, and each of the few others shortens them.
    near = positions[: _near(others_a[:size], few, o_z, positions)]
    near = near[np.argsort(others_a[near])]
    near_a, near_phi, near_w, near_j = others_a[near], others_phi[near], others_w[near], others_j[near]
    size = 0
    for c in range(len(index)):
        if visited[c] and logit[c] < few:
            list_a[size], list_phi[size], list_j[size], order[size], sums[size] = a[index[c]], logit[c], c, 0, 0.0
            size += 1
    true_at = _first(index, z)
    for i in range(len(near_a)):
        a_j, phi_j, w_j, j = near_a[i], near_phi[i], near_w[i], near_j[i]
        # m < z and m < j, then only one of the two, then neither.
        cut_true = _first(list_j[:size], true_at)
        cut_other = _first(list_j[:size], _first(index, j))
        low, high = min(cut_true, cut_other), max(cut_true, cut_other)
        number = 0
        for start, stop in ((0, low), (low, high), (high, size)):
            parts = list_a[start:stop], list_phi[start:stop], order[start:stop], sums[start:stop]
            number += _challenge(*parts, a_j, phi_j, w_j, o_z, start < cut_true, start < cut_other)
        if listed:
            listed_c, listed_j = _longer(listed_c, count, size + 1), _longer(listed_j, count, size + 1)
            for k in range(size):
                c = list_j[k]
                listed_c[count], listed_j[count] = c, j
                count += _wins(a_j - list_phi[k], list_a[k] - phi_j, o_z, index[c] < z, index[c] < j)
        if 4 * number < size or i + 1 == len(near_a):
            new = 0
            for k in range(size):
                c = list_j[k]
                members[c], weight[c] = order[k], sums[k]
                list_a[new], list_phi[new], list_j[new] = list_a[k], list_phi[k], c
                order[new], sums[new] = order[k], sums[k]
                new += a_j - list_phi[k] <= o_z
            size = new
            if size == 0:
                break
    return listed_c[:count], listed_j[:count]


@no_type_check
@numba.njit(cache=True, inline="always")
def _swapped_with_true(cell, v):
    """z^{v⇌z} for v ≠ z: the least of three, the smaller index on a tie."""
    z, z2, o_z2 = cell.z, cell.z2, cell.o_z2
    o_v, o_true = cell.a_z - cell.phi[v], cell.a[v] - cell.phi[z]
    action, o = v, o_v
    if o_true < o_v or (o_true == o_v and z < v):
        action, o = z, o_true
    if z2 != v and (o_z2 < o or (o_z2 == o and z2 < action)):
        action = z2
    return action


@no_type_check
@numba.njit(cache=True)
def _runner_up_sums(cell, sums):
    """S of the runner-up less w_z: it is the default where z is the reference."""
    phi, a, w, z, z2 = cell.phi, cell.a, cell.w, cell.z, cell.z2
    a_z, phi_z, o_z, o_z2 = cell.a_z, cell.phi[z], cell.o_z, cell.o_z2
    a_2, phi_2, w_z, w_2 = a[z2], phi[z2], np.float64(w[z]), np.float64(w[z2])
    of_others, of_swaps = 0.0, 0.0
    before_true = z2 < z
    low, high = min(z, z2), max(z, z2)
    for start, stop in ((0, low), (low + 1, high), (high + 1, len(a))):
        before_v = z2 < start
        part_a, part_phi, part_w, part_sums = a[start:stop], phi[start:stop], w[start:stop], sums[start:stop]
        for i in range(len(part_a)):
            a_v, phi_v, w_v = part_a[i], part_phi[i], np.float64(part_w[i])
            o_v, o_true = a_z - phi_v, a_v - phi_z
            stays = ((o_z2 < o_v) | ((o_z2 == o_v) & before_v)) & ((o_z2 < o_true) | ((o_z2 == o_true) & before_true))
            wins = _wins(a_v - phi_2, a_2 - phi_v, o_z, before_true, before_v)
            of_swaps = _plus(of_swaps, w_v if stays else 0.0)
            of_others = _plus(of_others, w_v if wins else 0.0)
            part_sums[i] = (w_2 if wins else 0.0) - (0.0 if stays else w_z)
    if _swapped_with_true(cell, z2) == z2:
        of_swaps += w_2
    else:
        of_others -= w_z
    sums[z2], sums[z] = of_others, of_swaps - w_z


@no_type_check
@numba.njit(cache=True)
def _true_action_sums(cell, index, listed_c, listed_j, sums):
    """S of the true action, less the weights of all references but z, where it is the default.

    It is a branch only if another token was taken.
    """
    w, z = cell.w, cell.z
    sums[:] = 0.0
    for i in range(len(listed_c)):
        m, j = index[listed_c[i]], listed_j[i]
        sums[m] -= w[j]
        sums[j] -= w[m]
    for v in range(len(w)):
        if v == z:
            sums[z] += w[z]
        elif _swapped_with_true(cell, v) == z:
            sums[v] += w[z]
        else:
            sums[z] -= w[v]


@no_type_check
@numba.njit(cache=True)
def _square_and_sum(sums):
    squares, plain = 0.0, 0.0
    for v in range(len(sums)):
        squares = _plus(squares, sums[v] * sums[v])
        plain = _plus(plain, sums[v])
    return squares, plain


@no_type_check
@numba.njit(cache=True, nogil=True)
def search(phis, lines, logs, weights, tokens, work, found):
    """The first invalid row or −1; true actions, runners-up, numbers of branches and of candidates; all of these."""
    sums, visited, members, weight = work.sums, work.visited, work.members, work.weight
    action, norm, candidate, logit = found
    cells, vocab = logs.shape
    true, runner_up = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    branches, candidates = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    bad, branch, first = -1, 0, 0
    kind, slack = logs.dtype.type, 4 * np.finfo(logs.dtype).eps
    for r in range(cells):
        phi, a, w, token = phis[lines[r]], logs[r], weights[r], tokens[r]
        z, o_z, z2, o_z2 = two_smallest(a, phi)
        if not np.isfinite(o_z):
            bad = r
            break
        true[r], runner_up[r] = z, z2
        if o_z2 == np.inf:
            continue
        a_z, phi_z, w_z, o_z, o_z2 = a[z], phi[z], np.float64(w[z]), kind(o_z), kind(o_z2)
        a[z] = np.inf
        cell = Cell(phi, a, w, z, z2, a_z, o_z, o_z2)
        lowest = _least(a)
        # Others lead to m if a_j − φ_m ≤ o_z, z if a_z − φ_m ≤ o_z₂.
        bound = lowest - o_z - slack * (abs(lowest) + abs(o_z))
        bound = kind(min(bound, a_z - o_z2 - slack * (abs(a_z) + abs(o_z2))))
        count = _find_candidates(phi, bound, z, z2, candidate[first:])
        index, phi_c = candidate[first : first + count], logit[first : first + count]
        listed = token != z  # then the true action is a branch
        for c in range(count):
            phi_c[c] = phi[index[c]]
            visited[c] = index[c] != z and (listed or (index[c] != z2 and index[c] != token))
        listed_c, listed_j = _find_others(cell, index, phi_c, work, listed)
        for c in range(count):
            m = index[c]
            if m == token:
                continue
            if m == z:
                _true_action_sums(cell, index, listed_c, listed_j, sums)
                squares, plain = _square_and_sum(sums)
            elif m == z2:
                _runner_up_sums(cell, sums)
                squares, plain = _square_and_sum(sums)
            else:
                o_m, o_true = a_z - phi_c[c], a[m] - phi_z
                win = _wins(o_m, o_true, o_z2, m < z2, m < z)
                w_m, number, own = np.float64(w[m]), members[c] + win, weight[c] + (w_z if win else 0.0)
                squares, plain = own * own + number * w_m * w_m, own + number * w_m
            centred = squares - plain * plain / vocab
            if centred > ROUNDING * squares:
                action[branch], norm[branch] = m, np.sqrt(centred)
                branch += 1
                branches[r] += 1
        candidates[r] = count
        first += count
    lists = (action[:branch].copy(), norm[:branch].copy(), candidate[:first].copy(), logit[:first].copy())
    return bad, true, runner_up, branches, candidates, *lists


@no_type_check
@numba.njit(cache=True)
def _with_room(branch, coordinate, value, count, more):
    return _longer(branch, count, more), _longer(coordinate, count, more), _longer(value, count, more)


@no_type_check
@numba.njit(cache=True)
def _shift_to_zero(sums, common):
    """Add a constant so that a common value becomes zero if it occurs more often than zero."""
    more = 0
    for v in range(len(sums)):
        more += np.int64(sums[v] == common) - np.int64(sums[v] == 0)
    if more > 0:
        for v in range(len(sums)):
            sums[v] -= common


@no_type_check
@numba.njit(cache=True, nogil=True)
def write(lists, logs, weights, cells, phi, target, work, count, branch, coordinate, value):
    """Append the entries of the branches ``begin`` to ``end`` of cells with the candidates ``first`` to ``last``.

    Of candidates that are branches, ``target`` is the position. Before and afterwards all logits ``phi`` are −inf and
    all targets −1.
    """
    candidate, logit, action, position = lists
    trues, runners_up, first, last, begin, end = cells
    sums, visited, weight = work.sums, work.visited, work.weight
    vocab = logs.shape[1]
    for r in range(len(logs)):
        a, w, z, z2 = logs[r], weights[r], trues[r], runners_up[r]
        index, phi_c = candidate[first[r] : last[r]], logit[first[r] : last[r]]
        for c in range(len(index)):
            phi[index[c]] = phi_c[c]
            visited[c] = False
        a_z, phi_z, o_z2 = a[z], phi[z], a[z2] - phi[z2]
        a[z] = np.inf
        cell = Cell(phi, a, w, z, z2, a_z, a_z - phi_z, o_z2)
        listed_all = False
        for t in range(begin[r], end[r]):
            c = _first(index, action[t])
            target[c] = position[t]
            visited[c] = action[t] != z2
            listed_all |= action[t] == z
        if listed_all:
            for c in range(len(index)):
                visited[c] = index[c] != z
        listed_c, listed_j = _find_others(cell, index, phi_c, work, True)
        branch, coordinate, value = _with_room(branch, coordinate, value, count, len(listed_c))
        for i in range(len(listed_c)):
            c, j = listed_c[i], listed_j[i]
            m = index[c]
            if target[c] >= 0 and m != z2 and w[m] != 0:
                branch[count], coordinate[count], value[count] = target[c], j, w[m]
                count += 1
        for t in range(begin[r], end[r]):
            m = action[t]
            c = _first(index, m)
            if m in (z, z2):
                if m == z:
                    _true_action_sums(cell, index, listed_c, listed_j, sums)
                else:
                    _runner_up_sums(cell, sums)
                    _shift_to_zero(sums, -np.float64(w[z]))
                branch, coordinate, value = _with_room(branch, coordinate, value, count, vocab + 1)
                for v in range(vocab):
                    branch[count], coordinate[count], value[count] = target[c], v, sums[v]
                    count += sums[v] != 0
            else:
                own = weight[c]
                branch, coordinate, value = _with_room(branch, coordinate, value, count, 2)
                if _wins(a_z - phi_c[c], a[m] - phi_z, o_z2, m < z2, m < z):
                    own += w[z]
                    if w[m] != 0:
                        branch[count], coordinate[count], value[count] = target[c], z, w[m]
                        count += 1
                if own != 0:
                    branch[count], coordinate[count], value[count] = target[c], m, own
                    count += 1
        for c in range(len(index)):
            phi[index[c]] = -np.inf
            target[c] = -1
    return count, branch, coordinate, value


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
