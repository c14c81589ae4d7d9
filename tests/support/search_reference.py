"""Searches the slow and obvious way: plain lists of prefixes of a table policy, extended by every token.

Nothing is dropped when sequences are drawn without replacement here: each of them gets its perturbed log-probability,
from the root of the tree of prefixes downwards. Only then are they sorted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import product

import pytest
import torch
from torch import Tensor

from corollout.noise import MAIN, SET, Noise, conditional_gumbels, exponential
from corollout.policies import TreeHead, walks
from corollout.policies.protocol import SOFTMAX, Head, Ranked, head_of
from corollout.rollouts import Engine, Mains
from corollout.types import Sampler
from tests.support.enumeration import TablePolicy
from tests.support.head_reference import phi_of, plain_log_prob, random_head, sigmoid
from tests.support.tree_problems import UNBALANCED, TreeTable


@dataclass(frozen=True)
class Item:
    """A prefix, or a complete sequence."""

    rank: float
    log_prob: float
    tokens: tuple[int, ...]
    number: int  # of the prefix in the table


@dataclass(frozen=True)
class Plain:
    """All complete sequences, best first, and the positions, in their levels, of all prefixes that were extended."""

    items: list[Item]
    extended: list[int]


# An item and its position in its level → rank and log-probability with each token
Extend = Callable[[Item, int], list[tuple[float, float]]]


def plain_search(policy: TablePolicy, root: int, length: int, size: int | None, extend: Extend) -> Plain:
    """The best ``size``, or all, level by level; token 0 ends a sequence."""
    items, extended = [Item(0.0, 0.0, (), root)], []
    while not all(_over(item, length) for item in items):
        grown = []
        for position, item in enumerate(items):
            if _over(item, length):
                grown.append(item)
                continue
            extended.append(position)
            for token, (rank, log_prob) in enumerate(extend(item, position)):
                if log_prob > -math.inf:
                    number = 1 + item.number * policy.vocab + token
                    grown.append(Item(rank, log_prob, (*item.tokens, token), number))
        items = sorted(grown, key=lambda item: -item.rank)[:size]
    return Plain(items, extended)


def _over(item: Item, length: int) -> bool:
    return len(item.tokens) == length or item.tokens[-1:] == (0,)


def plain_beam(policy: TablePolicy, root: int, length: int, size: int) -> Plain:
    """Beam search."""

    def extend(item: Item, _: int) -> list[tuple[float, float]]:
        values = [item.log_prob + log_p for log_p in plain_log_probs(policy, policy.table[item.number])]
        return list(zip(values, values, strict=True))

    return plain_search(policy, root, length, size, extend)


def all_perturbed(policy: TablePolicy, root: int, length: int, example: int, noise: Noise) -> Plain:
    """All sequences by their perturbed log-probability. An item's noise depends on its position in its level."""

    def extend(item: Item, position: int) -> list[tuple[float, float]]:
        key = noise.keys(torch.tensor([example]), SET, position)
        row = policy.table[item.number]
        return plain_perturbed(head_of(policy), row, item.log_prob, item.rank, key, len(item.tokens))

    return plain_search(policy, root, length, None, extend)


def plain_log_probs(policy: TablePolicy, row: Tensor) -> list[float]:
    """Of all tokens."""
    head = head_of(policy)
    if isinstance(head, TreeHead):
        return [plain_log_prob(head, row, token) for token in range(head.tree.size)]
    return _softmax(row)


def _softmax(row: Tensor) -> list[float]:
    total = math.log(math.fsum(math.exp(x) for x in row.tolist()))
    return [x - total for x in row.tolist()]


