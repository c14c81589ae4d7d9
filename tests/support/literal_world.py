"""Main trajectories with random rewards for everything an estimator could complete."""

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from corollout.noise import dirichlet, uniform
from corollout.types import Trajectories
from tests.support.enumeration import Problem
from tests.support.tree_problems import UNBALANCED


class World:
    """Main trajectories, their logits, and random rewards."""

    def __init__(self, problem: Problem, trajectories: Trajectories, skip: float):
        self.trajectories, self.logits = trajectories, problem.logits_of(trajectories)
        generator = torch.Generator().manual_seed(3)
        rows, steps = trajectories.tokens.shape
        branches = rows, steps, self.first_tokens(problem.policy.table.shape[1]), 5, 2
        draws = [torch.randn(rows, generator=generator), torch.randn(branches, generator=generator)]
        self.mains, self.table = (
            torch.where(torch.rand(d.shape, generator=generator) < skip, torch.nan, d.double()) for d in draws
        )

    def first_tokens(self, width: int) -> int:
        """The number of tokens, or inner nodes, with which a branch can start."""
        return width

    def branch(self, row: int, step: int, token: int, copy: int, greedy: bool) -> float:
        return float(self.table[row, step, token, copy, int(greedy)])

    def cells(self) -> list[tuple[int, int]]:
        return [(r, t) for r, n in enumerate(self.trajectories.lengths.tolist()) for t in range(n)]

    def token(self, row: int, step: int) -> int:
        return int(self.trajectories.tokens[row, step])

    def greedy(self, row: int, step: int) -> int:
        """The token that greedy decoding would choose."""
        return int(self.logits[row, step].argmax())

    def departure(self, row: int) -> float:
        """The first step at which a row leaves the greedy sequence; infinity if it never does."""
        steps = range(int(self.trajectories.lengths[row]))
        return next((t for t in steps if self.greedy(row, t) != self.token(row, t)), math.inf)

    def greedy_baseline(self, row: int, step: int) -> float:
        """The reward of the greedy completion of the prefix before a step."""
        for t in range(step, int(self.trajectories.lengths[row])):
            best = self.greedy(row, t)
            if best != self.token(row, t):
                return self.branch(row, t, best, 0, True)
        return float(self.mains[row])

    def score(self, row: int, step: int) -> Tensor:
        """e_z − p."""
        e = torch.zeros(self.logits.shape[2], dtype=torch.float64)
        e[self.token(row, step)] = 1
        return e - self.logits[row, step].softmax(0)

    def names(self, row: int, step: int) -> list[int]:
        """Names of the logits of a step; rows with the same prefix share logits of the same name."""
        return list(range(self.logits.shape[2]))

    def whole_score(self, row: int) -> dict[Hashable, float]:
        """d log p(sequence), by prefix and name of the logit."""
        tokens, length = self.trajectories.tokens[row].tolist(), int(self.trajectories.lengths[row])
        return {
            (*tokens[:t], "then", name): float(entry)
            for t in range(length)
            for name, entry in zip(self.names(row, t), self.score(row, t), strict=False)
        }

    def others(self, row: int, step: int) -> list[tuple[int, float, Tensor]]:
        """The alternatives at a step: first token of the branch, its probability, and the direction of its gradient."""
        z, p, e = self.token(row, step), self.logits[row, step].softmax(0).tolist(), torch.eye(self.logits.shape[2])
        return [(a, p[a], (e[a] - e[z]).double()) for a in range(len(p)) if a != z and p[a] > 0]

    def pi(self, row: int, step: int) -> Tensor:
        keys = self.trajectories.keys[row : row + 1]
        return dirichlet(keys, torch.tensor([step]), self.logits.shape[2], self.logits.dtype)[0]


class TreeWorld(World):
    """The same for paths in the unbalanced tree."""

    def first_tokens(self, width: int) -> int:
        # All tokens, and inner nodes, which are negative and so counted from the end.
        return width + 1 + width

    def path(self, row: int, step: int) -> list[tuple[int, bool]]:
        return UNBALANCED.path(self.token(row, step))

    def other(self, node: int, bit: bool) -> int:
        """Where the opposite bit leads: to a token or to an inner node."""
        child = int(UNBALANCED.children[node, int(not bit)])
        return -1 - child

    def greedy(self, row: int, step: int) -> int:
        for depth, (node, bit) in enumerate(self.path(row, step)):
            if bit != bool(self.logits[row, step, depth] > 0):
                return self.other(node, bit)
        return self.token(row, step)

    def score(self, row: int, step: int) -> Tensor:
        """b − σ(φ) for each decision."""
        out = torch.zeros(UNBALANCED.depth, dtype=torch.float64)
        for depth, (_, bit) in enumerate(self.path(row, step)):
            out[depth] = int(bit) - self.logits[row, step, depth].sigmoid()
        return out

    def names(self, row: int, step: int) -> list[int]:
        return [node for node, _ in self.path(row, step)]

    def others(self, row: int, step: int) -> list[tuple[int, float, Tensor]]:
        out, e = [], torch.eye(UNBALANCED.depth, dtype=torch.float64)
        for depth, (node, bit) in enumerate(self.path(row, step)):
            one = float(self.logits[row, step, depth].sigmoid())
            out.append((self.other(node, bit), 1 - one if bit else one, -e[depth] if bit else e[depth]))
        return out

    def pi(self, row: int, step: int) -> Tensor:
        keys = self.trajectories.keys[row : row + 1]
        return uniform(keys, torch.tensor([step]), UNBALANCED.depth, torch.float64)[0]
