"""Plans: which branches to complete, and how rewards become a gradient.

Rewards are numbered by their source: the main trajectories first, then the branches. A reward of NaN was skipped by the
reward function; terms that depend on it contribute nothing.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.division import Division
from corollout.estimators.baselines import (
    Evidence,
    Scores,
    fitted_baseline,
    gather_evidence,
    inner_products,
    over_all,
    shrunk_baseline,
)
from corollout.types import Branches, Decisions, Trajectories

Rewards = Float[Tensor, " source"]
Logits = Float[Tensor, "row step vocab"]

_LEAST_DEVIATION = 1e-4  # added to standard deviations: rewards of a group may all be equal


@runtime_checkable
class Plan(Protocol):
    """What an estimator decides after sampling and before any reward is known."""

    @property
    def branches(self) -> Branches: ...

    def gradient(self, rewards: Rewards, logits: Logits) -> Logits:
        """The estimate of d E[reward] / d logits at the main trajectories, summed over the rows of a context."""
        ...


@dataclass(frozen=True)
class Credits:
    """A gradient as a short list: numbers that are added to single logits, and a centre for each step,

        S[row, step, token] = Σ value,    g = S − c Σ_v S_v.

    The centre c is the policy p = softmax(φ) (so that every entry multiplies a score e_v − p), uniform, 1/V, or
    nothing, 0. Where tokens are paths in a tree, "policy" multiplies the sum of a step's entries by the score of the
    main trajectory's token, whatever ``token`` is; otherwise ``token`` is a depth.
    """

    row: Int64[Tensor, " entry"]
    step: Int64[Tensor, " entry"]
    token: Int64[Tensor, " entry"]
    value: Float[Tensor, " entry"]
    centre: Literal["policy", "uniform", "nothing"]

    def select(self, entries: Int64[Tensor, " some"]) -> "Credits":
        """Some of the entries."""
        row, step, token, value = (part[entries] for part in (self.row, self.step, self.token, self.value))
        return Credits(row, step, token, value, self.centre)

    def gradient(self, logits: Logits, decisions: Decisions | None = None) -> Logits:
        """g for all rows and steps; ``decisions`` are those of the main trajectories."""
        value = self.value.to(logits.dtype)
        if self.centre == "policy" and decisions is not None:
            per_step = logits.new_zeros(logits.shape[:2]).index_put_((self.row, self.step), value, accumulate=True)
            return per_step[:, :, None] * decisions.scores(logits)
        g = torch.zeros_like(logits).index_put_((self.row, self.step, self.token), value, accumulate=True)
        if self.centre == "nothing":
            return g
        total = g.sum(-1, keepdim=True)
        if self.centre == "policy":
            return g - total * logits.softmax(-1)
        # A masked action has no probability and no gradient: its entries have expectation zero.
        return (g - total / logits.shape[-1]).masked_fill_(logits == -torch.inf, 0.0)


class SparsePlan:
    """A plan whose gradient is a short list of credits, so that it never needs the logits of a whole batch at once."""

    reads_scores: bool = False
    """Whether the credits depend on probabilities, which scoring then has to compute first."""

    @abstractmethod
    def credits(self, rewards: Rewards, scores: Scores | None = None) -> Credits:
        """What each entry of the gradient gets; ``scores`` if the plan reads them."""

    def gradient(self, rewards: Rewards, logits: Logits) -> Logits:
        """The same for all logits at once."""
        return self.credits(rewards, logits).gradient(logits, self._decisions())

    @abstractmethod
    def _decisions(self) -> Decisions | None:
        """Those of the main trajectories, if tokens are paths in a tree."""


@dataclass(frozen=True)
class ContrastPlan(SparsePlan):
    """A list of differences of two rewards, each credited to one logit: weight · (r_plus − r_minus).

    ``centre`` is that of :class:`Credits`; ``decisions`` are those of the main trajectories, if the centre needs them.
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

    def credits(self, rewards: Rewards, scores: Scores | None = None) -> Credits:
        gap = rewards[self.plus] - rewards[self.minus]
        value = self.weight.double() * torch.where(gap.isnan(), 0.0, gap).double()
        return Credits(self.row, self.step, self.token, value, self.centre)

    def _decisions(self) -> Decisions | None:
        return self.decisions


