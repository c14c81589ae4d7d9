"""ARS, ARS-K and ARSM: augment-REINFORCE-swap(-merge) (section 3 and appendix C of the paper).

For one token with logits φ, π ~ Dirichlet(1_V), z = argmin (ln π − φ) and references j_1 … j_K,

    g_v = Σ_k w_k [ r(z^{v⇌j_k}) − mean_m r(z^{m⇌j_k}) ],    w_k = (1 − V π_{j_k}) / K,

is unbiased for every fixed choice of references. It is linear in the rewards, Σ_a r(a) C_a, with coefficients that
are known before any reward and add up to zero, so g = Σ_{a≠z} (r(a) − r(z)) C_a: each distinct action needs one
completion, and an action whose coefficients are zero needs none.

Many other π would have chosen z, too. Averaging C_a over further draws of π given z (Rao and Blackwell) keeps the
expectation and reduces the variance. More actions then have nonzero coefficients, so use it with a budget.
"""

from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.all_references import SwapSearch
from corollout.estimators.branching import Branching
from corollout.estimators.estimator import notes_of
from corollout.estimators.plans import ContrastPlan
from corollout.estimators.pseudo import PseudoActions, pseudo_actions
from corollout.estimators.swap_norms import ROUNDING
from corollout.noise import REDRAW, REFERENCES, Noise, dirichlet, dirichlet_given, subsets
from corollout.numba_cache import numba
from corollout.types import Cells, Trajectories


