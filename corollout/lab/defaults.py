"""Which estimators are compared unless somebody names others, and which of them are biased by their definition."""

import torch

from corollout.data import Batch
from corollout.estimators import GRPO, BeamExpectation, Branching, Estimator, Reinforce
from corollout.noise import Noise
from corollout.policies import TreeHead, evaluation_mode
from corollout.rollouts import Engine
from corollout.types import Sampler

# The first of a list is the one that the others are compared with.
_EVERY_HEAD = (
    "rloo-8",
    "rloo-8:baseline=shrunk",
    "rloo-8:baseline=fitted",
    "rloo-2:baseline=fitted",
    "reinforce",
    "reinforce:baseline=fitted",
    "sc",
    "mc-2",
    "vine-2",
)
_SETS = (
    "pairs",
    "set-8",
    "set-2:baseline=fitted",
    "set-4:baseline=fitted",
    "set-8:baseline=fitted",
    "set-16:baseline=fitted",
)
TREE = (*_EVERY_HEAD, "bt-arsm", "bt-disarm", *_SETS)
SOFTMAX = (*_EVERY_HEAD, "arsm", "arsm:draws=8", "ars-5", *_SETS)
# With many actions each step of ARSM asks for many rollouts: there it gets a budget.
LARGE_SOFTMAX = (
    *_EVERY_HEAD,
    "arsm:budget=64,budget_per=example",
    "arsm:budget=64,budget_per=example,draws=4",
    "ars-5:budget=32,budget_per=example",
    *_SETS,
)
MANY_ACTIONS = 200


def default_estimators(engine: Engine, batch: Batch) -> tuple[str, ...]:
    """Names that suit the policy's head and the size of its vocabulary."""
    if isinstance(engine.head, TreeHead):
        return TREE
    return LARGE_SOFTMAX if _vocabulary(engine, batch) > MANY_ACTIONS else SOFTMAX


def _vocabulary(engine: Engine, batch: Batch) -> int:
    """How many logits a token of a softmax has: seen when there is one."""
    first = first_context(batch)
    with torch.no_grad(), evaluation_mode(engine.policy):
        mains = engine.sample(engine.policy.encode(first.context), first.examples, Sampler("greedy"), Noise(0))
    return mains.trajectories.logits.shape[2]


def first_context(batch: Batch) -> Batch:
    """The first example of a batch, alone."""
    return Batch(batch.examples[:1], {name: column[:1] for name, column in batch.columns.items()})


def biased_by_design(estimator: Estimator) -> bool:
    """Whether an estimator is known to follow something else than the gradient of the expected reward.

    A small bias hides in the noise of any measurement; these are not to be recommended even then.
    """
    if isinstance(estimator, Branching):
        return "greedy" in (estimator.main, estimator.pseudo)
    if isinstance(estimator, Reinforce):
        return estimator.baseline == "batch"
    return isinstance(estimator, BeamExpectation | GRPO)
