"""Baselines that other contexts choose.

The sequences s of a context have weights w_s, rewards r_s and baselines m_s: the mean reward of the context's other
sequences, or the baseline of a set drawn without replacement. For any constants α and β the gradient
Σ_s w_s (r_s − α − β m_s) ∇ log p(s) is unbiased. There are two ways to choose them. Both look at other contexts only,
so that α and β are constants for the context that uses them:

shrunk    α + β m_s = c + β (m_s − c): c is the mean reward of the other contexts, and β predicts rewards best (James
          and Stein): the share of the variance of m_s that is due to differences between contexts.
fitted    the α and β with the shortest gradients, Σ_contexts ‖Σ_s w_s (r_s − α − β m_s) ∇ log p(s)‖² in the logits.
          As the expectation does not depend on them, the variance is then least. Often this is not the best prediction
          of the reward: likely sequences have short gradients and say little about what the others need.

The gradients of two sequences of a context overlap in the logits of their common prefix and of the step after it. The
inner product at such a step is 1[a = b] − p_a − p_b + Σ p² for the tokens a and b.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.types import Decisions, Trajectories

_DECAY = 0.9  # the weight of earlier evidence after each batch
_LEAST_RIDGE = 1e-9  # relative to the diagonal that it is added to
_TINY = 1e-200  # dividing by smaller numbers would overflow


@dataclass(frozen=True)
class Evidence:
    """Sums over contexts: the normal equations of the fit, the number of contexts, squared gradients and rewards."""

    matrix: Float[Tensor, "variate variate"]
    right: Float[Tensor, " variate"]
    contexts: Float[Tensor, ""]
    length: Float[Tensor, ""]
    reward: Float[Tensor, ""]

    def updated(self, new: "Evidence") -> "Evidence":
        """The evidence after another batch."""
        pairs = zip(vars(self).values(), vars(new).values(), strict=True)
        return Evidence(*(_DECAY * old + added for old, added in pairs))


@dataclass(frozen=True)
class Fit:
    """The normal equations of each context for α and β − 1."""

    variates: Float[Tensor, "context member variate"]  # w_s and w_s m_s
    matrix: Float[Tensor, "context variate variate"]
    right: Float[Tensor, "context variate"]
    valid: Bool[Tensor, " context"]
    length: Float[Tensor, " context"]  # ‖Σ_s w_s (r_s − m_s) ∇ log p(s)‖²
    reward: Float[Tensor, " context"]  # Σ_s w_s r_s²

    @classmethod
    def from_rewards(
        cls,
        weight: Float[Tensor, "context member"],
        reward: Float[Tensor, "context member"],
        baseline: Float[Tensor, "context member"],
        products: Float[Tensor, "context member member"],
        valid: Bool[Tensor, " context"],
    ) -> "Fit":
        """``baseline`` is m_s, ``products`` are the inner products of ∇ log p(s); only ``valid`` contexts count."""
        variates = torch.stack([weight, weight * baseline], 2)
        advantage = (weight * (reward - baseline))[:, :, None]
        products = torch.where(valid[:, None, None], products, 0.0)
        projected = products @ variates
        return cls(
            variates,
            variates.mT @ projected,
            (projected * advantage).sum(1),
            valid,
            (advantage * (products @ advantage)).sum((1, 2)),
            torch.where(valid, (weight * reward**2).sum(1), 0.0),
        )

    @property
    def evidence(self) -> Evidence:
        return Evidence(*(term.sum(0) for term in self._terms))

    def correction(self, past: Evidence | None) -> Float[Tensor, "context member"]:
        """What to subtract from each advantage: w_s (α + (β − 1) m_s), fitted to all other contexts and to the past.

        This is Bayes' rule with β ~ N(1, 1), α ~ N(0, r²), and noise as large as the gradients.
        """
        matrix, right, contexts, length, reward = (_sum_over_others(term) for term in self._terms)
        if past is not None:
            matrix, right, contexts = matrix + past.matrix, right + past.right, contexts + past.contexts
            length, reward = length + past.length, reward + past.reward
        ridge = torch.stack([length / reward, length / contexts], 1)
        # With zero gradients the ridge is zero, and with equal rewards the variates are parallel: a least ridge keeps
        # the system well conditioned. A variate that is zero everywhere gets no weight.
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        ridge = torch.fmax(ridge, _LEAST_RIDGE * diagonal)
        ridge = torch.where((diagonal > _TINY) & (ridge > _TINY), ridge, 1.0)
        coefficients = torch.linalg.solve(matrix + torch.diag_embed(ridge), right)
        return (self.variates @ coefficients[:, :, None]).squeeze(2)

    @property
    def _terms(self) -> tuple[Tensor, ...]:
        return self.matrix, self.right, self.valid.double(), self.length, self.reward


def _sum_over_others(x: Tensor) -> Tensor:
    """For each context the sum over all others, without subtracting large numbers."""
    zero = torch.zeros_like(x[:1])
    before = torch.cat([zero, x])[:-1].cumsum(0)
    after = torch.cat([x, zero])[1:].flip(0).cumsum(0).flip(0)
    return before + after


def shrunk_baseline(
    reward: Float[Tensor, "context member"],
    baseline: Float[Tensor, "context member"],
    valid: Bool[Tensor, " context"],
) -> Float[Tensor, "context member"]:
    """Baselines m_s moved towards the mean reward of the other contexts, as far as their rewards suggest."""
    size = reward.shape[1]
    within = reward.var(1) if size > 1 else torch.zeros_like(reward[:, 0])
    others = (valid.sum() - valid.long()).double()

    def mean_of_others(x: Float[Tensor, " context"]) -> Float[Tensor, " context"]:
        kept = torch.where(valid, x, 0.0)
        return (kept.sum() - kept) / others.clamp(min=1)

    centre, noise = mean_of_others(reward.mean(1)), mean_of_others(within)
    spread = (mean_of_others(reward.mean(1) ** 2) - centre**2).clamp(min=0) * others / (others - 1).clamp(min=1)
    between = (spread - noise / size).clamp(min=0)
    # m_s is the mean of size − 1 noisy rewards; a single sequence has no others to take the mean of.
    keep = between / (between + noise / (size - 1)) if size > 1 else torch.zeros_like(centre)
    # One other context says nothing about the spread; where nothing varies, there is nothing to move.
    keep = torch.where(others > 1, keep.nan_to_num(1.0), float(size > 1))
    moved = centre[:, None] + keep[:, None] * (baseline - centre[:, None])
    return torch.where(others[:, None] > 0, moved, baseline)


def inner_products(
    trajectories: Trajectories, table: Int64[Tensor, "context member"], logits: Float[Tensor, "row step width"]
) -> Float[Tensor, "context member member"]:
    """⟨∇ log p(s), ∇ log p(s')⟩ in the logits for the sequences of each context; ``table`` has −1 for no sequence."""
    rows = table.clamp(min=0)
    tokens = trajectories.tokens[rows]
    mask = trajectories.mask[rows] & (table >= 0)[:, :, None]
    same = tokens[:, :, None] == tokens[:, None]
    shared = _same_before(same) & mask[:, :, None] & mask[:, None]
    if trajectories.decisions is None:
        products = _softmax_products(trajectories, rows, same, logits)
    else:
        products = _tree_products(trajectories.decisions, rows, logits)
    return torch.where(shared, products, 0.0).sum(-1).double()


def _softmax_products(trajectories: Trajectories, rows: Tensor, same: Tensor, logits: Tensor) -> Tensor:
    p = logits.softmax(-1)
    tokens = torch.where(trajectories.mask, trajectories.tokens, 0)
    chosen = p.gather(2, tokens[:, :, None]).squeeze(2)[rows]
    square = torch.linalg.vector_norm(p, dim=-1)[rows] ** 2
    return same.to(p.dtype) - chosen[:, :, None] - chosen[:, None] + square[:, :, None]


def _tree_products(decisions: Decisions, rows: Tensor, logits: Tensor) -> Tensor:
    """Two paths have the decisions from the root to the node where they part in common."""
    scores, bits = decisions.scores(logits)[rows], decisions.bits[rows]
    shared = _same_before(bits[:, :, None] == bits[:, None])
    return (scores[:, :, None] * scores[:, None] * shared).sum(-1)


def _same_before(same: Tensor) -> Tensor:
    """Whether everything before a position of the last axis is the same."""
    out = torch.ones_like(same)
    out[..., 1:] = same[..., :-1].long().cumprod(-1).bool()
    return out