@dataclass(frozen=True)
class GroupPlan(SparsePlan):
    """Whole sequences, compared with the weighted mean reward of their group:

        g[row, step] = weight_row · (r_row − Σ_i share_i r_i / Σ_i share_i) · (e_token − p),

    where i runs over the row's group, without the row itself if ``leave_one_out``; without any i the baseline is 0. If
    ``normalised``, the differences are divided by the standard deviation of the group's rewards. A group that
    ``spans_contexts`` may have rows in other processes, under the same number.
    """

    trajectories: Trajectories
    group: Int64[Tensor, " row"]
    share: Float[Tensor, " row"]
    weight: Float[Tensor, " row"]
    leave_one_out: bool
    normalised: bool = False
    spans_contexts: bool = False

    @property
    def branches(self) -> Branches:
        return Branches.none(self.group.device)

    def credits(self, rewards: Rewards, scores: Scores | None = None) -> Credits:
        return _of_tokens(self.trajectories, self.weight.to(rewards.dtype) * self._above_baseline(rewards))

    def _decisions(self) -> Decisions | None:
        return self.trajectories.decisions

    def _above_baseline(self, rewards: Rewards) -> Rewards:
        share, division = self.share.to(rewards.dtype), self.trajectories.division
        if division is None or not self.spans_contexts:
            return self._above(rewards, share, self.group)
        rows = torch.stack([rewards, share, self.group.to(rewards.dtype)], 1)
        everyone = division.gather(rows, self.trajectories.contexts)
        rewards, share, group = everyone.values.unbind(1)
        return self._above(rewards, share, group.long())[everyone.own]

    def _above(self, rewards: Rewards, share: Float[Tensor, " row"], group: Int64[Tensor, " row"]) -> Rewards:
        """The rewards of whole groups above their baselines."""
        skipped: Bool[Tensor, " row"] = rewards.isnan()
        share = torch.where(skipped, 0.0, share)
        groups = int(group.max()) + 1 if len(group) else 0
        zeros = rewards.new_zeros(groups)
        # Rewards above the lowest of their group: equal ones are exactly 0, however large.
        known = torch.where(skipped, torch.inf, rewards)
        lowest = (zeros + torch.inf).scatter_reduce(0, group, known, "amin")[group]
        reward = torch.where(skipped, 0.0, rewards - lowest)
        shared_reward = share * reward
        total_share = zeros.index_add(0, group, share)[group]
        total_reward = zeros.index_add(0, group, shared_reward)[group]
        if self.leave_one_out:
            # Members are counted: total_share − share may differ from 0 by rounding.
            members = zeros.index_add(0, group, (share > 0).to(share.dtype))[group]
            total_share = torch.where(members > 1, total_share - share, 0.0)
            total_reward = total_reward - shared_reward
        above = torch.where(total_share > 0, reward - total_reward / total_share, rewards)
        above = torch.where(skipped, 0.0, above)
        if not self.normalised:
            return above
        square = zeros.index_add(0, group, share * above**2)[group]
        return above / ((square / total_share.clamp(min=1)).sqrt() + _LEAST_DEVIATION)


