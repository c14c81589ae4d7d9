"""One gradient estimate for one example, taken apart: what was sampled, its rewards, and what each of them did."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.estimators import make_estimator
from corollout.estimators.plans import ContrastPlan, GroupPlan, Logits, SetPlan
from corollout.inspection.settings import InspectSettings
from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.tasks.task import Task
from corollout.tasks.views import ExampleView
from corollout.training import Estimate, estimate
from corollout.training.run_weights import open_run
from corollout.training.runs import Run, training_settings
from corollout.types import Cost, full_precision

Tone = Literal["good", "bad", "even"]


@dataclass(frozen=True)
class Branch:
    """A departure from a main sequence: its first token, how it was chosen, and the completed sequence."""

    token: int
    kind: Literal["pseudo-action", "greedy", "completion"]
    sequence: list[int]  # with the end token
    reward: float
    norm: float  # of the coefficients
    # d gradient / d reward at the steps of its main sequence; not stored, because there may be thousands.
    coefficients: Callable[[], Float[Tensor, "step vocab"]] = field(repr=False)

    def to_json(self, view: ExampleView) -> dict[str, Any]:
        return {
            "token": view.tokens([self.token])[0],
            "kind": self.kind,
            "coefficient_norm": self.norm,
            "reward": self.reward,
            "tokens": view.tokens(self.sequence),
        }


@dataclass(frozen=True)
class Step:
    """A token of a main sequence, the branches that leave it here, and the gradient for its logits."""

    token: int
    probability: float
    gradient: Float[Tensor, " vocab"]
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

    def to_json(self, view: ExampleView) -> dict[str, Any]:
        raised, lowered = (move and (view.tokens([move[0]])[0], move[1]) for move in self.moves)
        return {
            "token": view.tokens([self.token])[0],
            "probability": self.probability,
            "advantage": self.advantage,
            "gradient_norm": self.norm,
            "raised_most": raised,
            "lowered_most": lowered,
            "branches": [branch.to_json(view) for branch in self.branches],
        }


@dataclass(frozen=True)
class MainSequence:
    """A main sequence, step by step."""

    sequence: list[int]  # with the end token
    reward: float
    probability: float
    weight: float | None  # among the sequences of its context, if its steps have advantages
    steps: tuple[Step, ...]

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

    def to_json(self, view: ExampleView) -> dict[str, Any]:
        return {
            "tokens": view.tokens(self.sequence),
            "reward": self.reward,
            "probability": self.probability,
            "weight": self.weight,
            "gradient_norm": self.norm,
            "steps": [step.to_json(view) for step in self.steps],
        }


@dataclass(frozen=True)
class Inspection:
    """An estimate for an example, and the example itself."""

    view: ExampleView
    estimator: str
    reward: str  # name of one of the task's rewards
    seed: int
    mains: list[MainSequence]
    cost: Cost
    note: str = ""

    @property
    def is_flat(self) -> bool:
        """Whether whole sequences are compared with each other, without branches."""
        return self.cost.rollouts == 0 and all(main.advantage is not None for main in self.mains)

    @property
    def norm(self) -> float:
        """The norm of the whole gradient."""
        return sum(main.norm**2 for main in self.mains) ** 0.5

    @cached_property
    def totals(self) -> dict[str, float | int]:
        """The numbers of the estimate as a whole."""
        steps = [step for main in self.mains for step in main.steps]
        return {
            "rollouts": self.cost.rollouts,
            "rollouts_per_step": self.cost.rollouts / len(steps),
            "tokens": self.cost.tokens,
            "reward_calls": self.cost.reward_calls,
            "mean_reward": sum(main.reward for main in self.mains) / len(self.mains),  # of the main sequences
            "gradient_norm": self.norm,
            "steps": len(steps),
            "zero_steps": sum(step.is_zero for step in steps),
        }

    def tone(self, main: MainSequence, branch: Branch | None = None) -> Tone:
        """Whether the reward of a main sequence, or of one of its branches, is good.

        If rewards are right or wrong, right is good. A graded reward is compared: that of a branch with that of its
        main sequence, that of a whole sequence with those of the others.
        """
        if not self.view.is_graded:
            return "good" if (branch or main).reward > 0 else "bad"
        if branch is not None:
            difference = branch.reward - main.reward
        else:
            difference = (main.advantage or 0.0) if self.is_flat else 0.0
        return "even" if abs(difference) < 5e-4 else "good" if difference > 0 else "bad"

    def to_json(self) -> dict[str, Any]:
        """Everything but the vectors, of which only the norms are included, with tokens by name."""
        return {
            **self.view.identity(),
            "estimator": self.estimator,
            "reward": self.reward,
            "seed": self.seed,
            **self.view.record(),
            "mains": [main.to_json(self.view) for main in self.mains],
            "totals": self.totals,
        }


def inspect_run(settings: InspectSettings) -> Inspection:
    """Take apart an estimate with a run's weights and reward; by default with its estimator, or ARSM of its head."""
    run = Run.open(settings.run)
    finetuning = training_settings(run.config)
    default = "bt-arsm" if run.section("model").get("head") == "tree" else "arsm"
    estimator = settings.estimator or finetuning.get("estimator", default)
    make_estimator(estimator)  # an unknown name is reported before anything is loaded
    task, engine = open_run(settings.run, settings.weights, settings.device, settings.data)
    return inspect_example(
        task, engine, settings.split, settings.index, estimator, finetuning.get("reward"), settings.seed
    )


