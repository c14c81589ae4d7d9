"""One gradient estimate for one example, taken apart: all that was sampled, what it earned, what each reward did."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.estimators import make_estimator
from corollout.estimators.plans import ContrastPlan, GroupPlan, SetPlan
from corollout.estimators.score import Reinforce
from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.tasks.task import Task
from corollout.tasks.views import Subject, check_number, subject_of
from corollout.training import Estimate, estimate
from corollout.training.runs import Run
from corollout.training.start import open_run
from corollout.types import Cost, Trajectories, full_precision

ALONE = "The baseline of REINFORCE is the mean reward of the batch's other examples: for one alone there is none."

Tone = Literal["good", "bad", "even"]


@dataclass(frozen=True)
class Branch:
    """A departure from a main sequence: its first token, how it came about, and the whole sequence it became."""

    token: int
    kind: Literal["pseudo-action", "greedy", "completion"]
    sequence: list[int]  # end token included
    reward: float
    norm: float  # of the coefficients
    credit: Callable[[], Float[Tensor, "step vocab"]] = field(repr=False)

    @property
    def coefficients(self) -> Float[Tensor, "step vocab"]:
        """d gradient / d reward, at the steps of its main sequence; computed anew, for thousands of them are large."""
        return self.credit()


@dataclass(frozen=True)
class Step:
    """A token of a main sequence, the branches that leave it there, and the gradient for its logits."""

    token: int
    probability: float
    gradient: Float[Tensor, " vocab"]
    advantage: float | None  # A, if the gradient is weight · A (e_token − p), as score-function estimators have it
    by_words: bool  # whether there is a logit for each token; else there is one for each decision in a tree
    branches: tuple[Branch, ...]

    @property
    def norm(self) -> float:
        return float(self.gradient.norm())

    @property
    def is_zero(self) -> bool:
        """Whether the gradient is zero exactly."""
        return not bool(self.gradient.any())

    @property
    def raised(self) -> tuple[int, float] | None:
        """The token whose logit the gradient raises most, and its entry; None if several are equal, or in a tree."""
        return _only(self.gradient, self.gradient.max()) if self.by_words else None

    @property
    def lowered(self) -> tuple[int, float] | None:
        """The token whose logit the gradient lowers most, and its entry; None if several are equal, or in a tree."""
        return _only(self.gradient, self.gradient.min()) if self.by_words else None


@dataclass(frozen=True)
class MainSequence:
    """A main sequence, step by step."""

    sequence: list[int]  # end token included
    reward: float
    probability: float
    weight: float | None  # among its context's sequences, if its steps have advantages
    steps: tuple[Step, ...]

    @property
    def advantage(self) -> float | None:
        """The advantage, if all steps have the same."""
        advantages = {step.advantage for step in self.steps}
        return advantages.pop() if len(advantages) == 1 else None

    @property
    def norm(self) -> float:
        return float(torch.stack([step.gradient for step in self.steps]).norm())

    @property
    def rollouts(self) -> int:
        return sum(len(step.branches) for step in self.steps)


@dataclass(frozen=True)
class Inspection:
    """The estimate for an example, and the example itself."""

    split: str
    number: int  # of the example, in the split
    id: int
    estimator: str
    reward: str  # which of the task's rewards
    seed: int
    subject: Subject
    mains: list[MainSequence]
    cost: Cost
    note: str = ""

    @property
    def is_flat(self) -> bool:
        """Whether there are only whole sequences that are compared with each other, and nothing branches off."""
        return self.cost.rollouts == 0 and all(main.advantage is not None for main in self.mains)

    @property
    def steps(self) -> int:
        return sum(len(main.steps) for main in self.mains)

    @property
    def zero_steps(self) -> int:
        """Steps with a gradient that is zero exactly."""
        return sum(step.is_zero for main in self.mains for step in main.steps)

    @property
    def rollouts_per_step(self) -> float:
        return self.cost.rollouts / self.steps

    @property
    def mean_reward(self) -> float:
        """Of the main sequences."""
        return sum(main.reward for main in self.mains) / len(self.mains)

    @property
    def norm(self) -> float:
        """Of the whole gradient."""
        return sum(main.norm**2 for main in self.mains) ** 0.5

    def tone(self, main: MainSequence, branch: Branch | None = None) -> Tone:
        """Whether the reward of a main sequence, or of a branch of it, is a good one.

        Right is good, and wrong is bad. A graded reward is good or bad beside others: that of a branch beside its main
        sequence's, that of a sequence which is compared with others beside theirs.
        """
        if not self.subject.graded:
            return "good" if (branch or main).reward > 0 else "bad"
        if branch is not None:
            gap = branch.reward - main.reward
        else:
            gap = (main.advantage or 0.0) if self.is_flat else 0.0
        return "even" if abs(gap) < 5e-4 else "good" if gap > 0 else "bad"


def inspect_run(
    directory: Path,
    *,
    split: str = "val",
    number: int = 0,
    estimator: str | None = None,
    seed: int = 0,
    weights: str = "best",
) -> Inspection:
    """Take apart an estimate with a run's weights and reward; the estimator is the run's own, or its head's ARSM."""
    config = Run.open(directory).config
    own = config.get("finetune", {})
    usual = "bt-arsm" if config.get("model", {}).get("head") == "tree" else "arsm"
    name = estimator or own.get("estimator", usual)
    make_estimator(name)  # a wrong name is said before anything is loaded
    task, engine = open_run(directory, weights)
    return inspect_example(task, engine, split, number, name, own.get("reward"), seed)


