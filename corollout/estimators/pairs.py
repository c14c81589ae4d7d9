"""Budgeted branching: the gradient as a sum over pairs of actions, of which the branches that matter are rolled out.

For one token with probabilities p and z ~ p,

    g = Σ_{a≠z} ½ p_a (r(a) − r(z)) (e_a − e_z)

is unbiased for the gradient in the logits: over z, each pair of actions is met twice with half its share. No noise but
z's own is in it, so no other estimator from the rewards of z and of all a has less variance given z and these rewards'
differences. Each branch a may be rolled out with any probability s_a > 0 and the weight 1/s_a; the s of all steps and
contexts together are chosen in proportion to the size of the coefficients, ½ p_a √2, under one budget.

Where tokens are walks down a tree, actions are the two bits of each decision: with σ(φ) for the probability of bit 1,
g = ½ (1 − p_z) (r(z) − r(opposite)) (±1).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.branching import Branching
from corollout.estimators.plans import ContrastPlan
from corollout.noise import Noise
from corollout.types import Trajectories


@dataclass(frozen=True, kw_only=True)
class Pairs(Branching):
    """Budgeted branching. Unbiased for any ``per_step``, ``budget``, ``completions`` and ``samples``."""

    called = "budgeted branching"

    per_step: float | int = 1.0
    """Branches for each token of the main trajectories, on average; where ``budget`` is given, that counts instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.per_step > 0:
            raise InputError(f"{self.called} needs per_step > 0, not {self.per_step}")

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        of_tree = trajectories.decisions is not None
        row, step, token, share = _decisions(trajectories) if of_tree else _actions(trajectories)
        options = self if self.budget is not None else self._with_budget(int(trajectories.lengths.sum()))
        kept, factor = options.spend(share, row, trajectories, noise)
        row, step, token = row[kept], step[kept], token[kept]
        weight = 0.5 * share[kept] * factor / (self.completions * self.samples)
        branch = self.sources(len(kept), torch.arange(len(kept), device=row.device), len(trajectories.tokens))
        copies = self.completions
        main = row.repeat(copies)
        if of_tree:
            made = trajectories.decisions
            assert made is not None
            sign = 2 * made.bits[row, step, token].to(weight.dtype) - 1
            return ContrastPlan(
                branches=self.branches(row, step, made.other[row, step, token]),
                row=main,
                step=step.repeat(copies),
                token=token.repeat(copies),
                plus=main,
                minus=branch,
                weight=(sign * weight).repeat(copies),
                centre="nothing",
            )
        own = trajectories.tokens[row, step]
        return ContrastPlan(
            branches=self.branches(row, step, token),
            row=main.repeat(2),
            step=step.repeat(2 * copies),
            token=torch.cat([token.repeat(copies), own.repeat(copies)]),
            plus=torch.cat([branch, main]),
            minus=torch.cat([main, branch]),
            weight=weight.repeat(2 * copies),
            centre="nothing",
        )

    def _with_budget(self, tokens: int) -> "Pairs":
        return Pairs(**{**vars(self), "budget": max(1, math.ceil(self.per_step * tokens))})


def _actions(
    trajectories: Trajectories,
) -> tuple[Int64[Tensor, " branch"], Int64[Tensor, " branch"], Int64[Tensor, " branch"], Float[Tensor, " branch"]]:
    """Row, step, action and probability of all actions but those that were taken."""
    rows, steps = trajectories.mask.nonzero(as_tuple=True)
    p = trajectories.logits[rows, steps].double().softmax(1)
    p.scatter_(1, trajectories.tokens[rows, steps][:, None], 0.0)
    cell, action = p.nonzero(as_tuple=True)
    return rows[cell], steps[cell], action, p[cell, action]


def _decisions(
    trajectories: Trajectories,
) -> tuple[Int64[Tensor, " branch"], Int64[Tensor, " branch"], Int64[Tensor, " branch"], Float[Tensor, " branch"]]:
    """Row, step and depth of all decisions, and the probability of the bit that was not taken."""
    made = trajectories.decisions
    assert made is not None
    row, step, depth = (made.there & trajectories.mask[:, :, None]).nonzero(as_tuple=True)
    phi = trajectories.logits[row, step, depth].double()
    taken = made.bits[row, step, depth]
    return row, step, depth, torch.where(taken, -phi, phi).sigmoid()
