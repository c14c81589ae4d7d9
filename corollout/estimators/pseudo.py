"""Pseudo-actions: the actions that would have been drawn if two coordinates of π were swapped.

With a = ln π and o_i = a_i − φ_i the true action is z = argmin_i o_i. Swapping π_j and π_m changes two of the o_i,

    o'_j = a_m − φ_j,   o'_m = a_j − φ_m,

so the pseudo-action z^{m⇌j} is the argmin over these two and the smallest o outside {j, m}. A table of all K · V of
them is nearly constant: for a reference j ≠ z the default is z, for j = z it is the runner-up, and an entry departs
from its default only if m = z, or a_j − φ_m ≤ o_z, or a_m − φ_j ≤ o_z. Of all V² pairs only a few times V do. Comparing
sorted candidates finds them, so that K references cost about one pass over the vocabulary and all V references
O(V log V), where the table costs K · V. On the CPU the search is a compiled loop; elsewhere it consists of
PyTorch operations on blocks of rows (``pseudo_torch``). Both give the same entries.

Ties go to the smaller index, as in ``argmin``. Masked actions (φ = −inf) are never drawn.
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.arguments import require_instance
from corollout.errors import InputError
from corollout.estimators.pseudo_torch import row_error, search_torch
from corollout.noise import in_pieces
from corollout.numba_cache import numba
from corollout.row_threads import by_rows


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
        """The distinct pseudo-actions of each row, as (row, action) in ascending order; z may be one of them."""
        rows, k = self.default.shape
        departed = torch.zeros(rows * k, dtype=torch.int64, device=self.row.device)
        departed.index_add_(0, self.row * k + self.reference, torch.ones_like(self.row))
        used = (departed < self.vocab).view(rows, k)
        default_code = used.nonzero()[:, 0] * self.vocab + self.default[used]
        code = torch.cat([self.row * self.vocab + self.action, default_code]).unique()
        return code // self.vocab, code % self.vocab


def pseudo_actions(
    logits: Float[Tensor, "row vocab"],
    pi: Float[Tensor, "row vocab"],
    references: Int64[Tensor, " reference"] | Int64[Tensor, "row reference"],
) -> PseudoActions:
    """All pseudo-actions of each row, exactly (Algorithm 1 of the paper, appendix C).

    ``pi`` is a draw from Dirichlet(1, …, 1) for each row; ``references`` are K distinct actions, the same for all rows
    or K for each row.
    """
    references = _check_inputs(logits, pi, references)
    logits, pi = logits.detach(), pi.detach()
    if logits.device.type == "cpu":
        bad, true, default, entries = search_compiled(logits, pi.contiguous(), references)
        if bad >= 0:
            raise row_error(bad, pi[bad].log())
    else:
        true, default, entries = search_torch(logits, pi.log(), references)
    return PseudoActions(logits.shape[1], true, references, default, *entries)


def _check_inputs(logits: Tensor, pi: Tensor, references: Tensor) -> Tensor:
    for name, given in (("logits", logits), ("pi", pi), ("references", references)):
        require_instance(name, given, Tensor, "a tensor")
    if references.dtype != torch.int64:
        raise InputError(f"references must be actions, whole numbers of the type torch.int64, not {references.dtype}")
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
        raise InputError(f"there are {references.shape[1]} references, but only V = {vocab} actions")
    ordered = references.sort(1).values
    outside = (ordered[:, 0] < 0) | (ordered[:, -1] >= vocab)
    some_outside, repeated = torch.stack([outside.any(), (ordered.diff(dim=1) == 0).any()]).tolist()
    if some_outside:
        raise InputError(f"references must be actions from 0 to {vocab - 1}")
    if repeated:
        raise InputError("a reference occurs twice in a row: references must be distinct")
    return references.expand(rows, -1) if shared else references


# Rows are processed in blocks of about this many numbers, so that temporaries stay in the cache.
_BLOCK = 1 << 18
# Compiled loops look at this many positions at a time.
_STRIDE = 128


def search_compiled(
    phi: Tensor, pi: Tensor, references: Tensor
) -> tuple[int, Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The first invalid row or −1, true actions, defaults, and the entries (row, reference, swap, action)."""
    parts = by_rows(_search_rows, phi.shape[1], phi.numpy(), pi.numpy(), references.numpy())
    results = [(start + first, *result) for start, part in parts for first, result in part]
    bad = next((start + row for start, row, *_ in results if row >= 0), -1)
    true, default = (torch.from_numpy(np.concatenate([result[i] for result in results])) for i in (2, 3))
    row = np.concatenate([start + entries[0] for start, *_, entries in results])
    columns = [row, *(np.concatenate([entries[i] for *_, entries in results]) for i in (1, 2, 3))]
    row, reference, swap, action = map(torch.from_numpy, columns)
    return bad, true, default, (row, reference, swap, action)


