"""Beam search and sampling without replacement: against slow twins, and against the probabilities of all sets."""

import math
from itertools import combinations, permutations
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from corollout.errors import PolicyError
from corollout.noise import SET, Noise, conditional_gumbels, exponential
from corollout.policies import RecurrentPolicy, TokenEncoder
from corollout.policies.heads import SOFTMAX
from corollout.policies.protocol import select
from corollout.rollouts import Engine, Mains
from corollout.trees import Tree, balanced_tree, huffman_tree, permuted
from corollout.types import Sampler, Trajectories
from tests.support.enumeration import TablePolicy, sequences_of
from tests.support.head_reference import chain, random_head
from tests.support.search_reference import (
    FREE,
    MOST,
    in_decimals,
    perturbed_agrees,
    plain_log_probs,
    search_agrees,
    searched,
    searches_agree,
    tables,
)
from tests.support.tree_problems import UNBALANCED, TreeTable

HEADS = {"softmax": 0, "masked": 1, "tree": 2}


@pytest.fixture(params=HEADS)
def policy(request: pytest.FixtureRequest) -> TablePolicy:
    return tables()[HEADS[request.param]]


def rows_of(found: Trajectories, context: int | None = None) -> list[tuple[int, ...]]:
    """The sequences, of one context if it is named."""
    rows = zip(found.contexts.tolist(), found.tokens.tolist(), found.lengths.tolist(), strict=True)
    return [tuple(row[:n]) for c, row, n in rows if context in (None, c)]


def log_prob_of(policy: TablePolicy, sequence: tuple[int, ...]) -> float:
    numbers = policy.prefix_numbers(torch.tensor([sequence]))[0].tolist()
    return sum(plain_log_probs(policy, policy.table[n])[z] for n, z in zip(numbers, sequence, strict=True))


def support(policy: TablePolicy, length: int) -> dict[tuple[int, ...], float]:
    """All possible sequences with their log-probabilities."""
    every = {s: log_prob_of(policy, s) for s in sequences_of(policy.vocab, length)}
    return {s: log_p for s, log_p in every.items() if log_p > -math.inf}


# Twins


@pytest.mark.parametrize("size", [1, 2, 3, 5, 13, 60])
def test_a_beam_equals_a_plain_beam(policy: TablePolicy, size: int):
    assert search_agrees(policy, [0, 2, 4, 0], 2, Sampler("beam", size), Noise(0))
    assert search_agrees(policy, [0], 3, Sampler("beam", size), Noise(0))


def test_a_beam_that_drops_no_prefix_is_the_best_of_all_sequences(policy: TablePolicy):
    every = sorted(support(policy, 3).items(), key=lambda item: -item[1])
    prefixes = sum((policy.vocab - 1) ** t for t in range(4))
    for size in (prefixes, 200):
        found = searched(policy, [0], 3, Sampler("beam", size), Noise(0)).trajectories
        assert rows_of(found) == [s for s, _ in every[:size]]
        torch.testing.assert_close(found.log_probs, torch.tensor([v for _, v in every[:size]], dtype=torch.float64))


@pytest.mark.parametrize("size", [1, 2, 5, 13])
def test_a_set_is_the_first_of_all_sequences_by_their_perturbed_log_probabilities(policy: TablePolicy, size: int):
    for seed in range(2):
        assert search_agrees(policy, [0, 2, 4, 0], 2, Sampler("set", size), Noise(seed))
        assert search_agrees(policy, [0], 3, Sampler("set", size), Noise(seed))


def test_a_set_may_be_large(policy: TablePolicy):
    """64 of 40, 13 and 85 sequences."""
    assert search_agrees(policy, [0, 0], 3, Sampler("set", 64), Noise(5))


def test_the_comparisons_with_twins_can_fail(monkeypatch: pytest.MonkeyPatch):
    assert searches_agree()
    assert perturbed_agrees()
    with monkeypatch.context() as altered:
        altered.setattr("corollout.rollouts.search.SET", 99)
        assert not searches_agree()
    monkeypatch.setattr("search_reference.exponential", lambda *given: 2 * exponential(*given))
    assert not perturbed_agrees()


# What a set is


