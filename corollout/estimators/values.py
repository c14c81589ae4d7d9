"""Monte Carlo values: how good a prefix is, by completing it several times (Kazemnejad et al. 2024, VinePPO).

With V(z_{1:t}) for the mean reward of K completions of a prefix, the token z_t gets the advantage

    V(z_{1:t}) − V(z_{1:t−1}),

its own reward in the place of V for a whole sequence. Completions are drawn anew, so that given z_{1:t−1} the second
term does not know z_t: unbiased. The empty prefix is completed by the other sequences of the context.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.plans import ContrastPlan
from corollout.noise import Noise
from corollout.types import Branches, Sampler, Trajectories


@dataclass(frozen=True)
class Vine:
    """Advantages from the values of prefixes, each the mean of ``completions``. Unbiased."""

    completions: int = 2
    samples: int = 2

    def __post_init__(self) -> None:
        if self.completions < 1:
            raise InputError(f"Vine needs completions ≥ 1, not {self.completions}")
        if self.samples < 2:
            raise InputError(
                f"Vine needs samples ≥ 2, not {self.samples}: the others are the value of the empty prefix"
            )

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        value, branches = self._values(trajectories, rows, steps)
        entries = []  # row, step, source of the value after the token and before it, weight
        inner, first = steps > 0, steps == 0
        for after in value:
            entries.append((rows[inner], steps[inner], after[rows, steps][inner], after[rows, steps - 1][inner], 1.0))
            for turn in range(1, self.samples):
                other = rows + (trajectories.samples[rows] + turn) % self.samples - trajectories.samples[rows]
                share = 1 / (self.samples - 1)
                entries.append((rows[first], steps[first], after[rows, steps][first], other[first], share))
        row, step, plus, minus = (torch.cat(part) for part in list(zip(*entries, strict=True))[:4])
        share = torch.cat([torch.full_like(entry[0], entry[4], dtype=torch.float64) for entry in entries])
        return ContrastPlan(
            branches=branches,
            row=row,
            step=step,
            token=trajectories.tokens[row, step],
            plus=plus,
            minus=minus,
            weight=share / (self.completions * self.samples),
            centre="policy",
            decisions=trajectories.decisions,
        )

    def _values(
        self, trajectories: Trajectories, rows: Int64[Tensor, " cell"], steps: Int64[Tensor, " cell"]
    ) -> tuple[Int64[Tensor, "completion row step"], Branches]:
        """Where the rewards of each prefix's completions stand; a whole sequence is its own only completion."""
        going = steps < trajectories.lengths[rows] - 1
        row, step = rows[going], steps[going]
        # Copy 0 would share its parent's noise, and be its parent over again.
        branches = Branches.join(
            *(Branches.of(row, step, trajectories.tokens[row, step], copy=copy + 1) for copy in range(self.completions))
        )
        shape = (self.completions, *trajectories.tokens.shape)
        value = torch.arange(len(trajectories.tokens), device=row.device)[:, None].expand(shape).clone()
        value[:, row, step] = len(trajectories.tokens) + torch.arange(len(branches), device=row.device).view(
            self.completions, -1
        )
        return value, branches
