"""Pseudo-actions: the sparse search finds what swapping, one pair at a time, would have found."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators import PseudoActions, pseudo, pseudo_actions, pseudo_torch

Search = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]]


def _search_loop(logits: Tensor, log_pi: Tensor, references: Tensor):
    """The compiled loop from logarithms, which may lie on a grid."""
    bad, true, default, entries = pseudo._loop(logits.numpy(), log_pi.numpy(), references.numpy())
    if bad >= 0:
        raise pseudo_torch.row_error(bad, log_pi[bad])
    row, reference, swap, action = map(torch.from_numpy, entries)
    return torch.from_numpy(true), torch.from_numpy(default), (row, reference, swap, action)


SEARCHES: list[Search] = [_search_loop, pseudo_torch.search_torch]
both_searches = pytest.mark.parametrize("search", SEARCHES)


def brute_force(logits: Tensor, log_pi: Tensor, references: Tensor) -> Tensor:
    """z^{m⇌j_k} for every row, k and m: swap two coordinates, subtract, argmin.

    The logarithm is taken before the swap, because vectorised logarithms of one number at two positions of a tensor may
    differ in the last bit.
    """
    rows, vocab = logits.shape
    width = references.shape[1]
    swapped = log_pi[:, None, None].repeat(1, width, vocab, 1)  # row, k, m, i
    r, k, m = torch.meshgrid(torch.arange(rows), torch.arange(width), torch.arange(vocab), indexing="ij")
    j = references[r, k]
    swapped[r, k, m, j], swapped[r, k, m, m] = log_pi[r, m], log_pi[r, j]
    return (swapped - logits[:, None, None]).argmin(3)


def draw(
    rows: int, vocab: int, width: int, scale: float, dtype: torch.dtype, seed: int, *, masked: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, a Dirichlet draw, and references for each row; some logits are −inf, never all of a row."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, vocab, dtype=dtype, generator=generator)
    hidden = torch.rand(rows, vocab, generator=generator) < masked
    hidden[torch.arange(rows), torch.randint(vocab, (rows,), generator=generator)] = False
    e = torch.empty(rows, vocab, dtype=dtype).exponential_(generator=generator)
    references = torch.rand(rows, vocab, generator=generator).argsort(1)[:, :width]
    return logits.masked_fill(hidden, -torch.inf), e / e.sum(1, keepdim=True), references


def search_with(search: Search, logits: Tensor, log_pi: Tensor, references: Tensor) -> PseudoActions:
    true, default, entries = search(logits, log_pi, references)
    return PseudoActions(logits.shape[1], true, references, default, *entries)


def assert_correct(table: PseudoActions, logits: Tensor, log_pi: Tensor, references: Tensor) -> None:
    """Equal to brute force, with no entry listed twice and none that equals its default."""
    assert torch.equal(table.true, (log_pi - logits).argmin(1))
    assert torch.equal(table.dense(), brute_force(logits, log_pi, references))
    code = (table.row * references.shape[1] + table.reference) * table.vocab + table.swap
    assert len(code.unique()) == len(code)
    assert bool((table.action != table.default[table.row, table.reference]).all())


# Equal to brute force

# V, K, rows
SHAPES = [
    *((1, 1, 50), (2, 1, 4000), (2, 2, 4000), (3, 1, 4000), (3, 3, 4000), (5, 1, 2000), (5, 3, 2000), (5, 5, 2000)),
    *((17, 1, 400), (17, 3, 400), (17, 17, 300), (64, 1, 150), (64, 3, 100), (64, 64, 20)),
]


def test_the_search_equals_brute_force_on_a_million_entries():
    """Flat, ordinary and peaked logits, with and without masks, in both precisions."""
    checked = of_true_action = of_true_reference = masked_rows = 0
    for case, (vocab, width, rows) in enumerate(SHAPES):
        for kind, (scale, masked) in enumerate([(0.0, 0.0), (0.3, 0.0), (2.0, 0.0), (20.0, 0.0), (2.0, 0.4)]):
            dtype = (torch.float32, torch.float64)[(case + kind) % 2]
            logits, pi, references = draw(rows, vocab, width, scale, dtype, 100 * case + kind, masked=masked)
            table = pseudo_actions(logits, pi, references)
            assert_correct(table, logits, pi.log(), references)
            checked += rows * width * vocab
            of_true_action += int((references != table.true[:, None]).sum())  # m = z ≠ j
            of_true_reference += vocab * int((references == table.true[:, None]).sum())  # j = z
            masked_rows += int((logits == -torch.inf).any(1).sum())
    assert checked >= 10**6
    assert min(of_true_action, of_true_reference) >= 10**5
    assert masked_rows >= 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@both_searches
def test_both_searches_equal_brute_force(search: Search, dtype: torch.dtype):
    for seed, (vocab, width) in enumerate([(1, 1), (2, 2), (3, 2), (17, 5), (64, 64)]):
        for scale in (0.1, 1.0, 10.0):
            logits, pi, references = draw(60, vocab, width, scale, dtype, seed, masked=0.2)
            assert_correct(search_with(search, logits, pi.log(), references), logits, pi.log(), references)


def test_both_searches_give_the_same_entries():
    for seed, (vocab, width, scale) in enumerate([(9, 4, 1.0), (200, 20, 2.0), (200, 200, 0.5), (500, 3, 6.0)]):
        logits, pi, references = draw(40, vocab, width, scale, torch.float32, seed, masked=0.1)
        tables = [search_with(search, logits, pi.log(), references) for search in SEARCHES]
        entries = [torch.stack([t.row, t.reference, t.swap, t.action], 1).tolist() for t in tables]
        assert torch.equal(tables[0].default, tables[1].default)
        assert sorted(entries[0]) == sorted(entries[1]) != []


@pytest.mark.parametrize("block", [1, 10, 25, 70, 100])
def test_blocks_make_no_difference(block: int, monkeypatch: pytest.MonkeyPatch):
    logits, pi, references = draw(23, 10, 4, 1.5, torch.float64, block)
    for module in (pseudo, pseudo_torch):
        monkeypatch.setattr(module, "_BLOCK", block)
    for table in (pseudo_actions(logits, pi, references), search_with(SEARCHES[1], logits, pi.log(), references)):
        assert_correct(table, logits, pi.log(), references)
        assert int(table.row.max()) > 20


@pytest.mark.parametrize("width", [1, 3, 17])
def test_shared_references_are_the_same_for_every_row(width: int):
    logits, pi, references = draw(100, 17, width, 1.0, torch.float32, width)
    shared, repeated = references[0], references[:1].repeat(100, 1)
    table = pseudo_actions(logits, pi, shared)
    assert_correct(table, logits, pi.log(), repeated)
    assert torch.equal(table.references, repeated)


def test_logits_may_require_a_gradient_and_have_any_memory_layout():
    logits, pi, references = draw(12, 7, 7, 1.0, torch.float64, 0)
    turned = [x.t().contiguous().t() for x in (logits, pi, references)]
    assert_correct(pseudo_actions(turned[0].requires_grad_(), *turned[1:]), logits, pi.log(), references)


@both_searches
@pytest.mark.parametrize("shift", [-1e6, -1e4, -300.0, 300.0, 1e4, 1e6])
def test_rounding_loses_no_entry(search: Search, shift: float):
    """With a large common offset, a − φ is rounded so coarsely that bounds on sorted candidates must leave room."""
    for vocab in (3, 12):
        logits, pi, references = draw(400, vocab, vocab, 3.0, torch.float32, 7)
        logits, log_pi = logits + shift, (pi * 1e-30).log()
        assert_correct(search_with(search, logits, log_pi, references), logits, log_pi, references)


# Ties


@st.composite
def tied(draw_: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, logarithms of π and references on a grid so coarse that most comparisons are ties."""
    rows, vocab = draw_(st.integers(1, 4)), draw_(st.integers(1, 7))
    numbers = st.lists(st.integers(-2, 2), min_size=rows * vocab, max_size=rows * vocab)
    dtype = draw_(st.sampled_from([torch.float32, torch.float64]))
    logits = torch.tensor(draw_(numbers), dtype=dtype).view(rows, vocab)
    logits = torch.where(logits == -2, -torch.inf, logits)
    logits[logits.amax(1) == -torch.inf, 0] = 0.0
    log_pi = torch.tensor(draw_(numbers), dtype=dtype).view(rows, vocab)
    width = draw_(st.integers(1, vocab))
    references = [draw_(st.permutations(range(vocab)))[:width] for _ in range(rows)]
    return logits, log_pi, torch.tensor(references)