def inspect_example(
    task: Task,
    engine: Engine,
    split: str,
    number: int,
    estimator: str,
    reward: str | None = None,
    seed: int = 0,
) -> Inspection:
    """Take apart an estimate for one example of a split; the reward is the one named, or the task's usual one."""
    examples = task.split(split)
    check_number(task, examples, split, number)
    method = make_estimator(estimator)
    kind = task.rewards[0] if reward is None else reward
    batch = examples.columns.batch([number], task.device)
    found = estimate(engine, batch, task.reward(kind, examples), method, Noise(seed))
    return Inspection(
        split=split,
        number=number,
        id=int(batch.examples[0]),
        estimator=estimator,
        reward=kind,
        seed=seed,
        subject=subject_of(task, examples, number),
        mains=take_apart(found),
        cost=found.cost,
        note=ALONE if isinstance(method, Reinforce) and method.samples == 1 else "",
    )


def take_apart(found: Estimate) -> list[MainSequence]:
    """The main sequences of an estimate with their branches."""
    trajectories = found.trajectories
    logits = full_precision(found.logits.detach())
    probabilities = _probabilities(trajectories, logits).tolist()
    branches = _branches(found, logits)
    weights, advantages = _advantages(found, logits) or (None, None)
    mains = []
    lengths = trajectories.lengths.tolist()
    for row, tokens in enumerate(trajectories.tokens.tolist()):
        steps = tuple(
            Step(
                token=tokens[t],
                probability=probabilities[row][t],
                gradient=found.gradient[row, t],
                advantage=None if advantages is None else advantages[row][t],
                by_words=trajectories.decisions is None,
                branches=tuple(branches.get((row, t), ())),
            )
            for t in range(lengths[row])
        )
        mains.append(
            MainSequence(
                sequence=tokens[: lengths[row]],
                reward=float(found.rewards[row]),
                probability=float(trajectories.log_probs[row].exp()),
                weight=None if weights is None else weights[row],
                steps=steps,
            )
        )
    return mains


def _probabilities(trajectories: Trajectories, logits: Float[Tensor, "row step vocab"]) -> Float[Tensor, "row step"]:
    """Of the main sequences' tokens."""
    if trajectories.decisions is not None:
        return trajectories.decisions.log_probs(logits).exp()
    return logits.softmax(2).gather(2, trajectories.tokens[:, :, None]).squeeze(2)


def _branches(found: Estimate, logits: Float[Tensor, "row step vocab"]) -> dict[tuple[int, int], list[Branch]]:
    """The branches by main sequence and step."""
    plan, mains = found.plan, len(found.trajectories.tokens)
    rows = zip(
        plan.branches.parent.tolist(),
        plan.branches.step.tolist(),
        plan.branches.greedy.tolist(),
        found.completed.tokens.tolist(),
        found.completed.lengths.tolist(),
        strict=True,
    )
    places: dict[tuple[int, int], list[Branch]] = {}
    for source, (parent, step, greedy, tokens, length) in enumerate(rows, start=mains):
        credit = partial(_coefficients, found, logits, source, parent)
        token = tokens[step]  # of a tree's branches only this says which word they begin with
        is_own = token == int(found.trajectories.tokens[parent, step])
        branch = Branch(
            token=token,
            kind="completion" if is_own else "greedy" if greedy else "pseudo-action",
            sequence=tokens[:length],
            reward=float(found.rewards[source]),
            norm=float(credit().norm()),
            credit=credit,
        )
        places.setdefault((parent, step), []).append(branch)
    return places


def _coefficients(
    found: Estimate, logits: Float[Tensor, "row step vocab"], source: int, parent: int
) -> Float[Tensor, "own vocab"]:
    """The gradient is linear in the rewards: what a reward of 1 does alone are its coefficients."""
    alone = torch.zeros_like(found.rewards)
    alone[source] = 1.0
    return found.plan.gradient(alone, logits)[parent, : int(found.trajectories.lengths[parent])]


def _advantages(
    found: Estimate, logits: Float[Tensor, "row step vocab"]
) -> tuple[list[float], list[list[float]]] | None:
    """The weight of each main sequence and A of its steps, if the gradient is weight · A (e_token − p)."""
    plan, rows = found.plan, len(logits)
    if isinstance(plan, GroupPlan):
        weight, plan = plan.weight, replace(plan, weight=torch.ones_like(plan.weight))
        scale = 1.0
    elif isinstance(plan, SetPlan):
        there = plan.table >= 0
        weight = plan.weight.new_zeros(rows).index_put_((plan.table[there],), plan.weight[there])
        plan, scale = replace(plan, weight=torch.ones_like(plan.weight)), 1.0
    elif isinstance(plan, ContrastPlan) and plan.centre == "policy":
        weight, scale = torch.full((rows,), 1 / rows), float(rows)  # a context's sequences are averaged
    else:
        return None
    uniform = plan.gradient(found.rewards, torch.zeros_like(logits))
    made = found.trajectories.decisions
    if made is not None:
        # Of A (bit − ½), the root's entry is ± A/2.
        signs = 2 * made.bits[:, :, 0].double() - 1
        return weight.tolist(), (2 * scale * signs * uniform[:, :, 0].double()).tolist()
    # Of A (e_token − p) with p = 1/V, the token's own entry is A (1 − 1/V).
    vocab = logits.shape[2]
    own = uniform.gather(2, found.trajectories.tokens[:, :, None]).squeeze(2)
    return weight.tolist(), (own.double() * (scale * vocab / (vocab - 1))).tolist()


def _only(gradient: Float[Tensor, " vocab"], value: Float[Tensor, ""]) -> tuple[int, float] | None:
    places = (gradient == value).nonzero()
    return (int(places), float(value)) if len(places) == 1 else None
