"""Pseudo-actions: the sparse search finds what swapping, one pair at a time, would have found."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators import PseudoActions, pseudo, pseudo_actions

Search = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]]


def _search_compiled(logits: Tensor, log_pi: Tensor, references: Tensor):
    """The compiled loop on logarithms, which may then lie on a grid."""
    bad, true, default, entries = pseudo._loop(logits.numpy(), log_pi.numpy(), references.numpy())
    if bad >= 0:
        raise pseudo._refused(bad, log_pi[bad])
    row, reference, swap, action = map(torch.from_numpy, entries)
    return torch.from_numpy(true), torch.from_numpy(default), (row, reference, swap, action)


SEARCHES: list[Search] = [_search_compiled, pseudo._search_torch]


def brute_force(logits: Tensor, log_pi: Tensor, references: Tensor) -> Tensor:
    """z^{m⇌j_k} for every row, k and m: exchange two coordinates, subtract, argmin.

    The logarithm is taken before the exchange, because vectorised logarithms of the same number at two places of a
    tensor need not agree in the last bit.
    """
    rows, vocab = logits.shape
    width = references.shape[1]
    swapped = log_pi[:, None, None].repeat(1, width, vocab, 1)  # row, k, m, i
    r, k, m = torch.meshgrid(torch.arange(rows), torch.arange(width), torch.arange(vocab), indexing="ij")
    j = references[r, k]
    swapped[r, k, m, j], swapped[r, k, m, m] = log_pi[r, m], log_pi[r, j]
    return (swapped - logits[:, None, None]).argmin(3)


def search_with(search: Search, logits: Tensor, log_pi: Tensor, references: Tensor) -> PseudoActions:
    true, default, entries = search(logits, log_pi, references)
    return PseudoActions(logits.shape[1], true, references, default, *entries)


def draw(
    rows: int, vocab: int, width: int, scale: float, dtype: torch.dtype, seed: int, *, masked: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, a Dirichlet draw, and references of each row's own; some logits are −inf, never all of a row."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, vocab, dtype=dtype, generator=generator)
    hidden = torch.rand(rows, vocab, generator=generator) < masked
    hidden[torch.arange(rows), torch.randint(vocab, (rows,), generator=generator)] = False
    e = torch.empty(rows, vocab, dtype=dtype).exponential_(generator=generator)
    references = torch.rand(rows, vocab, generator=generator).argsort(1)[:, :width]
    return logits.masked_fill(hidden, -torch.inf), e / e.sum(1, keepdim=True), references


def assert_well_formed(found: PseudoActions) -> None:
    """No entry is proposed twice, and none equals its default."""
    width = found.references.shape[1]
    code = (found.row * width + found.reference) * found.vocab + found.swap
    assert len(code.unique()) == len(code)
    assert bool((found.action != found.default[found.row, found.reference]).all())


def entries_of(found: PseudoActions) -> set[tuple[int, ...]]:
    return {*zip(*(x.tolist() for x in (found.row, found.reference, found.swap, found.action)), strict=True)}


# Equal to brute force

# V, K, rows
SHAPES = [
    (1, 1, 50),
    (2, 1, 4000),
    (2, 2, 4000),
    (3, 1, 4000),
    (3, 3, 4000),
    (5, 1, 2000),
    (5, 3, 2000),
    (5, 5, 2000),
    (17, 1, 400),
    (17, 3, 400),
    (17, 17, 300),
    (64, 1, 150),
    (64, 3, 100),
    (64, 64, 20),
]


def test_the_search_equals_brute_force_on_a_million_entries():
    """Flat, ordinary and peaked logits, with and without masked ones, in both precisions."""
    checked = of_reference_itself = of_true_action = of_true_reference = masked_rows = 0
    for case, (vocab, width, rows) in enumerate(SHAPES):
        for kind, (scale, masked) in enumerate([(0.0, 0.0), (0.3, 0.0), (2.0, 0.0), (20.0, 0.0), (2.0, 0.4)]):
            dtype = (torch.float32, torch.float64)[(case + kind) % 2]
            logits, pi, references = draw(rows, vocab, width, scale, dtype, 100 * case + kind, masked=masked)
            found = pseudo_actions(logits, pi, references)
            expected = brute_force(logits, pi.log(), references)
            z = (pi.log() - logits).argmin(1)
            assert torch.equal(found.true, z)
            assert torch.equal(found.dense(), expected)
            assert_well_formed(found)
            checked += expected.numel()
            of_reference_itself += references.numel()  # m = j, once for each reference
            of_true_action += int((references != z[:, None]).sum())  # m = z ≠ j
            of_true_reference += vocab * int((references == z[:, None]).sum())  # j = z
            masked_rows += int((logits == -torch.inf).any(1).sum())
    assert checked >= 10**6
    assert min(of_reference_itself, of_true_action, of_true_reference) >= 10**5
    assert masked_rows >= 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("vocab", "width"), [(1, 1), (2, 2), (3, 2), (17, 5), (64, 64)])
def test_both_searches_equal_brute_force(search: Search, dtype: torch.dtype, vocab: int, width: int):
    for seed, scale in enumerate([0.1, 1.0, 10.0]):
        logits, pi, references = draw(60, vocab, width, scale, dtype, seed, masked=0.2)
        found = search_with(search, logits, pi.log(), references)
        assert torch.equal(found.dense(), brute_force(logits, pi.log(), references))
        assert_well_formed(found)


def test_both_searches_give_the_same_entries():
    for seed, (vocab, width, scale) in enumerate([(9, 4, 1.0), (200, 20, 2.0), (200, 200, 0.5), (500, 3, 6.0)]):
        logits, pi, references = draw(40, vocab, width, scale, torch.float32, seed, masked=0.1)
        compiled, plain = (search_with(search, logits, pi.log(), references) for search in SEARCHES)
        assert torch.equal(compiled.true, plain.true)
        assert torch.equal(compiled.default, plain.default)
        assert entries_of(compiled) == entries_of(plain)
        assert len(compiled.row) == len(plain.row) > 0


@pytest.mark.parametrize("block", [1, 10, 25, 70, 100])
def test_blocks_make_no_difference(block: int, monkeypatch: pytest.MonkeyPatch):
    logits, pi, references = draw(23, 10, 4, 1.5, torch.float64, block)
    expected = brute_force(logits, pi.log(), references)
    monkeypatch.setattr(pseudo, "_BLOCK", block)
    found = search_with(pseudo._search_torch, logits, pi.log(), references)
    assert torch.equal(found.dense(), expected)
    assert int(found.row.max()) > 20


@pytest.mark.parametrize("width", [1, 3, 17])
def test_shared_references_are_the_same_references_for_every_row(width: int):
    logits, pi, references = draw(100, 17, width, 1.0, torch.float32, width)
    shared = pseudo_actions(logits, pi, references[0])
    repeated = pseudo_actions(logits, pi, references[:1].repeat(100, 1))
    assert torch.equal(shared.dense(), repeated.dense())
    assert torch.equal(shared.dense(), brute_force(logits, pi.log(), references[:1].expand(100, -1)))
    assert torch.equal(shared.references, repeated.references)


def test_logits_may_need_a_gradient():
    logits, pi, references = draw(10, 5, 5, 1.0, torch.float32, 0)
    wanted = pseudo_actions(logits, pi, references)
    assert torch.equal(pseudo_actions(logits.requires_grad_(), pi, references).dense(), wanted.dense())


def test_rows_and_columns_may_lie_in_any_order_in_memory():
    logits, pi, references = draw(12, 7, 7, 1.0, torch.float64, 0)
    turned = pseudo_actions(logits.t().contiguous().t(), pi.t().contiguous().t(), references.t().contiguous().t())
    assert torch.equal(turned.dense(), brute_force(logits, pi.log(), references))


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("shift", [-1e6, -1e4, -300.0, 300.0, 1e4, 1e6])
def test_rounding_loses_no_entry(search: Search, shift: float):
    """With a large common offset a − φ is rounded so coarsely that bounds on sorted candidates must leave room."""
    for vocab in (3, 12):
        logits, pi, references = draw(400, vocab, vocab, 3.0, torch.float32, 7)
        logits, pi = logits + shift, pi * 1e-30
        found = search_with(search, logits, pi.log(), references)
        assert torch.equal(found.dense(), brute_force(logits, pi.log(), references))


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


@settings(deadline=None, max_examples=400)
@given(tied())
def test_ties_go_to_the_smaller_index(inputs: tuple[Tensor, Tensor, Tensor]):
    logits, log_pi, references = inputs
    expected = brute_force(logits, log_pi, references)
    for search in SEARCHES:
        found = search_with(search, logits, log_pi, references)
        assert torch.equal(found.true, (log_pi - logits).argmin(1))
        assert torch.equal(found.dense(), expected)
        assert_well_formed(found)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(-1, 1), st.sampled_from([0.125, 0.25, 0.5])), min_size=1, max_size=8))
def test_ties_of_equal_probabilities_go_to_the_smaller_index(pairs: list[tuple[int, float]]):
    logits, pi = torch.tensor(pairs, dtype=torch.float64).t()[:, None].contiguous()
    references = torch.arange(len(pairs))
    found = pseudo_actions(logits, pi, references)
    assert torch.equal(found.dense(), brute_force(logits, pi.log(), references[None]))


# What the table says


def test_swapping_a_coordinate_with_itself_leaves_the_true_action():
    """The function printed in the paper gives the runner-up for j = m = z, where nothing is exchanged at all."""
    logits, pi, _ = draw(500, 6, 6, 1.0, torch.float64, 0)
    found = pseudo_actions(logits, pi, torch.arange(6))
    every = torch.arange(6)
    assert torch.equal(found.dense()[:, every, every], found.true[:, None].expand(-1, 6))
    rows = torch.arange(500)
    assert torch.equal(found.dense()[rows, found.true, found.true], found.true)
    runner_up = (pi.log() - logits).topk(2, 1, largest=False).indices[:, 1]
    assert torch.equal(found.default[rows, found.true], runner_up)
    assert bool((found.true != runner_up).all())


def test_the_table_is_symmetric():
    logits, pi, _ = draw(100, 9, 9, 1.0, torch.float64, 1)
    table = pseudo_actions(logits, pi, torch.arange(9)).dense()
    assert torch.equal(table, table.transpose(1, 2))


@pytest.mark.parametrize(
    ("vocab", "width", "scale"), [(1, 1, 1.0), (2, 1, 1.0), (2, 2, 0.0), (12, 4, 1.0), (40, 40, 5.0)]
)
def test_unique_lists_the_different_actions_of_every_row(vocab: int, width: int, scale: float):
    logits, pi, references = draw(150, vocab, width, scale, torch.float32, vocab, masked=0.3)
    found = pseudo_actions(logits, pi, references)
    expected = [(row, action) for row, table in enumerate(found.dense()) for action in table.unique().tolist()]
    rows, actions = found.unique()
    assert list(zip(rows.tolist(), actions.tolist(), strict=True)) == expected


def test_unique_leaves_out_a_default_from_which_every_entry_departs():
    # With j = z = 0 the default is 1; both entries of the reference are 0: m = 0 changes nothing, m = 1 not enough.
    found = pseudo_actions(torch.tensor([[9.0, 0.0]]), torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    assert found.default.tolist() == [[1]]
    assert found.dense().tolist() == [[[0, 0]]]
    assert [x.tolist() for x in found.unique()] == [[0], [0]]


def test_masked_actions_are_nobodys_pseudo_action():
    logits, pi, _ = draw(400, 8, 8, 1.0, torch.float32, 3, masked=0.6)
    found = pseudo_actions(logits, pi, torch.arange(8))
    rows, actions = found.unique()
    assert bool(logits[rows, actions].isfinite().all())
    assert bool((logits == -torch.inf).any())


@pytest.mark.parametrize("search", SEARCHES)
def test_the_only_action_is_every_pseudo_action(search: Search):
    logits = torch.full((3, 5), -torch.inf)
    logits[torch.arange(3), torch.tensor([0, 2, 4])] = torch.tensor([0.0, -50.0, 7.0])
    _, pi, _ = draw(3, 5, 5, 1.0, torch.float32, 0)
    found = search_with(search, logits, pi.log(), torch.arange(5).expand(3, -1))
    assert found.true.tolist() == [0, 2, 4]
    assert torch.equal(found.dense(), found.true[:, None, None].expand(3, 5, 5))
    assert len(found.row) == 0


def test_there_may_be_no_rows():
    for search in (None, *SEARCHES):
        nothing = torch.zeros(0, 4)
        references = torch.zeros(0, 2, dtype=torch.int64)
        if search is None:
            found = pseudo_actions(nothing, nothing, torch.tensor([1, 3]))
        else:
            found = search_with(search, nothing, nothing, references)
        assert found.dense().shape == (0, 2, 4)
        assert [len(x) for x in found.unique()] == [0, 0]


def test_few_entries_depart_from_their_defaults():
    """About V of the V² entries do, whatever the logits, and V more for the reference z."""
    vocab, rows = 400, 30
    for scale in (0.0, 1.0, 4.0):
        logits, pi, _ = draw(rows, vocab, vocab, scale, torch.float64, 5)
        found = pseudo_actions(logits, pi, torch.arange(vocab))
        assert 0 < len(found.row) < 6 * vocab * rows


# What is refused

GOOD = torch.full((3, 4), 0.25)
EVERY = torch.arange(4)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_with_a_logit_that_is_no_number_is_named(search: Search, bad: float):
    for place in range(4):
        logits = torch.zeros(3, 4)
        logits[1, place] = bad
        with pytest.raises(InputError, match=r"the logits of row 1 contain NaN or \+inf, or are all −inf"):
            search(logits, GOOD.log(), EVERY.expand(3, -1))
    logits = torch.zeros(3, 4)
    logits[1] = torch.tensor([-torch.inf, -torch.inf, bad, -torch.inf])
    with pytest.raises(InputError, match="the logits of row 1 contain"):
        search(logits, GOOD.log(), EVERY.expand(3, -1))


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("vocab", [1, 2])
def test_bad_logits_are_refused_in_the_smallest_vocabularies(search: Search, bad: float, vocab: int):
    logits = torch.zeros(3, vocab)
    logits[2] = bad
    with pytest.raises(InputError, match="the logits of row 2 contain"):
        search(logits, torch.full((3, vocab), 1 / vocab).log(), torch.arange(vocab).expand(3, -1))


@pytest.mark.parametrize("search", SEARCHES)
def test_a_row_in_which_everything_is_masked_is_named(search: Search, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pseudo, "_BLOCK", 4)  # one row a block
    logits = torch.zeros(3, 4)
    logits[2] = -torch.inf
    with pytest.raises(InputError, match="the logits of row 2 contain"):
        search(logits, GOOD.log(), EVERY.expand(3, -1))


@pytest.mark.parametrize("bad", [0.0, -0.25, torch.nan, torch.inf])
def test_a_pi_that_is_no_probability_is_refused(bad: float):
    pi = GOOD.clone()
    pi[2, 3] = bad
    with pytest.raises(InputError, match="pi of row 2 is not positive and finite"):
        pseudo_actions(torch.zeros(3, 4), pi, EVERY)


@pytest.mark.parametrize(
    ("logits", "pi", "references", "message"),
    [
        (torch.zeros(4), torch.ones(4), EVERY, r"logits must be of shape \[rows, V\] with V ≥ 1, not \[4\]"),
        (torch.zeros(3, 0), torch.zeros(3, 0), EVERY, r"logits must be of shape .* not \[3, 0\]"),
        (torch.zeros(3, 4), GOOD[:2], EVERY, r"pi must have the shape of the logits, \[3, 4\], not \[2, 4\]"),
        (torch.zeros(3, 4), GOOD[:, :3], EVERY, r"pi must have the shape .* not \[3, 3\]"),
        (torch.zeros(3, 4), GOOD, EVERY.expand(2, -1), r"references must be .* \[rows, K\] with K ≥ 1, not \[2, 4\]"),
        (torch.zeros(3, 4), GOOD, EVERY[:0], r"references must be of shape .* not \[0\]"),
        (torch.zeros(3, 4), GOOD, torch.tensor(1), r"references must be of shape .* not \[\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(logits: Tensor, pi: Tensor, references: Tensor, message: str):
    # Type checks of the tests would refuse them before; a user's program has none.
    with pytest.raises(InputError, match=message):
        pseudo._checked(logits, pi, references)


@pytest.mark.parametrize(
    ("references", "message"),
    [
        (torch.arange(5), "there are 5 references, but only V = 4 actions"),
        (torch.tensor([0, 2, 0]), "a reference stands twice in one row"),
        (torch.tensor([[0, 1], [1, 0], [3, 3]]), "a reference stands twice in one row"),
        (torch.tensor([0, 4]), "references must be actions from 0 to 3"),
        (torch.tensor([-1, 2]), "references must be actions from 0 to 3"),
    ],
)
def test_references_that_are_no_set_of_actions_are_refused(references: Tensor, message: str):
    with pytest.raises(InputError, match=message):
        pseudo_actions(torch.zeros(3, 4), GOOD, references)


@pytest.mark.parametrize(
    ("of_logits", "of_pi"),
    [
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_types_that_differ_or_are_too_short_are_refused(of_logits: torch.dtype, of_pi: torch.dtype):
    with pytest.raises(InputError, match=f"must both be float32 or both float64, not {of_logits} and {of_pi}"):
        pseudo_actions(torch.zeros(3, 4, dtype=of_logits), GOOD.to(of_pi), EVERY)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_are_shared_out_to_threads(threads: int, monkeypatch: pytest.MonkeyPatch):
    logits, pi, references = draw(101, 40, 7, 2.0, torch.float32, seed=3)
    monkeypatch.setattr(pseudo, "_BLOCK", 40 * 9)
    monkeypatch.setattr("corollout.row_threads._WORTH_IT", 1)
    bad = logits.clone()
    bad[70, 3] = torch.nan
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = pseudo_actions(logits, pi, references)
        with pytest.raises(InputError, match="the logits of row 70 contain"):
            pseudo_actions(bad, pi, references)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found.dense(), brute_force(logits, pi.log(), references))
