"""Plans: which branches to roll out, and the linear map from rewards to the gradient, known before any reward is.

Sources of reward are numbered: the main trajectories first, then the branches. A reward that is NaN was skipped by
the reward function; whatever depends on it contributes nothing.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.noise import Noise
from corollout.types import Branches, Decisions, Sampler, Trajectories

Rewards = Float[Tensor, " source"]
Logits = Float[Tensor, "row step vocab"]


@runtime_checkable
class Plan(Protocol):
    """What an estimator decides after sampling and before any reward."""

    @property
    def branches(self) -> Branches: ...

    def gradient(self, rewards: Rewards, logits: Logits) -> Logits:
        """The estimate of d E[reward] / d logits at the main trajectories; the rows of a context add up to its own."""
        ...


@runtime_checkable
class Estimator(Protocol):
    """An estimator says how main trajectories are drawn and makes a plan of them. Nothing else."""

    @property
    def sampler(self) -> Sampler: ...

    def plan(self, trajectories: Trajectories, noise: Noise) -> Plan: ...


@dataclass(frozen=True)
class ContrastPlan:
    """A list of differences of two rewards, each credited to one logit:

        S[row, step, token] = Σ weight · (r_plus − r_minus),    g = S − c Σ_v S_v,

    where c is the policy p = softmax(φ) (then every entry multiplies a score e_v − p), uniform, 1/V, or nothing, 0.
    Where tokens are walks down a tree, ``decisions`` are those of the main trajectories: "policy" then multiplies the
    sum of a step's entries with the score of the main trajectory's own token, whatever ``token`` says.
    """

    branches: Branches
    row: Int64[Tensor, " contrast"]
    step: Int64[Tensor, " contrast"]
    token: Int64[Tensor, " contrast"]
    plus: Int64[Tensor, " contrast"]
    minus: Int64[Tensor, " contrast"]
    weight: Float[Tensor, " contrast"]
    centre: Literal["policy", "uniform", "nothing"]
    decisions: Decisions | None = None

    def gradient(self, rewards: Rewards, logits: Logits) -> Logits:
        gap = rewards[self.plus] - rewards[self.minus]
        credit = self.weight.to(logits.dtype) * torch.where(gap.isnan(), 0.0, gap).to(logits.dtype)
        if self.centre == "policy" and self.decisions is not None:
            of_step = logits.new_zeros(logits.shape[:2]).index_put_((self.row, self.step), credit, accumulate=True)
            return of_step[:, :, None] * self.decisions.scores(logits)
        g = torch.zeros_like(logits).index_put_((self.row, self.step, self.token), credit, accumulate=True)
        if self.centre == "nothing":
            return g
        total = g.sum(-1, keepdim=True)
        if self.centre == "policy":
            return g - total * logits.softmax(-1)
        # A masked action has no probability and no gradient: its entries have expectation zero.
        return (g - total / logits.shape[-1]).masked_fill_(logits == -torch.inf, 0.0)


@dataclass(frozen=True)
class GroupPlan:
    """Whole sequences, compared with the weighted mean reward of their group:

        g[row, step] = weight_row · (r_row − Σ_i share_i r_i / Σ_i share_i) · (e_token − p),

    where i runs over the row's group, without the row itself if ``leave_one_out``; an empty sum is no baseline.
    """

    trajectories: Trajectories
    group: Int64[Tensor, " row"]
    share: Float[Tensor, " row"]
    weight: Float[Tensor, " row"]
    leave_one_out: bool

    @property
    def branches(self) -> Branches:
        return Branches.none(self.group.device)

    def gradient(self, rewards: Rewards, logits: Logits) -> Logits:
        advantage = (self.weight.to(rewards.dtype) * self._above_baseline(rewards)).to(logits.dtype)
        return score_gradient(self.trajectories, advantage, logits)

    def _above_baseline(self, rewards: Rewards) -> Rewards:
        skipped: Bool[Tensor, " row"] = rewards.isnan()
        share = torch.where(skipped, 0.0, self.share.to(rewards.dtype))
        shared_reward = share * torch.where(skipped, 0.0, rewards)
        groups = int(self.group.max()) + 1 if len(self.group) else 0
        empty = rewards.new_zeros(groups)
        total_share = empty.index_add(0, self.group, share)[self.group]
        total_reward = empty.index_add(0, self.group, shared_reward)[self.group]
        if self.leave_one_out:
            members = empty.index_add(0, self.group, (share > 0).to(share.dtype))[self.group]
            # Counted, not judged by what subtraction leaves of the shares.
            total_share = torch.where(members > 1, total_share - share, 0.0)
            total_reward = total_reward - shared_reward
        baseline = torch.where(total_share > 0, total_reward / total_share, 0.0)
        return torch.where(skipped, 0.0, rewards - baseline)


def score_gradient(trajectories: Trajectories, advantage: Float[Tensor, " row"], logits: Logits) -> Logits:
    """advantage · d log p(token) / d logits, at every token of every row."""
    mask = trajectories.mask
    per_step = torch.where(mask, advantage[:, None], 0.0)[:, :, None]
    if trajectories.decisions is not None:
        return per_step * trajectories.decisions.scores(logits)
    tokens = torch.where(mask, trajectories.tokens, 0)[:, :, None]
    return (-per_step * logits.softmax(-1)).scatter_add_(2, tokens, per_step)
