"""Budgeted branching: the gradient as a sum over pairs of actions, in which only branches that matter are completed.

For one token with probabilities p and z ~ p,

    g = Σ_{a≠z} ½ p_a (r(a) − r(z)) (e_a − e_z)

is unbiased for the gradient in the logits: over z, each pair of actions occurs twice with half its share. The only
noise is that of z. Each branch a may be completed with any probability s_a > 0 and the weight 1/s_a; the s of all steps
and contexts are chosen together under one budget. The variance for the generated tokens is least for

    s_a ∝ ½ p_a √2 · ρ_a / √tokens,

where ρ_a is the root mean square of the difference in reward, as earlier estimates show it for branches that are as
early and as likely, and tokens is the rest of the main trajectory. Every possible action has a positive share, and the
budget is divided among all of them: a plan takes time and memory for V actions a token.

Where tokens are paths in a tree, actions are the two bits of each decision: with σ(φ) for the probability of bit 1,
g = ½ (1 − p_z) (r(z) − r(opposite)) (±1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.division import Division
from corollout.errors import InputError
from corollout.estimators.baselines import Scores
from corollout.estimators.branching import Branching
from corollout.estimators.estimator import Adaptive, notes_of
from corollout.estimators.plans import ContrastPlan, Plan, Rewards
from corollout.noise import Noise
from corollout.types import Cells, Trajectories

# Branches of one kind have similar probabilities and steps.
_PROBABILITIES = 8  # ½ to 1, ¼ to ½, …
_STEPS, _STEP_WIDTH = 8, 4  # the first four steps, the next four, …
_DECAY = 0.9  # the weight of earlier differences after each batch
_TINY = 1e-200  # what is left of squared differences after thousands of batches without any
_PRIOR = 4.0  # branches with the mean of all kinds that are added to each kind


@dataclass(frozen=True, kw_only=True)
class PairsPlan(ContrastPlan):
    """Contrasts of branches with their main trajectories, and the kind of each branch."""

    kinds: Int64[Tensor, " branch"]
    division: Division | None = None


@dataclass(frozen=True, kw_only=True)
class Pairs(Branching, Adaptive):
    """Budgeted branching. Unbiased for any ``per_step``, ``budget``, ``completions`` and ``samples``."""

    names = ("pairs",)
    title = "PAIRS"
    reads = "notes"
    number = "per_step"

    per_step: float | int = 1.0
    """The mean number of branches per token of the main trajectories, unless ``budget`` is given."""
    gaps: Float[Tensor, "2 kind"] | None = field(default=None, repr=False, compare=False)
    """For each kind of branch: the number of branches so far, and the sum of their squared differences in reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.per_step > 0:
            raise InputError(f"{self.title} needs per_step > 0, not {self.per_step}")

    def take_notes(self, cells: Cells, noise: Noise) -> "_Actions":
        return _actions(cells)

    def plan(self, trajectories: Trajectories, noise: Noise) -> PairsPlan:
        decisions = trajectories.decisions
        if decisions is None:
            row, step, token, share = _by_row(notes_of(self, trajectories, noise), trajectories)
        else:
            row, step, token, share = _decisions(trajectories)
        kinds = _kinds(share, step)
        sizes = share * self._gap(kinds) / (trajectories.lengths[row] - step).sqrt()
        counts = row.bincount(minlength=len(trajectories.tokens))
        kept, factor = self._with_budget(trajectories).spend(sizes, counts, trajectories, noise)
        row, step, token = row[kept], step[kept], token[kept]
        weight = 0.5 * share[kept] * factor / (self.completions * self.samples)
        main = row.repeat(self.completions)
        branch = self.sources(len(kept), torch.arange(len(kept), device=row.device), len(trajectories.tokens))
        kinds = kinds[kept].repeat(self.completions)
        if decisions is None:
            # A branch with more reward raises the logit of its action and lowers that of the token.
            taken = trajectories.tokens[row, step]
            sides = [(token, branch, main, weight), (taken, main, branch, weight)]
            first = token
        else:
            sign = 2 * decisions.bits[row, step, token].to(weight.dtype) - 1
            sides = [(token, main, branch, sign * weight)]
            first = decisions.other[row, step, token]
        copies = self.completions
        return PairsPlan(
            branches=self.branches(row, step, first),
            row=main.repeat(len(sides)),
            step=step.repeat(copies * len(sides)),
            token=torch.cat([logit.repeat(copies) for logit, _, _, _ in sides]),
            plus=torch.cat([plus for _, plus, _, _ in sides]),
            minus=torch.cat([minus for _, _, minus, _ in sides]),
            weight=torch.cat([value.repeat(copies) for _, _, _, value in sides]),
            centre="nothing",
            kinds=kinds,
            division=trajectories.division,
        )

    def updated(self, plan: Plan, rewards: Rewards, scores: Scores | None) -> "Pairs":
        assert isinstance(plan, PairsPlan)
        mains = len(rewards) - len(plan.kinds)
        square = (rewards[mains:] - rewards[plan.branches.parent]).double() ** 2
        count = (~square.isnan()).double()
        new = torch.stack([count, square.nan_to_num(0.0)])
        total = new.new_zeros(2, _PROBABILITIES * _STEPS).index_add_(1, plan.kinds, new)
        if plan.division is not None:
            total = plan.division.total(total)
        return replace(self, gaps=total if self.gaps is None else _DECAY * self.gaps + total)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.gaps is None else {"gaps": self.gaps}

    def load_state_dict(self, state: dict[str, Tensor]) -> "Pairs":
        return replace(self, gaps=state.get("gaps"))

    def _gap(self, kinds: Int64[Tensor, " branch"]) -> Float[Tensor, " branch"]:
        """ρ of some kinds of branches, relative to all kinds and shrunk towards their mean."""
        if self.gaps is None or not float(self.gaps[1].sum()) > _TINY:
            return torch.ones(len(kinds), dtype=torch.float64, device=kinds.device)
        count, squares = self.gaps
        relative = (squares / (squares.sum() / count.sum()) + _PRIOR) / (count + _PRIOR)
        return relative.sqrt()[kinds]

    def _with_budget(self, trajectories: Trajectories) -> "Pairs":
        """A copy with the budget that follows from ``per_step``, if none is given."""
        if self.budget is not None:
            return self
        tokens, division = trajectories.lengths.sum(), trajectories.division
        if division is not None:
            tokens = division.total(tokens)
        pools = 1
        if self.budget_per == "example":
            pools = int(trajectories.contexts.max()) + 1 if division is None else len(division)
        return replace(self, budget=max(1, math.ceil(self.per_step * int(tokens) / pools)))


