"""Beam search and sampling without replacement: against slow twins, and against the probabilities of all sets."""

import math
from collections import Counter
from itertools import combinations, permutations
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from corollout.errors import PolicyError
from corollout.noise import SET, Noise, conditional_gumbels, exponential
from corollout.policies import RecurrentPolicy, TokenEncoder, protocol
from corollout.policies.protocol import SOFTMAX, select
from corollout.rollouts import Engine, Mains
from corollout.trees import Tree, balanced_tree, huffman_tree, permuted
from corollout.types import Sampler, Trajectories
from tests.support.enumeration import TablePolicy, sequences_of
from tests.support.head_reference import chain, random_head
from tests.support.search_reference import (
    gumbels_agree,
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


def rows_of(sequences: Trajectories, context: int | None = None) -> list[tuple[int, ...]]:
    """The sequences, of one context if it is given."""
    rows = zip(sequences.contexts.tolist(), sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)
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


def test_a_beam_that_drops_no_prefix_lists_the_best_of_all_sequences(policy: TablePolicy):
    every = sorted(support(policy, 3).items(), key=lambda item: -item[1])
    prefixes = sum((policy.vocab - 1) ** t for t in range(4))
    for size in (prefixes, 200):
        beam = searched(policy, [0], 3, Sampler("beam", size), Noise(0)).trajectories
        assert rows_of(beam) == [s for s, _ in every[:size]]
        torch.testing.assert_close(beam.log_probs, torch.tensor([v for _, v in every[:size]], dtype=torch.float64))


@pytest.mark.parametrize("size", [1, 2, 5, 13, 64])
def test_a_set_is_the_first_of_all_sequences_by_their_perturbed_log_probabilities(policy: TablePolicy, size: int):
    """64 are more than some of the policies have."""
    for seed in range(2):
        assert search_agrees(policy, [0, 2, 4, 0], 2, Sampler("set", size), Noise(seed))
        assert search_agrees(policy, [0], 3, Sampler("set", size), Noise(seed))


def test_the_comparisons_with_twins_can_fail(monkeypatch: pytest.MonkeyPatch):
    assert searches_agree()
    assert perturbed_agrees()
    with monkeypatch.context() as altered:
        altered.setattr("corollout.rollouts.search.SET", 99)
        assert not searches_agree()
    monkeypatch.setattr("tests.support.search_reference.exponential", lambda *given: 2 * exponential(*given))
    assert not perturbed_agrees()


# What a set is


def draws_of(policy: TablePolicy, size: int, count: int) -> list[list[tuple[int, ...]]]:
    """Many independent sets of sequences of two tokens at most, in their order."""
    drawn = searched(policy, [0] * count, 2, Sampler("set", size), Noise(17)).trajectories
    rows = rows_of(drawn)
    assert drawn.contexts.tolist() == [c for c in range(count) for _ in range(size)]
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
    ("policy", "size"),
    [(TablePolicy(3, 2, seed=3), 2), (TreeTable(UNBALANCED, 2, seed=121), 2), (tables()[1], 3)],
    ids=["softmax", "tree", "masked"],
)
@pytest.mark.parametrize("draws", [8000, pytest.param(24_000, marks=pytest.mark.prove)])
def test_sets_have_the_probabilities_of_sampling_without_replacement(policy: TablePolicy, size: int, draws: int):
    p = {s: math.exp(v) for s, v in support(policy, 2).items()}
    drawn = draws_of(policy, size, draws)
    ordered = {order: chance_in_order([p[s] for s in order]) for order in permutations(p, size)}
    if size == 2:
        assert_frequencies(Counter(map(tuple, drawn)), ordered, draws)
    chances = {frozenset(some): sum(ordered[order] for order in permutations(some)) for some in combinations(p, size)}
    assert_frequencies(Counter(map(frozenset, drawn)), chances, draws)


