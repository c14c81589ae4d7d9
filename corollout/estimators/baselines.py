"""Baselines that other contexts choose.

The sequences s of a context have weights w_s, rewards r_s and baselines m_s: the mean reward of the context's other
sequences, or the baseline of a set drawn without replacement. For any constants α, γ and c the gradient

    Σ_s w_s (r_s − b_s) ∇ log p(s),    b_s = m_s + α + γ (m_s − c)

is unbiased. All three come from other contexts, so that they are constants for the context that uses them; c is the
mean reward there. A sequence that is alone in its context has no m_s; c takes its place, or 0 if there is no c.

shrunk    α = 0, and 1 + γ predicts rewards best (James and Stein): the share of the variance of m_s that is due to
          differences between contexts.
fitted    the α and γ with the shortest gradients, Σ_contexts ‖Σ_s w_s (r_s − b_s) ∇ log p(s)‖² in the logits. As the
          expectation does not depend on them, the variance is then least. Often this is not the best prediction of the
          reward: likely sequences have short gradients and say little about what the others need.

Both follow the rewards: rewards a r + b have a times the gradients. Nothing is computed as the difference of large
numbers: sums of squares are kept about their own mean, and moved with it when contexts are added (Chan, Golub, LeVeque
1983).

The gradients of two sequences of a context overlap in the logits of their common prefix and of the step after it. The
inner product at such a step is 1[a = b] − p_a − p_b + Σ p² for the tokens a and b.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.division import Division
from corollout.errors import InputError
from corollout.types import Decisions, Trajectories

_DECAY = 0.9  # the weight of earlier evidence after each batch
_LEAST_RIDGE = 1e-6  # relative to the matrix that it is added to: more than the rounding of single precision
_TINY = 1e-200  # dividing by smaller numbers would overflow


@dataclass(frozen=True)
class TokenProbabilities:
    """What inner products ask of the probabilities of each step, a softmax: those of the token a that was drawn."""

    chosen: Float[Tensor, "row step"]  # p_a
    missing: Float[Tensor, "row step"]  # 1 − p_a, as the sum of all others
    square: Float[Tensor, "row step"]  # Σ_{v≠a} p_v²

    @classmethod
    def of(cls, logits: Float[Tensor, "row step vocab"], trajectories: Trajectories) -> "TokenProbabilities":
        return cls(*token_probabilities(logits, torch.where(trajectories.mask, trajectories.tokens, 0)))


def token_probabilities(
    logits: Float[Tensor, "*cell vocab"], tokens: Int64[Tensor, "*cell"]
) -> tuple[Float[Tensor, "*cell"], Float[Tensor, "*cell"], Float[Tensor, "*cell"]]:
    """p_a, 1 − p_a and Σ_{v≠a} p_v² for the tokens a, precise where one token has nearly all of the probability."""
    others, token = logits.softmax(-1), tokens[..., None]
    chosen = others.gather(-1, token).squeeze(-1)
    others.scatter_(-1, token, 0.0)
    return chosen.double(), others.sum(-1).double(), torch.linalg.vector_norm(others, dim=-1).double() ** 2


# Logits of all tokens of a softmax or of the decisions of a tree, or what is needed of a softmax.
Scores = Float[Tensor, "row step width"] | TokenProbabilities

# Which contexts of a batch are those of this process.
Own = Int64[Tensor, " own"] | slice
_ALL = slice(None)

_Sums = TypeVar("_Sums", bound="Moments")


@dataclass(frozen=True)
class Moments:
    """Rewards: their weight, their mean c, and Σ w (r − c)²."""

    weight: Float[Tensor, "*context"]
    mean: Float[Tensor, "*context"]
    spread: Float[Tensor, "*context"]

    def merged(self: _Sums, other: _Sums) -> _Sums:
        """These rewards and others."""
        weight = self.weight + other.weight
        mean = self.mean + (other.mean - self.mean) * torch.where(weight > 0, other.weight / weight, 0.0)
        return replace(_each(torch.add, self._about(mean), other._about(mean)), mean=mean)

    def _about(self: _Sums, centre: Float[Tensor, "*context"]) -> _Sums:
        """The same sums with another c."""
        return replace(self, mean=centre, spread=self.spread + self.weight * (self.mean - centre) ** 2)

    @property
    def variance(self) -> Float[Tensor, "*context"]:
        return torch.where(self.weight > 0, self.spread / self.weight, 0.0)


@dataclass(frozen=True)
class Evidence(Moments):
    """What contexts say about the best baseline: their rewards, and the inner products of three gradients,

        Σ_s w_s ∇ log p(s),    Σ_s w_s (m_s − c) ∇ log p(s),    Σ_s w_s (r_s − m_s) ∇ log p(s),

    added up over contexts; for sequences that are alone in their contexts two, with 1 and r_s − c.
    """

    products: Float[Tensor, "*context gradient gradient"]

    @classmethod
    def from_rewards(
        cls,
        weight: Float[Tensor, "context member"],
        reward: Float[Tensor, "context member"],
        baseline: Float[Tensor, "context member"],
        overlap: Float[Tensor, "context member member"],
        valid: Bool[Tensor, " context"],
    ) -> "Evidence":
        """The evidence of each context by itself; nothing if it is not ``valid``.

        ``baseline`` is m_s, and ``overlap`` are the inner products of ∇ log p(s).
        """
        weight = torch.where(valid[:, None], weight, 0.0)
        first = reward[:, 0]
        mean = first + (weight * (reward - first[:, None])).sum(1)  # weights add up to 1
        about = reward - mean[:, None]
        if reward.shape[1] == 1:
            factors = [torch.ones_like(weight), about]
        else:
            factors = [torch.ones_like(weight), baseline - mean[:, None], reward - baseline]
        gradients = weight[:, :, None] * torch.stack(factors, 2)
        return cls(weight.sum(1), mean, (weight * about**2).sum(1), gradients.mT @ overlap @ gradients)

    @classmethod
    def from_state(cls, state: dict[str, Tensor], gradients: int) -> "Evidence":
        """The evidence that a checkpoint holds, with the inner products of so many gradients."""
        known = set(state) == {field.name for field in fields(cls)}
        if not known or state["products"].shape != (gradients, gradients):
            raise InputError(
                "what the checkpoint knows about fitted baselines is from another version of corollout or another "
                "estimator: start the training again, or continue it with what began it"
            )
        return cls(**state)

    def updated(self, new: "Evidence") -> "Evidence":
        """The evidence after another batch."""
        old = replace(self, weight=_DECAY * self.weight, spread=_DECAY * self.spread, products=_DECAY * self.products)
        return new.merged(old)

    def coefficients(self) -> Float[Tensor, "*context 2"]:
        """α and γ; γ is 0 if all sequences are alone in their contexts.

        This is Bayes' rule with γ ~ N(0, 1), α ~ N(0, variance of the rewards), and noise as large as the gradients.
        """
        matrix, right = self.products[..., :-1, :-1], self.products[..., :-1, -1]
        noise = torch.where(self.weight > 0, self.products[..., -1, -1] / self.weight, 0.0)
        # In units of their prior deviations, so that both have the same ridge.
        unit = torch.ones_like(right)
        unit[..., 0] = self.variance.sqrt()
        matrix, right = unit[..., :, None] * matrix * unit[..., None, :], unit * right
        # With equal rewards or short gradients there is no noise, and gradients may be parallel: a least ridge keeps
        # the system well conditioned. Gradients that are zero everywhere get no weight.
        least = _LEAST_RIDGE * matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
        ridge = torch.maximum(noise, least)
        ridge = torch.where(ridge > _TINY, ridge, 1.0)[..., None]
        identity = torch.eye(right.shape[-1], dtype=right.dtype, device=right.device)
        solution = unit * torch.linalg.solve(matrix / ridge[..., None] + identity, right / ridge)
        return torch.nn.functional.pad(solution, (0, 2 - solution.shape[-1]))

    def _about(self, centre: Float[Tensor, "*context"]) -> "Evidence":
        size = self.products.shape[-1]
        move = torch.eye(size, dtype=centre.dtype, device=centre.device).repeat(*centre.shape, 1, 1)
        move[..., 1, 0] = self.mean - centre
        return replace(super()._about(centre), products=move @ self.products @ move.mT)


def gather_evidence(evidence: Evidence, division: Division | None) -> tuple[Evidence, Own]:
    """The evidence of all contexts of a batch, from that of this process's contexts, and which of them those are."""
    if division is None:
        return evidence, _ALL
    parts = [part[:, None].flatten(1) for part in vars(evidence).values()]
    contexts = torch.arange(len(evidence.weight), device=evidence.weight.device)
    everyone = division.gather(torch.cat(parts, 1), contexts)
    columns = everyone.values.split([part.shape[1] for part in parts], 1)
    shapes = [part.shape[1:] for part in vars(evidence).values()]
    return Evidence(*(c.reshape(len(c), *shape) for c, shape in zip(columns, shapes, strict=True))), everyone.own


