"""What does a token cost with a softmax, and what with a tree? V from a thousand to a million, one thread.

Only heads are measured: from the LSTM's state to a token, by the noise or greedily. The softmax is PyTorch's product
with all V rows, then corollout's compiled race or an argmax. The trees are a balanced one whose tokens are about
equally probable, so that its walks go everywhere and find least in the processor's caches, and a Huffman tree of
Zipf's law. Every call has states that no earlier call had. Heads are built and thrown away one after
the other: at V = 10⁶ each has 2 GB of weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.harness import Contestant, Result, Target, Timing, figure, time_alternately
from corollout.noise import Noise
from corollout.policies import TreeHead
from corollout.policies.protocol import SOFTMAX, Choice
from corollout.trees import Tree, balanced_tree, huffman_tree

SEED = 1
SOFTMAX_HEAD, BALANCED, HUFFMAN = "softmax", "balanced tree", "Huffman tree, Zipf"
HEADS = (SOFTMAX_HEAD, BALANCED, HUFFMAN)
WAYS = {"sampled": False, "greedy": True}
LEAST_SPEEDUP, MOST_GROWTH = 50.0, 5.0


Choose = Callable[[Tensor, Tensor, bool], Choice]  # states and keys of some rows, and whether to choose greedily


class Sizes(NamedTuple):
    vocabularies: tuple[int, ...]
    judged: int  # the V at which speed is judged
    hidden: int
    batches: tuple[int, ...]
    states: int  # most tokens in one measurement
    work: float  # about how many multiply-adds there are in one, beyond the first batch
    repetitions: int


FULL = Sizes((1_000, 10_000, 100_000, 1_000_000), 100_000, 512, (1, 64), 2048, 2e9, 7)
QUICK = Sizes((50, 400), 400, 16, (1, 8), 64, 1e5, 2)


class Measured(NamedTuple):
    """A head, with the timings of each batch size and way, and how many tokens each of them is for."""

    depth: int  # products with a row of weights for one token, at most
    expected: float  # by the probabilities that the head was made for
    decisions: float  # of the tokens that were drawn
    timings: dict[tuple[int, str], Timing]
    tokens: dict[tuple[int, str], int]

    def seconds(self, batch: int, way: str) -> float:
        """Of one token."""
        return self.timings[batch, way].median / self.tokens[batch, way]


def zipf(vocab: int) -> np.ndarray:
    weights = 1 / np.arange(1, vocab + 1)
    return weights / weights.sum()


def node_biases(tree: Tree, probabilities: np.ndarray) -> np.ndarray:
    """The logits of inner nodes that give tokens these probabilities."""
    mass = np.zeros((2, tree.size - 1))
    codes = tree.codes
    for depth in range(tree.depth):
        for bit in (0, 1):
            on_path = (codes.lengths > depth) & (codes.bits[:, depth] == bit)
            mass[bit] += np.bincount(codes.nodes[on_path, depth], probabilities[on_path], tree.size - 1)
    return np.log(mass[1]) - np.log(mass[0])


def softmax_choice(vocab: int, hidden: int) -> Choose:
    weight = torch.empty(vocab, hidden).uniform_(-0.1, 0.1)
    bias = torch.from_numpy(np.log(zipf(vocab))).float()

    def choose(states: Tensor, keys: Tensor, greedy: bool) -> Choice:
        return SOFTMAX.choose(linear(states, weight, bias), keys, torch.zeros_like(keys), greedy)

    return choose


def tree_head(tree: Tree, hidden: int, probabilities: np.ndarray | None = None) -> TreeHead:
    head = TreeHead(hidden, tree)
    if probabilities is not None:
        with torch.no_grad():
            head.bias.copy_(torch.from_numpy(node_biases(tree, probabilities)))
    return head


def tree_choice(head: TreeHead) -> Choose:
    return lambda states, keys, greedy: head.choose(states, keys, torch.zeros_like(keys), greedy)


def check(sizes: Sizes) -> None:
    """Trees choose as their slow twin does, and a Huffman tree's tokens have the probabilities it was made for."""
    vocab = min(sizes.vocabularies)
    p = zipf(vocab)
    huffman = tree_head(huffman_tree(p), sizes.hidden, p)
    computed = huffman.all_log_probs(torch.zeros(1, sizes.hidden)).exp().detach().numpy()[0]
    if not np.allclose(computed, p, rtol=1e-4):
        raise AssertionError("the Huffman tree's tokens are not distributed by Zipf's law")
    states, keys = draw(sizes)
    for head in (huffman, tree_head(balanced_tree(vocab), sizes.hidden)):
        for greedy in WAYS.values():
            nothing, all_of_them = torch.zeros_like(keys), torch.full_like(keys, greedy, dtype=torch.bool)
            slow, _ = head.walk_by_levels(states, nothing, keys, nothing, all_of_them)
            same = (head.choose(states, keys, nothing, greedy).tokens == slow).double().mean()
            if not same > 0.99:  # a sum in another order may end on the other side of a threshold
                raise AssertionError(f"only {same:.1%} of the walks end where they should")


