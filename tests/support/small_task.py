"""A small task, trainers for it and its estimates, in a module that other processes can import."""

from typing import Any

import torch
from torch import Tensor, nn

from corollout.data import Batch, Columns
from corollout.estimators import Estimator, make_estimator
from corollout.events import ignore
from corollout.noise import Noise
from corollout.policies import RecurrentPolicy, TokenEncoder
from corollout.rewards import Reward
from corollout.rollouts import Engine
from corollout.training import Estimate, MLETrainer, Trainer, estimate
from corollout.training.base import BaseTrainer, flat_gradient
from corollout.trees import Tree
from tests.support.head_reference import random_head

VOCAB, BOS, EOS, LENGTH = 6, 5, 0, 5
ESTIMATORS = [
    *("arsm", "ars-2", "reinforce", "rloo-3", "rloo-3:baseline=shrunk", "rloo-3:baseline=fitted", "grpo-3", "sc"),
    *("mc-0", "mc-2", "vine-2", "rl-beam-4", "set-3", "set-3:baseline=fitted", "pairs", "auto:estimates=2"),
]


def make_policy(seed: int = 0, dropout: float = 0.0, vocab: int = VOCAB) -> RecurrentPolicy:
    """In double precision, where rounding decides no draw."""
    torch.manual_seed(seed)
    encoder = TokenEncoder(vocab, 4)
    policy = RecurrentPolicy(encoder, encoder.width, vocab, hidden=8, dropout=dropout)
    with torch.no_grad():
        policy.output.weight *= 3
    return policy.double()


def make_tree_policy(tree: Tree, seed: int = 0) -> RecurrentPolicy:
    """The same with a tree head."""
    policy = make_policy(seed)
    policy.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    policy.head = random_head(tree, policy.rnn.hidden_size, seed)
    return policy


def make_engine(policy: Any, **options: Any) -> Engine:
    return Engine(policy, **{"bos": BOS, "eos": EOS, "max_length": LENGTH, **options})


def make_data(count: int = 8, vocab: int = VOCAB) -> Columns:
    """Contexts of three tokens, and targets that repeat them."""
    context = torch.randint(1, vocab, (count, 3), generator=torch.Generator().manual_seed(5))
    return Columns(context=context, target=[[*row, *row][:4] for row in context.tolist()], ids=range(100, 100 + count))


def likeness(sequences: list[list[int]], target: list[list[int]], finished: list[bool]) -> list[float]:
    """The share of tokens equal to the target's, less something for a wrong length; not a round number."""
    return [
        sum(a == b for a, b in zip(s, t, strict=False)) / 3 - 0.1 * abs(len(s) - len(t)) - 0.05 * (not done)
        for s, t, done in zip(sequences, target, finished, strict=True)
    ]


def make_trainer(estimator: Estimator | str = "rloo-2", policy: nn.Module | None = None, **options: Any) -> Trainer:
    """Three updates an epoch, with Adam."""
    policy = policy or make_policy()
    engine = options.pop("engine", None) or make_engine(policy)
    optimizer = options.pop("optimizer", None) or torch.optim.Adam(policy.parameters(), lr=options.pop("lr", 0.01))
    settings = {"data": make_data(12), "reward": likeness, "batch_size": 5, "on_event": ignore, **options}
    return Trainer(engine=engine, estimator=estimator, optimizer=optimizer, **settings)


def make_mle_trainer(policy: nn.Module | None = None, **options: Any) -> MLETrainer:
    """Three updates an epoch, with gradient descent."""
    policy = policy or make_policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    return MLETrainer(make_engine(policy), make_data(12), optimizer, **{"batch_size": 5, **options})


def weights(policy: nn.Module) -> Tensor:
    """A copy of all parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


def eval_weights(trainer: BaseTrainer[Any]) -> Tensor:
    """The weights that are evaluated."""
    with trainer.eval_weights():
        return weights(trainer.policy)


def estimated(policy: Any, batch: Batch, name: str, reward: Reward | None = None, **options: Any) -> Estimate:
    """One estimate, whose gradient is added to that of the parameters."""
    sample = estimate(make_engine(policy), batch, reward or Reward(likeness), make_estimator(name), Noise(3), **options)
    sample.backward()
    return sample


def part(index: list[int], name: str) -> tuple[list[list[int]], list[float], list[float]]:
    """Sequences, rewards and the gradient, summed over contexts, of some of the examples."""
    torch.set_num_threads(1)
    policy = make_policy()
    sample = estimated(policy, make_data().batch(index), name)
    gradient: Tensor = flat_gradient(policy.parameters()) * len(index)
    return sample.trajectories.lists() + sample.completed.lists(), sample.rewards.tolist(), gradient.tolist()
