"""A gradient estimate taken apart: what was sampled, its rewards, and what each of them did to every token."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.estimators.plans import ContrastPlan, GroupPlan, SetPlan, SparsePlan
from corollout.training.estimates import Estimate
from corollout.types import Decisions, full_precision

Names = Callable[[Sequence[int]], list[str]]

_LOGITS = 1 << 24  # that exist at a time


class Coefficients(NamedTuple):
    """d gradient / d reward of a branch, at the steps of its main sequence where that is not known to be zero."""

    steps: Int64[Tensor, " some"]
    values: Float[Tensor, "some vocab"]
    credit: float  # d credit / d reward, for the token that the branch departs from


@dataclass(frozen=True)
class Branch:
    """A departure from a main sequence: its first token, how it was chosen, and the completed sequence."""

    token: int
    kind: Literal["pseudo-action", "greedy", "completion"]
    sequence: list[int]  # with the end token
    reward: float
    gap: float  # its reward minus that of its main sequence, both less their penalties; NaN if one was skipped
    coefficients: Callable[[], Coefficients] = field(repr=False)  # not stored, because there may be thousands

    @cached_property
    def _norm_and_credit(self) -> tuple[float, float]:
        coefficients = self.coefficients()
        return float(coefficients.values.norm()), coefficients.credit

    @property
    def norm(self) -> float:
        """The norm of the coefficients."""
        return self._norm_and_credit[0]

    @property
    def credit(self) -> float:
        """What the branch adds to the credit of the token that it departs from, compared with a branch that has the
        main sequence's reward."""
        return 0.0 if math.isnan(self.gap) else self.gap * self._norm_and_credit[1]

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
    entropy: float | None  # of the policy here, in nats; None in a tree
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

    row: int  # among the main sequences
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


def take_apart(sample: Estimate) -> list[MainSequence]:
    """The main sequences of an estimate with their branches."""
    return list(main_sequences(sample, range(len(sample.trajectories.tokens))))