def draw(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """States like an LSTM's, and keys."""
    states = 2 * torch.rand(sizes.states, sizes.hidden, generator=torch.Generator().manual_seed(SEED)) - 1
    return states, Noise(SEED).keys(torch.arange(sizes.states))


def measure(name: str, vocab: int, sizes: Sizes, progress: Progress) -> Measured:
    """Build a head, and time it."""
    torch.manual_seed(SEED)
    states, keys = draw(sizes)
    if name == SOFTMAX_HEAD:
        choose, tree, expected = softmax_choice(vocab, sizes.hidden), None, float(vocab)
    else:
        p = np.full(vocab, 1 / vocab) if name == BALANCED else zipf(vocab)
        tree = balanced_tree(vocab) if name == BALANCED else huffman_tree(p)
        choose = tree_choice(tree_head(tree, sizes.hidden, None if name == BALANCED else p))
        expected = tree.expected_depth(p)

    def call(batch: int, count: int, greedy: bool) -> list[Tensor]:
        parts = zip(states[:count].split(batch), keys[:count].split(batch), strict=True)
        return [choose(*part, greedy).tokens for part in parts]

    contestants, tokens = [], {}
    for batch in sizes.batches:
        for way, greedy in WAYS.items():
            count = min(sizes.states, max(batch, int(sizes.work / (expected * sizes.hidden)) // batch * batch))
            tokens[batch, way] = count
            contestants.append(Contestant(f"{batch}, {way}", 1, partial(call, batch, count, greedy)))
    with torch.no_grad():
        timings = time_alternately(contestants, sizes.repetitions, progress, f"tree_head: {name}, V = {vocab:,}")
        drawn = torch.cat(call(sizes.batches[-1], tokens[sizes.batches[-1], "sampled"], False)).numpy()
    return Measured(
        vocab if tree is None else tree.depth,
        expected,
        float(vocab) if tree is None else float(tree.depths[drawn].mean()),
        dict(zip(tokens, timings, strict=True)),
        tokens,
    )


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    check(sizes)
    results = {v: {name: measure(name, v, sizes, progress) for name in HEADS} for v in sizes.vocabularies}
    cases = [(batch, way) for batch in sizes.batches for way in WAYS]
    small, large = min(sizes.vocabularies), max(sizes.vocabularies)
    targets = [
        Target(
            f"a token of the balanced tree comes at least {LEAST_SPEEDUP:g} times as fast as one of the softmax, "
            f"{way}, V = {sizes.judged:,}, batch {batch}",
            speedup(results[sizes.judged], BALANCED, batch, way),
            LEAST_SPEEDUP,
            at_least=True,
            judged=not quick,
        )
        for batch, way in cases
    ] + [
        Target(
            f"a token of the balanced tree takes at most {MOST_GROWTH:g} times as long at V = {large:,} as at V = "
            f"{small:,}, sampled, batch {batch}",
            results[large][BALANCED].seconds(batch, "sampled") / results[small][BALANCED].seconds(batch, "sampled"),
            MOST_GROWTH,
            at_least=False,
            judged=not quick,
        )
        for batch in sizes.batches
    ]
    return {
        "benchmark": "tree_head",
        "quick": quick,
        "settings": {**sizes._asdict(), "dtype": "float32", "threads": 1},
        "seeds": {"weights, states and noise": SEED},
        "timings": [
            {
                **one.timings[case].record(),
                "name": f"{name}, V = {v}, batch {case[0]}, {case[1]}",
                "tokens": one.tokens[case],
            }
            for v, heads in results.items()
            for name, one in heads.items()
            for case in cases
        ],
        "measurements": {str(v): summary(heads, sizes, cases) for v, heads in results.items()},
        "targets": [target.record() for target in targets],
        "table": [row(v, heads, batch, way) for v, heads in results.items() for batch, way in cases],
    }


def speedup(heads: dict[str, Measured], name: str, batch: int, way: str) -> float:
    return heads[SOFTMAX_HEAD].seconds(batch, way) / heads[name].seconds(batch, way)


def summary(heads: dict[str, Measured], sizes: Sizes, cases: list[tuple[int, str]]) -> dict[str, Any]:
    return {
        name: {
            "most_products_a_token": one.depth,
            "expected_products_a_token": one.expected,
            "products_of_tokens_drawn": one.decisions,
            "multiply_adds_a_token": one.decisions * sizes.hidden,
            "multiply_adds_of_the_softmax_over_these": heads[SOFTMAX_HEAD].decisions / one.decisions,
            "seconds_a_token": {f"batch {batch}, {way}": one.seconds(batch, way) for batch, way in cases},
            "speedup": {f"batch {batch}, {way}": speedup(heads, name, batch, way) for batch, way in cases},
        }
        for name, one in heads.items()
    }


def row(vocab: int, heads: dict[str, Measured], batch: int, way: str) -> dict[str, str]:
    def microseconds(name: str) -> str:
        timing, tokens = heads[name].timings[batch, way], heads[name].tokens[batch, way]
        median, first, third = (figure(s / tokens * 1e6) for s in (timing.median, *timing.quartiles))
        return f"{median} ({first}–{third})"

    return {
        "V": f"{vocab:,}",
        "batch": str(batch),
        "way": way,
        "softmax, µs/token": microseconds(SOFTMAX_HEAD),
        "balanced": microseconds(BALANCED),
        "×": figure(speedup(heads, BALANCED, batch, way)),
        "Huffman": microseconds(HUFFMAN),
        "× ": figure(speedup(heads, HUFFMAN, batch, way)),
        "V/D": figure(vocab / heads[BALANCED].depth),
        "decisions": f"{heads[BALANCED].decisions:.1f}, {heads[HUFFMAN].decisions:.1f}",
    }