def draws_of(policy: TablePolicy, size: int, count: int) -> list[list[tuple[int, ...]]]:
    """Many independent sets of sequences of two tokens at most, in their order."""
    found = searched(policy, [0] * count, 2, Sampler("set", size), Noise(17)).trajectories
    rows = rows_of(found)
    assert found.contexts.tolist() == [c for c in range(count) for _ in range(size)]
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def chance_in_order(p: list[float]) -> float:
    """Of drawing these one after another without replacement."""
    left, chance = 1.0, 1.0
    for one in p:
        chance *= one / left
        left -= one
    return chance


def assert_frequencies(counts: dict[Any, int], chances: dict[Any, float], draws: int) -> None:
    assert set(counts) <= set(chances)
    assert sum(chances.values()) == pytest.approx(1.0)
    for key, chance in chances.items():
        error = (chance * (1 - chance) / draws) ** 0.5
        # Half a draw: the continuity of what is rare.
        assert abs(counts.get(key, 0) / draws - chance) < 5 * error + 0.5 / draws, key


@pytest.mark.parametrize(
    "policy", [TablePolicy(3, 2, seed=3), TreeTable(UNBALANCED, 2, seed=121)], ids=["softmax", "tree"]
)
def test_sets_have_the_probabilities_of_sampling_without_replacement(policy: TablePolicy):
    draws = 24_000
    p = {s: math.exp(v) for s, v in support(policy, 2).items()}
    of_pair: dict[Any, int] = {}
    of_set: dict[Any, int] = {}
    for one, other in draws_of(policy, 2, draws):
        of_pair[one, other] = of_pair.get((one, other), 0) + 1
        pair = frozenset((one, other))
        of_set[pair] = of_set.get(pair, 0) + 1
    assert_frequencies(of_pair, {pair: chance_in_order([p[s] for s in pair]) for pair in permutations(p, 2)}, draws)
    chances = {frozenset((a, b)): p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b]) for a, b in combinations(p, 2)}
    assert_frequencies(of_set, chances, draws)


def test_larger_sets_have_the_probabilities_of_sampling_without_replacement():
    policy = tables()[1]
    p = {s: math.exp(v) for s, v in support(policy, 2).items()}
    counts: dict[Any, int] = {}
    for drawn in draws_of(policy, 3, 20_000):
        counts[frozenset(drawn)] = counts.get(frozenset(drawn), 0) + 1
    chances = {
        frozenset(some): sum(chance_in_order([p[s] for s in order]) for order in permutations(some))
        for some in combinations(p, 3)
    }
    assert_frequencies(counts, chances, 20_000)


@pytest.mark.parametrize("size", [2, 7, 64])
def test_sequences_of_a_set_are_different_possible_and_have_their_log_probabilities(policy: TablePolicy, size: int):
    every = support(policy, 3)
    found = searched(policy, [0] * 20, 3, Sampler("set", size), Noise(1)).trajectories
    for context in range(20):
        rows = rows_of(found, context)
        assert len(set(rows)) == len(rows) == min(size, len(every))
        assert set(rows) <= set(every)
    wanted = torch.tensor([every[row] for row in rows_of(found)], dtype=torch.float64)
    torch.testing.assert_close(found.log_probs, wanted, rtol=1e-9, atol=1e-9)
    assert found.log_probs.dtype == torch.float64
    assert found.logits.shape == (*found.tokens.shape, 0)


def test_where_there_are_fewer_sequences_all_are_found():
    """Contexts of 1, 3 and 7 sequences in one batch, and sets of 5."""
    policy = TablePolicy(3, 3)
    with torch.no_grad():
        policy.table[1, 1:] = -torch.inf  # from prefix 1 on, there is nothing but the end
        policy.table[2, 2] = -torch.inf
        policy.table[policy.prefix_numbers(torch.tensor([[1, 1, 0]]))[0, 2], 2] = -torch.inf
    found = searched(policy, [1, 2, 0], 2, Sampler("set", 5), Noise(2)).trajectories
    assert set(rows_of(found, 0)) == {(0,)}
    assert set(rows_of(found, 1)) == {(0,), (1, 0), (1, 1)}
    assert len(set(rows_of(found, 2))) == 5
    assert found.samples.tolist() == [0, *range(3), *range(5)]
    assert float(found.log_probs[1:4].exp().sum()) == pytest.approx(1.0)


def test_masked_tokens_are_never_drawn():
    policy = TablePolicy(5, 3)
    with torch.no_grad():
        policy.table[:, [1, 3]] = -torch.inf
    found = searched(policy, [0] * 50, 3, Sampler("set", 6), Noise(3)).trajectories
    assert found.tokens.unique().tolist() == [0, 2, 4]
    assert bool(found.log_probs.isfinite().all())


