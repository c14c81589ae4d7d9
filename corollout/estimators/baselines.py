"""Baselines that are chosen by what other contexts show.

A context's sequences s, with weights w_s and rewards r_s, have a baseline m_s of their own: the mean of the others'
rewards, or what a set without replacement brings along. Any α + β m_s with constants α and β leaves the gradient
Σ_s w_s (r_s − α − β m_s) ∇ log p(s) unbiased. Two ways to choose them, both from other contexts only, so that they
are constants for the context that uses them:

shrunk    α + β m_s = c + β (m_s − c): the mean c of the other contexts' rewards, and the β that predicts a reward best
          (James and Stein): the share of the variance of m_s that is a difference between contexts.
fitted    the α and β with the shortest gradients, Σ_contexts ‖Σ_s w_s (r_s − α − β m_s) ∇ log p(s)‖² in the logits.
          That is the least variance, as the expectation does not depend on them. Often it is not what predicts the
          reward: sequences that are likely have short gradients and say little about what the others need.

Where rows of one context have the same prefix, their gradients meet in the same logits; their inner products are
1[a = b] − p_a − p_b + Σ p² for the tokens a and b, and nothing after they have parted.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.types import Decisions, Trajectories

_DECAY = 0.9  # how much of what was learned before still counts after a batch
_LEAST_RIDGE = 1e-9  # of the diagonal that it is added to
_TINY = 1e-200  # smaller numbers would overflow when they are divided by


@dataclass(frozen=True)
class Evidence:
    """Normal equations of the fit, added up over contexts, how many contexts that were, and the squares of their
    gradients and rewards.
    """

    matrix: Float[Tensor, "variate variate"]
    right: Float[Tensor, " variate"]
    contexts: Float[Tensor, ""]
    length: Float[Tensor, ""]
    reward: Float[Tensor, ""]

    def then(self, later: "Evidence") -> "Evidence":
        """What counts after a later batch."""
        return Evidence(
            *(_DECAY * old + new for old, new in zip(vars(self).values(), vars(later).values(), strict=True))
        )


@dataclass(frozen=True)
class Fit:
    """Each context's own normal equations, for the changes of α and β from 0 and 1."""

    variates: Float[Tensor, "context place variate"]  # w_s and w_s m_s
    matrix: Float[Tensor, "context variate variate"]
    right: Float[Tensor, "context variate"]
    sound: Bool[Tensor, " context"]
    length: Float[Tensor, " context"]  # ‖Σ_s w_s (r_s − m_s) ∇ log p(s)‖²
    reward: Float[Tensor, " context"]  # Σ_s w_s r_s²

    @classmethod
    def of(
        cls,
        weight: Float[Tensor, "context place"],
        reward: Float[Tensor, "context place"],
        own: Float[Tensor, "context place"],
        products: Float[Tensor, "context place place"],
        sound: Bool[Tensor, " context"],
    ) -> "Fit":
        """``own`` is m_s; contexts that are not ``sound`` say nothing."""
        variates = torch.stack([weight, weight * own], 2)
        advantage = (weight * (reward - own))[:, :, None]
        products = torch.where(sound[:, None, None], products, 0.0)
        met = products @ variates
        return cls(
            variates,
            variates.mT @ met,
            (met * advantage).sum(1),
            sound,
            (advantage * (products @ advantage)).sum((1, 2)),
            torch.where(sound, (weight * reward**2).sum(1), 0.0),
        )

    @property
    def evidence(self) -> Evidence:
        return Evidence(*(part.sum(0) for part in self._parts))

    def change(self, past: Evidence | None) -> Float[Tensor, "context place"]:
        """What to take off each advantage: the fit to all other contexts and to the past.

        As from Bayes' rule, with gradients of the length seen for noise, β ~ N(1, 1) and α ~ N(0, r²).
        """
        matrix, right, contexts, length, reward = (_of_others(part) for part in self._parts)
        if past is not None:
            matrix, right, contexts = matrix + past.matrix, right + past.right, contexts + past.contexts
            length, reward = length + past.length, reward + past.reward
        ridge = torch.stack([length / reward, length / contexts], 1)
        # Without gradients there is no noise to set the ridge, and equal rewards make the variates parallel: the ridge
        # never falls below what keeps the system well conditioned. A variate that is zero everywhere gets no weight.
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        ridge = torch.fmax(ridge, _LEAST_RIDGE * diagonal)
        ridge = torch.where((diagonal > _TINY) & (ridge > _TINY), ridge, 1.0)
        coefficients = torch.linalg.solve(matrix + torch.diag_embed(ridge), right)
        return (self.variates @ coefficients[:, :, None]).squeeze(2)

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return self.matrix, self.right, self.sound.double(), self.length, self.reward