def test_noise_decides(policy: TablePolicy):
    one, again, other = (
        rows_of(searched(policy, [0] * 30, 3, Sampler("set", 3), Noise(seed)).trajectories) for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
    assert len(set(one)) > 3
    larger = searched(policy, [0] * 30, 3, Sampler("set", 9), Noise(1)).trajectories
    assert [row for c in range(30) for row in rows_of(larger, c)[:3]] == one  # a smaller set begins a larger one


# How a set is computed


def everything_of(mains: Mains) -> list[Any]:
    drawn = mains.trajectories
    return [mains.tokens, rows_of(drawn), *(vars(drawn)[name].tolist() for name in ("log_probs", "samples", "keys"))]


@pytest.mark.parametrize("mode", ["set", "beam"])
def test_a_bound_on_rows_changes_no_result(policy: TablePolicy, mode: Any):
    roots = [0, 1, 2, 3, 0, 1, 2]
    whole = everything_of(searched(policy, roots, 2, Sampler(mode, 3), Noise(4)))
    for max_rows in (1, 4, 6, 20):
        assert everything_of(searched(policy, roots, 2, Sampler(mode, 3), Noise(4), max_rows=max_rows)) == whole


def test_states_of_networks_follow_their_sequences():
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
        drawn = engine.sample(memory, torch.arange(5), Sampler(mode, 7), Noise(0)).trajectories
        assert len({(c, *row) for c, row in zip(drawn.contexts.tolist(), rows_of(drawn), strict=True)}) == 35
        with torch.no_grad():
            scored = network.score(select(memory, drawn.contexts), engine.score_inputs(drawn)).log_softmax(2)
        chosen = scored.gather(2, drawn.tokens[:, :, None])[:, :, 0]
        torch.testing.assert_close(drawn.log_probs, (chosen * drawn.mask).sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_policies_of_any_precision(dtype: torch.dtype):
    policy = TablePolicy(4, 3, seed=2, dtype=dtype)
    exact = TablePolicy(4, 3)
    with torch.no_grad():
        exact.table.copy_(policy.table)
    one, other = (searched(p, [0] * 9, 3, Sampler("set", 5), Noise(0)).trajectories for p in (policy, exact))
    assert rows_of(one) == rows_of(other)
    torch.testing.assert_close(one.log_probs, other.log_probs)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("mode", ["set", "beam"])
def test_logits_that_are_not_a_distribution_are_refused(policy: TablePolicy, mode: Any, bad: float):
    with torch.no_grad():
        policy.table[1 + 3, 1] = bad
    with pytest.raises(PolicyError, match=r"NaN or \+inf, or masked every token, for example -4 at step 0"):
        searched(policy, [0, 4, 0], 1, Sampler(mode, 3), Noise(0))


def test_a_policy_that_masks_every_token_is_refused():
    masked = tables()[1]
    with torch.no_grad():
        masked.table[4] = -torch.inf
    with pytest.raises(PolicyError, match="masked every token, for example -4 at step 0"):
        searched(masked, [0, 4, 0], 1, Sampler("set", 3), Noise(0))


# Heads


TREES = {
    "pair": Tree(np.array([[-2, -1]], np.int32)),
    "unbalanced": UNBALANCED,
    "balanced": permuted(balanced_tree(33), seed=2),
    "huffman": huffman_tree(0.8 ** np.arange(50)),
    "chain": chain(200),  # more nodes than a heap has room for at first
}


def make_prefixes(rows: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, dict[str, Tensor]]:
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
    x, prefix = make_prefixes(40, 6, dtype)
    ranks, values = head.perturbed_by_levels(x, **prefix)
    size = head.tree.size
    log_probs = values - prefix["log_prob"][:, None]
    torch.testing.assert_close(log_probs, head.all_log_probs(x).double(), rtol=close, atol=close)
    assert torch.equal(ranks.amax(1), prefix["rank"])
    for count in (1, 2, 7, size, size + 5):
        first = head.perturbed(x, **prefix, count=count)
        kept = min(count, size)
        best, tokens = ranks.topk(kept, 1)
        torch.testing.assert_close(first.ranks, best, rtol=close, atol=close)
        torch.testing.assert_close(first.log_probs, values.gather(1, first.tokens), rtol=close, atol=close)
        assert torch.equal(first.ranks[:, 0], prefix["rank"])
        assert all(len(set(row)) == kept for row in first.tokens.tolist())
        assert bool(first.valid.all())
        if dtype == torch.float64:  # where rounding decides no order
            assert torch.equal(first.tokens, tokens)


def test_ranks_do_not_depend_on_how_many_rows_are_perturbed_at_once(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    outputs, log_prob = torch.randn(5, 7), torch.randn(5, dtype=torch.float64)
    arguments = outputs, log_prob, log_prob + 1, torch.arange(5), torch.arange(5), 3
    whole = SOFTMAX.perturbed(*arguments)
    monkeypatch.setattr(protocol, "_PERTURBED", 14)
    for one, other in zip(whole, SOFTMAX.perturbed(*arguments), strict=True):
        assert torch.equal(one, other)


def test_ranks_of_a_softmax_are_its_formula():
    x, prefix = make_prefixes(50, 30)
    x[:, 4] = -torch.inf
    perturbed = SOFTMAX.perturbed(x, **prefix, count=30)
    values = x.log_softmax(1) + prefix["log_prob"][:, None]
    arrival = exponential(prefix["keys"], prefix["steps"], 30, torch.float64) * (-values).exp()
    rank = prefix["rank"]
    expected = -((-rank).exp()[:, None] - arrival.amin(1, keepdim=True) + arrival).log()
    torch.testing.assert_close(perturbed.ranks, expected.gather(1, perturbed.tokens), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(perturbed.log_probs, values.gather(1, perturbed.tokens))
    assert torch.equal(perturbed.ranks[:, 0], rank)
    assert bool((perturbed.ranks[:, :-1].diff(dim=1) < 0).all())
    assert perturbed.tokens[:, -1].tolist() == [4] * 50
    assert perturbed.ranks[:, -1].tolist() == [-torch.inf] * 50
    for count in (1, 5):
        first = SOFTMAX.perturbed(x, **prefix, count=count)
        assert torch.equal(first.tokens, perturbed.tokens[:, :count])


# Gumbel numbers given their maximum


LOCATIONS = torch.tensor([0.5, -1.0, 2.0, -4.0], dtype=torch.float64)


def free_gumbels(rows: int, seed: int) -> Tensor:
    drawn = torch.rand(rows, len(LOCATIONS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return LOCATIONS - (-drawn.log()).log()


def test_they_are_those_of_the_formula():
    assert gumbels_agree()


def test_the_maximum_is_as_given_and_the_order_is_kept():
    free = free_gumbels(2000, seed=0)
    most = 3 * torch.randn(2000, generator=torch.Generator().manual_seed(1)).double()
    numbers = conditional_gumbels(free, most)
    assert torch.equal(numbers.amax(1), most)
    assert torch.equal(numbers.argsort(1), free.argsort(1))


@pytest.mark.parametrize("most", [-3.0, 0.0, 4.0])
def test_the_others_are_cut_off_at_the_maximum(most: float):
    """P(G_i ≤ g | G_i < most) = exp(exp(φ_i − most) − exp(φ_i − g)), whichever is the largest."""
    numbers = conditional_gumbels(free_gumbels(8000, seed=2), torch.full((8000,), most, dtype=torch.float64))
    largest = numbers.argmax(1)
    for i, phi in enumerate(LOCATIONS.tolist()):
        others = numbers[largest != i, i].numpy()
        assert len(others) > 1000
        result = kstest(others, lambda g, phi=phi: np.exp(np.exp(phi - most) - np.exp(phi - g)))
        assert result.pvalue > 1e-4


def test_given_a_random_maximum_they_are_independent():
    """If the maximum is drawn as the maximum is distributed, the numbers are independent Gumbel numbers."""
    rows = 8000
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(rows, generator=generator, dtype=torch.float64)
    numbers = conditional_gumbels(free_gumbels(rows, seed=4), LOCATIONS.logsumexp(0) - (-drawn.log()).log())
    for i, phi in enumerate(LOCATIONS.tolist()):
        assert kstest(numbers[:, i].numpy(), lambda g, phi=phi: np.exp(-np.exp(phi - g))).pvalue > 1e-4
    correlation = torch.corrcoef(numbers.t())[~torch.eye(len(LOCATIONS), dtype=torch.bool)]
    assert correlation.abs().max() < 5 / rows**0.5


def test_impossible_tokens_stay_impossible():
    free = torch.tensor([[-torch.inf, 1.0, -torch.inf], [-torch.inf, -torch.inf, -5.0]]).double()
    numbers = conditional_gumbels(free, torch.tensor([2.0, -3.0]).double())
    assert numbers.tolist() == [[-torch.inf, 2.0, -torch.inf], [-torch.inf, -torch.inf, -3.0]]
