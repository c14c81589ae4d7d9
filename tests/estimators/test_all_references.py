"""ARSM with all references: the search without a table finds what the table has."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators import ARS, all_references, ars, pseudo, single, swap_candidates
from corollout.estimators.all_references import SwapSearch
from corollout.estimators.estimator import notes_of
from corollout.noise import Noise, dirichlet
from corollout.types import Cells, Trajectories
from tests.support.enumeration import Problem

DTYPES = [torch.float32, torch.float64]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES)


def policies(
    rows: int, vocab: int, scale: float, dtype: torch.dtype, seed: int, *, masked: float = 0.0, whole: bool = False
) -> Tensor:
    """Logits, possibly whole numbers, of which some are −inf but never all of a row."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, vocab, dtype=torch.float64, generator=generator)
    hidden = torch.rand(rows, vocab, generator=generator) < masked
    hidden[torch.arange(rows), torch.randint(vocab, (rows,), generator=generator)] = False
    return (logits.round() if whole else logits).masked_fill(hidden, -torch.inf).to(dtype)


def drawn(logits: Tensor, seed: int, *, greedy: bool = False) -> Trajectories:
    """One draw from each row."""
    return single._one_step(logits, ARS(main="greedy" if greedy else "sample"), Noise(seed))


def search_of(trajectories: Trajectories) -> SwapSearch:
    (notes,) = notes_of(ARS(), trajectories, Noise(0))
    return notes.search


def centred(shape: tuple[int, int, int], cell: Tensor, action: Tensor, coordinate: Tensor, value: Tensor) -> Tensor:
    """C[cell, action, coordinate] of entries, none of which may be listed twice."""
    dense = torch.zeros(shape, dtype=torch.float64)
    dense.index_put_((cell, action, coordinate), value.double(), accumulate=True)
    assert int((dense != 0).sum()) == len(value)
    return dense - dense.mean(2, keepdim=True)