def _search_rows(phi: np.ndarray, pi: np.ndarray, references: np.ndarray) -> list[tuple[int, Any]]:
    """The first row of each block and the result of its loop; the logarithms of a block stay in the cache."""
    size = max(1, _BLOCK // phi.shape[1])
    buffer = np.empty((min(size, len(phi)), phi.shape[1]), phi.dtype)
    results = []
    for i in range(0, max(len(phi), 1), size):
        a = buffer[: len(pi[i : i + size])]
        log_into(a, pi[i : i + size])
        results.append((i, _loop(phi[i : i + size], a, references[i : i + size])))
    return results


def log_into(out: np.ndarray, values: np.ndarray) -> None:
    """PyTorch's logarithm, in one thread."""
    in_pieces(lambda a, pi: torch.log(pi, out=a), out, values)


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
    """The table, at least twice as long if it has no room for ``more`` lines."""
    if count + more <= len(table):
        return table
    longer = np.empty((2 * len(table) + more, 4), np.int64)
    longer[:count] = table[:count]
    return longer


@no_type_check
@numba.njit(cache=True)
def two_smallest(a, phi):
    """The two smallest o = a − φ of a row, and their indices; o = −inf if the row is invalid."""
    z, z2 = 0, 0
    o_z = o_z2 = a.dtype.type(np.inf)
    for start in range(0, len(a), _STRIDE):
        # Most strides contain nothing new. A loop without branches is vectorised.
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
def _within(a, phi, phi_bound, a_bound, out):
    """Write the indices where φ ≥ its bound or a ≤ its bound to ``out``; return their number."""
    count = 0
    for start in range(0, len(a), _STRIDE):
        a_part, phi_part = a[start : start + _STRIDE], phi[start : start + _STRIDE]
        new = 0
        for i in range(len(a_part)):
            new += (phi_part[i] >= phi_bound) | (a_part[i] <= a_bound)
        if new:
            for m in range(start, start + len(a_part)):
                if (phi[m] >= phi_bound) | (a[m] <= a_bound):
                    out[count] = m
                    count += 1
    return count


@no_type_check
@numba.njit(cache=True)
def _order(values, limit, room):
    """The indices of the values up to a limit, with room for rounding, in ascending order of the values."""
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
    buffer = np.empty(vocab, np.int64)
    count = 0
    bad = -1
    slack = 4 * np.finfo(phis.dtype).eps
    for r in range(rows):
        phi, a, js = phis[r], logs[r], references[r]
        z, o_z, z2, o_z2 = two_smallest(a, phi)
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
        candidates = buffer[: _within(a, phi, phi_bound, a_bound, buffer)]
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
                    if j != z and not a[j] - phi[m] <= o_z:  # otherwise found by the loop above
                        action = _winner(a, phi, j, m, z, o_z, z2, o_z2)
                        if action != z:
                            count = _write(table, count, r, k, m, action)
    columns = (table[:count, 0].copy(), table[:count, 1].copy(), table[:count, 2].copy(), table[:count, 3].copy())
    return bad, true, default, columns
