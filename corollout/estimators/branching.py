"""What estimators that branch off main trajectories have in common: how to draw, to complete and to save."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.budget import keep_probabilities, systematic_sample
from corollout.estimators.plans import ContrastPlan
from corollout.noise import BUDGET, Noise, uniform
from corollout.types import Branches, Sampler, Trajectories


@dataclass(frozen=True, kw_only=True)
class Branching:
    """Unbiased with the defaults, for any ``completions``, ``budget`` and ``samples``."""

    called: ClassVar[str] = "the estimator"

    main: Literal["sample", "greedy"] = "sample"
    """How main trajectories are drawn. "greedy" is biased: prefixes are then not the policy's own."""
    pseudo: Literal["sample", "greedy"] = "sample"
    """How branches are completed. "greedy" is biased: a greedy completion is not a draw of the future reward."""
    completions: int = 1
    """Completions of each branch, averaged."""
    budget: int | None = None
    """At most this many branches; None for no limit. Which are kept is random, and the kept ones are reweighted."""
    budget_per: Literal["update", "example"] = "update"
    """Whether the budget is for all of a batch or for each context in it."""
    samples: int = 1
    """Main trajectories of each context, averaged."""

    def __post_init__(self) -> None:
        for name in ("completions", "budget", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{self.called} needs {name} ≥ 1, not {value}")
        for name in ("main", "pseudo"):
            if getattr(self, name) not in ("sample", "greedy"):
                raise InputError(f'{self.called} needs {name} to be "sample" or "greedy", not {getattr(self, name)!r}')
        if self.budget_per not in ("update", "example"):
            raise InputError(f'budget_per must be "update" or "example", not {self.budget_per!r}')

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.main, self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        raise NotImplementedError

    def spend(
        self,
        sizes: Float[Tensor, " branch"],
        row: Int64[Tensor, " branch"],
        trajectories: Trajectories,
        noise: Noise,
    ) -> tuple[Int64[Tensor, " kept"], Float[Tensor, " kept"]]:
        """The branches to roll out, and 1/s for each of them; ``sizes`` says how much each one matters.

        Branches come in the order of the rows that they leave.
        """
        if self.budget is None or len(sizes) == 0:
            return torch.arange(len(sizes), device=sizes.device), torch.ones_like(sizes)
        per_update = self.budget_per == "update"
        # Rows come in the order of their contexts, so each context's branches are a run.
        pools = [len(sizes)] if per_update else trajectories.contexts[row].bincount().tolist()
        shared = noise.shared_key(trajectories.examples, BUDGET)
        kept, weights, first = [], [], 0
        for count in pools:
            if count > 0:
                s = keep_probabilities(sizes[first : first + count], self.budget)
                example = trajectories.examples[row[first]][None]
                keys = shared if per_update else noise.keys(example, BUDGET)
                start = uniform(keys, torch.zeros_like(keys), 1, torch.float64)[0, 0]
                chosen = systematic_sample(s, start)
                kept.append(first + chosen)
                weights.append((1 / s[chosen]).to(sizes.dtype))
            first += count
        return torch.cat(kept), torch.cat(weights)

    def branches(
        self, row: Int64[Tensor, " kept"], step: Int64[Tensor, " kept"], token: Int64[Tensor, " kept"]
    ) -> Branches:
        """All completions of the branches that are kept: first every branch's first, then every branch's second …"""
        greedy = self.pseudo == "greedy"
        return Branches.join(
            *(Branches.of(row, step, token, greedy=greedy, copy=copy) for copy in range(self.completions))
        )

    def sources(self, kept: int, branch: Int64[Tensor, " entry"], mains: int) -> Int64[Tensor, " entries"]:
        """Where the rewards of all completions of some kept branches stand, in the order of ``branches``."""
        return torch.cat([mains + copy * kept + branch for copy in range(self.completions)])
