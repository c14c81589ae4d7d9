"""The unordered-set estimator: a gradient from sequences that are drawn without replacement (Kool et al. 2020).

For a set S of k sequences drawn without replacement, whatever their order,

    g = Σ_{s∈S} p(s) R(S, s) ( r(s) − Σ_{s'∈S} p(s') R(S, s' | s) r(s') ) ∇ log p(s)

is unbiased, where the leave-one-out ratios are

    R(S, s) = P_{−s}(S∖s) / P(S),    R(S, s' | s) = P_{−s−s'}(S∖s∖s') / P_{−s}(S∖s),    R(S, s | s) = 1,

where P_{−C} is the probability of a set if the sequences C cannot be drawn. The inner sum is a baseline from the set
itself. As the probability of S tends to 1, every ratio tends to 1 and g to the exact gradient.

With the probability p_S of all sequences outside S, these are all one integral with some factors left out:

    P_{−C}(S∖C) = ∫_0^∞ exp(−t) Π_{s∈S∖C} (1 − exp(−t p(s) / p_S)) dt.

In ln t the integrand is smooth and decays at both ends, on the left at least like t, on the right like exp(−t): for few
sequences the trapezoidal rule on a fixed grid is exact up to rounding. With more sequences the integrand becomes
narrower, about 1/√k: for 64, the ratios are exact to 2·10⁻⁸.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.estimator import FittedBaseline
from corollout.estimators.plans import SetPlan, rows_by_context
from corollout.noise import Noise
from corollout.types import Sampler, Trajectories

_STEP = 0.125
_LEFT = -40.0  # here the integrand is at most exp(−40) of its maximum
_RIGHT = 5.5  # here exp(−t) is exp(−244)
_CHUNK = 1 << 23  # numbers that are processed at once


@dataclass(frozen=True)
class UnorderedSet(FittedBaseline):
    """Sets of ``size`` distinct sequences of each context. Unbiased, and exact if there are no other sequences.

    The baseline is that of the "set" itself, or "fitted" to other contexts.
    """

    names = ("set",)
    title = "SET"
    reads = "tokens"
    number = "size"

    size: int = 8
    baseline: Literal["set", "fitted"] = "set"

    def __post_init__(self) -> None:
        self.check_options()
        if not 2 <= self.size <= 64:
            raise InputError(f"SET needs a size from 2 to 64, not {self.size}")

    @property
    def sampler(self) -> Sampler:
        return Sampler("set", self.size)

    def plan(self, trajectories: Trajectories, noise: Noise) -> SetPlan:
        table = rows_by_context(trajectories, self.size)
        log_probs = torch.where(table >= 0, trajectories.log_probs[table.clamp(min=0)].double(), -torch.inf)
        weight, mix = set_weights(log_probs)
        return SetPlan(trajectories, table, weight, mix, "plain" if self.baseline == "set" else "fitted", self.past)


def set_weights(
    log_probs: Float[Tensor, "context member"],
) -> tuple[Float[Tensor, "context member"], Float[Tensor, "context member other"]]:
    """p(s) R(S, s), and p(s') R(S, s' | s), from log-probabilities; −inf where a set has fewer members."""
    numbers = log_probs.shape[1] ** 2 * len(_grid(log_probs.device))  # per set
    parts = [_chunk_weights(part) for part in log_probs.double().split(max(1, _CHUNK // numbers))]
    return torch.cat([weight for weight, _ in parts]), torch.cat([mix for _, mix in parts])


def _chunk_weights(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    member = log_probs > -torch.inf
    # ln p_S; −inf if rounding leaves nothing.
    rest = torch.log(-torch.expm1(log_probs.logsumexp(1).clamp(max=0)))
    t = _grid(log_probs.device)
    # log(1 − exp(−t p / p_S)); a missing member has no factor, and if p_S is 0, all factors are 1.
    x = (log_probs - rest[:, None])[:, :, None] + t
    factor = torch.where(member[:, :, None], _log_one_minus_exp_minus_exp(x), 0.0)
    whole = t - t.exp() + factor.sum(1)
    without = whole[:, None] - factor
    without_two = without[:, :, None] - factor[:, None]
    all_in, one_out, two_out = (part.logsumexp(-1) for part in (whole, without, without_two))
    weight = torch.where(member, (log_probs + one_out - all_in[:, None]).exp(), 0.0)
    second = two_out - one_out[:, :, None]
    second.diagonal(dim1=1, dim2=2).zero_()
    mix = torch.where(member[:, None] & member[:, :, None], (log_probs[:, None] + second).exp(), 0.0)
    return weight, mix


def _grid(device: torch.device) -> Tensor:
    """ln t."""
    return torch.arange(_LEFT, _RIGHT, _STEP, dtype=torch.float64, device=device)


def _log_one_minus_exp_minus_exp(x: Tensor) -> Tensor:
    """log(1 − exp(−exp(x))), which is about x where x is far below 0."""
    y = -x.clamp(max=math.log(700.0)).exp()
    # Where exp(x) is too small for expm1, the logarithm is x itself.
    return torch.where(x < -30.0, x, torch.log(-torch.expm1(y)))
