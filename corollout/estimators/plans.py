"""Plans: which branches to roll out, and the linear map from rewards to the gradient, known before any reward is.

Sources of reward are numbered: the main trajectories first, then the branches. A reward that is NaN was skipped by
the reward function; whatever depends on it contributes nothing.
"""

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.estimators.baselines import Evidence, Fit, inner_products, shrunk
from corollout.noise import Noise
from corollout.types import Branches, Decisions, Sampler, Trajectories

Rewards = Float[Tensor, " source"]
Logits = Float[Tensor, "row step vocab"]

_LEAST_DEVIATION = 1e-4  # what keeps a group of equal rewards from being divided by nothing


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


@runtime_checkable
class Adaptive(Estimator, Protocol):
    """An estimator that learns from estimates it has made how to make later ones with less variance.

    What it has learned is fixed while it makes the next estimate; so that one is as unbiased as with nothing learned.
    """

    def updated(self, plan: Plan, rewards: Rewards, logits: Logits) -> "Adaptive":
        """The estimator after an estimate, of which it made the plan."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What was learned so far, to be kept with a training's state."""
        ...

    def load_state_dict(self, memory: dict[str, Tensor]) -> "Adaptive":
        """The estimator with what another one of its kind had learned."""
        ...


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

    where i runs over the row's group, without the row itself if ``leave_one_out``; an empty sum is no baseline. If
    ``normalised``, what is left of the rewards is divided by their standard deviation in the group.
    """

    trajectories: Trajectories
    group: Int64[Tensor, " row"]
    share: Float[Tensor, " row"]
    weight: Float[Tensor, " row"]
    leave_one_out: bool
    normalised: bool = False

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
        above = torch.where(skipped, 0.0, rewards - baseline)
        if not self.normalised:
            return above
        square = empty.index_add(0, self.group, share * above**2)[self.group]
        return above / ((square / total_share.clamp(min=1)).sqrt() + _LEAST_DEVIATION)


@dataclass(frozen=True)
class SetPlan:
    """A context's sequences, each one's reward against a weighted sum m_s = Σ_{s'} other_{ss'} r_{s'} of its context's:

        g[row, step] = weight_s · (r_s − m_s) · (e_token − p),

    where ``baseline`` may put α + β m_s in the place of m_s, as other contexts and the ``past`` recommend. A context
    one of whose rewards was skipped contributes nothing: all of its advantages depend on it.
    """

    trajectories: Trajectories
    table: Int64[Tensor, "context place"]  # rows of each context's sequences; −1 for none
    weight: Float[Tensor, "context place"]
    other: Float[Tensor, "context place other"]
    baseline: Literal["own", "shrunk", "fitted"] = "own"
    past: Evidence | None = None

    @property
    def branches(self) -> Branches:
        return Branches.none(self.table.device)

    def gradient(self, rewards: Rewards, logits: Logits) -> Logits:
        reward, own, sound = self._compared(rewards)
        if self.baseline == "shrunk":
            own = shrunk(reward, own, sound)
        advantage = self.weight * (reward - own)
        if self.baseline == "fitted":
            advantage = advantage - self._fit(reward, own, sound, logits).change(self.past)
        there = (self.table >= 0) & sound[:, None]
        of_row = torch.zeros(len(rewards), dtype=torch.float64, device=logits.device)
        of_row[self.table[there]] = advantage[there]
        return score_gradient(self.trajectories, of_row.to(logits.dtype), logits)

    def evidence(self, rewards: Rewards, logits: Logits) -> Evidence:
        """What these rewards say about the best baseline."""
        return self._fit(*self._compared(rewards), logits).evidence

    def _compared(self, rewards: Rewards) -> tuple[Tensor, Tensor, Bool[Tensor, " context"]]:
        """Rewards and the sums to compare them with, and which contexts have all of theirs."""
        reward = torch.where(self.table >= 0, rewards[self.table.clamp(min=0)].double(), 0.0)
        sound = ~reward.isnan().any(1)
        reward = torch.where(sound[:, None], reward, 0.0)
        return reward, (self.other @ reward[:, :, None]).squeeze(2), sound

    def _fit(self, reward: Tensor, own: Tensor, sound: Tensor, logits: Logits) -> Fit:
        products = inner_products(self.trajectories, self.table, logits)
        return Fit.of(self.weight, reward, own, products, sound)


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """What estimators have in common whose baseline may be fitted: they remember what earlier batches said of it."""

    past: Evidence | None = field(default=None, repr=False, compare=False)

    def updated(self, plan: Plan, rewards: Rewards, logits: Logits) -> "Fitting":
        if not isinstance(plan, SetPlan) or plan.baseline != "fitted":
            return self
        new = plan.evidence(rewards, logits)
        return replace(self, past=new if self.past is None else self.past.then(new))

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.past is None else dict(vars(self.past))

    def load_state_dict(self, memory: dict[str, Tensor]) -> "Fitting":
        return replace(self, past=Evidence(**memory) if memory else None)


def by_context(trajectories: Trajectories, size: int) -> Int64[Tensor, "context place"]:
    """The rows of each context; −1 where it has fewer than ``size``."""
    contexts = trajectories.contexts
    count = int(contexts.max()) + 1 if len(contexts) else 0
    table = torch.full((count, size), -1, dtype=torch.int64, device=contexts.device)
    table[contexts, trajectories.samples] = torch.arange(len(contexts), device=contexts.device)
    return table


def score_gradient(trajectories: Trajectories, advantage: Float[Tensor, " row"], logits: Logits) -> Logits:
    """advantage · d log p(token) / d logits, at every token of every row."""
    mask = trajectories.mask
    per_step = torch.where(mask, advantage[:, None], 0.0)[:, :, None]
    if trajectories.decisions is not None:
        return per_step * trajectories.decisions.scores(logits)
    tokens = torch.where(mask, trajectories.tokens, 0)[:, :, None]
    return (-per_step * logits.softmax(-1)).scatter_add_(2, tokens, per_step)
