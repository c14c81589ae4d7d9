"""A gradient estimate taken apart: what was sampled, its rewards, and what each of them did to every token."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.estimators.plans import ContrastPlan, GroupPlan, SetPlan
from corollout.training.estimates import Estimate
from corollout.types import full_precision

Names = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class Branch:
    """A departure from a main sequence: its first token, how it was chosen, and the completed sequence."""

    token: int
    kind: Literal["pseudo-action", "greedy", "completion"]
    sequence: list[int]  # with the end token
    reward: float
    # d gradient / d reward at the steps of its main sequence; not stored, because there may be thousands.
    coefficients: Callable[[], Float[Tensor, "step vocab"]] = field(repr=False)

    @cached_property
    def norm(self) -> float:
        """The norm of the coefficients."""
        return float(self.coefficients().norm())

    def to_json(self, names: Names) -> dict[str, Any]:
        return {
            "token": names([self.token])[0],
            "kind": self.kind,
            "coefficient_norm": self.norm,
            "reward": self.reward,
            "tokens": names(self.sequence),
        }


@dataclass(frozen=True)
class Step:
    """A token of a main sequence, the branches that leave it here, and the gradient for its logits."""

    token: int
    probability: float
    gradient: Float[Tensor, " vocab"]
    credit: float  # d log p(token) / dε, if all logits move by ε times the gradient: more probable if positive
    advantage: float | None  # A, if the gradient is weight · A (e_token − p), as with score-function estimators
    has_token_logits: bool  # a logit for each token, not for each decision in a tree
    branches: tuple[Branch, ...]

    @property
    def norm(self) -> float:
        return float(self.gradient.norm())

    @property
    def is_zero(self) -> bool:
        """Whether the gradient is exactly zero."""
        return not bool(self.gradient.any())

    @property
    def moves(self) -> list[tuple[int, float] | None]:
        """The tokens whose logits the gradient raises and lowers most, and by how much; None if there are several, or
        in a tree."""
        moves: list[tuple[int, float] | None] = []
        for value in (self.gradient.max(), self.gradient.min()):
            tokens = (self.gradient == value).nonzero()
            is_one = self.has_token_logits and len(tokens) == 1
            moves.append((int(tokens), float(value)) if is_one else None)
        return moves

    def to_json(self, names: Names) -> dict[str, Any]:
        raised, lowered = (move and (names([move[0]])[0], move[1]) for move in self.moves)
        return {
            "token": names([self.token])[0],
            "probability": self.probability,
            "credit": self.credit,
            "advantage": self.advantage,
            "gradient_norm": self.norm,
            "raised_most": raised,
            "lowered_most": lowered,
            "branches": [branch.to_json(names) for branch in self.branches],
        }


@dataclass(frozen=True)
class MainSequence:
    """A main sequence, step by step."""

    context: int  # its position in the batch
    sequence: list[int]  # with the end token
    finished: bool  # ends with the end token, not at the maximal length
    reward: float
    log_probability: float
    weight: float | None  # among the sequences of its context, if its steps have advantages
    steps: tuple[Step, ...]

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)

    @property
    def advantage(self) -> float | None:
        """The advantage, if it is the same at all steps."""
        advantages = {step.advantage for step in self.steps}
        return advantages.pop() if len(advantages) == 1 else None

    @property
    def norm(self) -> float:
        return float(torch.stack([step.gradient for step in self.steps]).norm())

    @property
    def rollouts(self) -> int:
        return sum(len(step.branches) for step in self.steps)

    def to_json(self, names: Names) -> dict[str, Any]:
        return {
            "tokens": names(self.sequence),
            "reward": self.reward,
            "probability": self.probability,
            "weight": self.weight,
            "gradient_norm": self.norm,
            "steps": [step.to_json(names) for step in self.steps],
        }


def take_apart(sample: Estimate, contexts: int | None = None) -> list[MainSequence]:
    """The main sequences of an estimate with their branches: of all contexts of the batch, or of the first ones."""
    trajectories = sample.trajectories
    rows = slice(0, len(trajectories.tokens)) if contexts is None else trajectories.rows_of(0, contexts)
    tokens, decisions = trajectories.tokens[rows], trajectories.decisions and trajectories.decisions.select(rows)
    logits = full_precision(sample.logits_of(rows))
    gradient = sample.gradient_of(rows, logits)
    if decisions is None:
        p = logits.softmax(2)
        probabilities = p.gather(2, tokens[:, :, None]).squeeze(2)
        credit = gradient.gather(2, tokens[:, :, None]).squeeze(2) - (p * gradient).sum(2)
    else:
        probabilities = decisions.log_probs(logits).exp()
        credit = (gradient * decisions.scores(logits)).sum(2)
    branches = _branches(sample, rows)
    weights, advantages = _advantages(sample) or (None, None)
    mains = []
    for row in range(rows.start, rows.stop):
        own, length = row - rows.start, int(trajectories.lengths[row])
        steps = tuple(
            Step(
                token=int(tokens[own, t]),
                probability=float(probabilities[own, t]),
                gradient=gradient[own, t],
                credit=float(credit[own, t]),
                advantage=None if advantages is None else float(advantages[row, t]),
                has_token_logits=decisions is None,
                branches=tuple(branches.get((row, t), ())),
            )
            for t in range(length)
        )
        main = MainSequence(
            context=int(trajectories.contexts[row]),
            sequence=tokens[own, :length].tolist(),
            finished=bool(trajectories.finished[row]),
            reward=float(sample.own_rewards[row]),
            log_probability=float(trajectories.log_probs[row]),
            weight=None if weights is None else float(weights[row]),
            steps=steps,
        )
        mains.append(main)
    return mains


def _branches(sample: Estimate, rows: slice) -> dict[tuple[int, int], list[Branch]]:
    """The branches of some main sequences, by sequence and step."""
    mains, plan = sample.trajectories, sample.plan

    @cache
    def logits() -> Float[Tensor, "row step vocab"]:
        return full_precision(sample.logits)

    def coefficients(source: int, parent: int) -> Float[Tensor, "step vocab"]:
        """The gradient, which is linear in the rewards, if this reward is 1 and all others 0."""
        unit = torch.zeros_like(sample.rewards)
        unit[source] = 1.0
        return plan.gradient(unit, logits())[parent, : int(mains.lengths[parent])]

    branches: dict[tuple[int, int], list[Branch]] = {}
    inside = (plan.branches.parent >= rows.start) & (plan.branches.parent < rows.stop)
    for index in inside.nonzero().squeeze(1).tolist():
        tokens = sample.completed.tokens[index].tolist()
        parent, step = int(plan.branches.parent[index]), int(plan.branches.step[index])
        source = len(mains.tokens) + index
        token = tokens[step]  # the branches of a tree do not name their first token elsewhere
        is_same, is_greedy = token == int(mains.tokens[parent, step]), bool(plan.branches.greedy[index])
        branch = Branch(
            token=token,
            kind="completion" if is_same else "greedy" if is_greedy else "pseudo-action",
            sequence=tokens[: int(sample.completed.lengths[index])],
            reward=float(sample.own_rewards[source]),
            coefficients=partial(coefficients, source, parent),
        )
        branches.setdefault((parent, step), []).append(branch)
    return branches


def _advantages(sample: Estimate) -> tuple[Float[Tensor, " row"], Float[Tensor, "row step"]] | None:
    """The weight of each main sequence and A of its steps, if the gradient is weight · A (e_token − p)."""
    plan, trajectories = sample.plan, sample.trajectories
    scale = torch.ones(len(trajectories.tokens), dtype=torch.float64, device=trajectories.tokens.device)
    if isinstance(plan, GroupPlan):
        weight, plan = plan.weight, replace(plan, weight=torch.ones_like(plan.weight))
    elif isinstance(plan, SetPlan):
        valid = plan.table >= 0
        weight = plan.weight.new_zeros(len(scale)).index_put_((plan.table[valid],), plan.weight[valid])
        plan = replace(plan, weight=torch.ones_like(plan.weight))
    elif isinstance(plan, ContrastPlan) and plan.centre == "policy":
        # The sequences of a context are averaged.
        scale = torch.bincount(trajectories.contexts)[trajectories.contexts].double()
        weight = 1 / scale
    else:
        return None
    # Every entry is one of the token that was drawn.
    credits = plan.credits(sample.rewards, sample.scoring.scores)
    per_step = torch.zeros(trajectories.tokens.shape, dtype=torch.float64, device=scale.device)
    per_step.index_put_((credits.row, credits.step), credits.value.double(), accumulate=True)
    return weight, scale[:, None] * per_step
