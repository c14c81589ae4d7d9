"""Swaps among the candidates of a cell, compiled: what the search for branches and the entries of some have in common.

Loops without branches are vectorised.
"""

from typing import NamedTuple, no_type_check

import numpy as np

from corollout.numba_cache import numba

# Loops look at this many positions at a time.
STRIDE = 128
# About the length of the sorted list of others.
FEW = 48


class Work(NamedTuple):
    """Buffers of a thread, of V numbers each."""

    sums: np.ndarray  # S of an action
    identity: np.ndarray  # 0 … V − 1
    positions: np.ndarray
    phi: np.ndarray  # of the candidates
    a: np.ndarray
    w: np.ndarray
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
            phi=np.empty(vocab, dtype),
            a=np.empty(vocab, dtype),
            w=np.empty(vocab, dtype),
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
    """The logits, a and w of the candidates of a cell, where a_z is listed as inf, and its two smallest o.

    Actions are given by their positions among the candidates, which ascend with the actions.
    """

    phi: np.ndarray
    a: np.ndarray
    w: np.ndarray
    z: int
    z2: int
    a_z: float
    o_z: float
    o_z2: float
    vocab: int


@no_type_check
@numba.njit(cache=True, nogil=True)
def divide(e, lengths, scale):
    """Divide consecutive runs of these lengths by the scale of each."""
    first = 0
    for r in range(len(lengths)):
        run, total = e[first : first + lengths[r]], scale[r]
        for i in range(len(run)):
            run[i] /= total
        first += lengths[r]


@no_type_check
@numba.njit(cache=True, nogil=True)
def weigh(pi, vocab):
    """w = (1 − V π) / V, in place."""
    one, size = pi.dtype.type(1), pi.dtype.type(vocab)
    for i in range(len(pi)):
        pi[i] = (one - size * pi[i]) / size


@no_type_check
@numba.njit(cache=True, fastmath={"reassoc"})
def plus(x, y):
    """A sum whose order does not matter, so that loops of it are vectorised."""
    return x + y


@no_type_check
@numba.njit(cache=True, inline="always")
def wins_swap(o_m, o_j, o_z, before_true, before_other):
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
        win = wins_swap(o_m, o_j, o_z, before_true, before_other)
        wins += win
        weight = plus(weight, np.float64(w[i]) if win else 0.0)
    return near, wins, weight


@no_type_check
@numba.njit(cache=True)
def _challenge(a, phi, members, weight, a_j, phi_j, w_j, o_z, before_true, before_other):
    """Add j to the others of the actions m that win against it; return how many have a_j − φ_m ≤ o_z."""
    near, w = 0, np.float64(w_j)
    for i in range(len(a)):
        o_m, o_j = a_j - phi[i], a[i] - phi_j
        near += o_m <= o_z
        win = wins_swap(o_m, o_j, o_z, before_true, before_other)
        members[i] += win
        weight[i] += w if win else 0.0
    return near


@no_type_check
@numba.njit(cache=True)
def first_at_least(ascending, number):
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
def few_others(cell, number):
    """A logit below which only about FEW of so many others, which have exponential numbers, matter to an action."""
    logit = np.log(FEW) - np.log(number) - np.log(cell.vocab) - cell.o_z if number > FEW else np.inf
    return cell.a.dtype.type(logit)


@no_type_check
@numba.njit(cache=True)
def find_near(a, phi_m, o_z, out):
    """Write the positions where a − φ_m ≤ o_z to ``out``; return their number."""
    count = 0
    for start in range(0, len(a), STRIDE):
        part = a[start : start + STRIDE]
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
def longer(values, count, more):
    """The values, in a list at least twice as long if this one has no room for ``more`` than ``count`` of them."""
    if count + more <= len(values):
        return values
    longer = np.empty(2 * len(values) + more, values.dtype)
    for i in range(count):
        longer[i] = values[i]
    return longer


