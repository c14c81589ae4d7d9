"""Estimators that complete some of many branches: what is common to them, and how a rollout budget is spent."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.division import Division
from corollout.estimators.budget import choose
from corollout.estimators.estimator import BranchNoise, Estimator
from corollout.noise import BUDGET, Noise, uniform
from corollout.types import Branches, Sampler, Trajectories


@dataclass(frozen=True, kw_only=True)
class Branching(Estimator):
    """Unbiased with the defaults, for any ``completions``, ``budget`` and ``samples``."""

    adapts_rollouts = True
    compares_contexts = True  # under a budget

    main: Literal["sample", "greedy"] = "sample"
    """How main trajectories are drawn. "greedy" is biased: its prefixes are not samples from the policy."""
    pseudo: Literal["sample", "greedy"] = "sample"
    """How branches are completed. "greedy" is biased: a greedy completion is not a sample of the future reward."""
    noise: BranchNoise = "shared"
    """The random numbers that branches are completed with: those of their main trajectory at the same steps, or "own"
    ones, independent of all others, as in the paper. Both are unbiased; shared ones have less variance if rewards of
    similar sequences are similar."""
    completions: int = 1
    """Completions of each branch, averaged."""
    budget: int | None = None
    """The largest number of branches; None for no limit. A random subset is kept and reweighted."""
    budget_per: Literal["update", "example"] = "update"
    """Whether the budget is for a whole batch or for each context."""
    samples: int = 1
    """Main trajectories of each context, averaged."""

    def __post_init__(self) -> None:
        self.check_options(completions=1, budget=1, samples=1)

    @property
    def is_biased(self) -> bool:
        return "greedy" in (self.main, self.pseudo)

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.main, self.samples)

    def spend(
        self,
        sizes: Float[Tensor, " branch"],
        counts: Int64[Tensor, " row"],
        trajectories: Trajectories,
        noise: Noise,
    ) -> tuple[Int64[Tensor, " kept"], Float[Tensor, " kept"]]:
        """The branches to complete, and 1/s for each of them; ``sizes`` says how much each branch matters.

        Branches are ordered by their rows; ``counts`` says how many each row has.
        """
        if self.budget is not None and self.budget_per == "update" and trajectories.division is not None:
            return self._spend_together(self.budget, trajectories.division, sizes, counts, trajectories, noise)
        if self.budget is None or len(sizes) == 0:
            return torch.arange(len(sizes), device=sizes.device), torch.ones_like(sizes)
        if self.budget_per == "update":
            pools, keys = [len(sizes)], noise.shared_key(trajectories.examples, BUDGET)
        else:
            # Rows are ordered by their contexts, so the branches of a context are consecutive.
            contexts, rows = trajectories.contexts.unique_consecutive(return_counts=True)
            pools = counts.new_zeros(len(contexts)).index_add(0, torch.repeat_interleave(rows), counts).tolist()
            keys = noise.keys(trajectories.examples[rows.cumsum(0) - rows], BUDGET)
        starts = uniform(keys, torch.zeros_like(keys), 1, torch.float64)[:, 0]
        kept, weights, first = [], [], 0
        for count, start in zip(pools, starts, strict=True):
            if count > 0:
                chosen, s = choose(sizes[first : first + count], self.budget, start)
                kept.append(first + chosen)
                weights.append((1 / s).to(sizes.dtype))
            first += count
        return torch.cat(kept), torch.cat(weights)

    def _spend_together(
        self,
        budget: int,
        division: Division,
        sizes: Float[Tensor, " branch"],
        counts: Int64[Tensor, " row"],
        trajectories: Trajectories,
        noise: Noise,
    ) -> tuple[Int64[Tensor, " kept"], Float[Tensor, " kept"]]:
        """One budget for the branches of all processes: each chooses among all, and keeps its own."""
        everyone = division.gather_runs(sizes, counts, trajectories.contexts)
        if len(everyone.values) == 0:
            return everyone.own, sizes
        key = noise.shared_key(division.repeated(self.sampler.count), BUDGET)
        start = uniform(key, torch.zeros_like(key), 1, torch.float64)[0, 0]
        chosen, s = choose(everyone.values, budget, start)
        is_own = torch.isin(chosen, everyone.own)
        return torch.searchsorted(everyone.own, chosen[is_own]), (1 / s[is_own]).to(sizes.dtype)

    def branches(
        self, row: Int64[Tensor, " kept"], step: Int64[Tensor, " kept"], token: Int64[Tensor, " kept"]
    ) -> Branches:
        """All completions of the kept branches: the first completion of every branch, then the second of every …"""
        greedy, own = self.pseudo == "greedy", self.noise == "own"
        return Branches.join(
            *(Branches.of(row, step, token, greedy=greedy, copy=k, own_noise=own) for k in range(self.completions))
        )

    def sources(self, kept: int, branch: Int64[Tensor, " entry"], mains: int) -> Int64[Tensor, " entries"]:
        """The sources of the rewards of all completions of some kept branches, in the order of ``branches``."""
        if self.completions == 1:
            return mains + branch
        return torch.cat([mains + copy * kept + branch for copy in range(self.completions)])