def main_sequences(sample: Estimate, rows: Sequence[int]) -> Iterator[MainSequence]:
    """Some main sequences of an estimate with their branches. Logits exist for a few of them at a time."""
    weights, advantages = _advantages(sample) or (None, None)
    branches = _branches_of(sample)
    for some in _runs(rows, max(1, _LOGITS // max(1, sample.trajectories.tokens.shape[1] * _width(sample)))):
        yield from _take_apart(sample, some, branches, weights, advantages)


def moved_rows(sample: Estimate) -> Bool[Tensor, " row"]:
    """The main sequences for whose logits the gradient is not exactly zero."""
    moved = torch.zeros(len(sample.trajectories.tokens), dtype=torch.bool, device=sample.trajectories.tokens.device)
    if not isinstance(sample.plan, SparsePlan):
        return sample.gradient.ne(0).flatten(1).any(1)
    credits = sample.scoring.credits
    moved[credits.row[credits.value != 0]] = True
    return moved


def _width(sample: Estimate) -> int:
    return sample.engine.output_width or 1


def _runs(rows: Sequence[int], most: int) -> Iterator[slice]:
    """The rows as slices of at most so many."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1 or end - start == most:
            yield slice(rows[start], rows[end - 1] + 1)
            start = end


def _take_apart(
    sample: Estimate,
    rows: slice,
    branches: dict[int, list[int]],
    weights: Float[Tensor, " row"] | None,
    advantages: Float[Tensor, "row step"] | None,
) -> Iterator[MainSequence]:
    trajectories = sample.trajectories
    tokens, decisions = trajectories.tokens[rows], trajectories.decisions and trajectories.decisions.select(rows)
    logits = full_precision(sample.logits_of(rows))
    gradient = sample.gradient_of(rows, logits)
    if decisions is None:
        p = logits.softmax(2)
        probabilities, entropy = p.gather(2, tokens[:, :, None]).squeeze(2), torch.special.entr(p).sum(2)
    else:
        probabilities, entropy = decisions.log_probs(logits).exp(), None
    credit = _credit(gradient, logits, tokens, decisions)
    for row in range(rows.start, rows.stop):
        own, length = row - rows.start, int(trajectories.lengths[row])
        leaving: dict[int, list[Branch]] = {}
        for index in branches.get(row, []):
            branch = _branch(sample, index, row, logits[own, :length])
            leaving.setdefault(int(sample.plan.branches.step[index]), []).append(branch)
        steps = tuple(
            Step(
                token=int(tokens[own, t]),
                probability=float(probabilities[own, t]),
                entropy=None if entropy is None else float(entropy[own, t]),
                gradient=gradient[own, t],
                credit=float(credit[own, t]),
                advantage=None if advantages is None else float(advantages[row, t]),
                has_token_logits=decisions is None,
                branches=tuple(leaving.get(t, ())),
            )
            for t in range(length)
        )
        yield MainSequence(
            row=row,
            context=int(trajectories.contexts[row]),
            sequence=tokens[own, :length].tolist(),
            finished=bool(trajectories.finished[row]),
            reward=float(sample.own_rewards[row]),
            log_probability=float(trajectories.log_probs[row]),
            weight=None if weights is None else float(weights[row]),
            steps=steps,
        )


def _credit(
    gradient: Float[Tensor, "*row step vocab"],
    logits: Float[Tensor, "*row step vocab"],
    tokens: Tensor,
    decisions: Decisions | None,
) -> Float[Tensor, "*row step"]:
    """How fast the log-probabilities of tokens grow along the gradient."""
    if decisions is not None:
        return (gradient * decisions.scores(logits)).sum(-1)
    return gradient.gather(-1, tokens[..., None]).squeeze(-1) - (logits.softmax(-1) * gradient).sum(-1)


def _branches_of(sample: Estimate) -> dict[int, list[int]]:
    """The branches of each main sequence, by their indices."""
    branches: dict[int, list[int]] = {}
    for index, parent in enumerate(sample.plan.branches.parent.tolist()):
        branches.setdefault(parent, []).append(index)
    return branches


def _branch(sample: Estimate, index: int, row: int, logits: Float[Tensor, "step vocab"]) -> Branch:
    mains, plan = sample.trajectories, sample.plan
    tokens, step = sample.completed.tokens[index].tolist(), int(plan.branches.step[index])
    token = tokens[step]  # the branches of a tree do not name their first token elsewhere
    is_same, is_greedy = token == int(mains.tokens[row, step]), bool(plan.branches.greedy[index])
    source = len(mains.tokens) + index
    return Branch(
        token=token,
        kind="completion" if is_same else "greedy" if is_greedy else "pseudo-action",
        sequence=tokens[: int(sample.completed.lengths[index])],
        reward=float(sample.own_rewards[source]),
        gap=float(sample.rewards[source] - sample.rewards[row]),
        coefficients=partial(_coefficients, sample, source, row, step, logits),
    )


def _coefficients(
    sample: Estimate, source: int, row: int, step: int, logits: Float[Tensor, "step vocab"]
) -> Coefficients:
    """Those of a branch that leaves a row at a step: the gradient, which is linear in the rewards of branches, if this
    one is 1 and all others are 0.
    """
    unit = torch.zeros_like(sample.rewards)
    unit[source] = 1.0
    plan, trajectories, alone = sample.plan, sample.trajectories, slice(row, row + 1)
    decisions = trajectories.decisions and trajectories.decisions.select(alone)
    if isinstance(plan, SparsePlan) and decisions is None:
        # A branch matters at few steps, and a vocabulary may be large.
        credits = plan.credits(unit, sample.scoring.scores)
        credits = credits.select(((credits.row == row) & (credits.value != 0)).nonzero().squeeze(1))
        steps = credits.step.unique()
        logits, place = logits[steps], torch.searchsorted(steps, credits.step)
        values = replace(credits, row=torch.zeros_like(place), step=place).gradient(logits[None])
    else:
        steps = torch.arange(len(logits), device=logits.device)
        values = sample.gradient_of(alone, logits[None], unit)[:, : len(logits)]
        decisions = decisions and Decisions(*(part[:, : len(logits)] for part in vars(decisions).values()))
    credit = _credit(values, logits[None], trajectories.tokens[alone, steps], decisions)
    return Coefficients(steps, values[0], float(credit[0, steps == step].sum()))


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
