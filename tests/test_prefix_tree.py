"""Prefix trees against sets of tuples."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from corollout.prefix_tree import PrefixTree, first_alike, merge
from corollout.types import Sequences

BOS = 9


def some_sequences(seed: int, contexts: int = 5, rows: int = 30, steps: int = 6) -> tuple[Sequences, Tensor]:
    """Sequences of two tokens, many of which begin alike; each context's are consecutive, and one has none."""
    generator = torch.Generator().manual_seed(seed)
    context = torch.randint(contexts, (rows,), generator=generator).sort().values
    context[context >= 2] += 1
    lengths = torch.randint(1, steps + 1, (rows,), generator=generator)
    tokens = torch.randint(2, (rows, steps), generator=generator)
    return Sequences(tokens, lengths, torch.ones(rows, dtype=torch.bool)), context


def read_by(tree: PrefixTree, node: int) -> tuple[int, tuple[int, ...]]:
    """The context of a node and the tokens that lead to it, by its ancestors."""
    context, ancestor, tokens = int(tree.context[node]), tree.ancestor.tolist(), []
    while node >= 0:
        assert int(tree.context[node]) == context
        tokens.append(int(tree.token[node]))
        node = ancestor[node]
    return context, tuple(reversed(tokens))


def prefixes_of(sequences: Sequences, contexts: Tensor) -> list[list[tuple[int, tuple[int, ...]]]]:
    """What each row has read when it chooses its tokens."""
    rows = zip(contexts.tolist(), sequences.tokens.tolist(), sequences.lengths.tolist(), strict=True)
    return [[(context, (BOS, *row[:t])) for t in range(length)] for context, row, length in rows]


@pytest.mark.parametrize("seed", range(4))
def test_every_distinct_prefix_is_one_node(seed: int):
    sequences, contexts = some_sequences(seed)
    tree = PrefixTree.of(sequences, contexts, BOS)
    expected = prefixes_of(sequences, contexts)
    by_level = [list(dict.fromkeys(row[t] for row in expected if len(row) > t)) for t in range(6)]
    # By level, then by the first row that passes.
    assert [read_by(tree, node) for node in range(len(tree))] == [prefix for level in by_level for prefix in level]
    assert list(tree.sizes) == [len(level) for level in by_level if level]
    for row, prefixes in enumerate(expected):
        nodes = tree.node[row].tolist()
        assert [read_by(tree, node) for node in nodes[: len(prefixes)]] == prefixes
        assert set(nodes[len(prefixes) :]) <= {-1}
    assert len(tree) < sum(map(len, expected))


def test_levels_follow_one_another():
    tree = PrefixTree.of(*some_sequences(1), BOS)
    levels = list(tree.levels())
    assert [level.nodes for level in levels] == [slice(start, end) for start, end in pairwise(tree.starts)]
    assert tree.starts[-1] == len(tree)
    assert torch.equal(levels[0].parent, tree.context[: tree.sizes[0]])
    assert bool((tree.ancestor[: tree.sizes[0]] == -1).all())
    for above, level in pairwise(levels):
        assert torch.equal(tree.ancestor[level.nodes], above.nodes.start + level.parent)
        assert torch.equal(tree.token[level.nodes], level.token)
        assert torch.equal(tree.context[above.nodes][level.parent], tree.context[level.nodes])


def test_a_tree_of_nothing_is_empty():
    none = torch.zeros(0, dtype=torch.int64)
    tree = PrefixTree.of(Sequences(none.view(0, 3), none, none.bool()), none, BOS)
    assert (len(tree), tree.sizes, list(tree.levels()), tree.ancestor.tolist()) == (0, (), [], [])


@pytest.mark.parametrize("seed", range(3))
def test_chains_are_the_tree_of_sequences_that_share_nothing(seed: int):
    sequences, _ = some_sequences(seed)
    contexts = torch.arange(len(sequences.tokens))
    inputs = torch.cat([torch.full((len(contexts), 1), BOS), sequences.tokens[:, :-1]], 1)
    # The last context is skipped, so that the second tree is made step by step.
    gap = torch.where(contexts == contexts[-1], len(contexts), contexts)
    chains, tree = PrefixTree.chains(inputs, sequences.lengths), PrefixTree.of(sequences, gap, BOS)
    assert chains.sizes == tree.sizes
    for name in ("token", "node"):
        assert torch.equal(getattr(chains, name), getattr(tree, name)), name
    assert torch.equal(gap[chains.context], tree.context)
    first = chains.sizes[0]
    assert torch.equal(gap[chains.parent[:first]], tree.parent[:first])
    assert torch.equal(chains.parent[first:], tree.parent[first:])
    whole = PrefixTree.of(sequences, contexts, BOS)
    for name in ("context", "parent", "token", "node"):
        assert torch.equal(getattr(chains, name), getattr(whole, name)), name


def test_chains_leave_out_rows_without_tokens():
    chains = PrefixTree.chains(torch.tensor([[9, 1], [9, 2], [9, 3]]), torch.tensor([1, 0, 2]))
    assert chains.sizes == (2, 1)
    assert [read_by(chains, node) for node in range(3)] == [(0, (9,)), (2, (9,)), (2, (9, 3))]
    assert chains.node.tolist() == [[0, -1], [-1, -1], [1, 2]]


@pytest.mark.parametrize("share", [0.0, 0.03, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_pruning_keeps_used_nodes_and_those_that_lead_to_them(seed: int, share: float):
    tree = PrefixTree.of(*some_sequences(seed), BOS)
    used = torch.rand(len(tree), generator=torch.Generator().manual_seed(seed)) < share
    ancestor, needed = tree.ancestor.tolist(), set()
    for node in used.nonzero().flatten().tolist():
        while node >= 0:
            needed.add(node)
            node = ancestor[node]
    pruned, kept = tree.pruned(used)
    assert kept.tolist() == sorted(needed)
    assert len(pruned) == len(kept) == sum(pruned.sizes)
    assert (len(kept) < len(tree)) == (share < 1)
    assert [read_by(pruned, node) for node in range(len(pruned))] == [read_by(tree, node) for node in kept.tolist()]
    place = {node: number for number, node in enumerate(kept.tolist())}
    assert pruned.node.tolist() == [[place.get(node, -1) for node in row] for row in tree.node.tolist()]


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_meet(seed: int):
    """Compiled, in PyTorch, and by a dictionary."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(4, (40,), generator=generator).sort().values
    before = 3 * group + torch.randint(3, (40,), generator=generator)
    token = torch.randint(3, (40,), generator=generator)
    numbers: dict[tuple[int, int], int] = {}
    place = [numbers.setdefault(pair, len(numbers)) for pair in zip(before.tolist(), token.tolist(), strict=True)]
    first = [place.index(number) for number in range(len(numbers))]
    places, new = merge(group, before, token)
    assert places.tolist() == place
    assert new.tolist() == first
    assert first_alike(before, token).tolist() == [first[number] for number in place]
    assert len(first) < 40


def test_rows_of_different_groups_do_not_meet():
    same = torch.zeros(4, dtype=torch.int64)
    place, new = merge(torch.tensor([0, 0, 1, 1]), same, same)
    assert place.tolist() == [0, 0, 1, 1]
    assert new.tolist() == [0, 2]