def fitted_baseline(
    contexts: Evidence, past: Evidence | None, baseline: Float[Tensor, "own member"], own: Own = _ALL
) -> Float[Tensor, "own member"]:
    """Baselines m_s + α + γ (m_s − c), fitted for each context to all others and to the past.

    They are those of all contexts, or of some of them: ``own``.
    """
    others = _each(lambda x: x[own], evidence_for_each(contexts, past))
    alpha, gamma = others.coefficients()[:, :, None].unbind(1)
    centre = others.mean[:, None]
    own = baseline if baseline.shape[1] > 1 else centre
    return own + alpha + gamma * (own - centre)


def evidence_for_each(contexts: Evidence, past: Evidence | None) -> Evidence:
    """What a context may use: the evidence of all others, and of the past."""
    others = over_others(contexts)
    return others if past is None else others.merged(_each(lambda x, like: x.expand_as(like), past, others))


def over_all(contexts: _Sums) -> _Sums:
    """The sums over all contexts."""
    return _each(lambda x: x[-1], _running(contexts))


def over_others(contexts: _Sums) -> _Sums:
    """For each context the sums over all others: they do not depend on it, not even by rounding."""
    before = _each(lambda x: x[:-1], _running(contexts))
    after = _each(lambda x: x[:-1].flip(0), _running(_each(lambda x: x.flip(0), contexts)))
    return before.merged(after)


