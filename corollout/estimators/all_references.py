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
comparison, so that entries can be computed without their logits, and π is drawn again from the cell's key. Whether one
of them is in O_b depends on a limit to its noise, so that only candidates, and what rounding leaves in doubt, need the
logarithms (``swap_candidates``). All comparisons are those of ``pseudo``, in the same precision and with ties to the
smaller index: branches and coefficients are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.pseudo import log_into
from corollout.estimators.pseudo_torch import row_error
from corollout.estimators.swap_candidates import list_candidates
from corollout.estimators.swap_entries import copy_runs, expected_entries, list_exact, write
from corollout.estimators.swap_loops import Work, divide, weigh
from corollout.estimators.swap_norms import search
from corollout.noise import exponential_into, exponential_of, uniform_into
from corollout.row_threads import by_rows

# Cells are processed in blocks of at most this many numbers; a thread processes parts of a block that fit in the cache.
_BLOCK, _PART = 1 << 21, 1 << 15
# By how many units in the last place PyTorch's logarithms may be off, and more: what is closer is computed exactly.
_ERRORS = 8.0


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
    of_true: Float[Tensor, " cell"]  # S[z] of the runner-up
    branches: Int64[Tensor, " cell"]  # how many the cell has
    candidates: Int64[Tensor, " cell"]  # how many the cell has
    action: Int32[Tensor, " branch"]
    norm: Float[Tensor, " branch"]  # ‖C_a‖
    own: Float[Tensor, " branch"]  # S_a[a]
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
        spare: list[_Buffers] = []
        search_rows = partial(_search_rows, spare, logits.numpy())
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
            for start, results in by_rows(search_rows, vocab, e.numpy(), scale.numpy(), *rest):
                for first, (bad, *result) in results:
                    if bad >= 0:
                        cell = i + start + first + bad
                        raise row_error(cell, torch.zeros(1))
                    parts.append(result)
        columns = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        return cls(vocab, keys, steps, tokens, torch.cat(scales), *columns)

    @classmethod
    def join(cls, parts: "Sequence[SwapSearch]", order: Int64[Tensor, " cell"] | None = None) -> "SwapSearch":
        """The cells of all parts, one after another or in this order; there is at least one part."""
        if len(parts) == 1 and order is None:
            return parts[0]
        names = [field.name for field in fields(cls)[1:]]
        if order is None:
            return cls(parts[0].vocab, *(torch.cat([getattr(part, name) for part in parts]) for name in names))
        cells = {name: torch.cat([getattr(part, name) for part in parts])[order] for name in names[:-5]}
        lists = {}
        for counts, *columns in (("branches", "action", "norm", "own"), ("candidates", "candidate", "logit")):
            starts = torch.empty_like(order).scatter_(0, order, cells[counts].cumsum(0) - cells[counts])
            for name in columns:
                runs = [(getattr(part, name), getattr(part, counts)) for part in parts]
                lists[name] = runs[0][0].new_empty(int(cells[counts].sum()))
                for (values, lengths), some in zip(runs, starts.split([len(x) for _, x in runs]), strict=True):
                    copy_runs(values.numpy(), lengths.numpy(), some.numpy(), lists[name].numpy())
        return cls(parts[0].vocab, **cells, **lists)

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
        branches = (action[position].numpy(), position.numpy(), self.own[kept[position]].numpy())
        lists = (self.candidate.numpy(), self.logit.numpy(), *branches)
        write_rows = partial(_write_rows, lists, self.vocab)
        last_candidate, last_branch = self.candidates.cumsum(0), counts.cumsum(0)
        columns = (self.keys, self.steps, self.scale, self.true, self.runner_up, self.of_true)
        ranges = ((last_candidate - self.candidates)[cell], last_candidate[cell], last_branch - counts, last_branch)
        arrays = [x.numpy() for x in (*(column[cell] for column in columns), *ranges)]
        parts = [part for _, part in by_rows(write_rows, self.vocab, *arrays)]
        columns = (column[0] if len(parts) == 1 else np.concatenate(column) for column in zip(*parts, strict=True))
        branch, coordinate, value = map(torch.from_numpy, columns)
        return branch, coordinate, value


