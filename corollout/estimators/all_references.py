"""ARSM with all V references in O(V) time a token, and entries of coefficients only for the branches that are kept.

The table T[j, m] = z^{m⇌j} of pseudo-actions is symmetric. With a = ln π, o_i = a_i − φ_i, the true action z, the
runner-up z₂ and w_j = (1 − V π_j) / V, action b has the coefficients S_b[v] = Σ_j w_j 1[T[j, v] = b], up to a constant.
A pair {j, m} leads to j, to m, or to the best action outside of the pair: to z, or to z₂ if z is in the pair. So

    S_b[b] = Σ_{j ∈ O_b} w_j,   S_b[j] = w_b for j in O_b,   O_b = {j : T[j, b] = b},    b ≠ z, z₂,

and ‖C_b‖² = Σ S² − (Σ S)² / V follows from |O_b| and Σ_{j ∈ O_b} w_j: no entry needs to be written. A j ≠ z is in O_b
only if a_j − φ_b ≤ o_z, and all O_b together have about V members. Few actions b can have many: in descending order of
φ_b they are compared with a list of others that gets shorter and shorter. For the actions that remain, the few others
that are left are sorted.

After the search, a cell keeps the logits of its candidates, the actions that a swap can lead to. The others never win a
comparison, so that entries can be computed without their logits, and π is drawn again from the cell's key. All
comparisons are those of ``pseudo``, in the same precision and with ties to the smaller index: branches and coefficients
are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.pseudo import log_into, two_smallest
from corollout.estimators.pseudo_torch import row_error
from corollout.noise import exponential_into
from corollout.row_threads import by_rows

# Cells are processed in blocks of at most this many numbers; a thread processes parts of a block that fit in the cache.
_BLOCK, _PART = 1 << 21, 1 << 15
# Compiled loops look at this many positions at a time.
_STRIDE = 128
# About the length of the sorted list of others.
_FEW = 48
# Centred coefficients whose square is below this fraction of the plain square are zero up to rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class SwapSearch:
    """The branches (cell, action) of some cells, ordered by cell and action, and what their entries follow from."""

    vocab: int
    keys: Int64[Tensor, " cell"]
    steps: Int64[Tensor, " cell"]
    tokens: Int64[Tensor, " cell"]
    scale: Float[Tensor, " cell"]  # the sum of the exponential numbers
    true: Int64[Tensor, " cell"]  # z: the token, unless that is greedy or rounding decided
    runner_up: Int64[Tensor, " cell"]
    branches: Int64[Tensor, " cell"]  # how many the cell has
    candidates: Int64[Tensor, " cell"]  # how many the cell has
    action: Int32[Tensor, " branch"]
    norm: Float[Tensor, " branch"]  # ‖C_a‖
    candidate: Int32[Tensor, " candidate"]
    logit: Float[Tensor, " candidate"]

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "line vocab"],
        keys: Int64[Tensor, " cell"],
        steps: Int64[Tensor, " cell"],
        tokens: Int64[Tensor, " cell"],
        index: Int64[Tensor, " cell"] | None = None,
    ) -> "SwapSearch":
        """Search the cells that drew these tokens, with noise of these keys and steps.

        The logits of cell i are in line i, or in line ``index[i]``.
        """
        index = torch.arange(len(keys)) if index is None else index
        logits = _checked(logits, index)
        vocab = logits.shape[1]
        search = partial(_search_rows, logits.numpy())
        size = max(1, _BLOCK // vocab)
        buffer = logits.new_empty(min(len(keys), size), vocab)
        scales, parts = [], []
        for i in range(0, max(len(keys), 1), size):
            block_keys, block_steps, *rest = (x[i : i + size].numpy() for x in (keys, steps, index, tokens))
            e = buffer[: len(block_keys)]
            by_rows(exponential_into, vocab, e.numpy(), block_keys, block_steps)
            # PyTorch may add up a single row in another order than one of several.
            scale = e.sum(1) if len(e) != 1 else e.expand(2, -1).sum(1)[:1]
            scales.append(scale)
            for start, results in by_rows(search, vocab, e.numpy(), scale.numpy(), *rest):
                for first, (bad, *result) in results:
                    if bad >= 0:
                        cell = i + start + first + bad
                        raise row_error(cell, torch.zeros(1))
                    parts.append(result)
        columns = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        return cls(vocab, keys, steps, tokens, torch.cat(scales), *columns)

    @classmethod
    def join(cls, parts: "Sequence[SwapSearch]") -> "SwapSearch":
        """The cells of all parts; there is at least one part."""
        columns = (torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)[1:])
        return cls(parts[0].vocab, *columns)

    def select(self, kept: Int64[Tensor, " kept"]) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " kept"]]:
        """The cells and the actions of some branches."""
        return torch.searchsorted(self.branches.cumsum(0), kept, right=True), self.action[kept].long()

    def entries(
        self, kept: Int64[Tensor, " kept"]
    ) -> tuple[Int64[Tensor, " entry"], Int64[Tensor, " entry"], Float[Tensor, " entry"]]:
        """The coefficients of some branches, up to a constant for each: position within ``kept``, coordinate and value.

        Coordinates without an entry are zero.
        """
        cell, action = self.select(kept)
        cell, position = cell.sort(stable=True)
        cell, counts = cell.unique_consecutive(return_counts=True)
        branches = (action[position].numpy(), position.numpy())
        write = partial(_write_rows, self.candidate.numpy(), self.logit.numpy(), *branches)
        last_candidate, last_branch = self.candidates.cumsum(0), counts.cumsum(0)
        columns = (self.keys, self.steps, self.scale, self.true, self.runner_up)
        ranges = ((last_candidate - self.candidates)[cell], last_candidate[cell], last_branch - counts, last_branch)
        arrays = [x.numpy() for x in (*(column[cell] for column in columns), *ranges)]
        size = max(1, _BLOCK // self.vocab)
        buffer = self.scale.new_empty(min(len(cell), size), self.vocab).numpy()
        parts = []
        for i in range(0, max(len(cell), 1), size):
            block_keys, *rest = (array[i : i + size] for array in arrays)
            parts.extend(part for _, part in by_rows(write, self.vocab, buffer[: len(block_keys)], block_keys, *rest))
        branch, coordinate, value = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        return branch, coordinate, value


def _checked(logits: Tensor, index: Tensor) -> Tensor:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise InputError(f"logits must be of shape [lines, V] with V ≥ 1, not {list(logits.shape)}")
    if logits.dtype not in (torch.float32, torch.float64):
        raise InputError(f"logits must be float32 or float64, not {logits.dtype}")
    if len(index) and not (0 <= int(index.min()) and int(index.max()) < len(logits)):
        raise InputError(
            f"there are {len(logits)} lines of logits, but cells with lines {index.min()} to {index.max()}"
        )
    return logits.detach().contiguous()


def _search_rows(
    phis: np.ndarray, e: np.ndarray, scale: np.ndarray, index: np.ndarray, tokens: np.ndarray
) -> list[tuple[int, Any]]:
    """The first row of each part and the result of its loop. ``e`` is overwritten."""
    size = max(1, _PART // e.shape[1])
    logs = np.empty((min(size, len(e)), e.shape[1]), e.dtype)
    work, found = _work(e.shape[1], e.dtype), _found(max(logs.size, 1), e.dtype)
    results = []
    for i in range(0, max(len(e), 1), size):
        part = slice(i, i + size)
        a = logs[: len(e[part])]
        _prepare(e[part], scale[part], a)
        results.append((i, _search(phis, index[part], a, e[part], tokens[part], work, found)))
    return results


def _write_rows(
    candidate: np.ndarray,
    logit: np.ndarray,
    action: np.ndarray,
    position: np.ndarray,
    e: np.ndarray,
    keys: np.ndarray,
    steps: np.ndarray,
    scale: np.ndarray,
    *cells: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of some cells. ``e`` is overwritten."""
    size = max(1, _PART // e.shape[1])
    logs = np.empty((min(size, len(e)), e.shape[1]), e.dtype)
    work, phi = _work(e.shape[1], e.dtype), np.full(e.shape[1], -np.inf, e.dtype)
    target, count = np.full(e.shape[1], -1), 0
    entries = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, e.dtype)
    for i in range(0, max(len(e), 1), size):
        part = slice(i, i + size)
        a = logs[: len(e[part])]
        exponential_into(e[part], keys[part], steps[part])
        _prepare(e[part], scale[part], a)
        lists = (candidate, logit, action, position)
        columns = (column[part] for column in cells)
        count, *entries = _write(*lists, a, e[part], *columns, phi, target, work, count, *entries)
    branch, coordinate, value = entries
    return branch[:count], coordinate[:count], value[:count]


