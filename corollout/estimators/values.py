"""Monte Carlo values: the value of a prefix from several completions (Kazemnejad et al. 2024, VinePPO).

With V(z_{1:t}) for the mean reward of K completions of a prefix, the advantage of the token z_t is

    V(z_{1:t}) − V(z_{1:t−1}),

where V of a whole sequence is its reward. Completions are independent, so that given z_{1:t−1} the second term does not
depend on z_t: unbiased. The completions of the empty prefix are the other sequences of the context.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.estimators.estimator import BranchNoise, Estimator
from corollout.estimators.plans import ContrastPlan
from corollout.noise import Noise
from corollout.types import Branches, Sampler, Trajectories


@dataclass(frozen=True)
class Vine(Estimator):
    """Advantages from the values of prefixes, each the mean of ``completions``. Unbiased."""

    names = ("vine",)
    title = "VINE"
    reads = "tokens"
    number = "completions"

    completions: int = 2
    samples: int = 2
    noise: BranchNoise = "shared"
    """The random numbers of completions, never those of main trajectories: the same for the completions of all steps of
    a sequence, or "own" ones."""

    def __post_init__(self) -> None:
        self.check_options(completions=1, samples=2)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        value, branches = self._values(trajectories, rows, steps)
        entries = []  # row, step, sources of the values after and before the token, weight
        inner, first = (part.nonzero().squeeze(1) for part in (steps > 0, steps == 0))
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
        """The sources of the rewards of each prefix's completions; a whole sequence is its only completion."""
        inner = (steps < trajectories.lengths[rows] - 1).nonzero().squeeze(1)
        row, step = rows[inner], steps[inner]
        # Copy 0 would share its parent's noise, and be the parent again.
        token, own = trajectories.tokens[row, step], self.noise == "own"
        branches = Branches.join(
            *(Branches.of(row, step, token, copy=copy + 1, own_noise=own) for copy in range(self.completions))
        )
        shape = (self.completions, *trajectories.tokens.shape)
        value = torch.arange(len(trajectories.tokens), device=row.device)[:, None].expand(shape).clone()
        value[:, row, step] = len(trajectories.tokens) + torch.arange(len(branches), device=row.device).view(
            self.completions, -1
        )
        return value, branches