def _checked(logits: Tensor, index: Tensor) -> Tensor:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise InputError(f"logits must be of shape [lines, V] with V ≥ 1, not {list(logits.shape)}")
    if logits.dtype not in (torch.float32, torch.float64):
        raise InputError(f"logits must be float32 or float64, not {logits.dtype}")
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(logits)):
        raise InputError(
            f"there are {len(logits)} lines of logits, but cells with lines {index.min()} to {index.max()}"
        )
    return logits.detach().contiguous()


class _Buffers(NamedTuple):
    """What a thread needs for the search of a part."""

    work: Work
    found: tuple[
        np.ndarray, ...
    ]  # of candidates: index, logit, number and weight of others; of branches: see the search
    exact: np.ndarray
    logs: np.ndarray

    @classmethod
    def make(cls, rows: int, vocab: int, dtype: np.dtype) -> "_Buffers":
        kinds = (np.int32, dtype, np.int64, np.float64, np.int32, dtype, dtype)
        found = tuple(np.empty(rows * vocab, kind) for kind in kinds)
        return cls(Work.make(vocab, dtype), found, np.empty(rows * vocab, dtype), np.empty(rows * vocab, dtype))


def _search_rows(
    spare: list[_Buffers],
    phis: np.ndarray,
    e: np.ndarray,
    scale: np.ndarray,
    index: np.ndarray,
    tokens: np.ndarray,
) -> list[tuple[int, Any]]:
    """The first row of each part and the result of its loop. ``e`` is overwritten, spare buffers are reused."""
    vocab = e.shape[1]
    size = max(1, _PART // vocab)
    buffers = spare.pop() if spare else _Buffers.make(size, vocab, e.dtype)
    work, found, exact, logs = buffers
    results = []
    for i in range(0, max(len(e), 1), size):
        part = slice(i, i + size)
        pi, lengths, *rest = list_candidates(
            phis, index[part], e[part], scale[part], tokens[part], _ERRORS, work, found[:4], exact
        )
        a = logs[: len(pi)] if len(pi) <= len(logs) else np.empty_like(pi)
        _prepare(pi, lengths, scale[part], vocab, a)
        results.append((i, search((a, pi, lengths, *rest), tokens[part], vocab, work, found)))
    spare.append(buffers)
    return results


def _write_rows(
    lists: tuple[np.ndarray, ...], vocab: int, keys: np.ndarray, steps: np.ndarray, *cells: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of some cells."""
    dtype, size = cells[0].dtype, max(1, _PART // vocab)
    work, target = Work.make(vocab, dtype), np.full(vocab, -1)
    buffer = np.empty((min(size, len(keys)), vocab), dtype)
    length, count = expected_entries(lists, cells, keys, steps, vocab), 0
    entries = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length, dtype)
    for i in range(0, max(len(keys), 1), size):
        part = slice(i, i + size)
        u, columns = buffer[: len(keys[part])], tuple(column[part] for column in cells)
        uniform_into(u, keys[part], steps[part])
        e, lengths, *doubts = list_exact(lists, columns, u, _ERRORS)
        exponential_of(e)
        a = np.empty_like(e)
        _prepare(e, lengths, columns[0], vocab, a)
        entries, count = write(lists, columns, u, (a, e, lengths, *doubts), work, target, entries, count)
    branch, coordinate, value = (column[:count] for column in entries)
    return branch, coordinate, value


def _prepare(e: np.ndarray, lengths: np.ndarray, scale: np.ndarray, vocab: int, a: np.ndarray) -> None:
    """Make a = ln π of exponential numbers, and w of them; so many are of each cell."""
    divide(e, lengths, scale)
    log_into(a, e)
    weigh(e, vocab)