@settings(deadline=None, max_examples=300)
@given(tied())
def test_ties_go_to_the_smaller_index(inputs: tuple[Tensor, Tensor, Tensor]):
    for search in SEARCHES:
        assert_correct(search_with(search, *inputs), *inputs)


# Properties of the table


def test_swapping_a_coordinate_with_itself_leaves_the_true_action():
    """The function printed in the paper gives the runner-up for j = m = z, where nothing is swapped. And the table is
    symmetric."""
    logits, pi, _ = draw(500, 6, 6, 1.0, torch.float64, 0)
    table, index, rows = pseudo_actions(logits, pi, torch.arange(6)), torch.arange(6), torch.arange(500)
    assert torch.equal(table.dense()[:, index, index], table.true[:, None].expand(-1, 6))
    runner_up = (pi.log() - logits).topk(2, 1, largest=False).indices[:, 1]
    assert torch.equal(table.default[rows, table.true], runner_up)
    assert torch.equal(table.dense(), table.dense().transpose(1, 2))


@pytest.mark.parametrize(
    ("vocab", "width", "scale"), [(1, 1, 1.0), (2, 1, 1.0), (2, 2, 0.0), (12, 4, 1.0), (40, 40, 5.0)]
)
def test_unique_lists_the_distinct_actions_of_every_row(vocab: int, width: int, scale: float):
    logits, pi, references = draw(150, vocab, width, scale, torch.float32, vocab, masked=0.3)
    table = pseudo_actions(logits, pi, references)
    expected = [(row, action) for row, part in enumerate(table.dense()) for action in part.unique().tolist()]
    rows, actions = table.unique()
    assert list(zip(rows.tolist(), actions.tolist(), strict=True)) == expected
    assert bool(logits[rows, actions].isfinite().all())  # never a masked action


