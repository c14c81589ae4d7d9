"""BT-ARSM and BT-DisARM: the estimators for tokens that are paths in a binary tree (Algorithm 3 of the paper).

A token is a sequence of bits, each a Bernoulli variable with the logit φ of an inner node and its own uniform number π.
Where the pseudo bit 1[π > σ(−φ)] differs from the true bit, the token is completed from there, then the sequence, and
the gradient in φ is

    BT-ARSM     g = (r(true) − r(pseudo)) (½ − π)
    BT-DisARM   g = ½ (r(true) − r(pseudo)) (−1)^pseudo σ(|φ|),

ARM and DisARM for the bit, given all bits before. Where the bits agree, the gradient is zero and there is no branch.
Tokens that leave the path at different nodes are different, so no token of a step is completed twice.
"""

from dataclasses import dataclass

import torch

from corollout.estimators.binary import arm_weight, disarm_weight, pseudo_bit
from corollout.estimators.branching import Branching
from corollout.estimators.plans import ContrastPlan
from corollout.noise import Noise, uniform
from corollout.types import Trajectories


@dataclass(frozen=True, kw_only=True)
class BinaryTreeARSM(Branching):
    """BT-ARSM. Unbiased with the defaults, and for any ``completions``, ``budget`` and ``samples``."""

    names = ("bt-arsm",)
    title = "BT-ARSM"
    heads = ("tree",)
    weight = staticmethod(arm_weight)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        self.check_head(trajectories.head)
        decisions = trajectories.decisions
        assert decisions is not None
        row, step, depth = (decisions.valid & trajectories.mask[:, :, None]).nonzero(as_tuple=True)
        phi = trajectories.logits[row, step, depth].double()
        pi = self._uniforms(trajectories)[row, step, depth]
        differ = (decisions.bits[row, step, depth] != pseudo_bit(phi, pi).bool()).nonzero().squeeze(1)
        row, step, depth, weight = row[differ], step[differ], depth[differ], self.weight(phi, pi)[differ]
        counts = row.bincount(minlength=len(trajectories.tokens))
        kept, factor = self.spend(weight.abs(), counts, trajectories, noise)
        row, step, depth = row[kept], step[kept], depth[kept]
        copies = self.completions
        return ContrastPlan(
            branches=self.branches(row, step, decisions.other[row, step, depth]),
            row=row.repeat(copies),
            step=step.repeat(copies),
            token=depth.repeat(copies),
            plus=row.repeat(copies),
            minus=self.sources(len(kept), torch.arange(len(kept), device=row.device), len(trajectories.tokens)),
            weight=(weight[kept] * factor / (copies * self.samples)).repeat(copies),
            centre="nothing",
        )

    @staticmethod
    def _uniforms(trajectories: Trajectories) -> torch.Tensor:
        """π of every decision: the numbers with which the tokens were drawn."""
        rows, steps, depth = trajectories.logits.shape
        keys = trajectories.keys.repeat_interleave(steps)
        times = torch.arange(steps, device=keys.device).repeat(rows)
        return uniform(keys, times, depth, torch.float64).unflatten(0, (rows, steps))


@dataclass(frozen=True, kw_only=True)
class BinaryTreeDisARM(BinaryTreeARSM):
    """BT-DisARM: BT-ARSM's branches with π integrated out, so less variance. Unbiased in the same cases."""

    names = ("bt-disarm",)
    title = "BT-DisARM"
    weight = staticmethod(disarm_weight)
