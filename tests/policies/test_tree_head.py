"""The tree head against plain walks and products: draws, probabilities, the best tokens, logits and their gradients.

The statistical test looks at numbers that are fixed by their seeds, so it passes always or never; its limit is such
that a right head would fail it with probability below 1e-9, whatever the seed.
"""

import copy
import math
from collections.abc import Generator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor

from corollout.errors import InputError, PolicyError
from corollout.noise import MAIN, Noise, uniform
from corollout.policies import TreeHead
from corollout.policies.tree_head import path_logits
from corollout.trees import Tree, balanced_tree, huffman_tree, permuted
from tests.support.head_reference import CLOSE, chain, phi_of, plain_log_prob, plain_walk, random_head
from tests.support.tree_problems import UNBALANCED
from tests.support.tree_reference import Nested, nested_trees, plain_paths, tree_of

PAIR = Tree(np.array([[-2, -1]], np.int32))  # token 1 to the left
TREES = {
    "pair": PAIR,
    "unbalanced": UNBALANCED,
    "balanced": permuted(balanced_tree(33), seed=2),
    "huffman": huffman_tree(0.8 ** np.arange(50)),
    "chain": chain(20),
}
TYPES = [torch.float64, torch.float32]
inner_trees = nested_trees().filter(lambda pairs: not isinstance(pairs, int))


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """Even little work is shared between two threads."""
    monkeypatch.setattr("corollout.row_threads._WORTH_IT", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def outputs_of(rows: int, width: int = 6, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def noise_of(rows: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Keys and steps; negative keys are among them, as they are of all 64 bits."""
    keys = Noise(seed).keys(torch.arange(rows), MAIN)
    assert rows < 20 or int(keys.min()) < 0
    return keys, torch.arange(rows) % 7


def integers(rows: int, below: int, seed: int = 4) -> Tensor:
    return torch.randint(below, (rows,), generator=torch.Generator().manual_seed(seed))


# Walks


@settings(max_examples=40, deadline=None)
@given(inner_trees, st.integers(0, 99), st.sampled_from(TYPES))
def test_walks_and_best_tokens_of_any_tree(pairs: Nested, seed: int, dtype: torch.dtype):
    head = random_head(tree_of(pairs), seed=seed, dtype=dtype)
    x, (keys, steps) = outputs_of(8, seed=seed, dtype=dtype), noise_of(8, seed)
    greedy = torch.arange(8) % 2 == 0
    tokens, logits, valid = head.choose(x, keys, steps, greedy)
    assert logits.shape == (8, head.tree.depth)
    assert logits.dtype == dtype
    assert bool(valid.all())
    for row in range(8):
        token, met, closest = plain_walk(head, x[row], 0, keys[row], int(steps[row]), bool(greedy[row]))
        if closest > CLOSE[dtype]:
            assert int(tokens[row]) == token
            expected = torch.zeros(head.tree.depth, dtype=torch.float64)
            expected[list(met)] = torch.tensor(list(met.values()), dtype=torch.float64)
            torch.testing.assert_close(logits[row].double(), expected, rtol=1e-5, atol=1e-5)
    if dtype == torch.float64:
        best, expected = head.best(x, 1 + seed % 30), head.all_log_probs(x).topk(min(1 + seed % 30, head.tree.size), 1)
        assert torch.equal(best.tokens, expected.indices)
        torch.testing.assert_close(best.log_probs, expected.values)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_compiled_walk_equals_the_walk_by_levels(tree: Tree, dtype: torch.dtype):
    rows = 3000
    head, x, (keys, steps) = random_head(tree, dtype=dtype), outputs_of(rows, dtype=dtype), noise_of(rows)
    # Half of them from the root, the others from anywhere, tokens included.
    start = torch.where(integers(rows, 2) == 0, 0, integers(rows, 2 * tree.size - 1, seed=5) - tree.size)
    greedy = integers(rows, 3, seed=6) == 0
    tokens, logits = head._walk(x, start, keys, steps, greedy)
    slow_tokens, slow_logits = head.walk_by_levels(x, start, keys, steps, greedy)
    assert set(tokens.tolist()) <= set(range(tree.size))
    pi = uniform(keys, steps, tree.depth, torch.float64)
    distance = torch.where(greedy[:, None], slow_logits.double(), pi - slow_logits.double().sigmoid()).abs()
    sure = (distance > CLOSE[dtype]).logical_or(slow_logits == 0).all(1)
    assert float(sure.double().mean()) > 0.99
    assert torch.equal(tokens[sure], slow_tokens[sure])
    torch.testing.assert_close(logits[sure], slow_logits[sure])


def test_walks_from_a_node(tree: Tree):
    """They stay below it; and from a node of a walk's path they continue as the walk did: a depth has one number."""
    head, x, (keys, steps) = random_head(tree), outputs_of(60), noise_of(60)
    for node in range(tree.size - 1):
        tokens = head.finish(x, torch.full((60,), ~node), keys, steps, False).tolist()
        assert len(set(tokens)) > 1
        assert set(tokens) <= set(tree.tokens(node).tolist())
    for token in range(tree.size):
        assert head.finish(x, torch.full((60,), token), keys, steps, False).tolist() == [token] * 60
    paths = plain_paths(tree)
    for greedy in (False, True):
        tokens = head.choose(x, keys, steps, greedy).tokens
        for depth in range(tree.depth):
            nodes = [paths[token][: depth + 1][-1][0] for token in tokens.tolist()]
            assert torch.equal(head.finish(x, ~torch.tensor(nodes), keys, steps, greedy), tokens)


@pytest.mark.parametrize("start", [0, 1])
def test_tokens_are_drawn_with_their_probabilities(start: int):
    rows, tree = 100_000, TREES["balanced"]
    head, x = random_head(tree), outputs_of(1)
    with torch.no_grad():
        head.weight.mul_(0.4)
        p = head.all_log_probs(x)[0].exp()
    below = torch.from_numpy(tree.tokens(start).copy()).long()
    expected = rows * p[below] / p[below].sum()
    assert float(expected.min()) > 30  # so that the statistic has a χ² distribution
    tokens = head.finish(x.expand(rows, -1), torch.full((rows,), ~start), *noise_of(rows), False)
    counts = tokens.bincount(minlength=tree.size)[below]
    assert int(counts.sum()) == rows
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < chi2.isf(1e-10, len(below) - 1)


def test_no_rows(tree: Tree):
    head, nothing = random_head(tree), torch.empty(0, dtype=torch.int64)
    tokens, logits, valid = head.choose(outputs_of(0), nothing, nothing, False)
    assert (tokens.shape, logits.shape, valid.shape) == ((0,), (0, tree.depth), (0,))
    assert head.best(outputs_of(0), 2).tokens.shape == (0, 2)
    assert head.logits(outputs_of(0)[:, None], nothing[:, None]).shape == (0, 1, tree.depth)
    assert head.all_log_probs(outputs_of(0)).shape == (0, tree.size)


def test_half_precision_is_computed_in_single_precision(tree: Tree):
    head, x, (keys, steps) = random_head(tree, dtype=torch.float32), outputs_of(40).bfloat16(), noise_of(40)
    half, single = (head.choose(y, keys, steps, False) for y in (x, x.float()))
    assert half.logits.dtype == torch.float32
    assert torch.equal(half.tokens, single.tokens)
    assert torch.equal(half.logits, single.logits)
    again = head.logits(x[:, None], half.tokens[:, None])[:, 0]
    assert again.dtype == torch.bfloat16
    torch.testing.assert_close(again.float(), half.logits, rtol=0.05, atol=0.05)


# Probabilities


def test_probabilities_are_products_along_the_paths(tree: Tree):
    head, x = random_head(tree), outputs_of(5)
    every = head.all_log_probs(x)
    expected = [[plain_log_prob(head, row, token) for token in range(tree.size)] for row in x]
    torch.testing.assert_close(every, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(every.logsumexp(1), torch.zeros(5).double(), rtol=0, atol=1e-12)
    tokens = torch.arange(tree.size).expand(5, -1)
    log_probs = head.log_probs(head.logits(x[:, None].expand(-1, tree.size, -1), tokens), tokens)
    torch.testing.assert_close(log_probs, every)


def test_extreme_logits():
    head = random_head(UNBALANCED)
    with torch.no_grad():
        head.weight.mul_(1e4)
    x, (keys, steps) = outputs_of(50), noise_of(50)
    tokens, logits, valid = head.choose(x, keys, steps, False)
    assert bool(valid.all())
    assert torch.equal(tokens, head.choose(x, keys, steps, True).tokens)
    assert float(head.log_probs(logits[:, None], tokens[:, None]).min()) > -1e-9
    best = head.best(x, 5)
    assert bool(best.log_probs.isfinite().all())
    assert torch.equal(best.tokens[:, 0], tokens)


# The best tokens


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 3, 50, 77])
def test_the_best_tokens_are_the_best_of_all(tree: Tree, count: int, dtype: torch.dtype):
    head, x = random_head(tree, dtype=dtype), outputs_of(40, dtype=dtype)
    _, log_probs, tokens, valid = head.best(x, count)
    every = head.all_log_probs(x)
    expected = every.topk(min(count, tree.size), 1)
    assert log_probs.dtype == dtype
    assert bool(valid.all())
    torch.testing.assert_close(log_probs, expected.values)
    torch.testing.assert_close(log_probs, every.gather(1, tokens))
    assert all(len(set(row)) == len(row) for row in tokens.tolist())
    if dtype == torch.float64:
        assert torch.equal(tokens, expected.indices)


@pytest.mark.parametrize(("tree", "bias"), [(chain(400), 6.0), (permuted(balanced_tree(400), seed=1), 0.0)])
@pytest.mark.parametrize("count", [1, 20, 400])
def test_many_nodes_may_wait_to_be_entered(tree: Tree, bias: float, count: int):
    """All tokens of the chain wait for its end; in a flat tree, all nodes of a level for each other."""
    head = random_head(tree)
    with torch.no_grad():
        head.weight.mul_(1e-3)
        head.bias.fill_(bias)
    best, expected = head.best(outputs_of(4), count), head.all_log_probs(outputs_of(4)).topk(count, 1)
    assert torch.equal(best.tokens, expected.indices)
    torch.testing.assert_close(best.log_probs, expected.values)


# Logits and decisions


@pytest.mark.parametrize("dtype", TYPES)
def test_logits_and_their_gradients_are_those_of_plain_operations(tree: Tree, dtype: torch.dtype):
    head = random_head(tree, dtype=dtype)
    x = outputs_of(60, dtype=dtype).unflatten(0, (20, 3)).requires_grad_()
    tokens = integers(60, tree.size).unflatten(0, (20, 3))
    logits = head.logits(x, tokens)
    nodes, lengths = map(torch.from_numpy, (tree.codes.nodes, tree.codes.lengths))
    plain = path_logits(x.flatten(0, 1), tokens.flatten(), nodes, lengths, head.weight, head.bias)
    plain = plain.unflatten(0, (20, 3))
    torch.testing.assert_close(logits, plain)
    for row, step in ((0, 0), (7, 2), (19, 1)):
        path = [phi_of(head, x[row, step], node) for node, _ in tree.path(int(tokens[row, step]))]
        expected = torch.tensor(path + [0.0] * (tree.depth - len(path)), dtype=dtype)
        torch.testing.assert_close(logits[row, step], expected)
    outer = torch.randn(logits.shape, generator=torch.Generator().manual_seed(9), dtype=dtype)
    outer[3] = 0  # rows without any gradient
    leaves = x, head.weight, head.bias
    pairs = zip(*(torch.autograd.grad(result, leaves, outer) for result in (logits, plain)), strict=True)
    for one, other in pairs:
        assert bool((one != 0).any())
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["rows last", "every other", "repeated", "steps first"])
def test_outputs_may_have_any_memory_layout(layout: str):
    head = random_head(UNBALANCED)
    base = outputs_of(24)
    x = {
        "rows last": base.t().contiguous().t()[:, None],
        "every other": base[::2, None],
        "repeated": base[:1].expand(24, -1)[:, None],
        "steps first": base.unflatten(0, (3, 8)).transpose(0, 1),
    }[layout]
    assert not x.is_contiguous()
    tokens = integers(x.shape[0] * x.shape[1], 5).view(x.shape[:2])
    results = []
    for y in (x.detach(), x.clone(memory_format=torch.contiguous_format)):
        y.requires_grad_()
        logits = head.logits(y, tokens)
        gradients = torch.autograd.grad(logits.square().sum(), (y, head.weight, head.bias))
        drawn = head.choose(y[:, 0], *noise_of(len(y)), False).tokens
        results.append((logits, *gradients, drawn, head.best(y[:, 0], 3).tokens))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_gradient_of_a_sum_reaches_every_decision():
    """It is one number that is expanded, not an array."""
    head, tokens = random_head(UNBALANCED), torch.tensor([[2, 3]])
    head.logits(outputs_of(2)[None], tokens).sum().backward()
    assert head.bias.grad is not None
    assert head.bias.grad.tolist() == [2.0, 2.0, 2.0, 2.0]


@settings(max_examples=40, deadline=None)
@given(inner_trees)
def test_decisions_are_the_bits_of_the_path_and_where_the_opposite_bits_lead(pairs: Nested):
    tree = tree_of(pairs)
    tokens = torch.arange(tree.size)[None]
    made = random_head(tree).decisions(tokens)
    for token, path in plain_paths(tree).items():
        padding = tree.depth - len(path)
        assert made.valid[0, token].tolist() == [True] * len(path) + [False] * padding
        assert made.bits[0, token, : len(path)].tolist() == [bit for _, bit in path]
        for depth, (node, bit) in enumerate(path):
            other = int(made.other[0, token, depth])
            sibling = int(tree.children[node, int(not bit)])
            assert other == (~sibling if sibling < 0 else -1 - sibling)
        assert made.other[0, token, len(path) :].tolist() == [0] * padding


def test_scores_are_the_gradients_of_log_probabilities(tree: Tree):
    head, x = random_head(tree), outputs_of(40)[:, None]
    tokens = integers(40, tree.size)[:, None]
    logits = head.logits(x, tokens).detach().requires_grad_()
    (expected,) = torch.autograd.grad(head.log_probs(logits, tokens).sum(), logits)
    torch.testing.assert_close(head.decisions(tokens).scores(logits.detach()), expected)


# Work


def blinded(head: TreeHead, unused: Tensor) -> TreeHead:
    """A copy of the head with NaN for the weights of some nodes."""
    blind = copy.deepcopy(head)
    with torch.no_grad():
        blind.weight[unused], blind.bias[unused] = torch.nan, torch.nan
    return blind


def test_only_the_nodes_on_the_path_are_used():
    """All others may be NaN; and they get no gradient."""
    tree = TREES["huffman"]
    head, x, (keys, steps) = random_head(tree), outputs_of(20), noise_of(20)
    for greedy in (False, True):
        drawn = head.choose(x, keys, steps, greedy)
        for row, token in enumerate(drawn.tokens.tolist()):
            path = [node for node, _ in tree.path(token)]
            off = torch.ones(tree.size - 1, dtype=torch.bool).index_fill(0, torch.tensor(path), False)
            blind, noise = blinded(head, off), (keys[row : row + 1], steps[row : row + 1])
            again = blind.choose(x[row : row + 1], *noise, greedy)
            assert bool(again.valid)
            assert int(again.tokens) == token
            assert torch.equal(again.logits, drawn.logits[row : row + 1])
            node = torch.tensor([~path[len(path) // 2]])
            assert int(blind.finish(x[row : row + 1], node, *noise, greedy)) == token
            logits = blind.logits(x[row : row + 1, None], torch.tensor([[token]]))
            torch.testing.assert_close(logits[:, 0], again.logits)
            blind.log_probs(logits, torch.tensor([[token]])).sum().backward()
            assert blind.weight.grad is not None
            assert torch.equal((blind.weight.grad != 0).any(1), ~off)


def test_the_best_token_is_computed_without_less_probable_nodes():
    tree = TREES["huffman"]
    head, x = random_head(tree), outputs_of(12)
    p = head.all_log_probs(x).exp().detach()
    for row in range(12):
        reach = torch.stack([p[row, torch.from_numpy(tree.tokens(node).copy()).long()].sum() for node in range(49)])
        off = reach < p[row].max() * (1 - 1e-9)
        assert int(off.sum()) > 10
        best = blinded(head, off).best(x[row : row + 1], 1)
        assert bool(best.valid)
        assert int(best.tokens) == int(p[row].argmax())
        assert math.exp(float(best.log_probs)) == pytest.approx(float(p[row].max()))


@pytest.mark.usefixtures("two_threads")
def test_several_threads_do_the_same_as_one(tree: Tree):
    head, x, (keys, steps) = random_head(tree), outputs_of(301), noise_of(301)
    start = torch.where(integers(301, 2) == 0, ~0, integers(301, tree.size))

    def everything() -> list[Tensor]:
        tokens, logits, _ = head.choose(x, keys, steps, False)
        best = head.best(x, 4)
        first = head.perturbed(x, x[:, 0], x[:, 1], keys, steps, 5)
        gradients = torch.autograd.grad(head.logits(x[:, None], tokens[:, None]).sum(), (head.weight, head.bias))
        return [tokens, logits, *best, *first, head.finish(x, start, keys, steps, False), *gradients]

    shared = everything()
    torch.set_num_threads(1)
    for one, other in zip(shared, everything(), strict=True):
        assert torch.equal(one, other)


# NaN


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rows_with_invalid_outputs_are_marked(tree: Tree, bad: float):
    head, x, (keys, steps) = random_head(tree), outputs_of(6), noise_of(6)
    x[4, 1] = bad
    valid = torch.arange(6) != 4
    for greedy in (False, True):
        choice = head.choose(x, keys, steps, greedy)
        assert torch.equal(choice.valid, valid)
        assert bool((choice.tokens < tree.size).all())
        assert torch.equal(choice.tokens[valid], head.choose(x[valid], keys[valid], steps[valid], greedy).tokens)
    for count in (1, tree.size):
        best = head.best(x, count)
        assert torch.equal(best.valid, valid)
        assert torch.equal(best.tokens[:4], head.best(x[:4], count).tokens)
    with torch.no_grad():
        head.weight[0, 0] = torch.nan
    assert not bool(head.choose(x, keys, steps, False).valid.any())
    assert not bool(head.best(x[:4], 2).valid.any())


# Saving, loading and replacing trees


def alike(one: TreeHead, other: TreeHead) -> bool:
    x, (keys, steps) = outputs_of(40), noise_of(40)
    tokens = one.choose(x, keys, steps, False).tokens
    results = [
        (
            head.choose(x, keys, steps, False).tokens,
            head.best(x, 3).tokens,
            head.all_log_probs(x),
            head.logits(x[:, None], tokens[:, None]),
            head.decisions(tokens[:, None]).other,
        )
        for head in (one, other)
    ]
    return one.tree == other.tree and all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_tree_is_saved_and_loaded_with_the_weights():
    saved, other = random_head(TREES["huffman"], seed=1), random_head(permuted(balanced_tree(50), seed=4), seed=2)
    other.choose(outputs_of(2), *noise_of(2), False)
    assert not alike(saved, other)
    state = torch.nn.ModuleDict({"head": saved}).state_dict()
    assert sorted(state) == ["head.below", "head.bias", "head.weight"]
    torch.nn.ModuleDict({"head": other}).load_state_dict(state)
    assert alike(saved, other)
    state["head.below"] = state["head.below"].clone()
    state["head.below"][1] = state["head.below"][0]
    with pytest.raises(InputError, match="twice"):
        torch.nn.ModuleDict({"head": other}).load_state_dict(state)


def test_a_tree_can_be_replaced():
    head, expected = random_head(chain(9), seed=3), random_head(balanced_tree(9), seed=3)
    copied = copy.deepcopy(head)
    assert alike(head, copied)
    copied.plant(balanced_tree(9))
    assert head.tree == chain(9)
    assert torch.equal(copied.weight, head.weight)
    assert alike(copied, expected)
    with pytest.raises(InputError, match="the model has 9 tokens, but the tree has 8"):
        copied.plant(balanced_tree(8))
    assert alike(copied, expected)
    with pytest.raises(InputError, match="at least two tokens"):
        TreeHead(3, Tree(np.empty((0, 2), np.int32)))


# What would read outside of the arrays


@pytest.mark.parametrize("width", [5, 7])
def test_outputs_of_another_width_are_refused(width: int):
    head, x, (keys, steps) = random_head(UNBALANCED), outputs_of(4, width), noise_of(4)
    number = x[:, 0]
    for use in (
        lambda: head.choose(x, keys, steps, False),
        lambda: head.finish(x, keys * 0 - 1, keys, steps, False),
        lambda: head.best(x, 2),
        lambda: head.perturbed(x, number, number, keys, steps, 2),
        lambda: head.logits(x[:, None], torch.zeros(4, 1, dtype=torch.int64)),
    ):
        with pytest.raises(PolicyError, match=f"outputs {width} numbers for each row, but its head expects 6"):
            use()


def test_unknown_tokens_and_nodes_are_refused():
    head = random_head(UNBALANCED)
    for token in (-1, 5, 10**9):
        with pytest.raises(InputError, match=f"there is no token {token}: the tree has 5 tokens"):
            head.logits(outputs_of(2)[:, None], torch.tensor([[1], [token]]))
    with pytest.raises(InputError, match="a branch starts below inner node 4"):
        head.finish(outputs_of(2), torch.tensor([-1, -5]), *noise_of(2), False)
