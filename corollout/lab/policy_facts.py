"""What a policy is like where it stands: how sure it is, and whether its rewards differ."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from corollout.data import Batch
from corollout.estimators import RLOO
from corollout.noise import Noise
from corollout.policies import evaluation_mode
from corollout.rewards import Reward, RewardFunction
from corollout.rollouts import Engine
from corollout.training.estimate import estimate
from corollout.types import Sampler

SEQUENCES = 8  # drawn of each context, with and without replacement


@dataclass(frozen=True)
class PolicyFacts:
    """Means over contexts and sampled sequences."""

    contexts: int
    nats_per_token: float  # −log p of sampled sequences over their tokens: the entropy of a token, on average
    mean_length: float  # tokens, the end included
    mean_reward: float
    top_mass: float  # probability of 8 different sequences, drawn without replacement
    equal_rewards: float  # share of contexts in which 8 samples have the same reward: RLOO has no gradient there


@torch.no_grad()
def policy_facts(engine: Engine, batch: Batch, reward: Reward | RewardFunction, noise: Noise) -> PolicyFacts:
    """Seen from a few sequences of each context."""
    sample = estimate(engine, batch, reward, RLOO(SEQUENCES), noise)
    drawn = sample.trajectories
    with evaluation_mode(engine.policy):
        memory = engine.policy.encode(batch.context)
        different = engine.sample(memory, batch.examples, Sampler("set", SEQUENCES), noise).trajectories
    rewards = sample.rewards[: len(drawn.tokens)].view(len(batch), SEQUENCES)
    return PolicyFacts(
        contexts=len(batch),
        nats_per_token=float(-drawn.log_probs.double().sum() / drawn.lengths.sum()),
        mean_length=float(drawn.lengths.double().mean()),
        mean_reward=sample.mean_reward,
        top_mass=float(different.log_probs.double().exp().sum()) / len(batch),
        equal_rewards=float(_equal(rewards).double().mean()),
    )


def _equal(rewards: Float[Tensor, "context sample"]) -> Tensor:
    """Whether a context's rewards are all the same; those that were skipped say nothing."""
    skipped = rewards.isnan()
    highest = torch.where(skipped, -torch.inf, rewards).amax(1)
    lowest = torch.where(skipped, torch.inf, rewards).amin(1)
    return highest <= lowest
