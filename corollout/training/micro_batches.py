"""Scoring in micro-batches of contexts, where one graph for the whole batch would need too much memory."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from corollout.errors import InputError
from corollout.estimators import Plan
from corollout.estimators.baselines import Scores
from corollout.estimators.plans import Credits, Rewards, SparsePlan
from corollout.policies import select
from corollout.prefix_tree import PrefixTree
from corollout.rollouts import Engine, Mains
from corollout.training.scoring import Scoring, score, without_zeros
from corollout.types import Branches, Decisions


@dataclass(frozen=True)
class _Given(SparsePlan):
    """A plan whose credits are known."""

    known: Credits
    decided: Decisions | None

    @property
    def branches(self) -> Branches:
        return Branches.none(self.known.row.device)

    def credits(self, rewards: Rewards, scores: Scores | None = None) -> Credits:
        return self.known

    def _decisions(self) -> Decisions | None:
        return self.decided


class MicroScoring(Scoring):
    """Some contexts at a time, encoded again with a graph that lives no longer than their part of the backward pass.

    All credits are known before, so that the gradient is that of all contexts together, whatever an estimator compares.
    """

    def __init__(
        self,
        engine: Engine,
        memory: Any,
        context: Any,
        contexts: int,
        mains: Mains,
        plan: Plan,
        rewards: Rewards,
        size: int,
    ):
        """``context`` is that of so many ``contexts``, of which ``size`` are scored at a time."""
        if not isinstance(plan, SparsePlan):
            raise InputError("an estimator that reads all logits at once cannot be scored in micro-batches")
        if plan.reads_scores:
            with torch.no_grad():
                self.scores = score(engine, memory, mains, plan, rewards).scores
        self._engine, self._context, self._trajectories = engine, context, mains.trajectories
        self._credits = without_zeros(plan.credits(rewards, self.scores))
        self._size, self._contexts = size, contexts
        tree = PrefixTree.of(mains.trajectories, mains.trajectories.contexts, engine.bos)
        self.tokens = len(tree.reaching(self._credits.row, self._credits.step)[0])

    def backward(self, scale: float) -> None:
        credits, device = self._credits, self._trajectories.contexts.device
        for first in range(0, self._contexts, self._size):
            stop = min(first + self._size, self._contexts)
            part, rows = self._trajectories.of_contexts(first, stop)
            inside = ((credits.row >= rows.start) & (credits.row < rows.stop)).nonzero().squeeze(1)
            if len(inside) == 0:
                continue
            some = credits.select(inside)
            given = _Given(replace(some, row=some.row - rows.start), part.decisions)
            memory = self._engine.policy.encode(select(self._context, torch.arange(first, stop, device=device)))
            score(self._engine, memory, Mains(part, [], 0), given, part.log_probs).backward(scale)