def _kinds(share: Float[Tensor, " branch"], step: Int64[Tensor, " branch"]) -> Int64[Tensor, " branch"]:
    """The kind of each branch, by the probability of its action and by its step."""
    halvings = (-share.log2()).clamp(0, _PROBABILITIES - 1).long()
    return halvings * _STEPS + (step // _STEP_WIDTH).clamp(max=_STEPS - 1)


# Row, step, action and probability of branches
_Actions = tuple[Int64[Tensor, " branch"], Int64[Tensor, " branch"], Int64[Tensor, " branch"], Float[Tensor, " branch"]]


def _actions(cells: Cells) -> _Actions:
    """All actions that were not taken."""
    lines, index = cells.index.unique(return_inverse=True)
    p = cells.logits[lines].double().softmax(1)[index]
    p.scatter_(1, cells.tokens[:, None], 0.0)
    possible = p > 0
    count = possible.sum(1)
    action = torch.arange(p.shape[1], device=p.device).expand_as(p)[possible]
    return cells.rows.repeat_interleave(count), cells.steps.repeat_interleave(count), action, p[possible]


def _by_row(notes: Sequence[tuple[Tensor, ...]], trajectories: Trajectories) -> _Actions:
    """All branches, ordered by row, step and action."""
    if not notes:
        none = trajectories.contexts[:0]
        return none, none, none, none.double()
    row, step, action, share = (torch.cat(parts) for parts in zip(*notes, strict=True))
    order = (row * trajectories.tokens.shape[1] + step).argsort(stable=True)
    return row[order], step[order], action[order], share[order]


def _decisions(trajectories: Trajectories) -> _Actions:
    """All decisions: their depths, and the probabilities of the bits that were not taken."""
    decisions = trajectories.decisions
    assert decisions is not None
    row, step, depth = (decisions.valid & trajectories.mask[:, :, None]).nonzero(as_tuple=True)
    phi = trajectories.logits[row, step, depth].double()
    taken = decisions.bits[row, step, depth]
    return row, step, depth, torch.where(taken, -phi, phi).sigmoid()