@dataclass(frozen=True)
class Coefficients:
    """C_a of every branch (row, step, action), up to a constant that the plan's centring removes, as a sparse list.

    Branches are ordered by row, step and action. Rewards are measured relative to the main trajectory's, so its action
    needs no coefficient.
    """

    row: Int64[Tensor, " branch"]
    step: Int64[Tensor, " branch"]
    action: Int64[Tensor, " branch"]
    norm: Float[Tensor, " branch"]  # ‖C_a‖
    branch: Int64[Tensor, " entry"]
    coordinate: Int64[Tensor, " entry"]
    value: Float[Tensor, " entry"]

    @classmethod
    def from_table(
        cls,
        table: PseudoActions,
        weight: Float[Tensor, "cell reference"],
        token: Int64[Tensor, " cell"],
        row: Int64[Tensor, " cell"],
        step: Int64[Tensor, " cell"],
    ) -> "Coefficients":
        """The coefficients from a table whose rows are the cells (row, step) of main trajectories with these tokens.

        ``weight`` is w_k; branches whose terms add up to zero are left out.
        """
        if row.device.type == "cpu":
            cell, action, norm, branch, coordinate, value = _collect_compiled(table, weight, token)
        else:
            cell, action, norm, branch, coordinate, value = _collect_torch(table, weight, token)
        return cls(row[cell], step[cell], action, norm, branch, coordinate, value)

    def select(
        self, kept: Int64[Tensor, " kept"]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Some branches (row, step, action), and their entries (position within ``kept``, coordinate, value)."""
        position = torch.full_like(self.row, -1)
        position[kept] = torch.arange(len(kept), device=kept.device)
        branch = position[self.branch]
        used = (branch >= 0).nonzero().squeeze(1)
        branches = (self.row[kept], self.step[kept], self.action[kept])
        return branches, (branch[used], self.coordinate[used], self.value[used])

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
    def by_row(cls, parts: "list[Coefficients]", steps: int) -> "Coefficients":
        """The branches of all parts by row and step, of which there are at most ``steps`` a row."""
        joined = cls.join(parts)
        cell = joined.row * steps + joined.step
        if not bool((cell.diff() < 0).any()):
            return joined
        order = cell.argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        branches = (joined.row[order], joined.step[order], joined.action[order], joined.norm[order])
        return cls(*branches, place[joined.branch], joined.coordinate, joined.value)

    def counts(self, rows: int) -> Int64[Tensor, " row"]:
        """The number of branches of each row."""
        return self.row.new_zeros(rows).index_add_(0, self.row, torch.ones_like(self.row))

    @classmethod
    def none(cls, trajectories: Trajectories) -> "Coefficients":
        """Those of no branches."""
        numbers, values = trajectories.contexts[:0], trajectories.log_probs[:0]
        return cls(numbers, numbers, numbers, values, numbers, numbers, values)

    @classmethod
    def mean(cls, parts: "list[Coefficients]", vocab: int) -> "Coefficients":
        """The mean of several linear maps from rewards; a branch that a part does not have counts as zero."""
        if len(parts) == 1:
            return parts[0]
        joined = cls.join(parts)
        steps = int(joined.step.max()) + 1 if len(joined.step) else 1
        cell = joined.row * steps + joined.step
        code = (cell * vocab + joined.action)[joined.branch] * vocab + joined.coordinate
        cell, action, norm, branch, coordinate, value = _sums(code, joined.value / len(parts), vocab)
        return cls(cell // steps, cell % steps, action, norm, branch, coordinate, value)


@dataclass(frozen=True)
class Swaps:
    """The same for all V references, without entries until branches are selected."""

    search: SwapSearch
    rows: Int64[Tensor, " cell"]
    steps: Int64[Tensor, " cell"]

    @classmethod
    def by_row(cls, parts: "list[Swaps]", steps: int) -> "Swaps":
        """As :meth:`Coefficients.by_row`: cells are sorted, of which there are far fewer than branches."""
        rows, times = torch.cat([part.rows for part in parts]), torch.cat([part.steps for part in parts])
        cell = rows * steps + times
        order = cell.argsort(stable=True) if bool((cell.diff() < 0).any()) else None
        search = SwapSearch.join([part.search for part in parts], order)
        return cls(search, rows, times) if order is None else cls(search, rows[order], times[order])

    def counts(self, rows: int) -> Int64[Tensor, " row"]:
        """The number of branches of each row."""
        return self.rows.new_zeros(rows).index_add_(0, self.rows, self.search.branches)

    @property
    def norm(self) -> Float[Tensor, " branch"]:
        return self.search.norm

    def select(
        self, kept: Int64[Tensor, " kept"]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """As :meth:`Coefficients.select`."""
        cell, action = self.search.select(kept)
        return (self.rows[cell], self.steps[cell], action), self.search.entries(kept)


_Collected = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # cell, action, norm; branch, coordinate, value


def _collect_torch(table: PseudoActions, weight: Tensor, token: Tensor) -> _Collected:
    """Sort all terms, on any device."""
    vocab = table.vocab
    w = weight[table.row, table.reference]
    cell = torch.cat([table.row, table.row])
    action = torch.cat([table.action, table.default[table.row, table.reference]])
    value = torch.cat([w, -w])
    other = (action != token[cell]).nonzero().squeeze(1)
    code = ((cell * vocab + action) * vocab + torch.cat([table.swap, table.swap]))[other]
    return _sums(code, value[other], vocab)


def _sums(code: Int64[Tensor, " term"], value: Float[Tensor, " term"], vocab: int) -> _Collected:
    """The sums of terms with the same code, (cell · V + action) · V + coordinate."""
    entry_code, entry = code.unique(return_inverse=True)
    total = value.new_zeros(len(entry_code)).index_add_(0, entry, value)
    # The codes ascend, so equal ones are consecutive.
    branch_code, branch = torch.unique_consecutive(entry_code // vocab, return_inverse=True)
    # ‖C_a‖² of the centred coefficients: Σ S² − (Σ S)² / V, in double precision because the two may nearly cancel; if
    # they cancel up to the rounding of S, the branch is left out.
    zeros = total.new_zeros(len(branch_code), dtype=torch.float64)
    squares = zeros.index_add(0, branch, total.double() ** 2)
    centred = squares - zeros.index_add(0, branch, total.double()) ** 2 / vocab
    large = centred > ROUNDING * squares
    kept, used = large.nonzero().squeeze(1), (large[branch] & (total != 0)).nonzero().squeeze(1)
    return (
        branch_code[kept] // vocab,
        branch_code[kept] % vocab,
        centred[kept].sqrt().to(total.dtype),
        (large.cumsum(0) - 1)[branch[used]],
        entry_code[used] % vocab,
        total[used],
    )


def _collect_compiled(table: PseudoActions, weight: Tensor, token: Tensor) -> _Collected:
    """Fill a bucket for each action, cell by cell."""
    # The search visits rows in order, so the entries of a row are consecutive.
    starts = np.searchsorted(table.row.numpy(), np.arange(len(token) + 1))
    arrays = (table.reference, table.swap, table.action, table.default, weight, token)
    sums = _bucket(starts, *(array.numpy() for array in arrays), table.vocab)  # pyright: ignore[reportCallIssue]
    cell, action, norm, branch, coordinate, value = map(torch.from_numpy, sums)
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
    # For the current cell: the number of terms of each action, then the end of its bucket; and the buckets.
    count = np.zeros(vocab, np.int64)
    actions = np.empty(min(vocab, 2 * largest), np.int64)
    bucket_swap, bucket_value = np.empty(2 * largest, np.int64), np.empty(2 * largest, np.float64)
    # For the current bucket: the sum at each coordinate, and which coordinates have terms.
    total, seen = np.zeros(vocab, np.float64), np.zeros(vocab, np.bool_)
    touched = np.empty(vocab, np.int64)
    branches, entries = 0, 0
    for c in range(cells):
        taken, distinct = token[c], 0
        for e in range(starts[c], starts[c + 1]):
            for a in (action[e], default[c, reference[e]]):
                if a != taken:
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
                if a != taken:
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
            if centred > ROUNDING * squares:
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


@dataclass(frozen=True, kw_only=True)
class ARS(Branching):
    """ARS-K; ARSM, with all V references, if ``references`` is None.

    Unbiased with the defaults, for any ``references``, ``draws``, ``completions``, ``budget`` and ``samples``. The
    paper's options of greedy main or pseudo trajectories are biased.
    """

    names = ("arsm", "ars", "ars-k")
    reads = "notes"
    title = "ARS"
    number = "references"
    heads = ("softmax",)

    references: int | None = None
    """The number of references K; None for all V."""
    shared_references: bool = False
    """One set of references for all rows of a batch at a step, as in the paper's code, instead of one for each row."""
    draws: int = 1
    """The number of draws of π given the sampled tokens over which coefficients are averaged; the first is the π that
    chose the tokens. More draws give more pseudo-actions, so set a ``budget``, too."""

    def __post_init__(self) -> None:
        self.check_options(completions=1, budget=1, samples=1, references=1, draws=1)
        if self.draws > 1 and self.main == "greedy":
            raise InputError(f"ARS with draws = {self.draws} needs main = sample: no π chose a greedy token")

    @classmethod
    def from_name(cls, name: str, **options: Any) -> "ARS":
        """``ars`` without a number has one reference."""
        return cls(**(options if name == "arsm" else {"references": 1, **options}))

    @property
    def label(self) -> str:
        return "ARSM" + super().label.removeprefix("ARS") if self.references is None else super().label

    def take_notes(self, cells: Cells, noise: Noise) -> "Coefficients | Swaps":
        """The coefficients of all branches of some tokens."""
        if self._swaps_all(cells):
            search = SwapSearch.of(cells.logits, cells.keys, cells.steps, cells.tokens, cells.index)
            return Swaps(search, cells.rows, cells.steps)
        vocab = cells.logits.shape[1]
        references = self._references(cells, noise, vocab)
        logits = cells.logits[cells.index]
        parts = []
        for draw in range(self.draws):
            pi = _pi(draw, logits, cells, noise)
            table = pseudo_actions(logits, pi, references)
            weight = (1 - vocab * pi.gather(1, references)) / references.shape[1]  # w_k
            parts.append(Coefficients.from_table(table, weight, cells.tokens, cells.rows, cells.steps))
        return Coefficients.mean(parts, vocab)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        self.check_head(trajectories.head)
        notes = list(notes_of(self, trajectories, noise))
        # Notes are taken while sequences are generated, step by step; a budget goes from row to row.
        rows, steps = trajectories.tokens.shape
        coefficients = type(notes[0]).by_row(notes, steps) if notes else Coefficients.none(trajectories)
        kept, weight = self.spend(coefficients.norm, coefficients.counts(rows), trajectories, noise)
        branches, entries = coefficients.select(kept)
        return _contrasts(branches, entries, weight, trajectories, self)

    def _swaps_all(self, cells: Cells) -> bool:
        """Whether every action is a reference of every step, once, so that the faster search applies."""
        every = self.references in (None, cells.logits.shape[1])
        return every and self.draws == 1 and cells.logits.device.type == "cpu"

    def _references(self, cells: Cells, noise: Noise, vocab: int) -> Int64[Tensor, "cell reference"]:
        count = vocab if self.references is None else self.references
        if count > vocab:
            raise InputError(f"ARS-{count} needs {count} references, but the vocabulary has only {vocab} actions")
        if count == vocab:
            return torch.arange(vocab, device=cells.rows.device).expand(len(cells.rows), -1)
        if self.shared_references:
            keys = noise.shared_key(cells.batch, REFERENCES).expand(len(cells.rows)).contiguous()
        else:
            keys = noise.keys(cells.examples, REFERENCES, cells.samples)
        return subsets(keys, cells.steps, vocab, count)


def _pi(draw: int, logits: Float[Tensor, "cell vocab"], cells: Cells, noise: Noise) -> Float[Tensor, "cell vocab"]:
    """Draw 0 is the π that chose the tokens; the others are draws given that it chose them."""
    if draw == 0:
        return dirichlet(cells.keys, cells.steps, logits.shape[1], logits.dtype)
    keys = noise.keys(cells.examples, REDRAW, cells.samples, draw)
    return dirichlet_given(cells.tokens, logits, keys, cells.steps)


def _contrasts(
    branches: tuple[Tensor, Tensor, Tensor],
    entries: tuple[Tensor, Tensor, Tensor],
    weight: Float[Tensor, " kept"],
    trajectories: Trajectories,
    options: ARS,
) -> ContrastPlan:
    """The kept branches (row, step, action) and the entries of their coefficients (branch, coordinate, value) as
    contrasts with the main trajectories."""
    row, step, action = branches
    branch, coordinate, value = entries
    copies = options.completions
    scale = weight / (copies * options.samples)
    entry_row, entry_step, entry_weight = _of_entries(branch, value, row, step, scale)
    if copies > 1:
        entry_row, entry_step, coordinate, entry_weight = (
            column.repeat(copies) for column in (entry_row, entry_step, coordinate, entry_weight)
        )
    return ContrastPlan(
        branches=options.branches(row, step, action),
        row=entry_row,
        step=entry_step,
        token=coordinate,
        plus=options.sources(len(row), branch, len(trajectories.tokens)),
        minus=entry_row,
        weight=entry_weight,
        centre="uniform",
    )


def _of_entries(
    branch: Int64[Tensor, " entry"],
    value: Float[Tensor, " entry"],
    row: Int64[Tensor, " kept"],
    step: Int64[Tensor, " kept"],
    scale: Float[Tensor, " kept"],
) -> tuple[Int64[Tensor, " entry"], Int64[Tensor, " entry"], Float[Tensor, " entry"]]:
    """The row, the step and the weight of each entry."""
    if branch.device.type != "cpu" or scale.dtype != value.dtype:
        return row[branch], step[branch], value * scale[branch]
    columns = torch.empty_like(branch), torch.empty_like(branch), torch.empty_like(value)
    _expand(*(x.numpy() for x in (branch, value, row, step, scale, *columns)))
    return columns


@no_type_check
@numba.njit(cache=True, nogil=True)
def _expand(branch, value, row, step, scale, entry_row, entry_step, entry_weight):
    for i in range(len(branch)):
        b = branch[i]
        entry_row[i], entry_step[i], entry_weight[i] = row[b], step[b], value[i] * scale[b]