def _of_others(x: Tensor) -> Tensor:
    """For each context the sum over all others, without a difference of large numbers."""
    nothing = torch.zeros_like(x[:1])
    before = torch.cat([nothing, x])[:-1].cumsum(0)
    after = torch.cat([x, nothing])[1:].flip(0).cumsum(0).flip(0)
    return before + after


def shrunk(
    reward: Float[Tensor, "context place"], own: Float[Tensor, "context place"], sound: Bool[Tensor, " context"]
) -> Float[Tensor, "context place"]:
    """Baselines moved from each context's ``own`` towards the mean of the other contexts, as far as these recommend."""
    size = reward.shape[1]
    within = reward.var(1) if size > 1 else torch.zeros_like(reward[:, 0])
    others = (sound.sum() - sound.long()).double()

    def of_others(x: Float[Tensor, " context"]) -> Float[Tensor, " context"]:
        kept = torch.where(sound, x, 0.0)
        return (kept.sum() - kept) / others.clamp(min=1)

    centre, noise = of_others(reward.mean(1)), of_others(within)
    spread = (of_others(reward.mean(1) ** 2) - centre**2).clamp(min=0) * others / (others - 1).clamp(min=1)
    between = (spread - noise / size).clamp(min=0)
    # The mean of a sequence's others has the noise of size − 1 rewards; of none there is no mean to keep.
    keep = between / (between + noise / (size - 1)) if size > 1 else torch.zeros_like(centre)
    # One other context tells nothing about the spread; where nothing varies, there is nothing to move.
    keep = torch.where(others > 1, keep.nan_to_num(1.0), float(size > 1))
    moved = centre[:, None] + keep[:, None] * (own - centre[:, None])
    return torch.where(others[:, None] > 0, moved, own)


def inner_products(
    trajectories: Trajectories, table: Int64[Tensor, "context place"], logits: Float[Tensor, "row step width"]
) -> Float[Tensor, "context place place"]:
    """⟨∇ log p(s), ∇ log p(s')⟩ in the logits for the sequences of each context; ``table`` has −1 for no sequence."""
    rows, there = table.clamp(min=0), table >= 0
    tokens = trajectories.tokens[rows]
    mask = trajectories.mask[rows] & there[:, :, None]
    same = tokens[:, :, None] == tokens[:, None]
    together = torch.ones_like(same)
    together[..., 1:] = same[..., :-1].long().cumprod(-1).bool()
    together &= mask[:, :, None] & mask[:, None]
    made = trajectories.decisions
    products = _of_softmax(trajectories, rows, same, logits) if made is None else _of_walks(made, rows, logits)
    return torch.where(together, products, 0.0).sum(-1).double()


def _of_softmax(trajectories: Trajectories, rows: Tensor, same: Tensor, logits: Tensor) -> Tensor:
    p = logits.softmax(-1)
    tokens = torch.where(trajectories.mask, trajectories.tokens, 0)
    own = p.gather(2, tokens[:, :, None]).squeeze(2)[rows]
    square = torch.linalg.vector_norm(p, dim=-1)[rows] ** 2
    return same.to(p.dtype) - own[:, :, None] - own[:, None] + square[:, :, None]


def _of_walks(made: Decisions, rows: Tensor, logits: Tensor) -> Tensor:
    """Walks down the tree meet in the decisions from the root up to and with the one at which they part."""
    scores, bits = made.scores(logits)[rows], made.bits[rows]
    same = bits[:, :, None] == bits[:, None]
    together = torch.ones_like(same)
    together[..., 1:] = same[..., :-1].long().cumprod(-1).bool()
    return (scores[:, :, None] * scores[:, None] * together).sum(-1)