def test_noise_decides(policy: TablePolicy):
    one, again, other = (
        rows_of(searched(policy, [0] * 30, 3, Sampler("set", 3), Noise(seed)).trajectories) for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
    assert len(set(one)) > 3


# How a set is found


def everything_of(mains: Mains) -> list[Any]:
    found = mains.trajectories
    return [mains.tokens, rows_of(found), *(vars(found)[name].tolist() for name in ("log_probs", "samples", "keys"))]


@pytest.mark.parametrize("mode", ["set", "beam"])
def test_a_bound_on_rows_changes_no_result(policy: TablePolicy, mode: Any):
    roots = [0, 1, 2, 3, 0, 1, 2]
    whole = everything_of(searched(policy, roots, 2, Sampler(mode, 3), Noise(4)))
    for max_rows in (1, 4, 6, 20):
        assert everything_of(searched(policy, roots, 2, Sampler(mode, 3), Noise(4), max_rows=max_rows)) == whole


def test_an_example_has_its_set_in_any_batch(policy: TablePolicy):
    engine = Engine(policy, bos=policy.vocab, eos=0, max_length=3)
    examples = torch.tensor([5, 3, 8, 1])

    def sample(some: Tensor) -> Trajectories:
        return engine.sample(torch.zeros_like(some), some, Sampler("set", 4), Noise(6)).trajectories

    together = sample(examples)
    sets = [rows_of(together, c) for c in range(4)]
    assert len({tuple(one) for one in sets}) == 4
    for place, example in enumerate(examples.tolist()):
        assert rows_of(sample(torch.tensor([example]))) == sets[place]
    assert [rows_of(sample(examples.flip(0)), c) for c in range(4)] == sets[::-1]


def test_a_smaller_set_is_the_beginning_of_a_larger_one(policy: TablePolicy):
    small, large = (searched(policy, [0], 3, Sampler("set", size), Noise(8)).trajectories for size in (3, 9))
    assert rows_of(small) == rows_of(large)[:3]


class Ending(TablePolicy):
    """Three words may come first, the end among them; after a word there is nothing but the end. Counts its rows."""

    def __init__(self):
        super().__init__(3, 4, seed=1)
        self.rows: list[int] = []
        with torch.no_grad():
            self.table[1:, 1:] = -torch.inf

    def step(self, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        assert not bool((tokens == 0).any())
        self.rows.append(len(tokens))
        return super().step(state, tokens)


@pytest.mark.parametrize("mode", ["set", "beam"])
@pytest.mark.parametrize("size", [3, 10])
def test_what_has_ended_costs_nothing(mode: Any, size: int):
    policy = Ending()
    mains = searched(policy, [0] * 5, 4, Sampler(mode, size), Noise(0))
    for context in range(5):
        assert sorted(rows_of(mains.trajectories, context)) == [(0,), (1, 0), (2, 0)]
    # The first word of each context, then the end after both words.
    assert policy.rows == [5, 10]
    assert mains.tokens == 15


def test_only_what_is_in_the_set_is_gone_on_with():
    policy = Ending()
    mains = searched(policy, [0] * 40, 4, Sampler("set", 2), Noise(0))
    begun = int((mains.trajectories.lengths == 2).sum())
    assert 40 < begun < 80  # in some sets are two words, in some one and the end
    assert policy.rows == [40, begun]
    assert mains.tokens == 40 + begun


def test_states_of_networks_go_with_their_sequences():
    """The log-probabilities are those that ``score`` gives to the same sequences."""
    torch.manual_seed(2)
    encoder = TokenEncoder(7, 4)
    network = RecurrentPolicy(encoder, encoder.width, 6, hidden=8, layers=2, cell="lstm")
    with torch.no_grad():
        network.output.weight *= 4
        memory = network.double().encode(torch.randint(7, (5, 4)))
    modes: tuple[Literal["set", "beam"], ...] = ("set", "beam")
    for mode in modes:
        engine = Engine(network, bos=5, eos=0, max_length=6)
        found = engine.sample(memory, torch.arange(5), Sampler(mode, 7), Noise(0)).trajectories
        assert len({(c, *row) for c, row in zip(found.contexts.tolist(), rows_of(found), strict=True)}) == 35
        with torch.no_grad():
            scored = network.score(select(memory, found.contexts), engine.score_inputs(found)).log_softmax(2)
        chosen = scored.gather(2, found.tokens[:, :, None])[:, :, 0]
        torch.testing.assert_close(found.log_probs, (chosen * found.mask).sum(1))


def test_there_may_be_no_contexts(policy: TablePolicy):
    mains = searched(policy, [], 3, Sampler("set", 4), Noise(0))
    assert mains.tokens == len(mains.trajectories.tokens) == len(mains.trajectories.log_probs) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_policies_of_any_precision_can_be_drawn_from(dtype: torch.dtype):
    policy = TablePolicy(4, 3, seed=2, dtype=dtype)
    exact = TablePolicy(4, 3)
    with torch.no_grad():
        exact.table.copy_(policy.table)
    one, other = (searched(p, [0] * 9, 3, Sampler("set", 5), Noise(0)).trajectories for p in (policy, exact))
    assert rows_of(one) == rows_of(other)
    torch.testing.assert_close(one.log_probs, other.log_probs)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("mode", ["set", "beam"])
def test_what_is_no_distribution_is_refused(policy: TablePolicy, mode: Any, bad: float):
    with torch.no_grad():
        policy.table[1 + 3, 1] = bad
    with pytest.raises(PolicyError, match=r"policy.step returned NaN or \+inf, or masked every token, for example -4"):
        searched(policy, [0, 4, 0], 1, Sampler(mode, 3), Noise(0))


def test_a_set_of_nothing_is_refused():
    policy = tables()[1]
    with torch.no_grad():
        policy.table[4] = -torch.inf
    with pytest.raises(PolicyError, match="masked every token, for example -4 at step 0"):
        searched(policy, [0, 4, 0], 1, Sampler("set", 3), Noise(0))


def test_weights_that_are_no_numbers_are_refused():
    policy = TreeTable(UNBALANCED, 2)
    with torch.no_grad():
        policy.head.weight[2, 0] = torch.nan
    with pytest.raises(PolicyError, match="for example -7 at step 0"):
        searched(policy, [0], 2, Sampler("set", 5), Noise(0))


# Heads


TREES = {
    "pair": Tree(np.array([[-2, -1]], np.int32)),
    "unbalanced": UNBALANCED,
    "balanced": permuted(balanced_tree(33), seed=2),
    "huffman": huffman_tree(0.8 ** np.arange(50)),
    "chain": chain(200),  # more nodes than a heap has room for at first
}


def given(rows: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs; and of the prefixes before them the log-probabilities, ranks, keys and steps."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, width, generator=generator, dtype=dtype)
    log_prob, rank = (scale * torch.randn(rows, generator=generator, dtype=torch.float64) for scale in (5, 2))
    keys = Noise(9).keys(torch.arange(rows), SET)
    return x, {"log_prob": log_prob, "rank": rank, "keys": keys, "steps": torch.arange(rows) % 4}


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", TREES)
def test_the_compiled_search_for_the_first_tokens_equals_that_by_levels(name: str, dtype: torch.dtype, close: float):
    head = random_head(TREES[name], dtype=dtype)
    x, prefix = given(40, 6, dtype)
    ranks, values = head.perturbed_by_levels(x, **prefix)
    size = head.tree.size
    log_probs = values - prefix["log_prob"][:, None]
    torch.testing.assert_close(log_probs, head.all_log_probs(x).double(), rtol=close, atol=close)
    assert torch.equal(ranks.amax(1), prefix["rank"])
    for count in (1, 2, 7, size, size + 5):
        found = head.perturbed(x, **prefix, count=count)
        kept = min(count, size)
        best, tokens = ranks.topk(kept, 1)
        torch.testing.assert_close(found.ranks, best, rtol=close, atol=close)
        torch.testing.assert_close(found.log_probs, values.gather(1, found.tokens), rtol=close, atol=close)
        assert torch.equal(found.ranks[:, 0], prefix["rank"])
        assert all(len(set(row)) == kept for row in found.tokens.tolist())
        assert bool(found.sound.all())
        if dtype == torch.float64:  # where rounding decides no order
            assert torch.equal(found.tokens, tokens)


def test_ranks_of_a_softmax_are_its_formula():
    x, prefix = given(50, 30)
    x[:, 4] = -torch.inf
    found = SOFTMAX.perturbed(x, **prefix, count=30)
    values = x.log_softmax(1) + prefix["log_prob"][:, None]
    arrival = exponential(prefix["keys"], prefix["steps"], 30, torch.float64) * (-values).exp()
    rank = prefix["rank"]
    wanted = -((-rank).exp()[:, None] - arrival.amin(1, keepdim=True) + arrival).log()
    torch.testing.assert_close(found.ranks, wanted.gather(1, found.tokens), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.log_probs, values.gather(1, found.tokens))
    assert torch.equal(found.ranks[:, 0], rank)
    assert bool((found.ranks[:, :-1].diff(dim=1) < 0).all())
    assert found.tokens[:, -1].tolist() == [4] * 50
    assert found.ranks[:, -1].tolist() == [-torch.inf] * 50
    for count in (1, 5):
        first = SOFTMAX.perturbed(x, **prefix, count=count)
        assert torch.equal(first.tokens, found.tokens[:, :count])


def test_heads_equal_plain_recursions():
    assert perturbed_agrees()


def test_several_threads_do_the_same_as_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("corollout.row_threads._WORTH_IT", 1)
    head, (x, prefix) = random_head(TREES["huffman"]), given(301, 6)
    torch.set_num_threads(2)
    try:
        shared = head.perturbed(x, **prefix, count=5)
    finally:
        torch.set_num_threads(1)
    for one, other in zip(shared, head.perturbed(x, **prefix, count=5), strict=True):
        assert torch.equal(one, other)


def test_outputs_of_another_width_are_refused():
    x, prefix = given(3, 7)
    with pytest.raises(PolicyError, match="the policy puts out 7 numbers for each row, but its head reads 6"):
        random_head(UNBALANCED).perturbed(x, **prefix, count=2)


# Gumbel numbers given their maximum


LOCATIONS = torch.tensor([0.5, -1.0, 2.0, -4.0], dtype=torch.float64)


def free_gumbels(rows: int, seed: int) -> Tensor:
    drawn = torch.rand(rows, len(LOCATIONS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return LOCATIONS - (-drawn.log()).log()


def test_the_maximum_is_the_one_that_is_given_and_the_order_is_kept():
    free = free_gumbels(2000, seed=0)
    most = 3 * torch.randn(2000, generator=torch.Generator().manual_seed(1)).double()
    found = conditional_gumbels(free, most)
    assert torch.equal(found.amax(1), most)
    assert torch.equal(found.argsort(1), free.argsort(1))


@pytest.mark.parametrize("most", [-3.0, 0.0, 4.0])
def test_the_others_are_cut_off_at_the_maximum(most: float):
    """P(G_i ≤ g | G_i < most) = exp(exp(φ_i − most) − exp(φ_i − g)), whichever is the largest."""
    found = conditional_gumbels(free_gumbels(8000, seed=2), torch.full((8000,), most, dtype=torch.float64))
    largest = found.argmax(1)
    for i, phi in enumerate(LOCATIONS.tolist()):
        others = found[largest != i, i].numpy()
        assert len(others) > 1000
        result = kstest(others, lambda g, phi=phi: np.exp(np.exp(phi - most) - np.exp(phi - g)))
        assert result.pvalue > 1e-4


def test_under_the_right_maximum_they_are_free_again():
    """If the maximum is drawn as the maximum is distributed, the numbers are independent Gumbel numbers."""
    rows = 8000
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(rows, generator=generator, dtype=torch.float64)
    found = conditional_gumbels(free_gumbels(rows, seed=4), LOCATIONS.logsumexp(0) - (-drawn.log()).log())
    for i, phi in enumerate(LOCATIONS.tolist()):
        assert kstest(found[:, i].numpy(), lambda g, phi=phi: np.exp(-np.exp(phi - g))).pvalue > 1e-4
    correlation = torch.corrcoef(found.t())[~torch.eye(len(LOCATIONS), dtype=torch.bool)]
    assert correlation.abs().max() < 5 / rows**0.5


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("free", FREE)
def test_no_size_of_numbers_is_too_much(free: list[float], most: float):
    found = conditional_gumbels(*(torch.tensor(x, dtype=torch.float64) for x in ([free], [most])))[0].tolist()
    assert found[0] == most
    assert found == pytest.approx(in_decimals(free, most), rel=1e-12, abs=1e-12)


def test_what_cannot_be_drawn_stays_so():
    free = torch.tensor([[-torch.inf, 1.0, -torch.inf], [-torch.inf, -torch.inf, -5.0]]).double()
    found = conditional_gumbels(free, torch.tensor([2.0, -3.0]).double())
    assert found.tolist() == [[-torch.inf, 2.0, -torch.inf], [-torch.inf, -torch.inf, -3.0]]