def plain_perturbed(
    head: Head, row: Tensor, log_prob: float, rank: float, key: Tensor, step: int
) -> list[tuple[float, float]]:
    """The rank and the log-probability of the prefix with every token."""
    width = 2 * (head.tree.size - 1) if isinstance(head, TreeHead) else len(row)
    drawn = exponential(key, torch.tensor([step]), width, torch.float64)[0].tolist()
    if not isinstance(head, TreeHead):
        values = [log_prob + log_p for log_p in _softmax(row)]
        return list(zip(plain_conditional(values, drawn, rank), values, strict=True))
    leaves: dict[int, tuple[float, float]] = {}

    def below(child: int, most: float, value: float) -> None:
        if child < 0:
            leaves[~child] = most, value
            return
        one = sigmoid(phi_of(head, row, child))
        values = [value + math.log(1 - one), value + math.log(one)]
        given = plain_conditional(values, drawn[2 * child : 2 * child + 2], most)
        for bit in range(2):
            below(int(head.tree.children[child, bit]), given[bit], values[bit])

    below(0, rank, log_prob)
    return [leaves[token] for token in range(head.tree.size)]


def plain_conditional(values: list[float], drawn: list[float], most: float) -> list[float]:
    """Gumbel numbers with these locations, from Exp(1) numbers, given their maximum; by the formula as it stands."""
    arrival = [e * math.exp(-value) if value > -math.inf else math.inf for value, e in zip(values, drawn, strict=True)]
    # exp(−G) = e exp(−φ): the maximum of Gumbel numbers is the first to arrive.
    first = min(arrival)
    return [-math.log(math.exp(-most) + (a - first)) if a < math.inf else -math.inf for a in arrival]


# --- the comparison ------------------------------------------------------------------------------------------------


def searched(policy: TablePolicy, roots: list[int], length: int, sampler: Sampler, noise: Noise, **options) -> Mains:
    """A search of the engine from some prefixes of the table; the ids of the contexts are 3 × their index − 7."""
    engine = Engine(policy, bos=policy.vocab, eos=0, max_length=length, **options)
    return engine.sample(torch.tensor(roots), 3 * torch.arange(len(roots)) - 7, sampler, noise)


def search_agrees(policy: TablePolicy, roots: list[int], length: int, sampler: Sampler, noise: Noise) -> bool:
    """Whether a search gives the sequences of the slow one, in the same order, and computes no unnecessary row."""
    mains = searched(policy, roots, length, sampler, noise)
    items, numbers, tokens = [], [], 0
    for context, root in enumerate(roots):
        if sampler.mode == "beam":
            plain = plain_beam(policy, root, length, sampler.count)
        else:
            plain = all_perturbed(policy, root, length, 3 * context - 7, noise)
        best = plain.items[: sampler.count]
        items += best
        numbers += [(context, number) for number in range(len(best))]
        tokens += sum(position < sampler.count for position in plain.extended)
    drawn = mains.trajectories
    width = max(len(item.tokens) for item in items)
    return (
        mains.tokens == tokens
        and list(zip(drawn.contexts.tolist(), drawn.samples.tolist(), strict=True)) == numbers
        and drawn.tokens.tolist() == [[*item.tokens, *[0] * (width - len(item.tokens))] for item in items]
        and drawn.lengths.tolist() == [len(item.tokens) for item in items]
        and drawn.finished.tolist() == [item.tokens[-1] == 0 for item in items]
        and torch.equal(drawn.examples, 3 * drawn.contexts - 7)
        and torch.equal(drawn.keys, noise.keys(drawn.examples, MAIN, drawn.samples))
        and drawn.log_probs.tolist() == pytest.approx([item.log_prob for item in items], rel=1e-9, abs=1e-9)
    )


def tables(length: int = 3, seed: int = 0) -> list[TablePolicy]:
    """A softmax, one with masked tokens, more of them after some prefixes than after others, and a tree."""
    masked = TablePolicy(4, length, seed=seed)
    with torch.no_grad():
        masked.table[:, 2] = -torch.inf
        masked.table[1:3, 1:] = -torch.inf
        masked.table[4, 0] = -torch.inf
    return [TablePolicy(4, length, 1.5, seed), masked, TreeTable(UNBALANCED, length, 1.5, seed)]