def _prepare(e: np.ndarray, scale: np.ndarray, a: np.ndarray) -> None:
    """Make a = ln π of exponential numbers, and w of them."""
    _divide(e, scale)
    log_into(a, e)
    _weigh(e)


def _work(vocab: int, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Buffers of a thread: sums; positions, and a list of others; what is known about the candidates of a cell."""
    others = (np.empty(vocab, dtype), np.empty(vocab, dtype), np.empty(vocab, dtype), np.empty(vocab, np.int32))
    counts = (np.empty(vocab, np.bool_), np.empty(vocab, np.int64), np.empty(vocab, np.float64))
    return (
        np.empty(vocab, np.float64),
        np.arange(vocab, dtype=np.int32),
        np.empty(vocab, np.int32),
        *others,
        *counts,
        np.empty(vocab, np.int64),
    )


def _found(size: int, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Buffers for the actions and norms of branches and for the indices and logits of candidates."""
    return np.empty(size, np.int32), np.empty(size, dtype), np.empty(size, np.int32), np.empty(size, dtype)


# --- compiled loops; those without branches are vectorised ---------------------------------------------------------


@no_type_check
@numba.njit(cache=True, nogil=True)
def _divide(e, scale):
    for r in range(len(e)):
        total = scale[r]
        for i in range(e.shape[1]):
            e[r, i] /= total


@no_type_check
@numba.njit(cache=True, nogil=True)
def _weigh(pi):
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
                if phi[m] >= bound or m == z or m == z2:
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
    longer[:count] = values[:count]
    return longer


@no_type_check
@numba.njit(cache=True)
def _find_others(index, logit, phi, a, w, z, o_z, work, listed):
    """For each visited candidate b, |O_b| and Σ_{j ∈ O_b} w_j without z; and, if ``listed``, all b and j as two lists.

    Here a_z = inf, so that z is never one of the others.
    """
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
        cut = np.searchsorted(others_j[:size], m)  # j < m, then j ≥ m
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
    true_at = np.searchsorted(index, z)
    for i in range(len(near_a)):
        a_j, phi_j, w_j, j = near_a[i], near_phi[i], near_w[i], near_j[i]
        # m < z and m < j, then only one of the two, then neither.
        cut_true = np.searchsorted(list_j[:size], true_at)
        cut_other = np.searchsorted(list_j[:size], np.searchsorted(index, j))
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
                list_a[new], list_phi[new], list_j[new], order[new], sums[new] = (
                    list_a[k],
                    list_phi[k],
                    c,
                    order[k],
                    sums[k],
                )
                new += a_j - list_phi[k] <= o_z
            size = new
            if size == 0:
                break
    return listed_c[:count], listed_j[:count]


@no_type_check
@numba.njit(cache=True, inline="always")
def _swapped_with_true(v, a_v, phi_v, z, a_z, phi_z, z2, o_z2):
    """z^{v⇌z}: the least of three, the smaller index on a tie."""
    o_v, o_true = a_z - phi_v, a_v - phi_z
    action, o = v, o_v
    if o_true < o_v or (o_true == o_v and z < v):
        action, o = z, o_true
    if z2 != v and (o_z2 < o or (o_z2 == o and z2 < action)):
        action = z2
    return action


@no_type_check
@numba.njit(cache=True)
def _runner_up_sums(phi, a, w, z, a_z, phi_z, z2, o_z, o_z2, sums):
    """S of the runner-up less w_z: its default in the row of the table that belongs to z."""
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
    if _swapped_with_true(z2, a_2, phi_2, z, a_z, phi_z, z2, o_z2) == z2:
        of_swaps += w_2
    else:
        of_others -= w_z
    sums[z2], sums[z] = of_others, of_swaps - w_z


@no_type_check
@numba.njit(cache=True)
def _true_action_sums(index, listed_c, listed_j, phi, a, w, z, a_z, phi_z, z2, o_z2, sums):
    """S of the true action, which is a branch only if another token was taken, less Σ w: its default elsewhere."""
    sums[:] = 0.0
    for i in range(len(listed_c)):
        m, j = index[listed_c[i]], listed_j[i]
        sums[m] -= w[j]
        sums[j] -= w[m]
    for v in range(len(a)):
        if v == z:
            sums[z] += w[z]
        elif _swapped_with_true(v, a[v], phi[v], z, a_z, phi_z, z2, o_z2) == z:
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
def _search(phis, lines, logs, weights, tokens, work, found):
    """The first invalid row or −1; true actions, runners-up, numbers of branches and of candidates; all of these."""
    sums, visited, members, weight = work[0], work[7], work[8], work[9]
    action, norm, candidate, logit = found
    cells, vocab = logs.shape
    true, runner_up = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    branches, candidates = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    bad, branch, first = -1, 0, 0
    slack = 4 * np.finfo(logs.dtype).eps
    for r in range(cells):
        phi, a, w, token = phis[lines[r]], logs[r], weights[r], tokens[r]
        z, o_z, z2, o_z2 = two_smallest(a, phi)
        if not np.isfinite(o_z):
            bad = r
            break
        true[r], runner_up[r] = z, z2
        if o_z2 == np.inf:
            continue
        a_z, phi_z, w_z = a[z], phi[z], np.float64(w[z])
        a[z] = np.inf
        lowest = _least(a)
        # Others lead to m if a_j − φ_m ≤ o_z, z if a_z − φ_m ≤ o_z₂.
        bound = lowest - o_z - slack * (abs(lowest) + abs(o_z))
        bound = logs.dtype.type(min(bound, a_z - o_z2 - slack * (abs(a_z) + abs(o_z2))))
        count = _find_candidates(phi, bound, z, z2, candidate[first:])
        index, phi_c = candidate[first : first + count], logit[first : first + count]
        listed = token != z  # then the true action is a branch
        for c in range(count):
            phi_c[c] = phi[index[c]]
            visited[c] = index[c] != z and (listed or (index[c] != z2 and index[c] != token))
        listed_c, listed_j = _find_others(index, phi_c, phi, a, w, z, o_z, work, listed)
        for c in range(count):
            m = index[c]
            if m == token:
                continue
            if m == z:
                _true_action_sums(index, listed_c, listed_j, phi, a, w, z, a_z, phi_z, z2, o_z2, sums)
                squares, plain = _square_and_sum(sums)
            elif m == z2:
                _runner_up_sums(phi, a, w, z, a_z, phi_z, z2, o_z, o_z2, sums)
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
def _write(
    candidate,
    logit,
    action,
    position,
    logs,
    weights,
    trues,
    runners_up,
    first,
    last,
    begin,
    end,
    phi,
    target,
    work,
    count,
    branch,
    coordinate,
    value,
):
    """Append the entries of the branches ``begin`` to ``end`` of cells with the candidates ``first`` to ``last``.

    Of candidates that are branches, ``target`` is the position. Before and afterwards all logits ``phi`` are −inf and
    all targets −1.
    """
    sums, visited, members, weight = work[0], work[7], work[8], work[9]
    cells, vocab = logs.shape
    for r in range(cells):
        a, w, z, z2 = logs[r], weights[r], trues[r], runners_up[r]
        index, phi_c = candidate[first[r] : last[r]], logit[first[r] : last[r]]
        for c in range(len(index)):
            phi[index[c]] = phi_c[c]
            visited[c] = False
        a_z, phi_z, o_z, o_z2 = a[z], phi[z], a[z] - phi[z], a[z2] - phi[z2]
        a[z] = np.inf
        listed_all = False
        for t in range(begin[r], end[r]):
            c = np.searchsorted(index, action[t])
            target[c] = position[t]
            visited[c] = action[t] != z2
            listed_all |= action[t] == z
        if listed_all:
            for c in range(len(index)):
                visited[c] = index[c] != z
        listed_c, listed_j = _find_others(index, phi_c, phi, a, w, z, o_z, work, True)
        branch, coordinate, value = _with_room(branch, coordinate, value, count, len(listed_c))
        for i in range(len(listed_c)):
            c, j = listed_c[i], listed_j[i]
            m = index[c]
            if target[c] >= 0 and m != z2 and w[m] != 0:
                branch[count], coordinate[count], value[count] = target[c], j, w[m]
                count += 1
        for t in range(begin[r], end[r]):
            m = action[t]
            c = np.searchsorted(index, m)
            if m == z or m == z2:
                if m == z:
                    _true_action_sums(index, listed_c, listed_j, phi, a, w, z, a_z, phi_z, z2, o_z2, sums)
                else:
                    _runner_up_sums(phi, a, w, z, a_z, phi_z, z2, o_z, o_z2, sums)
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