def inspect_example(
    task: Task, engine: Engine, split: str, index: int, estimator: str, reward: str | None = None, seed: int = 0
) -> Inspection:
    """Take apart an estimate for one example of a split, by default with the task's default reward."""
    examples = task.split(split)
    view = task.view(split, examples, index)
    made, reward = make_estimator(estimator), reward or task.rewards[0]
    batch = examples.columns.batch([index], task.device)
    sample = estimate(engine, batch, task.reward(reward, examples), made, Noise(seed))
    return Inspection(view, estimator, reward, seed, take_apart(sample), sample.cost, made.note_for_one_context)


def take_apart(sample: Estimate) -> list[MainSequence]:
    """The main sequences of an estimate with their branches."""
    trajectories, logits = sample.trajectories, full_precision(sample.logits.detach())
    if trajectories.decisions is None:
        probabilities = logits.softmax(2).gather(2, trajectories.tokens[:, :, None]).squeeze(2)
    else:
        probabilities = trajectories.decisions.log_probs(logits).exp()
    branches = _branches(sample, logits)
    weights, advantages = _advantages(sample, logits) or (None, None)
    mains = []
    for row, tokens in enumerate(trajectories.tokens.tolist()):
        length = int(trajectories.lengths[row])
        steps = tuple(
            Step(
                token=tokens[t],
                probability=float(probabilities[row, t]),
                gradient=sample.gradient[row, t],
                advantage=None if advantages is None else float(advantages[row, t]),
                has_token_logits=trajectories.decisions is None,
                branches=tuple(branches.get((row, t), ())),
            )
            for t in range(length)
        )
        probability = float(trajectories.log_probs[row].exp())
        weight = None if weights is None else float(weights[row])
        mains.append(MainSequence(tokens[:length], float(sample.rewards[row]), probability, weight, steps))
    return mains


def _branches(sample: Estimate, logits: Logits) -> dict[tuple[int, int], list[Branch]]:
    """The branches by main sequence and step."""
    mains, plan = sample.trajectories, sample.plan

    def coefficients(source: int, parent: int) -> Float[Tensor, "step vocab"]:
        """The gradient, which is linear in the rewards, if this reward is 1 and all others 0."""
        unit = torch.zeros_like(sample.rewards)
        unit[source] = 1.0
        return plan.gradient(unit, logits)[parent, : int(mains.lengths[parent])]

    branches: dict[tuple[int, int], list[Branch]] = {}
    for index, tokens in enumerate(sample.completed.tokens.tolist()):
        parent, step = int(plan.branches.parent[index]), int(plan.branches.step[index])
        source = len(mains.tokens) + index
        token = tokens[step]  # the branches of a tree do not name their first token elsewhere
        is_same, is_greedy = token == int(mains.tokens[parent, step]), bool(plan.branches.greedy[index])
        branch = Branch(
            token=token,
            kind="completion" if is_same else "greedy" if is_greedy else "pseudo-action",
            sequence=tokens[: int(sample.completed.lengths[index])],
            reward=float(sample.rewards[source]),
            norm=float(coefficients(source, parent).norm()),
            coefficients=partial(coefficients, source, parent),
        )
        branches.setdefault((parent, step), []).append(branch)
    return branches


def _advantages(sample: Estimate, logits: Logits) -> tuple[Float[Tensor, " row"], Float[Tensor, "row step"]] | None:
    """The weight of each main sequence and A of its steps, if the gradient is weight · A (e_token − p)."""
    plan, rows, scale = sample.plan, len(logits), 1.0
    if isinstance(plan, GroupPlan):
        weight, plan = plan.weight, replace(plan, weight=torch.ones_like(plan.weight))
    elif isinstance(plan, SetPlan):
        valid = plan.table >= 0
        weight = plan.weight.new_zeros(rows).index_put_((plan.table[valid],), plan.weight[valid])
        plan = replace(plan, weight=torch.ones_like(plan.weight))
    elif isinstance(plan, ContrastPlan) and plan.centre == "policy":
        weight, scale = torch.full((rows,), 1 / rows), float(rows)  # the sequences of a context are averaged
    else:
        return None
    uniform = plan.gradient(sample.rewards, torch.zeros_like(logits)).double()
    decisions = sample.trajectories.decisions
    if decisions is not None:
        # In A (bit − ½), the root's entry is ± A/2.
        return weight, 2 * scale * (2 * decisions.bits[:, :, 0].double() - 1) * uniform[:, :, 0]
    # In A (e_token − p) with p = 1/V, the token's own entry is A (1 − 1/V).
    vocab = logits.shape[2]
    entry = uniform.gather(2, sample.trajectories.tokens[:, :, None]).squeeze(2)
    return weight, entry * (scale * vocab / (vocab - 1))
