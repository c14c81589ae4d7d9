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
trapezoidal rule on a fixed grid is then exact to about exp(−π²/h) for the step h.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.plans import Logits, Rewards, score_gradient
from corollout.noise import Noise
from corollout.types import Branches, Sampler, Trajectories

_STEP = 0.25
_LEFT = -40.0  # there the integrand is exp(−40) of its maximum, or less
_RIGHT = 5.5  # there exp(−t) is exp(−244)
_CHUNK = 1 << 23  # numbers that are treated at once


@dataclass(frozen=True)
class UnorderedSet:
    """Sets of ``size`` different sequences of each context. Unbiased, and exact if the set is all there is."""

    size: int = 8

    def __post_init__(self) -> None:
        if not 2 <= self.size <= 64:
            raise InputError(f"a set has 2 to 64 sequences, not {self.size}")

    @property
    def sampler(self) -> Sampler:
        return Sampler("set", self.size)

    def plan(self, trajectories: Trajectories, noise: Noise) -> "SetPlan":
        table = _by_context(trajectories, self.size)
        log_probs = torch.where(table >= 0, trajectories.log_probs[table.clamp(min=0)].double(), -torch.inf)
        weight, baseline = ratios(log_probs)
        return SetPlan(trajectories, table, weight, baseline)


@dataclass(frozen=True)
class SetPlan:
    """Sequences of sets: each one's reward against a weighted sum of its set's.

    A context one of whose rewards was skipped contributes nothing: all of its advantages depend on it.
    """

    trajectories: Trajectories
    table: Int64[Tensor, "context place"]  # rows of each context's sequences; −1 for none
    weight: Float[Tensor, "context place"]  # p(s) R(S, s)
    baseline: Float[Tensor, "context place other"]  # p(s') R(S, s' | s)

    @property
    def branches(self) -> Branches:
        return Branches.none(self.table.device)

    def gradient(self, rewards: Rewards, logits: Logits) -> Logits:
        there = self.table >= 0
        reward = torch.where(there, rewards[self.table.clamp(min=0)].double(), 0.0)
        sound = ~reward.isnan().any(1, keepdim=True)
        reward = torch.where(sound, reward, 0.0)
        advantage = self.weight * (reward - (self.baseline @ reward[:, :, None]).squeeze(2))
        of_row = torch.zeros(len(rewards), dtype=torch.float64, device=logits.device)
        of_row[self.table[there]] = advantage[there]
        return score_gradient(self.trajectories, of_row.to(logits.dtype), logits)


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


def _by_context(trajectories: Trajectories, size: int) -> Int64[Tensor, "context place"]:
    """The rows of each context; −1 where it has fewer than ``size``."""
    contexts = trajectories.contexts
    count = int(contexts.max()) + 1 if len(contexts) else 0
    table = torch.full((count, size), -1, dtype=torch.int64, device=contexts.device)
    table[contexts, trajectories.samples] = torch.arange(len(contexts), device=contexts.device)
    return table