def searches_agree() -> bool:
    """Whether both searches agree with the slow ones, for small sets and for sets that hold everything."""
    return all(
        search_agrees(policy, [0, 1, 3], 2, Sampler(mode, size), Noise(size))
        for policy in tables()
        for mode in ("beam", "set")
        for size in (1, 2, 3, 5, 24)
    ) and all(search_agrees(policy, [0, 0], 3, Sampler("set", 4), Noise(0)) for policy in tables())


def perturbed_agrees() -> bool:
    """Whether heads order tokens by their perturbed log-probabilities, and mark invalid rows.

    If there is an invalid row, a tree head uses PyTorch operations instead of its compiled loop.
    """
    generator = torch.Generator().manual_seed(7)
    rows = 12
    keys, steps = Noise(3).keys(torch.arange(rows), SET), torch.arange(rows) % 3
    log_prob, rank = (scale * torch.randn(rows, generator=generator).double() for scale in (5, 2))
    for head in (SOFTMAX, random_head(UNBALANCED)):
        x = torch.randn(rows, 6, generator=generator).double()
        if head is SOFTMAX:
            x[::3, 1] = -torch.inf
        given = (x, log_prob, rank, keys, steps)
        bad = x.clone()
        bad[4, 2] = torch.nan
        valid = torch.arange(rows) != 4
        for count in (1, 3, 9):
            partly = head.perturbed(bad, *given[1:], count)
            some, expected = Ranked(*(part[valid] for part in partly)), [part[valid] for part in given]
            if (
                not _agree(head.perturbed(*given, count), head, given, count)
                or partly.valid.tolist() != valid.tolist()
                or not _agree(some, head, expected, count)
            ):
                return False
    return True


def _agree(first: Ranked, head: Head, given, count: int) -> bool:
    x, log_prob, rank, keys, steps = given
    for r in range(len(x)):
        plain = plain_perturbed(head, x[r], float(log_prob[r]), float(rank[r]), keys[r : r + 1], int(steps[r]))
        order = sorted(range(len(plain)), key=lambda token, plain=plain: -plain[token][0])[:count]
        expected = torch.tensor([plain[token] for token in order], dtype=torch.float64)
        possible = int((expected[:, 0] > -torch.inf).sum())
        if first.tokens.shape[1] != len(order) or first.tokens[r, :possible].tolist() != order[:possible]:
            return False
        if not torch.allclose(torch.stack([first.ranks[r], first.log_probs[r]], 1), expected, rtol=1e-9, atol=1e-9):
            return False
    return bool(first.valid.all())


# Gumbel numbers, the largest first: close ones and distant ones, small and large ones.
FREE = [
    [0.0, -1e-9, -0.5, -0.7, -30.0],
    [700.0, 699.0, -700.0, -3000.0, 3.0],
    [-800.0, -801.0, -800.6931, -950.0, -5000.0],
    [1.0, 1.0 - 1e-15, -2.0, -40.0, -60.0],
]
MOST = [-900.0, -3.0, 0.0, 50.0, 900.0]


def in_decimals(free: list[float], most: float) -> list[float]:
    """−log(exp(−most) − exp(−highest) + exp(−free)) as it stands, with sixty digits."""
    with localcontext() as context:
        context.prec = 60
        arrivals = [(-Decimal(x)).exp() for x in free]
        return [float(-((-Decimal(most)).exp() + (a - min(arrivals))).ln()) for a in arrivals]


def gumbels_agree() -> bool:
    """Whether Gumbel numbers given their maximum are those of the formula, by both ways to compute them."""
    for free, most in product(FREE, MOST):
        expected = pytest.approx(in_decimals(free, most), rel=1e-12, abs=1e-12)
        numbers = torch.tensor([free], dtype=torch.float64), torch.tensor([most], dtype=torch.float64)
        if conditional_gumbels(*numbers)[0].tolist() != expected:
            return False
        if [walks._given_maximum.py_func(one, max(free), most) for one in free] != expected:
            return False
    return True