def test_unique_leaves_out_a_default_that_no_entry_has():
    # With j = z = 0 the default is 1; both entries of the reference are 0: m = 0 changes nothing, m = 1 not enough.
    table = pseudo_actions(torch.tensor([[9.0, 0.0]]), torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    assert table.default.tolist() == [[1]]
    assert table.dense().tolist() == [[[0, 0]]]
    assert [x.tolist() for x in table.unique()] == [[0], [0]]


@both_searches
def test_the_only_action_is_every_pseudo_action(search: Search):
    logits = torch.full((3, 5), -torch.inf)
    logits[torch.arange(3), torch.tensor([0, 2, 4])] = torch.tensor([0.0, -50.0, 7.0])
    _, pi, _ = draw(3, 5, 5, 1.0, torch.float32, 0)
    table = search_with(search, logits, pi.log(), torch.arange(5).expand(3, -1))
    assert table.true.tolist() == [0, 2, 4]
    assert torch.equal(table.dense(), table.true[:, None, None].expand(3, 5, 5))
    assert len(table.row) == 0


def test_an_empty_batch():
    logits, references = torch.zeros(0, 4), torch.zeros(0, 2, dtype=torch.int64)
    for table in (
        pseudo_actions(logits, logits, torch.tensor([1, 3])),
        *(search_with(search, logits, logits, references) for search in SEARCHES),
    ):
        assert table.dense().shape == (0, 2, 4)
        assert [len(x) for x in table.unique()] == [0, 0]


def test_few_entries_depart_from_their_defaults():
    """About V of the V² entries do, for any logits, and V more for the reference z."""
    for scale in (0.0, 1.0, 4.0):
        logits, pi, references = draw(30, 400, 400, scale, torch.float64, 5)
        assert 0 < len(pseudo_actions(logits, pi, references).row) < 6 * 400 * 30


# Invalid inputs

GOOD = torch.full((3, 4), 0.25)
ALL = torch.arange(4)


@both_searches
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("vocab", [1, 2, 4])
def test_a_row_with_invalid_logits_is_named(search: Search, bad: float, vocab: int, monkeypatch: pytest.MonkeyPatch):
    """One bad logit, beside valid and masked ones, and nothing but bad ones."""
    monkeypatch.setattr(pseudo, "_BLOCK", vocab)  # one row a block
    log_pi, references = torch.full((3, vocab), 1 / vocab).log(), torch.arange(vocab).expand(3, -1)
    for position in range(vocab):
        for other in (0.0, -torch.inf, bad):
            logits = torch.zeros(3, vocab)
            logits[1] = other
            logits[1, position] = bad
            if bool((logits[1].amax()).isfinite()):
                continue  # a mask
            with pytest.raises(InputError, match=r"the logits of row 1 contain NaN or \+inf, or are all −inf"):
                search(logits, log_pi, references)


@pytest.mark.parametrize("bad", [0.0, -0.25, torch.nan, torch.inf])
def test_an_invalid_pi_is_refused(bad: float):
    pi = GOOD.clone()
    pi[2, 3] = bad
    with pytest.raises(InputError, match="pi of row 2 is not positive and finite"):
        pseudo_actions(torch.zeros(3, 4), pi, ALL)


@pytest.mark.parametrize(
    ("logits", "pi", "references", "message"),
    [
        (torch.zeros(4), torch.ones(4), ALL, r"logits must be of shape \[rows, V\] with V ≥ 1, not \[4\]"),
        (torch.zeros(3, 0), torch.zeros(3, 0), ALL, r"logits must be of shape .* not \[3, 0\]"),
        (torch.zeros(3, 4), GOOD[:2], ALL, r"pi must have the shape of the logits, \[3, 4\], not \[2, 4\]"),
        (torch.zeros(3, 4), GOOD[:, :3], ALL, r"pi must have the shape .* not \[3, 3\]"),
        (torch.zeros(3, 4), GOOD, ALL.expand(2, -1), r"references must be .* \[rows, K\] with K ≥ 1, not \[2, 4\]"),
        (torch.zeros(3, 4), GOOD, ALL[:0], r"references must be of shape .* not \[0\]"),
        (torch.zeros(3, 4), GOOD, torch.tensor(1), r"references must be of shape .* not \[\]"),
        (torch.zeros(3, 4), GOOD, torch.arange(5), "5 references, but only V = 4 actions"),
        (torch.zeros(3, 4), GOOD, torch.tensor([0, 2, 0]), "a reference occurs twice"),
        (torch.zeros(3, 4), GOOD, torch.tensor([[0, 1], [1, 0], [3, 3]]), "a reference occurs twice"),
        (torch.zeros(3, 4), GOOD, torch.tensor([0, 4]), "references must be actions from 0 to 3"),
        (torch.zeros(3, 4), GOOD, torch.tensor([-1, 2]), "references must be actions from 0 to 3"),
        (torch.zeros(3, 4), GOOD.double(), ALL, "both be float32 or both float64, not torch.float32 and torch.float64"),
        (torch.zeros(3, 4).bfloat16(), GOOD.bfloat16(), ALL, "not torch.bfloat16 and torch.bfloat16"),
    ],
)
def test_invalid_inputs_are_refused(logits: Tensor, pi: Tensor, references: Tensor, message: str):
    # The type checks of the tests would refuse some of them first; a user's program has none.
    with pytest.raises(InputError, match=message):
        pseudo._check_inputs(logits, pi, references)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_are_divided_among_threads(threads: int, monkeypatch: pytest.MonkeyPatch):
    logits, pi, references = draw(101, 40, 7, 2.0, torch.float32, seed=3)
    monkeypatch.setattr(pseudo, "_BLOCK", 40 * 9)
    monkeypatch.setattr("corollout.row_threads._WORTH_IT", 1)
    bad = logits.clone()
    bad[70, 3] = torch.nan
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_correct(pseudo_actions(logits, pi, references), logits, pi.log(), references)
        with pytest.raises(InputError, match="the logits of row 70 contain"):
            pseudo_actions(bad, pi, references)
    finally:
        torch.set_num_threads(before)
