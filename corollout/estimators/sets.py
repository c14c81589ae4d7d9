"""The unordered-set estimator: a gradient from sequences that are drawn without replacement (Kool et al. 2020).

For a set S of k sequences drawn without replacement, whatever their order,

    g = Σ_{s∈S} p(s) R(S, s) ( r(s) − Σ_{s'∈S} p(s') R(S, s' | s) r(s') ) ∇ log p(s)

is unbiased, where the leave-one-out ratios are

    R(S, s) = P_{−s}(S∖s) / P(S),    R(S, s' | s) = P_{−s−s'}(S∖s∖s') / P_{−s}(S∖s),    R(S, s | s) = 1,

P_{−C} being the probability of a set if the sequences C cannot be drawn. The inner sum is a baseline that the set
brings along. As S comes to hold all of the probability, every ratio tends to 1 and g to the exact gradient.

With the probability p_S that S leaves over, all of these are one integral with some factors left out:

    P_{−C}(S∖C) = ∫_0^∞ exp(−t) Π_{s∈S∖C} (1 − exp(−t p(s) / p_S)) dt.

In ln t the integrand is smooth and falls off at both ends, on the left at least like t, on the right like exp(−t): the
trapezoidal rule on a fixed grid is then exact to rounding for few sequences. The more there are, the narrower is the
integrand, about 1/√k: with 64, the ratios are exact to 2·10⁻⁸.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.plans import Fitting, SetPlan, by_context
from corollout.noise import Noise
from corollout.types import Sampler, Trajectories

_STEP = 0.125
_LEFT = -40.0  # there the integrand is exp(−40) of its maximum, or less
_RIGHT = 5.5  # there exp(−t) is exp(−244)
_CHUNK = 1 << 23  # numbers that are treated at once


@dataclass(frozen=True)
class UnorderedSet(Fitting):
    """Sets of ``size`` different sequences of each context. Unbiased, and exact if the set is all there is.

    The baseline is the one that a "set" brings along, or one that is "fitted" to what other contexts show.
    """

    size: int = 8
    baseline: Literal["set", "fitted"] = "set"

    def __post_init__(self) -> None:
        if self.baseline not in ("set", "fitted"):
            raise InputError(f'a set needs baseline "set" or "fitted", not {self.baseline!r}')
        if not 2 <= self.size <= 64:
            raise InputError(f"a set has 2 to 64 sequences, not {self.size}")

    @property
    def sampler(self) -> Sampler:
        return Sampler("set", self.size)

    def plan(self, trajectories: Trajectories, noise: Noise) -> SetPlan:
        table = by_context(trajectories, self.size)
        log_probs = torch.where(table >= 0, trajectories.log_probs[table.clamp(min=0)].double(), -torch.inf)
        weight, other = ratios(log_probs)
        return SetPlan(trajectories, table, weight, other, "own" if self.baseline == "set" else "fitted", self.past)


def ratios(
    log_probs: Float[Tensor, "context place"],
) -> tuple[Float[Tensor, "context place"], Float[Tensor, "context place other"]]:
    """p(s) R(S, s), and p(s') R(S, s' | s), from log-probabilities, −inf where a set has no more members."""
    parts = [
        _ratios(part) for part in log_probs.double().split(max(1, _CHUNK // (log_probs.shape[1] ** 2 * len(_grid()))))
    ]
    return torch.cat([weight for weight, _ in parts]), torch.cat([baseline for _, baseline in parts])


def _ratios(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    there = log_probs > -torch.inf
    # What the sets leave over; nothing, if rounding says so.
    rest = torch.log(-torch.expm1(log_probs.logsumexp(1).clamp(max=0)))
    t = _grid().to(log_probs.device)
    # log(1 − exp(−t p / rest)); a member that is not there has no factor, and with nothing left over all factors are 1.
    x = (log_probs - rest[:, None])[:, :, None] + t
    factor = torch.where(there[:, :, None], _log_one_minus_exp_minus_exp(x), 0.0)
    whole = t - t.exp() + factor.sum(1)
    without = whole[:, None] - factor
    without_two = without[:, :, None] - factor[:, None]
    all_in, one_out, two_out = (part.logsumexp(-1) for part in (whole, without, without_two))
    weight = torch.where(there, (log_probs + one_out - all_in[:, None]).exp(), 0.0)
    second = two_out - one_out[:, :, None]
    second.diagonal(dim1=1, dim2=2).zero_()
    baseline = torch.where(there[:, None] & there[:, :, None], (log_probs[:, None] + second).exp(), 0.0)
    return weight, baseline


def _grid() -> Tensor:
    """ln t."""
    return torch.arange(_LEFT, _RIGHT, _STEP, dtype=torch.float64)


def _log_one_minus_exp_minus_exp(x: Tensor) -> Tensor:
    """log(1 − exp(−exp(x))): about x where x is far below 0."""
    y = -x.clamp(max=math.log(700.0)).exp()
    # Where exp(x) is too small for expm1, the logarithm is x itself.
    return torch.where(x < -30.0, x, torch.log(-torch.expm1(y)))