@no_type_check
@numba.njit(cache=True)
def find_others(cell, work, listed):
    """For each visited b, |O_b| and Σ_{j ∈ O_b} w_j among the candidates without z; and, if ``listed``, all b and j.

    In the cell's list, a_z = inf, so that z is never one of the others.
    """
    phi, a, w, z, o_z = cell.phi, cell.a, cell.w, cell.z, cell.o_z
    sums, positions, order = work.sums, work.positions, work.order
    list_a, list_phi, list_w, list_j = work.list_a, work.list_phi, work.list_w, work.list_j
    visited, members, weight = work.visited, work.members, work.weight
    listed_b, listed_j, count = np.empty(0, np.int32), np.empty(0, np.int32), 0
    few = few_others(cell, len(a))
    many, rest = 0, 0
    for b in range(len(a)):
        members[b], weight[b] = 0, 0.0
        if visited[b]:
            if phi[b] >= few:
                order[many] = b
                many += 1
            else:
                rest += 1
    others_a, others_phi, others_w, others_j, size = a, phi, w, work.identity, len(a)
    for b in order[:many][np.argsort(-phi[order[:many]])]:
        a_b, phi_b, before_true = a[b], phi[b], b < z
        cut = first_at_least(others_j[:size], b)  # j < b, then j ≥ b
        near = 0
        for start, stop in ((0, cut), (cut, size)):
            parts = others_a[start:stop], others_phi[start:stop], others_w[start:stop]
            part_near, part_members, part_weight = _scan(*parts, a_b, phi_b, o_z, before_true, start == cut)
            near += part_near
            members[b] += part_members
            weight[b] += part_weight
        if listed:
            listed_b, listed_j = longer(listed_b, count, members[b] + 1), longer(listed_j, count, members[b] + 1)
            for i in range(size):
                j = others_j[i]
                listed_b[count], listed_j[count] = b, j
                count += wins_swap(others_a[i] - phi_b, a_b - others_phi[i], o_z, before_true, b < j)
        if 4 * near < size:
            size = find_near(others_a[:size], phi_b, o_z, positions)
            for i in range(size):
                p = positions[i]
                list_a[i], list_phi[i], list_w[i], list_j[i] = others_a[p], others_phi[p], others_w[p], others_j[p]
            others_a, others_phi, others_w, others_j = list_a, list_phi, list_w, list_j
    if rest == 0:
        return listed_b[:count], listed_j[:count]
    # From here on the lists hold the candidates that are left, and each of the few others shortens them.
    near = positions[: find_near(others_a[:size], few, o_z, positions)]
    near = near[np.argsort(others_a[near])]
    near_a, near_phi, near_w, near_j = others_a[near], others_phi[near], others_w[near], others_j[near]
    size = 0
    for b in range(len(a)):
        if visited[b] and phi[b] < few:
            list_a[size], list_phi[size], list_j[size], order[size], sums[size] = a[b], phi[b], b, 0, 0.0
            size += 1
    for i in range(len(near_a)):
        a_j, phi_j, w_j, j = near_a[i], near_phi[i], near_w[i], near_j[i]
        # b < z and b < j, then only one of the two, then neither.
        cut_true, cut_other = first_at_least(list_j[:size], z), first_at_least(list_j[:size], j)
        low, high = min(cut_true, cut_other), max(cut_true, cut_other)
        number = 0
        for start, stop in ((0, low), (low, high), (high, size)):
            parts = list_a[start:stop], list_phi[start:stop], order[start:stop], sums[start:stop]
            number += _challenge(*parts, a_j, phi_j, w_j, o_z, start < cut_true, start < cut_other)
        if listed:
            listed_b, listed_j = longer(listed_b, count, size + 1), longer(listed_j, count, size + 1)
            for k in range(size):
                b = list_j[k]
                listed_b[count], listed_j[count] = b, j
                count += wins_swap(a_j - list_phi[k], list_a[k] - phi_j, o_z, b < z, b < j)
        if 4 * number < size or i + 1 == len(near_a):
            new = 0
            for k in range(size):
                b = list_j[k]
                members[b], weight[b] = order[k], sums[k]
                list_a[new], list_phi[new], list_j[new] = list_a[k], list_phi[k], b
                order[new], sums[new] = order[k], sums[k]
                new += a_j - list_phi[k] <= o_z
            size = new
            if size == 0:
                break
    return listed_b[:count], listed_j[:count]


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
def runner_up_sums(cell, sums):
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
            wins = wins_swap(a_v - phi_2, a_2 - phi_v, o_z, before_true, before_v)
            of_swaps = plus(of_swaps, w_v if stays else 0.0)
            of_others = plus(of_others, w_v if wins else 0.0)
            part_sums[i] = (w_2 if wins else 0.0) - (0.0 if stays else w_z)
    if _swapped_with_true(cell, z2) == z2:
        of_swaps += w_2
    else:
        of_others -= w_z
    sums[z2], sums[z] = of_others, of_swaps - w_z


@no_type_check
@numba.njit(cache=True)
def true_action_sums(cell, listed_b, listed_j, sums):
    """S of the true action, less the weights of all references but z, where it is the default.

    It is a branch only if another token was taken. All actions must be candidates.
    """
    w, z = cell.w, cell.z
    sums[:] = 0.0
    for i in range(len(listed_b)):
        b, j = listed_b[i], listed_j[i]
        sums[b] -= w[j]
        sums[j] -= w[b]
    for v in range(len(w)):
        if v == z:
            sums[z] += w[z]
        elif _swapped_with_true(cell, v) == z:
            sums[v] += w[z]
        else:
            sums[z] -= w[v]