def _running(contexts: _Sums) -> _Sums:
    """The sums over the first 0, 1, 2, … contexts, by doubling the number of those that are added."""
    sums = _each(lambda x: torch.cat([x.new_zeros(1, *x.shape[1:]), x]), contexts)
    reach = 1
    while reach < len(sums.weight):
        longer = _each(lambda x, n=reach: x[:-n], sums).merged(_each(lambda x, n=reach: x[n:], sums))
        sums = _each(lambda x, y, n=reach: torch.cat([x[:n], y]), sums, longer)
        reach *= 2
    return sums


def _each(change: Callable[..., Tensor], *sums: _Sums) -> _Sums:
    """The same with each tensor changed."""
    tensors = zip(*(vars(part).values() for part in sums), strict=True)
    return type(sums[0])(*(change(*parts) for parts in tensors))


def shrunk_baseline(
    reward: Float[Tensor, "context member"],
    baseline: Float[Tensor, "context member"],
    valid: Bool[Tensor, " context"],
) -> Float[Tensor, "context member"]:
    """Baselines m_s moved towards the mean reward of the other contexts, as far as their rewards suggest."""
    size = reward.shape[1]
    within = reward.var(1) if size > 1 else torch.zeros_like(reward[:, 0])
    mean = reward[:, 0] + (reward - reward[:, :1]).mean(1)
    both = torch.stack([mean, within], 1)
    others = over_others(Moments(valid.to(both.dtype)[:, None].expand_as(both), both, torch.zeros_like(both)))
    count = others.weight[:, 0]
    centre, noise = others.mean.unbind(1)
    spread = others.spread[:, 0] / (count - 1).clamp(min=1)
    between = (spread - noise / size).clamp(min=0)
    # m_s is the mean of size − 1 noisy rewards; a single sequence has no others to take the mean of.
    keep = between / (between + noise / (size - 1)) if size > 1 else torch.zeros_like(centre)
    # One other context says nothing about the spread; where nothing varies, there is nothing to move.
    keep = torch.where(count > 1, keep.nan_to_num(1.0), float(size > 1))
    moved = centre[:, None] + keep[:, None] * (baseline - centre[:, None])
    return torch.where(count[:, None] > 0, moved, baseline)


def inner_products(
    trajectories: Trajectories, table: Int64[Tensor, "context member"], scores: Scores
) -> Float[Tensor, "context member member"]:
    """⟨∇ log p(s), ∇ log p(s')⟩ in the logits for the sequences of each context; ``table`` has −1 for no sequence."""
    rows = table.clamp(min=0)
    tokens = trajectories.tokens[rows]
    mask = trajectories.mask[rows] & (table >= 0)[:, :, None]
    same = tokens[:, :, None] == tokens[:, None]
    shared = _same_before(same) & mask[:, :, None] & mask[:, None]
    if isinstance(scores, TokenProbabilities):
        products = _softmax_products(scores, rows, same)
    elif trajectories.decisions is None:
        products = _softmax_products(TokenProbabilities.of(scores, trajectories), rows, same)
    else:
        products = _tree_products(trajectories.decisions, rows, scores)
    return torch.where(shared, products.double(), 0.0).sum(-1)


def _softmax_products(probabilities: TokenProbabilities, rows: Tensor, same: Tensor) -> Tensor:
    """1[a = b] − p_a − p_b + Σ p², as a sum of terms that are small where one token has nearly all of the probability:
    (1 − p_a)² + Σ_{v≠a} p_v² if the tokens are the same, otherwise −p_a (1 − p_a) − p_b (1 − p_b) + Σ_{v≠a,b} p_v².
    """
    chosen, missing, square = (part[rows] for part in vars(probabilities).values())
    cross = -chosen * missing
    # The sum without both tokens is that without the likelier one, less the square of the other.
    rest = torch.minimum(square[:, :, None], square[:, None])
    rest = rest - torch.minimum(chosen[:, :, None], chosen[:, None]) ** 2
    diagonal = missing**2 + square
    return torch.where(same, diagonal[:, :, None], cross[:, :, None] + cross[:, None] + rest)


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
