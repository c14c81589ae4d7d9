"""Pseudo-actions: what would have been drawn, had two coordinates of π been exchanged.

With a = ln π and o_i = a_i − φ_i the true action is z = argmin_i o_i. Exchanging π_j and π_m changes two of the o's,

    o'_j = a_m − φ_j,   o'_m = a_j − φ_m,

so the pseudo-action z^{m⇌j} is the least of these two and of the smallest o outside {j, m}. A table of all K · V of
them is nearly constant: for a reference j ≠ z the default is z, for j = z it is the runner-up, and an entry departs
from it only if m = z, or a_j − φ_m ≤ o_z, or a_m − φ_j ≤ o_z. Over all V² pairs a few V entries do. They are found
here by comparing sorted candidates, so that K references cost about a pass over the vocabulary and all V of them
O(V log V), where the table costs K · V. On the CPU the search is a compiled loop; elsewhere it is made of PyTorch
operations on blocks of rows. Both give the same entries.

Ties go to the smaller index, as in ``argmin``. Masked actions (φ = −inf) are never drawn.
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.row_threads import by_rows

# Rows are treated in blocks of about this many numbers, so that temporaries stay in the cache.
_BLOCK = 1 << 18
# Compiled loops look at so many positions at a time.
_STRIDE = 128
# PyTorch treats so many numbers in one thread.
_PIECE = 1 << 15


@dataclass(frozen=True)
class PseudoActions:
    """The table z^{m⇌j_k} of every row: a default for each reference, and a list of the entries that depart from it."""

    vocab: int
    true: Int64[Tensor, " row"]  # z
    references: Int64[Tensor, "row reference"]  # j_k
    default: Int64[Tensor, "row reference"]
    row: Int64[Tensor, " entry"]
    reference: Int64[Tensor, " entry"]  # k, not j_k
    swap: Int64[Tensor, " entry"]  # m
    action: Int64[Tensor, " entry"]

    def dense(self) -> Int64[Tensor, "row reference vocab"]:
        """The whole table: rows × K × V numbers."""
        table = self.default[:, :, None].repeat(1, 1, self.vocab)
        table[self.row, self.reference, self.swap] = self.action
        return table

    def unique(self) -> tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"]]:
        """The different pseudo-actions of each row, as (row, action) in ascending order; z itself may be one."""
        rows, k = self.default.shape
        departed = torch.zeros(rows * k, dtype=torch.int64, device=self.row.device)
        departed.index_add_(0, self.row * k + self.reference, torch.ones_like(self.row))
        some_default = (departed < self.vocab).view(rows, k).nonzero()[:, 0]
        defaults = self.default[(departed < self.vocab).view(rows, k)]
        code = torch.cat([self.row * self.vocab + self.action, some_default * self.vocab + defaults]).unique()
        return code // self.vocab, code % self.vocab


def pseudo_actions(
    logits: Float[Tensor, "row vocab"],
    pi: Float[Tensor, "row vocab"],
    references: Int64[Tensor, " reference"] | Int64[Tensor, "row reference"],
) -> PseudoActions:
    """All pseudo-actions of each row, exactly (Algorithm 1 of the paper, appendix C).

    ``pi`` is a draw from Dirichlet(1, …, 1) for each row; ``references`` are K different actions, the same for all
    rows or K for each.
    """
    references = _checked(logits, pi, references)
    logits, pi = logits.detach(), pi.detach()
    if logits.device.type == "cpu":
        true, default, entries = _search_compiled(logits, pi.contiguous(), references)
    else:
        true, default, entries = _search_torch(logits, pi.log(), references)
    return PseudoActions(logits.shape[1], true, references, default, *entries)


def _checked(logits: Tensor, pi: Tensor, references: Tensor) -> Tensor:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise InputError(f"logits must be of shape [rows, V] with V ≥ 1, not {list(logits.shape)}")
    rows, vocab = logits.shape
    if pi.shape != logits.shape:
        raise InputError(f"pi must have the shape of the logits, {list(logits.shape)}, not {list(pi.shape)}")
    if pi.dtype != logits.dtype or pi.dtype not in (torch.float32, torch.float64):
        raise InputError(f"logits and pi must both be float32 or both float64, not {logits.dtype} and {pi.dtype}")
    shared = references.ndim == 1
    references = references[None] if shared else references
    if references.ndim != 2 or not (shared or len(references) == rows) or references.shape[1] == 0:
        given = list(references.shape)[1:] if shared else list(references.shape)
        raise InputError(f"references must be of shape [K] or [rows, K] with K ≥ 1, not {given}")
    if references.shape[1] > vocab:
        raise InputError(f"there are {references.shape[1]} references, but only V = {vocab} actions to choose from")
    ordered = references.sort(1).values
    if len(ordered) and (int(ordered[:, 0].min()) < 0 or int(ordered[:, -1].max()) >= vocab):
        raise InputError(f"references must be actions from 0 to {vocab - 1}")
    if bool((ordered.diff(dim=1) == 0).any()):
        raise InputError("a reference stands twice in one row: references are drawn without replacement")
    return references.expand(rows, -1) if shared else references


def _refused(row: int, a: Tensor) -> InputError:
    """Why nothing can be drawn in a row that has this a = ln π."""
    if not bool(a.isfinite().all()):
        return InputError(f"pi of row {row} is not positive and finite: use a draw from Dirichlet(1, …, 1)")
    return InputError(
        f"the logits of row {row} contain NaN or +inf, or are all −inf: there is no distribution to draw from"
    )


_Entries = tuple[Tensor, Tensor, Tensor, Tensor]  # row, reference, swap, action


def _search_torch(phi: Tensor, a: Tensor, references: Tensor) -> tuple[Tensor, Tensor, _Entries]:
    """True actions, defaults and departing entries, on any device; a = ln π."""
    size = max(1, _BLOCK // phi.shape[1])
    blocks = [
        _block(phi[i : i + size], a[i : i + size], references[i : i + size], i)
        for i in range(0, max(len(phi), 1), size)
    ]
    true, default = torch.cat([block[0] for block in blocks]), torch.cat([block[1] for block in blocks])
    row, reference, swap, action = (torch.cat([block[2][part] for block in blocks]) for part in range(4))
    return true, default, (row, reference, swap, action)


def _block(phi: Tensor, a: Tensor, references: Tensor, start: int) -> tuple[Tensor, Tensor, _Entries]:
    vocab = phi.shape[1]
    best, true = (a - phi).min(1)
    bad = ~(best.isfinite() & (a.amax(1) < torch.inf))
    if bad.any():
        row = int(bad.nonzero()[0])
        raise _refused(start + row, a[row])
    if vocab == 1 or len(phi) == 0:
        nothing = torch.empty(0, dtype=torch.int64, device=phi.device)
        return true, torch.zeros_like(references), (nothing, nothing, nothing, nothing)
    # "Rest" is everything but z: a masked action, as it were.
    a_rest = a.scatter(1, true[:, None], torch.inf)
    phi_rest = phi.scatter(1, true[:, None], -torch.inf)
    second, runner_up = (a_rest - phi_rest).min(1)
    alone = second == torch.inf  # nothing but z can be drawn
    is_true = references == true[:, None]
    default = torch.where(is_true & ~alone[:, None], runner_up[:, None], true[:, None])

    def entries(row: Tensor, reference: Tensor, swap: Tensor) -> _Entries:
        """Of the proposed entries, those that depart from their default, with their pseudo-actions."""
        j = references[row, reference]
        o_j = a[row, swap] - phi[row, j]
        o_m = a[row, j] - phi[row, swap]
        # The smallest o outside {j, m}. Where that would be the third, {j, m} = {z, runner-up} and one of the two
        # exchanged values is no larger than it: rounding is monotone, so this holds in floating point too.
        z, z2 = true[row], runner_up[row]
        z_free = (z != j) & (z != swap)
        z2_free = (z2 != j) & (z2 != swap)
        other = torch.where(z_free, z, z2)
        o_other = torch.where(z_free, best[row], torch.where(z2_free, second[row], torch.inf))
        action = _least(o_j, j, o_m, swap)
        action = _least(torch.minimum(o_j, o_m), action, o_other, other)
        departs = action != default[row, reference]
        return row[departs] + start, reference[departs], swap[departs], action[departs]

    # References other than z, swapped with actions other than z: a_j − φ_m ≤ o_z or a_m − φ_j ≤ o_z.
    a_reference, phi_reference = a_rest.gather(1, references), phi_rest.gather(1, references)
    row_1, k_1, m_1 = _pairs(a_reference, phi_rest, best)
    row_2, m_2, k_2 = _pairs(a_rest, phi_reference, best)
    width = references.shape[1]
    code = (torch.cat([row_1, row_2]) * width + torch.cat([k_1, k_2])) * vocab + torch.cat([m_1, m_2])
    code = code.unique()
    crossed = entries(code // (vocab * width), code // vocab % width, code % vocab)
    # References other than z, swapped with z; and z as the reference, swapped with anything.
    row, k = (~is_true).nonzero(as_tuple=True)
    with_true = entries(row, k, true[row])
    row, k = (is_true & ~alone[:, None]).nonzero(as_tuple=True)
    swaps = torch.arange(vocab, device=phi.device).repeat(len(row))
    from_true = entries(row.repeat_interleave(vocab), k.repeat_interleave(vocab), swaps)

    row, k, m, action = (torch.cat(parts) for parts in zip(crossed, with_true, from_true, strict=True))
    return true, default, (row, k, m, action)


def _least(value_1: Tensor, index_1: Tensor, value_2: Tensor, index_2: Tensor) -> Tensor:
    """The index of the smaller value; of equal ones, the smaller index."""
    first = (value_1 < value_2) | ((value_1 == value_2) & (index_1 < index_2))
    return torch.where(first, index_1, index_2)


def _pairs(
    x: Float[Tensor, "row left"], y: Float[Tensor, "row right"], limit: Float[Tensor, " row"]
) -> tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"], Int64[Tensor, " pair"]]:
    """Every (row, left, right) with x − y ≤ limit in floating point, and perhaps a few more.

    An x that has no partner is left out by comparing it with the largest y, and the other way about; the rest is
    sorted, so that the partners of each y are the first so-and-so-many of the x.
    """
    slack = 4 * torch.finfo(x.dtype).eps
    lowest = x.amin(1)
    bound = lowest - limit - slack * (lowest.abs() + limit.abs())
    y_row, y_index, y_pad = _ragged(y, y >= bound[:, None], -torch.inf)
    if len(y_row) == 0:
        return y_row, y_row, y_row
    highest = y_pad.amax(1)
    bound = limit + highest + slack * (limit.abs() + highest.abs())
    bound = torch.where(highest == -torch.inf, -torch.inf, bound)
    x_row, x_index, x_pad = _ragged(x, x <= bound[:, None], torch.inf)
    index_pad = torch.zeros(x_pad.shape, dtype=torch.int64, device=x.device)
    index_pad[x_row, _position(x_row)] = x_index
    x_pad, order = x_pad.sort(1)
    threshold = limit[:, None] + y_pad + slack * (limit.abs()[:, None] + y_pad.abs())
    threshold = torch.where(y_pad == -torch.inf, -torch.inf, threshold)
    partners = torch.searchsorted(x_pad, threshold, right=True)[y_row, _position(y_row)]
    right = torch.arange(len(y_row), device=x.device).repeat_interleave(partners)
    row = y_row[right]
    return row, index_pad[row, order[row, _position(right)]], y_index[right]


def _ragged(
    values: Float[Tensor, "row column"], mask: Bool[Tensor, "row column"], fill: float
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " kept"], Float[Tensor, "row slot"]]:
    """The masked entries as (row, column), and their values packed to the left of a narrower table."""
    row, column = mask.nonzero(as_tuple=True)
    slots = int(torch.bincount(row).max()) if len(row) else 0
    packed = values.new_full((len(values), slots), fill)
    packed[row, _position(row)] = values[row, column]
    return row, column, packed


def _position(group: Int64[Tensor, " item"]) -> Int64[Tensor, " item"]:
    """The place of each item within its run of equal numbers; the numbers ascend."""
    index = torch.arange(len(group), device=group.device)
    if len(group) == 0:
        return index
    fresh = torch.ones_like(group, dtype=torch.bool)
    fresh[1:] = group[1:] != group[:-1]
    return index - torch.where(fresh, index, 0).cummax(0).values


def _search_compiled(phi: Tensor, pi: Tensor, references: Tensor) -> tuple[Tensor, Tensor, _Entries]:
    """The same as ``_search_torch``, from π itself, by a compiled loop over rows."""
    parts = by_rows(_search_rows, phi.shape[1], phi.numpy(), pi.numpy(), references.numpy())
    found = [(start + first, *result) for start, part in parts for first, result in part]
    for start, bad, *_ in found:
        if bad >= 0:
            raise _refused(start + bad, pi[start + bad].log())
    true, default = (np.concatenate([result[i] for result in found]) for i in (2, 3))
    row = np.concatenate([start + entries[0] for start, *_, entries in found])
    reference, swap, action = (np.concatenate([entries[i] for *_, entries in found]) for i in (1, 2, 3))
    columns = tuple(map(torch.from_numpy, (row, reference, swap, action)))
    return torch.from_numpy(true), torch.from_numpy(default), (columns[0], columns[1], columns[2], columns[3])


def _search_rows(phi: np.ndarray, pi: np.ndarray, references: np.ndarray) -> list[tuple[int, Any]]:
    """The loop, on blocks of rows whose logarithms stay in the cache; the first row of each block and its result."""
    size = max(1, _BLOCK // phi.shape[1])
    buffer = np.empty((min(size, len(phi)), phi.shape[1]), phi.dtype)
    found = []
    for i in range(0, max(len(phi), 1), size):
        a = buffer[: len(pi[i : i + size])]
        _log_into(a, pi[i : i + size])
        found.append((i, _loop(phi[i : i + size], a, references[i : i + size])))
    return found


def _log_into(out: np.ndarray, values: np.ndarray) -> None:
    """PyTorch's logarithm, in pieces for which it wakes no threads: they would linger on the cores."""
    target, source = torch.from_numpy(out).view(-1), torch.from_numpy(values).view(-1)
    for i in range(0, len(source), _PIECE):
        torch.log(source[i : i + _PIECE], out=target[i : i + _PIECE])