def by_search(search: SwapSearch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cells, actions and norms of the branches, and all coefficients."""
    kept = torch.arange(len(search.action))
    cell, action = search.select(kept)
    branch, coordinate, value = search.entries(kept)
    shape = (len(search.keys), search.vocab, search.vocab)
    return cell, action, search.norm, centred(shape, cell[branch], action[branch], coordinate, value)


def by_table(trajectories: Trajectories) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The slow twin."""
    with patch.object(ARS, "_swaps_all", lambda estimator, cells: False):
        (c,) = notes_of(ARS(), trajectories, Noise(0))
    rows, _, vocab = trajectories.logits.shape
    dense = centred((rows, vocab, vocab), c.row[c.branch], c.action[c.branch], c.coordinate, c.value)
    return c.row, c.action, c.norm, dense


def assert_same(trajectories: Trajectories) -> int:
    """The number of branches, if both ways have the same ones with the same coefficients."""
    found, expected = by_search(search_of(trajectories)), by_table(trajectories)
    single_precision = trajectories.logits.dtype == torch.float32
    for a, b in zip(found[:2], expected[:2], strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(found[2], expected[2], rtol=1e-6 if single_precision else 1e-11, atol=0.0)
    torch.testing.assert_close(found[3], expected[3], rtol=0.0, atol=2e-7 if single_precision else 1e-14)
    return len(found[0])


# Equal to the table

SIZES = [(1, 40), (2, 400), (3, 400), (5, 200), (17, 60), (48, 30), (49, 30), (100, 30), (200, 20)]


@both_dtypes
@pytest.mark.parametrize("greedy", [False, True])
def test_the_search_equals_the_table(dtype: torch.dtype, greedy: bool):
    """Flat, ordinary, peaked and certain policies, with and without masks, also where the token is not z."""
    branches = differs = 0
    for case, (vocab, rows) in enumerate(SIZES):
        for kind, (scale, masked) in enumerate([(0.0, 0.0), (0.5, 0.0), (2.0, 0.3), (5.0, 0.0), (30.0, 0.0)]):
            logits = policies(rows, vocab, scale, dtype, 10 * case + kind, masked=masked, whole=(case + kind) % 3 == 0)
            trajectories = drawn(logits, seed=kind, greedy=greedy)
            branches += assert_same(trajectories)
            search = search_of(trajectories)
            differs += int((search.true != search.tokens).sum())
    assert branches > 10_000
    assert differs > 1000 if greedy else differs < 5


@contextmanager
def logarithms_on_a_grid(grid: float) -> Generator[None]:
    def log_into(out: np.ndarray, values: np.ndarray) -> None:
        out[...] = np.round(np.log(values.astype(np.float64)) / grid) * grid

    with (
        patch("corollout.estimators.pseudo.log_into", log_into),
        patch("corollout.estimators.all_references.log_into", log_into),
        patch("corollout.estimators.all_references._ERRORS", grid / np.finfo(np.float64).eps),  # off by that much
    ):
        yield


@settings(deadline=None, max_examples=150)
@given(
    vocab=st.integers(1, 12) | st.integers(40, 70),
    rows=st.integers(1, 6),
    scale=st.sampled_from([0.0, 0.4, 1.0, 3.0]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 999),
    masked=st.sampled_from([0.0, 0.3, 0.9]),
    whole=st.booleans(),
    greedy=st.booleans(),
    grid=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_ties_go_to_the_smaller_index(
    vocab: int,
    rows: int,
    scale: float,
    dtype: torch.dtype,
    seed: int,
    masked: float,
    whole: bool,
    greedy: bool,
    grid: float,
):
    """Logarithms on a coarse grid: most comparisons are ties, and the token is often not z."""
    trajectories = drawn(policies(rows, vocab, scale, dtype, seed, masked=masked, whole=whole), seed, greedy=greedy)
    with logarithms_on_a_grid(grid):
        assert_same(trajectories)


def test_ties_occur():
    trajectories = drawn(policies(50, 9, 1.0, torch.float32, 0, whole=True), seed=0)
    with logarithms_on_a_grid(1.0):
        assert assert_same(trajectories) > 100
        search = search_of(trajectories)
        assert 5 < int((search.true != search.tokens).sum()) < 45


@both_dtypes
@pytest.mark.parametrize("shift", [-1e6, -300.0, 300.0, 1e6])
def test_rounding_loses_no_branch(dtype: torch.dtype, shift: float):
    """With a large common offset, a − φ is rounded so coarsely that bounds on candidates must leave room."""
    for vocab in (3, 12, 60):
        logits = policies(100, vocab, 3.0, dtype, 7) + shift
        assert assert_same(drawn(logits, seed=vocab)) > 30


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The share of actions that are candidates, in every cell that is searched."""
    shares: list[float] = []

    def list_candidates(phis: np.ndarray, *arguments: Any) -> Any:
        results = swap_candidates.list_candidates(phis, *arguments)
        shares.extend(results[2] / phis.shape[1])
        return results

    monkeypatch.setattr(all_references, "list_candidates", list_candidates)
    return shares


@both_dtypes
@pytest.mark.parametrize("margin", [None, pytest.param(3e-6, marks=pytest.mark.prove)])
def test_limits_and_doubts_decide_as_logarithms_do(
    dtype: torch.dtype, margin: float | None, few_candidates: list[float], monkeypatch: pytest.MonkeyPatch
):
    """Where most actions are no candidates; also with margins so wide that many of these are in doubt."""
    if margin is not None:
        monkeypatch.setattr(all_references, "_ERRORS", margin / torch.finfo(dtype).eps)
    branches = 0
    for case, (vocab, rows) in enumerate([(257, 30), (700, 8), (1500, 4)]):
        for scale in (3.0, 4.0, 6.0, 20.0):
            logits = policies(rows, vocab, scale, dtype, case, masked=0.1 * case)
            branches += assert_same(drawn(logits, seed=case))
    assert branches > 1000
    assert sum(share < 1 / 8 for share in few_candidates) > 60


def test_few_logarithms_are_computed(few_candidates: list[float]):
    """At the vocabulary of a language model, of candidates and of what rounding leaves in doubt."""
    logits = policies(3, 50_000, 8.0, torch.float32, 0)
    lengths: list[int] = []

    def log_into(out: np.ndarray, values: np.ndarray) -> None:
        lengths.append(values.size)
        pseudo.log_into(out, values)

    with patch("corollout.estimators.all_references.log_into", log_into):
        search = search_of(drawn(logits, seed=0))
        search.entries(torch.arange(len(search.action)))
    assert max(few_candidates) < 0.02
    assert 0 < max(lengths) < 0.04 * 50_000


def test_logits_of_any_size():
    """Policies that are certain, and some that are not."""
    certain = [[1e4, 0.0, -1e4], [-1e30, -1e30, -torch.inf], [0.0, 3e38, -3e38], [0.0, 90.0, 60.0]]
    logits = torch.tensor([*certain, [5e3, 5e3 + 1, -torch.inf], [-3e38, 40.0, 40.0]])
    for dtype in DTYPES:
        assert assert_same(drawn(logits.to(dtype).repeat(20, 1), seed=0)) >= 10


# Equal to the definition


@both_dtypes
def test_coefficients_are_those_of_the_definition(dtype: torch.dtype):
    """C_a[v] = Σ_j w_j (1[z^{v⇌j} = a] − (1/V) #{m : z^{m⇌j} = a}), by swapping one pair after the other."""
    branches = 0
    for vocab, scale, masked in [(2, 1.0, 0.0), (4, 0.5, 0.0), (7, 2.0, 0.3), (12, 1.0, 0.0)]:
        trajectories = drawn(policies(12, vocab, scale, dtype, vocab, masked=masked), seed=1)
        cell, action, norm, found = by_search(search_of(trajectories))
        steps = torch.zeros_like(trajectories.keys)
        for row, pi in enumerate(dirichlet(trajectories.keys, steps, vocab, dtype)):
            a, expected = pi.log(), torch.zeros(vocab, vocab, dtype=torch.float64)
            for j in range(vocab):
                for m in range(vocab):
                    swapped = a.clone()
                    swapped[j], swapped[m] = a[m], a[j]
                    pseudo_action = int((swapped - trajectories.logits[row, 0]).argmin())
                    expected[pseudo_action, m] += (1 - vocab * pi[j].double()) / vocab
            expected -= expected.mean(1, keepdim=True)
            expected[trajectories.tokens[row, 0]] = 0
            torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
            here = cell == row
            sizes = expected.norm(dim=1)
            assert action[here].tolist() == (sizes > 1e-5).nonzero().squeeze(1).tolist()
            torch.testing.assert_close(norm[here].double(), sizes[action[here]], rtol=1e-4, atol=1e-6)
            branches += int(here.sum())
    assert branches > 40


# Parts


@both_dtypes
def test_entries_of_some_branches_are_a_part_of_all(dtype: torch.dtype):
    """Also in another order, and of the true action where the token is greedy."""
    trajectories = drawn(policies(30, 60, 2.0, dtype, 0), seed=3, greedy=True)
    search = search_of(trajectories)
    *_, whole = by_search(search)
    generator = torch.Generator().manual_seed(0)
    of_true_action = 0
    for count in (0, 1, 2, 40):
        kept = torch.randperm(len(search.action), generator=generator)[:count]
        cell, action = search.select(kept)
        of_true_action += int((action == search.true[cell]).sum())
        branch, coordinate, value = search.entries(kept)
        part = centred((30, 60, 60), cell[branch], action[branch], coordinate, value)
        torch.testing.assert_close(part[cell, action], whole[cell, action], rtol=0, atol=0)
        part[cell, action] = 0
        assert not bool(part.any())
    assert of_true_action > 0


def assert_equal(a: SwapSearch, b: SwapSearch) -> None:
    for field in fields(SwapSearch)[1:]:
        assert torch.equal(getattr(a, field.name), getattr(b, field.name)), field.name
    kept = torch.arange(len(a.action))
    for x, y in zip(a.entries(kept), b.entries(kept), strict=True):
        assert torch.equal(x, y)


def cells_of(vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    trajectories = drawn(policies(23, vocab, 1.5, dtype, 4), seed=5)
    return trajectories.logits[:, 0], trajectories.keys, torch.zeros_like(trajectories.keys), trajectories.tokens[:, 0]


@both_dtypes
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_blocks_parts_and_threads_make_no_difference(dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch):
    cells = cells_of(70, dtype)
    whole = SwapSearch.of(*cells)
    assert len(whole.action) > 200
    monkeypatch.setattr(all_references, "_BLOCK", 70 * 9)
    monkeypatch.setattr(all_references, "_PART", 70 * 2)
    monkeypatch.setattr("corollout.row_threads._WORTH_IT", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_equal(SwapSearch.of(*cells), whole)
    finally:
        torch.set_num_threads(before)


def test_searches_are_joined():
    cells = cells_of(40, torch.float32)
    parts = [SwapSearch.of(*(x[i : i + 5] for x in cells)) for i in range(0, 23, 5)]
    nothing = SwapSearch.of(*(x[:0] for x in cells))
    assert len(nothing.action) == 0
    assert [len(x) for x in nothing.entries(torch.arange(0))] == [0, 0, 0]
    assert_equal(SwapSearch.join([*parts[:2], nothing, *parts[2:]]), SwapSearch.of(*cells))


@both_dtypes
def test_searches_are_joined_in_an_order(dtype: torch.dtype):
    cells = cells_of(40, dtype)
    parts = [SwapSearch.of(*(x[i : i + 5] for x in cells)) for i in range(0, 23, 5)]
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    assert_equal(SwapSearch.join(parts, order), SwapSearch.of(*(x[order] for x in cells)))
    assert_equal(SwapSearch.join(parts[:1], torch.arange(5)), parts[0])
    assert SwapSearch.join(parts[:1]) is parts[0]


def test_cells_may_share_a_line_of_logits():
    logits = policies(4, 30, 1.0, torch.float64, 0)
    index = torch.tensor([2, 0, 2, 2, 3, 0])
    trajectories = drawn(logits[index], seed=9)
    cells = (trajectories.keys, torch.zeros(6, dtype=torch.int64), trajectories.tokens[:, 0])
    assert_equal(SwapSearch.of(logits, *cells, index), SwapSearch.of(logits[index], *cells))
    turned = logits.t().contiguous().t().requires_grad_()
    assert_equal(SwapSearch.of(turned, *cells, index), SwapSearch.of(logits[index], *cells))


# Memory


def kept_bytes(search: SwapSearch) -> int:
    return sum(getattr(search, field.name).nbytes for field in fields(SwapSearch)[1:])


@both_dtypes
def test_a_cell_keeps_only_its_candidates(dtype: torch.dtype):
    """Fixed numbers for each cell, two or three for each candidate and branch, and no line of V numbers."""
    rows, vocab, width = 12, 20_000, torch.finfo(dtype).bits // 8
    for scale, share in [(7.0, 0.05), (0.0, 1.0)]:
        search = search_of(drawn(policies(rows, vocab, scale, dtype, 1), seed=1))
        candidates, branches = len(search.logit), len(search.action)
        assert kept_bytes(search) == rows * (8 * 7 + 2 * width) + candidates * (4 + width) + branches * (4 + 2 * width)
        assert 2 * rows < candidates + branches <= share * 2 * rows * vocab
        for column in (search.action, search.norm, search.own, search.candidate, search.logit):
            assert column.untyped_storage().nbytes() == column.nbytes


# Plans


@pytest.mark.parametrize("main", ["sample", "greedy"])
@pytest.mark.parametrize(
    "options",
    [{}, {"budget": 30}, {"budget": 2, "budget_per": "example"}, {"completions": 2, "samples": 2, "budget": 50}],
)
def test_plans_are_the_same_as_from_a_table(options: dict[str, Any], main: Any):
    logits = policies(40, 50, 1.5, torch.float64, 3)
    estimator = ARS(main=main, **options)
    trajectories = single._one_step(logits, estimator, Noise(4))
    plan = estimator.plan(trajectories, Noise(5))
    with patch.object(ARS, "_swaps_all", lambda estimator, trajectories: False):
        twin = estimator.plan(trajectories, Noise(5))
    for field in fields(twin.branches):
        assert torch.equal(getattr(plan.branches, field.name), getattr(twin.branches, field.name))
    assert len(plan.branches) > 25
    rewards = torch.randn(
        len(trajectories.tokens) + len(plan.branches), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    expected = twin.gradient(rewards, trajectories.logits)
    assert bool(expected.any())
    torch.testing.assert_close(plan.gradient(rewards, trajectories.logits), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("budget_per", ["update", "example"])
@pytest.mark.parametrize("all_at_once", [True, False])
@pytest.mark.parametrize("references", [None, 3])
def test_notes_in_any_order_give_the_same_plan(budget_per: Any, references: int | None, *, all_at_once: bool):
    """As they are taken while sequences grow: step by step, not row by row."""
    estimator = ARS(references=references, budget=20, budget_per=budget_per, samples=2)
    problem = Problem.make(vocab=6, length=4, seed=2)
    noise = Noise(3)
    sampled = problem.engine().sample(torch.zeros(10, dtype=torch.int64), torch.arange(10), estimator.sampler, noise)
    trajectories = replace(sampled.trajectories, notes=None)
    expected = estimator.plan(trajectories, noise)
    rows, steps = trajectories.mask.t().nonzero().unbind(1)[::-1]
    parts = [len(rows)] if all_at_once else steps.bincount().tolist()
    assert not all_at_once or bool((rows.diff() < 0).any())
    cells = zip(rows.split(parts), steps.split(parts), strict=True)
    notes = tuple(estimator.take_notes(Cells.of(trajectories, *some), noise) for some in cells)
    plan = estimator.plan(replace(trajectories, notes=notes), noise)
    assert len(plan.branches) >= 20
    for field in fields(plan.branches):
        assert torch.equal(getattr(plan.branches, field.name), getattr(expected.branches, field.name))
    rewards = torch.randn(len(rows) + len(plan.branches), generator=torch.Generator().manual_seed(0)).double()
    gradient = expected.gradient(rewards, trajectories.logits)
    assert bool(gradient.any())
    torch.testing.assert_close(plan.gradient(rewards, trajectories.logits), gradient, rtol=1e-12, atol=1e-14)


def test_entries_are_written_as_by_indexing():
    generator = torch.Generator().manual_seed(0)
    branch = torch.randint(5, (40,), generator=generator)
    row, step = torch.randint(9, (2, 5), generator=generator)
    for dtype in DTYPES:
        value, scale = torch.randn(40, generator=generator).to(dtype), torch.rand(5, generator=generator).to(dtype)
        written = ars._of_entries(branch, value, row, step, scale)
        for x, y in zip(written, (row[branch], step[branch], value * scale[branch]), strict=True):
            assert x.dtype == y.dtype
            assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("estimator", "searched"),
    [(ARS(), True), (ARS(references=6), True), (ARS(references=5), False), (ARS(draws=2), False)],
    ids=str,
)
def test_the_search_is_for_all_references_and_one_draw(estimator: ARS, searched: bool):
    trajectories = drawn(policies(5, 6, 1.0, torch.float32, 0), seed=0)
    with patch.object(SwapSearch, "of", side_effect=RuntimeError("searched")):
        if searched:
            with pytest.raises(RuntimeError, match="searched"):
                estimator.plan(trajectories, Noise(0))
        else:
            assert len(estimator.plan(trajectories, Noise(0)).branches) > 0


# Invalid inputs


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_invalid_logits_is_named(bad: float, monkeypatch: pytest.MonkeyPatch):
    logits, keys, steps, tokens = cells_of(5, torch.float32)
    logits = logits.clone()
    logits[17] = bad
    for block, part in [(1 << 21, 1 << 15), (20, 10), (1, 1)]:
        monkeypatch.setattr(all_references, "_BLOCK", block)
        monkeypatch.setattr(all_references, "_PART", part)
        with pytest.raises(InputError, match=r"the logits of row 17 contain NaN or \+inf, or are all −inf"):
            SwapSearch.of(logits, keys, steps, tokens)


@pytest.mark.parametrize(
    ("logits", "index", "message"),
    [
        (torch.zeros(4), [0], r"logits must be of shape \[lines, V\] with V ≥ 1, not \[4\]"),
        (torch.zeros(4, 0), [0], r"logits must be of shape .* not \[4, 0\]"),
        (torch.zeros(4, 3).bfloat16(), [0], "logits must be float32 or float64, not torch.bfloat16"),
        (torch.zeros(4, 3), [0, 4], "there are 4 lines of logits, but cells with lines 0 to 4"),
        (torch.zeros(4, 3), [-1, 2], "there are 4 lines of logits, but cells with lines -1 to 2"),
    ],
)
def test_invalid_inputs_are_refused(logits: Tensor, index: list[int], message: str):
    with pytest.raises(InputError, match=message):
        all_references._checked(logits, torch.tensor(index))