@dataclass(frozen=True)
class SetPlan(SparsePlan):
    """The sequences of each context, compared with weighted sums m_s = Σ_{s'} mix_{ss'} r_{s'} of its rewards:

        g[row, step] = weight_s · (r_s − m_s) · (e_token − p),

    where a sequence that is alone in its context has m_s = 0, and a "shrunk" or "fitted" ``baseline`` moves m_s as
    other contexts and the ``past`` suggest. All advantages of a context depend on all of its rewards: if one was
    skipped, the context contributes nothing.
    """

    trajectories: Trajectories
    table: Int64[Tensor, "context member"]  # the rows of each context's sequences; −1 for none
    weight: Float[Tensor, "context member"]
    mix: Float[Tensor, "context member other"]
    baseline: Literal["plain", "shrunk", "fitted"] = "plain"
    past: Evidence | None = None

    @property
    def branches(self) -> Branches:
        return Branches.none(self.table.device)

    @property
    def reads_scores(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.baseline == "fitted"

    def credits(self, rewards: Rewards, scores: Scores | None = None) -> Credits:
        reward, baseline, valid = self._baselines(rewards)
        if self.baseline == "shrunk":
            baseline = self._shrunk(reward, baseline, valid)
        elif self.baseline == "fitted":
            contexts, own = gather_evidence(self._by_context(reward, baseline, valid, scores), self._division)
            baseline = fitted_baseline(contexts, self.past, baseline, own)
        advantage = self.weight * (reward - baseline)
        used = (self.table >= 0) & valid[:, None]
        per_row = torch.zeros(len(rewards), dtype=torch.float64, device=self.table.device)
        per_row[self.table[used]] = advantage[used]
        return _of_tokens(self.trajectories, per_row)

    def _decisions(self) -> Decisions | None:
        return self.trajectories.decisions

    def evidence(self, rewards: Rewards, scores: Scores) -> Evidence:
        """What these rewards say about the best baseline."""
        contexts, _ = gather_evidence(self._by_context(*self._baselines(rewards), scores), self._division)
        return over_all(contexts)

    @property
    def _division(self) -> Division | None:
        return self.trajectories.division

    def _shrunk(self, reward: Tensor, baseline: Tensor, valid: Bool[Tensor, " context"]) -> Tensor:
        if self._division is None:
            return shrunk_baseline(reward, baseline, valid)
        rows = torch.cat([reward, baseline, valid[:, None].to(reward.dtype)], 1)
        everyone = self._division.gather(rows, torch.arange(len(rows), device=rows.device))
        size = reward.shape[1]
        reward, baseline, valid = everyone.values.split([size, size, 1], 1)
        return shrunk_baseline(reward, baseline, valid[:, 0].bool())[everyone.own]

    def _baselines(self, rewards: Rewards) -> tuple[Tensor, Tensor, Bool[Tensor, " context"]]:
        """The rewards and the m_s of each context, and whether it has all of its rewards."""
        reward = torch.where(self.table >= 0, rewards[self.table.clamp(min=0)].double(), 0.0)
        valid = ~reward.isnan().any(1)
        reward = torch.where(valid[:, None], reward, 0.0)
        if reward.shape[1] == 1:
            return reward, torch.zeros_like(reward), valid
        # The weights of a sum add up to 1 but for rounding, which differences from one of the rewards keep small.
        first = reward[:, :1]
        return reward, first + (self.mix @ (reward - first)[:, :, None]).squeeze(2), valid

    def _by_context(self, reward: Tensor, baseline: Tensor, valid: Tensor, scores: Scores | None) -> Evidence:
        assert scores is not None
        overlap = inner_products(self.trajectories, self.table, scores)
        return Evidence.from_rewards(self.weight, reward, baseline, overlap, valid)


def _of_tokens(trajectories: Trajectories, advantage: Float[Tensor, " row"]) -> Credits:
    """advantage · d log p(token) / d logits, at every token of every row."""
    row, step = trajectories.mask.nonzero(as_tuple=True)
    return Credits(row, step, trajectories.tokens[row, step], advantage.double()[row], "policy")


def rows_by_context(trajectories: Trajectories, size: int) -> Int64[Tensor, "context member"]:
    """The rows of each context; −1 where it has fewer than ``size``."""
    contexts = trajectories.contexts
    count = int(contexts.max()) + 1 if len(contexts) else 0
    table = torch.full((count, size), -1, dtype=torch.int64, device=contexts.device)
    table[contexts, trajectories.samples] = torch.arange(len(contexts), device=contexts.device)
    return table


def score_gradient(trajectories: Trajectories, advantage: Float[Tensor, " row"], logits: Logits) -> Logits:
    """advantage · d log p(token) / d logits, at every token of every row, for plans that only have a gradient."""
    return _of_tokens(trajectories, advantage).gradient(logits, trajectories.decisions)
