"""Policies with a tree head that are small enough to enumerate."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from corollout.policies import TreeHead
from corollout.trees import Tree
from tests.support.enumeration import Problem, TablePolicy, sequences_of

# Tokens 0 … 4 at the depths 3, 1, 4, 4, 2.
UNBALANCED = Tree.of(np.array([[-2, 1], [2, -5], [-1, 3], [-3, -4]], np.int32))


class TreeTable(TablePolicy):
    """A table of the logits of all inner nodes, one row for each prefix."""

    def __init__(self, tree: Tree, length: int, scale: float = 1.0, seed: int = 0):
        super().__init__(tree.size, length, scale, seed)
        generator = torch.Generator().manual_seed(seed + 100)
        inner = tree.size - 1
        drawn = torch.randn(len(self.table), inner, generator=generator, dtype=torch.float64)
        self.table = torch.nn.Parameter(scale * drawn)
        self.head = TreeHead(inner, tree).double()
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(inner))


@dataclass(frozen=True)
class TreeProblem(Problem):
    """A tree table, the end token 0, and a random reward for every sequence."""

    policy: TreeTable

    @classmethod
    def of(cls, tree: Tree, length: int, scale: float = 1.0, seed: int = 0) -> "TreeProblem":
        generator = torch.Generator().manual_seed(seed + 1)
        sequences = sequences_of(tree.size, length)
        values = 2 * torch.randn(len(sequences), generator=generator, dtype=torch.float64) + 0.5
        return cls(TreeTable(tree, length, scale, seed), dict(zip(sequences, values.tolist(), strict=True)))

    def token_log_probs(self) -> Tensor:
        return self.policy.head.all_log_probs(self.policy.table)

    def put(self, out: Tensor, contexts: Tensor, prefixes: Tensor, tokens: Tensor, g: Tensor) -> None:
        nodes = torch.from_numpy(self.policy.head.tree.codes.nodes[tokens]).long()
        # Beyond the end of a path, nodes are 0 and gradients are zero.
        out.index_put_((contexts[:, None], prefixes[:, None], nodes), g, accumulate=True)


@cache
def words_of_five() -> TreeProblem:
    """T = 2, V = 5, an unbalanced tree; no node after any prefix is so rare that few estimates miss it."""
    return TreeProblem.of(UNBALANCED, length=2, seed=121)


@cache
def confident_words() -> TreeProblem:
    """T = 2, V = 5, more confident."""
    return TreeProblem.of(UNBALANCED, length=2, scale=1.4, seed=84)
