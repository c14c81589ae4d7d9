"""Scoring in micro-batches of contexts, where one graph for the whole batch would need too much memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from corollout.allocator import release_pages
from corollout.errors import InputError
from corollout.estimators import Plan
from corollout.estimators.baselines import Scores
from corollout.estimators.plans import Credits, Rewards, SparsePlan
from corollout.policies import select
from corollout.policies.protocol import GraphSizes, as_leaves
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


@dataclass(frozen=True)
class _Reading(SparsePlan):
    """A plan for which scores are read, but no credits computed."""

    device: torch.device
    reads_scores = True

    @property
    def branches(self) -> Branches:
        return Branches.none(self.device)

    def credits(self, rewards: Rewards, scores: Scores | None = None) -> Credits:
        none = self.branches.parent
        return Credits(none, none, none, rewards[:0], "policy")

    def _decisions(self) -> Decisions | None:
        return None


class MicroBatch(NamedTuple):
    """Some contexts, and runs of their rows; the rows of a run are scored at a time."""

    first: int
    stop: int
    runs: list[slice]


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
        size: int | GraphSizes,
    ):
        """``context`` is that of so many ``contexts``, of which ``size`` are scored at a time, or as many as make a
        graph of that size; one that is too large for it by itself has several graphs for its rows.
        """
        if not isinstance(plan, SparsePlan):
            raise InputError("an estimator that reads all logits at once cannot be scored in micro-batches")
        if plan.reads_scores:
            with torch.no_grad():
                self.scores = score(engine, memory, mains, _Reading(rewards.device), rewards).scores
        self._engine, self._context, self._trajectories = engine, context, mains.trajectories
        self.credits = without_zeros(plan.credits(rewards, self.scores))
        tree = PrefixTree.of(mains.trajectories, mains.trajectories.contexts, engine.bos)
        needed, _ = tree.reaching(self.credits.row, self.credits.step)
        self._saves_memory = isinstance(size, GraphSizes)
        if isinstance(size, int):
            stops = [min(stop, contexts) for stop in range(size, contexts + size, size)]
            self._parts = [self._whole(first, stop) for first, stop in pairwise([0, *stops])]
        else:
            self._parts = list(self._split(size, needed.context.bincount(minlength=contexts).tolist()))
        self.tokens = len(needed)
        if any(len(part.runs) > 1 for part in self._parts):  # what they share is computed for each
            self.tokens = sum(len(self._reached(tree, run)) for part in self._parts for run in part.runs)

    def _whole(self, first: int, stop: int) -> MicroBatch:
        return MicroBatch(first, stop, [self._trajectories.rows_of(first, stop)])

    def _split(self, sizes: GraphSizes, nodes: list[int]) -> Iterator[MicroBatch]:
        whole = [before + after for before, after in zip(sizes.contexts, nodes, strict=True)]
        for first, stop in spans(whole, sizes.most):
            part = self._whole(first, stop)
            (rows,) = part.runs
            # A context's own graph is there all the time: less than that is not worth another pass over the weights.
            room = max(sizes.most - sizes.contexts[first], sizes.contexts[first])
            if whole[first] > sizes.most and nodes[first] > room:
                lengths = self._trajectories.lengths[rows].tolist()
                runs = [slice(rows.start + i, rows.start + j) for i, j in spans(lengths, room)]
                part = part._replace(runs=runs)
            yield part

    def _reached(self, tree: PrefixTree, run: slice) -> PrefixTree:
        inside = self._inside(run)
        return tree.reaching(inside.row, inside.step)[0]

    def _inside(self, rows: slice) -> Credits:
        row = self.credits.row
        return self.credits.select(((row >= rows.start) & (row < rows.stop)).nonzero().squeeze(1))

    def backward(self, scale: float) -> None:
        for first, stop, runs in self._parts:
            credits = [self._inside(run) for run in runs]
            if not any(len(some.row) for some in credits):
                continue
            number = torch.arange(first, stop, device=self.credits.row.device)
            memory, pass_on = self._engine.policy.encode(select(self._context, number)), None
            if len(runs) > 1:
                memory, pass_on = as_leaves(memory)
            for run, some in zip(runs, credits, strict=True):
                if len(some.row):
                    if self._saves_memory:
                        release_pages()
                    part = self._trajectories.of_rows(run, first)
                    given = _Given(replace(some, row=some.row - run.start), part.decisions)
                    score(self._engine, memory, Mains(part, [], 0), given, part.log_probs).backward(scale)
            if pass_on is not None:
                pass_on()


def spans(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Consecutive ones of some sizes, as many at a time as fit, but at least one: the first, and the one after them."""
    first, total = 0, 0
    for number, size in enumerate(sizes):
        if number > first and total + size > most:
            yield first, number
            first, total = number, 0
        total += size
    yield first, len(sizes)