@no_type_check
@numba.njit(cache=True, inline="always")
def _winner(a, phi, j, m, z, o_z, z2, o_z2):
    """z^{m⇌j} of one row: the least of three, the smaller index on a tie."""
    o_j, action, o = a[m] - phi[j], j, a[m] - phi[j]
    o_m = a[j] - phi[m]
    if o_m < o_j or (o_m == o_j and m < j):
        action, o = m, o_m
    if z != j and z != m:
        if o_z < o or (o_z == o and z < action):
            action = z
    elif z2 != j and z2 != m and (o_z2 < o or (o_z2 == o and z2 < action)):
        action = z2
    return action


@no_type_check
@numba.njit(cache=True, inline="always")
def _write(table, count, row, k, m, action):
    table[count, 0], table[count, 1], table[count, 2], table[count, 3] = row, k, m, action
    return count + 1


@no_type_check
@numba.njit(cache=True)
def _with_room(table, count, more):
    """The table, twice as long or longer if it has no room for so many more lines."""
    if count + more <= len(table):
        return table
    longer = np.empty((2 * len(table) + more, 4), np.int64)
    longer[:count] = table[:count]
    return longer


@no_type_check
@numba.njit(cache=True)
def _two_smallest(a, phi):
    """The two smallest o = a − φ of a row, and their places; an o of −inf if the row is not usable."""
    z, z2 = 0, 0
    o_z = o_z2 = a.dtype.type(np.inf)
    for start in range(0, len(a), _STRIDE):
        # Most strides hold nothing new. Without a branch in it, this loop runs on many positions at once.
        a_part, phi_part = a[start : start + _STRIDE], phi[start : start + _STRIDE]
        new = 0
        for i in range(len(a_part)):
            new += (not a_part[i] - phi_part[i] >= o_z2) | (a_part[i] == np.inf)
        if new:
            for i in range(start, start + len(a_part)):
                o = a[i] - phi[i]
                if np.isnan(o) or a[i] == np.inf:
                    return i, -np.inf, i, -np.inf
                if o < o_z:
                    z2, o_z2 = z, o_z
                    z, o_z = i, o
                elif o < o_z2:
                    z2, o_z2 = i, o
    return z, o_z, z2, o_z2


