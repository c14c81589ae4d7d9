"""Budgeted branching: the gradient as a sum over pairs of actions, of which the branches that matter are rolled out.

For one token with probabilities p and z ~ p,

    g = Σ_{a≠z} ½ p_a (r(a) − r(z)) (e_a − e_z)

is unbiased for the gradient in the logits: over z, each pair of actions is met twice with half its share. No noise but
z's own is in it. Each branch a may be rolled out with any probability s_a > 0 and the weight 1/s_a; the s of all steps
and contexts together are chosen under one budget. The variance for the tokens that they cost is least for

    s_a ∝ ½ p_a √2 · ρ_a / √tokens,

ρ_a being the root mean square of the difference in reward, of which earlier estimates tell, for branches as early and
as likely, and tokens what is left of the main trajectory.

Where tokens are walks down a tree, actions are the two bits of each decision: with σ(φ) for the probability of bit 1,
g = ½ (1 − p_z) (r(z) − r(opposite)) (±1).
"""

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.estimators.branching import Branching
from corollout.estimators.plans import ContrastPlan, Logits, Plan, Rewards
from corollout.noise import Noise
from corollout.types import Trajectories

_PROBABILITIES = 8  # kinds of branches by probability: ½ to 1, ¼ to ½, …
_STEPS, _PER_KIND = 8, 4  # kinds by step: the first four, the next four, …
_DECAY = 0.9  # how much of what was learned before still counts after a batch
_PRIOR = 4.0  # as many branches of each kind speak for the mean of all kinds


@dataclass(frozen=True, kw_only=True)
class PairsPlan(ContrastPlan):
    """Contrasts of branches with their main trajectories, and which kind of branch each is."""

    kinds: Int64[Tensor, " branch"]


@dataclass(frozen=True, kw_only=True)
class Pairs(Branching):
    """Budgeted branching. Unbiased for any ``per_step``, ``budget``, ``completions`` and ``samples``."""

    called = "budgeted branching"

    per_step: float | int = 1.0
    """Branches for each token of the main trajectories, on average; where ``budget`` is given, that counts instead."""
    gaps: Float[Tensor, "2 kind"] | None = field(default=None, repr=False, compare=False)
    """Of each kind of branch, how many were seen and the sum of their squared differences in reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.per_step > 0:
            raise InputError(f"{self.called} needs per_step > 0, not {self.per_step}")

    def plan(self, trajectories: Trajectories, noise: Noise) -> PairsPlan:
        made = trajectories.decisions
        row, step, token, share = _actions(trajectories) if made is None else _decisions(trajectories)
        kinds = _kinds(share, step)
        sizes = share * self._gap(kinds) / (trajectories.lengths[row] - step).sqrt()
        kept, factor = self._funded(trajectories).spend(sizes, row, trajectories, noise)
        row, step, token = row[kept], step[kept], token[kept]
        weight = 0.5 * share[kept] * factor / (self.completions * self.samples)
        main = row.repeat(self.completions)
        branch = self.sources(len(kept), torch.arange(len(kept), device=row.device), len(trajectories.tokens))
        kinds = kinds[kept].repeat(self.completions)
        if made is None:
            # Each branch speaks for its own action and against the one that was taken.
            own = trajectories.tokens[row, step]
            sides = [(token, branch, main, weight), (own, main, branch, weight)]
            begun = token
        else:
            sign = 2 * made.bits[row, step, token].to(weight.dtype) - 1
            sides = [(token, main, branch, sign * weight)]
            begun = made.other[row, step, token]
        copies = self.completions
        return PairsPlan(
            branches=self.branches(row, step, begun),
            row=main.repeat(len(sides)),
            step=step.repeat(copies * len(sides)),
            token=torch.cat([at.repeat(copies) for at, _, _, _ in sides]),
            plus=torch.cat([plus for _, plus, _, _ in sides]),
            minus=torch.cat([minus for _, _, minus, _ in sides]),
            weight=torch.cat([value.repeat(copies) for _, _, _, value in sides]),
            centre="nothing",
            kinds=kinds,
        )

    def updated(self, plan: Plan, rewards: Rewards, logits: Logits) -> "Pairs":
        assert isinstance(plan, PairsPlan)
        mains = len(rewards) - len(plan.kinds)
        square = (rewards[mains:] - rewards[plan.branches.parent]).double() ** 2
        seen = (~square.isnan()).double()
        new = torch.stack([seen, square.nan_to_num(0.0)])
        total = new.new_zeros(2, _PROBABILITIES * _STEPS).index_add_(1, plan.kinds, new)
        return replace(self, gaps=total if self.gaps is None else _DECAY * self.gaps + total)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.gaps is None else {"gaps": self.gaps}

    def load_state_dict(self, memory: dict[str, Tensor]) -> "Pairs":
        return replace(self, gaps=memory.get("gaps"))

    def _gap(self, kinds: Int64[Tensor, " branch"]) -> Float[Tensor, " branch"]:
        """ρ of some kinds of branches, relative to all; each is moved towards the mean by a few branches' worth."""
        if self.gaps is None or not float(self.gaps[1].sum()) > 0:
            return torch.ones(len(kinds), dtype=torch.float64, device=kinds.device)
        seen, squares = self.gaps
        relative = (squares / (squares.sum() / seen.sum()) + _PRIOR) / (seen + _PRIOR)
        return relative.sqrt()[kinds]

    def _funded(self, trajectories: Trajectories) -> "Pairs":
        """The options with a budget, whether it was given or follows from ``per_step``."""
        if self.budget is not None:
            return self
        pools = 1 if self.budget_per == "update" else int(trajectories.contexts.max()) + 1
        return replace(self, budget=max(1, math.ceil(self.per_step * int(trajectories.lengths.sum()) / pools)))


def _kinds(share: Float[Tensor, " branch"], step: Int64[Tensor, " branch"]) -> Int64[Tensor, " branch"]:
    """The kind of each branch, by the probability of its action and by its step."""
    likely = (-share.log2()).clamp(0, _PROBABILITIES - 1).long()
    return likely * _STEPS + (step // _PER_KIND).clamp(max=_STEPS - 1)


def _actions(
    trajectories: Trajectories,
) -> tuple[Int64[Tensor, " branch"], Int64[Tensor, " branch"], Int64[Tensor, " branch"], Float[Tensor, " branch"]]:
    """Row, step, action and probability of all actions but those that were taken."""
    rows, steps = trajectories.mask.nonzero(as_tuple=True)
    p = trajectories.logits[rows, steps].double().softmax(1)
    p.scatter_(1, trajectories.tokens[rows, steps][:, None], 0.0)
    possible = p > 0
    count = possible.sum(1)
    action = torch.arange(p.shape[1], device=p.device).expand_as(p)[possible]
    return rows.repeat_interleave(count), steps.repeat_interleave(count), action, p[possible]


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
