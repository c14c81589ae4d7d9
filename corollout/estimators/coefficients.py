"""The coefficients of rewards in ARS: what the reward of each pseudo-action contributes to each logit.

For reference k only the departures from its default d count: w_k (r(a) − r(d)) at coordinate m for each entry
(k, m, a) of the table of pseudo-actions. On the CPU these terms are added up by a compiled loop that sorts them into
one bucket for each action, elsewhere by sorting all of them. Both give the same sums.
"""

from dataclasses import dataclass
from typing import no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.estimators.pseudo import PseudoActions

# Coefficients whose square is a smaller part than this of what they were added up from are zero but for rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Coefficients:
    """C_a of every branch (row, step, action), up to a constant that the plan's centring removes, as a sparse list.

    Branches are in the order of their rows, steps and actions. Rewards are measured from the main trajectory's, so its
    own action needs no coefficient.
    """

    row: Int64[Tensor, " branch"]
    step: Int64[Tensor, " branch"]
    action: Int64[Tensor, " branch"]
    norm: Float[Tensor, " branch"]  # ‖C_a‖
    branch: Int64[Tensor, " entry"]
    coordinate: Int64[Tensor, " entry"]
    value: Float[Tensor, " entry"]

    @classmethod
    def of(
        cls,
        table: PseudoActions,
        weight: Float[Tensor, "cell reference"],
        token: Int64[Tensor, " cell"],
        row: Int64[Tensor, " cell"],
        step: Int64[Tensor, " cell"],
    ) -> "Coefficients":
        """Those of a table whose rows are the cells (row, step), where the main trajectory has the given tokens.

        ``weight`` is w_k; branches where nothing is left of the sum of their terms are left out.
        """
        if row.device.type == "cpu":
            cell, action, norm, branch, coordinate, value = _collect_compiled(table, weight, token)
        else:
            cell, action, norm, branch, coordinate, value = _collect_torch(table, weight, token)
        return cls(row[cell], step[cell], action, norm, branch, coordinate, value)

    @classmethod
    def join(cls, parts: "list[Coefficients]") -> "Coefficients":
        offsets = torch.tensor([0, *(len(part.row) for part in parts)]).cumsum(0).tolist()
        return cls(
            row=torch.cat([p.row for p in parts]),
            step=torch.cat([p.step for p in parts]),
            action=torch.cat([p.action for p in parts]),
            norm=torch.cat([p.norm for p in parts]),
            branch=torch.cat([p.branch + offset for p, offset in zip(parts, offsets[:-1], strict=True)]),
            coordinate=torch.cat([p.coordinate for p in parts]),
            value=torch.cat([p.value for p in parts]),
        )

    @classmethod
    def mean(cls, parts: "list[Coefficients]", vocab: int) -> "Coefficients":
        """The mean of several linear maps from rewards: a branch has the sum of its C_a in all parts over their number.

        A part that does not have a branch counts as zero there.
        """
        if len(parts) == 1:
            return parts[0]
        every = cls.join(parts)
        steps = int(every.step.max()) + 1 if len(every.step) else 1
        cell = every.row * steps + every.step
        code = (cell * vocab + every.action)[every.branch] * vocab + every.coordinate
        cell, action, norm, branch, coordinate, value = _sums(code, every.value / len(parts), vocab)
        return cls(cell // steps, cell % steps, action, norm, branch, coordinate, value)


_Collected = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # cell, action, norm; branch, coordinate, value


def _collect_torch(table: PseudoActions, weight: Tensor, token: Tensor) -> _Collected:
    """Sorts all terms, on any device."""
    vocab = table.vocab
    w = weight[table.row, table.reference]
    cell = torch.cat([table.row, table.row])
    action = torch.cat([table.action, table.default[table.row, table.reference]])
    value = torch.cat([w, -w])
    other = action != token[cell]
    code = ((cell * vocab + action) * vocab + torch.cat([table.swap, table.swap]))[other]
    return _sums(code, value[other], vocab)


def _sums(code: Int64[Tensor, " term"], value: Float[Tensor, " term"], vocab: int) -> _Collected:
    """Terms that have the same code, (cell · V + action) · V + coordinate, added up."""
    entry_code, place = code.unique(return_inverse=True)
    total = value.new_zeros(len(entry_code)).index_add_(0, place, value)
    # The codes ascend, so equal ones stand together.
    branch_code, branch = torch.unique_consecutive(entry_code // vocab, return_inverse=True)
    # ‖C_a‖² of the centred coefficients: Σ S² − (Σ S)² / V, in double precision, as the two may nearly
    # cancel; where they do so up to the rounding of S, nothing is left of the branch.
    zeros = total.new_zeros(len(branch_code), dtype=torch.float64)
    squares = zeros.index_add(0, branch, total.double() ** 2)
    centred = squares - zeros.index_add(0, branch, total.double()) ** 2 / vocab
    some = centred > _ROUNDING * squares
    used = some[branch] & (total != 0)
    return (
        branch_code[some] // vocab,
        branch_code[some] % vocab,
        centred[some].sqrt().to(total.dtype),
        (some.cumsum(0) - 1)[branch[used]],
        entry_code[used] % vocab,
        total[used],
    )


def _collect_compiled(table: PseudoActions, weight: Tensor, token: Tensor) -> _Collected:
    """A bucket for each action, cell by cell."""
    # The search goes through the rows in their order, so the entries of a row stand together.
    starts = np.searchsorted(table.row.numpy(), np.arange(len(token) + 1))
    arrays = (table.reference, table.swap, table.action, table.default, weight, token)
    found = _bucket(starts, *(array.numpy() for array in arrays), table.vocab)  # pyright: ignore[reportCallIssue]
    cell, action, norm, branch, coordinate, value = map(torch.from_numpy, found)
    return cell, action, norm.to(weight.dtype), branch, coordinate, value


@no_type_check
@numba.njit(cache=True, nogil=True)
def _bucket(starts, reference, swap, action, default, weight, token, vocab):
    cells, terms = len(starts) - 1, 2 * len(action)
    branch_cell, branch_action = np.empty(terms, np.int64), np.empty(terms, np.int64)
    norm = np.empty(terms, np.float64)
    branch, coordinate, value = np.empty(terms, np.int64), np.empty(terms, np.int64), np.empty(terms, weight.dtype)
    largest = 0
    for c in range(cells):
        largest = max(largest, starts[c + 1] - starts[c])
    # Of the cell in hand: how many terms each action has, then where its bucket ends; and the buckets themselves.
    count = np.zeros(vocab, np.int64)
    actions = np.empty(min(vocab, 2 * largest), np.int64)
    bucket_swap, bucket_value = np.empty(2 * largest, np.int64), np.empty(2 * largest, np.float64)
    # Of the bucket in hand: the sum at each coordinate, and which of them are not empty.
    total, seen = np.zeros(vocab, np.float64), np.zeros(vocab, np.bool_)
    touched = np.empty(vocab, np.int64)
    branches, entries = 0, 0
    for c in range(cells):
        own, distinct = token[c], 0
        for e in range(starts[c], starts[c + 1]):
            for a in (action[e], default[c, reference[e]]):
                if a != own:
                    if count[a] == 0:
                        actions[distinct] = a
                        distinct += 1
                    count[a] += 1
        ordered = np.sort(actions[:distinct])
        end = 0
        for a in ordered:
            end += count[a]
            count[a] = end
        for e in range(starts[c], starts[c + 1]):
            w = weight[c, reference[e]]
            for a, term in ((action[e], w), (default[c, reference[e]], -w)):
                if a != own:
                    count[a] -= 1  # from the end of the bucket to its start
                    bucket_swap[count[a]], bucket_value[count[a]] = swap[e], term
        for i in range(distinct):
            a = ordered[i]
            stop = count[ordered[i + 1]] if i + 1 < distinct else end
            used = 0
            for t in range(count[a], stop):
                m = bucket_swap[t]
                if not seen[m]:
                    seen[m] = True
                    touched[used] = m
                    used += 1
                total[m] += bucket_value[t]
            squares, plain = 0.0, 0.0
            for m in touched[:used]:
                squares += total[m] * total[m]
                plain += total[m]
            centred = squares - plain * plain / vocab
            if centred > _ROUNDING * squares:
                branch_cell[branches], branch_action[branches] = c, a
                norm[branches] = np.sqrt(centred)
                for m in touched[:used]:
                    if total[m] != 0:
                        branch[entries], coordinate[entries], value[entries] = branches, m, total[m]
                        entries += 1
                branches += 1
            for m in touched[:used]:
                total[m], seen[m] = 0.0, False
        for a in ordered:
            count[a] = 0
    return (
        branch_cell[:branches].copy(),
        branch_action[:branches].copy(),
        norm[:branches].copy(),
        branch[:entries].copy(),
        coordinate[:entries].copy(),
        value[:entries].copy(),
    )