@no_type_check
@numba.njit(cache=True)
def _within(a, phi, phi_bound, a_bound, found):
    """Write the positions where φ ≥ its bound or a ≤ its bound to ``found``; return how many there are."""
    count = 0
    for start in range(0, len(a), _STRIDE):
        a_part, phi_part = a[start : start + _STRIDE], phi[start : start + _STRIDE]
        new = 0
        for i in range(len(a_part)):
            new += (phi_part[i] >= phi_bound) | (a_part[i] <= a_bound)
        if new:
            for m in range(start, start + len(a_part)):
                if (phi[m] >= phi_bound) | (a[m] <= a_bound):
                    found[count] = m
                    count += 1
    return count


@no_type_check
@numba.njit(cache=True)
def _order(values, limit, room):
    """The positions of the values up to a limit, with room for rounding, in ascending order of the values."""
    kept = np.nonzero(values <= limit + room)[0]
    return kept[np.argsort(values[kept])]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _loop(phis, logs, references):
    rows, vocab = phis.shape
    width = references.shape[1]
    true = np.zeros(rows, np.int64)
    default = np.zeros((rows, width), np.int64)
    table = np.empty((rows * 2 * width, 4), np.int64)
    found = np.empty(vocab, np.int64)
    count = 0
    bad = -1
    slack = 4 * np.finfo(phis.dtype).eps
    for r in range(rows):
        phi, a, js = phis[r], logs[r], references[r]
        z, o_z, z2, o_z2 = _two_smallest(a, phi)
        if not np.isfinite(o_z):
            bad = r
            break
        true[r] = z
        default[r] = z
        if o_z2 == np.inf:
            continue

        lowest_a, highest_phi = np.inf, -np.inf
        table = _with_room(table, count, width + vocab)
        for k in range(width):
            j = js[k]
            if j == z:
                default[r, k] = z2
                for m in range(vocab):
                    action = _winner(a, phi, j, m, z, o_z, z2, o_z2)
                    if action != z2:
                        count = _write(table, count, r, k, m, action)
            else:
                lowest_a, highest_phi = min(lowest_a, a[j]), max(highest_phi, phi[j])
                action = _winner(a, phi, j, z, z, o_z, z2, o_z2)
                if action != z:
                    count = _write(table, count, r, k, z, action)

        # Swaps with an m other than z: a_j − φ_m ≤ o_z needs a large φ_m, a_m − φ_j ≤ o_z a small a_m.
        phi_bound = phis.dtype.type(lowest_a - o_z - slack * (abs(lowest_a) + abs(o_z)))
        a_bound = phis.dtype.type(o_z + highest_phi + slack * (abs(highest_phi) + abs(o_z)))
        candidates = found[: _within(a, phi, phi_bound, a_bound, found)]
        if len(candidates) > 1 or (len(candidates) == 1 and candidates[0] != z):
            top_phi, low_a = phi[candidates].max(), a[candidates].min()
            by_a = _order(a[js], o_z + top_phi, slack * (abs(o_z) + abs(top_phi)))
            by_phi = _order(-phi[js], o_z - low_a, slack * (abs(o_z) + abs(low_a)))
            for m in candidates:
                if m == z:
                    continue
                table = _with_room(table, count, width)
                for k in by_a:
                    j = js[k]
                    if not a[j] - phi[m] <= o_z:
                        break
                    action = _winner(a, phi, j, m, z, o_z, z2, o_z2)
                    if j != z and action != z:
                        count = _write(table, count, r, k, m, action)
                for k in by_phi:
                    j = js[k]
                    if not a[m] - phi[j] <= o_z:
                        break
                    if j != z and not a[j] - phi[m] <= o_z:  # else the loop above has it
                        action = _winner(a, phi, j, m, z, o_z, z2, o_z2)
                        if action != z:
                            count = _write(table, count, r, k, m, action)
    columns = (table[:count, 0].copy(), table[:count, 1].copy(), table[:count, 2].copy(), table[:count, 3].copy())
    return bad, true, default, columns
