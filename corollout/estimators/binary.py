"""ARM and DisARM: the estimators for binary variables.

With a Bernoulli logit φ and π ~ U(0, 1), the true bit is 1[π < σ(φ)] and the pseudo bit 1[π > σ(−φ)]:

    ARM      g = (r(true) − r(pseudo)) (½ − π)                                          (Yin, Zhou 2019)
    DisARM   g = ½ (r(true) − r(pseudo)) (−1)^pseudo 1[true ≠ pseudo] σ(|φ|)            (Dong, Mnih, Tucker 2020)

DisARM is ARM with π integrated out given the two bits: the same two rewards, never more variance.

Here a binary variable is a vocabulary of two with φ = φ_1 − φ_0, and π is the coordinate π_1 of Dirichlet(1, 1): then
the true bit is argmin (ln π − φ), the token that was drawn, and ARM is ARSM.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.estimator import BranchNoise, Estimator
from corollout.estimators.plans import ContrastPlan
from corollout.noise import Noise, dirichlet
from corollout.types import Branches, Sampler, Trajectories


def arm_weight(phi: Float[Tensor, " cell"], pi: Float[Tensor, " cell"]) -> Float[Tensor, " cell"]:
    """The factor of r(true) − r(pseudo) in ARM: ½ − π."""
    return 0.5 - pi


def disarm_weight(phi: Float[Tensor, " cell"], pi: Float[Tensor, " cell"]) -> Float[Tensor, " cell"]:
    """The factor of r(true) − r(pseudo) in DisARM where the bits differ: ½ (−1)^pseudo σ(|φ|)."""
    sign = 1 - 2 * pseudo_bit(phi, pi).to(phi.dtype)
    return 0.5 * sign * phi.abs().sigmoid()


def pseudo_bit(phi: Float[Tensor, " cell"], pi: Float[Tensor, " cell"]) -> Int64[Tensor, " cell"]:
    return (pi > (-phi).sigmoid()).long()


@dataclass(frozen=True)
class ARM(Estimator):
    """ARM for sequences of bits: one branch where the pseudo bit differs. Unbiased."""

    names = ("arm",)
    title = "ARM"
    heads = ("softmax",)
    weight = staticmethod(arm_weight)

    samples: int = 1
    noise: BranchNoise = "shared"
    """As for :class:`Branching`."""

    def __post_init__(self) -> None:
        self.check_options(samples=1)

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", self.samples)

    def plan(self, trajectories: Trajectories, noise: Noise) -> ContrastPlan:
        self.check_head(trajectories.head)
        vocab = trajectories.logits.shape[-1]
        if vocab != 2:
            raise InputError(f"{self.title} is for binary variables: V must be 2, not {vocab}; use arsm")
        rows, steps = trajectories.mask.nonzero(as_tuple=True)
        logits = trajectories.logits[rows, steps]
        phi = logits[:, 1] - logits[:, 0]
        pi = dirichlet(trajectories.keys[rows], steps, 2, logits.dtype)[:, 1]
        true = trajectories.tokens[rows, steps]
        pseudo = pseudo_bit(phi, pi)
        differ = (true != pseudo).nonzero().squeeze(1)
        row, step = rows[differ], steps[differ]
        return ContrastPlan(
            branches=Branches.of(row, step, pseudo[differ], own_noise=self.noise == "own"),
            row=row,
            step=step,
            token=torch.ones_like(row),
            plus=row,
            minus=len(trajectories.tokens) + torch.arange(len(differ), device=rows.device),
            # Centring turns w e_1 into (−w/2, w/2), and d/dφ_1 = −d/dφ_0 = d/dφ.
            weight=2 * self.weight(phi, pi)[differ] / self.samples,
            centre="uniform",
        )


@dataclass(frozen=True)
class DisARM(ARM):
    """DisARM for sequences of bits: ARM's branches, less variance. Unbiased."""

    names = ("disarm",)
    title = "DisARM"
    weight = staticmethod(disarm_weight)
