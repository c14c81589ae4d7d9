"""Accumulated batches, micro-batches and one large batch give the same update; partly proved by enumeration."""

import math
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout import Columns, InputError, Noise, Trainer, estimate
from corollout.training.metrics import TIMED
from corollout.training.regularisation import KL, Regulariser
from corollout.trees import balanced_tree
from tests.support.small_task import (
    ESTIMATORS,
    VOCAB,
    likeness,
    make_policy,
    make_trainer,
    make_tree_policy,
    weights,
)
from tests.support.unbiased_cases import LIMIT
from tests.training.test_regularisation import another, exact_gradient, problem_of

# What compares contexts of a batch, or has a budget for all of them.
COUPLED = ("reinforce", "rloo-3:baseline=shrunk", "rloo-3:baseline=fitted", "set-3:baseline=fitted", "pairs")
APART = [
    *(name for name in ESTIMATORS if name not in (*COUPLED, "auto:estimates=2")),
    "bt-arsm",
    "arsm:budget=3,budget_per=example",
]
DEPENDS_ON_PARTS = {*TIMED, "gradient_norm", "gradient_variance"}


def policy_for(name: str) -> Any:
    return make_tree_policy(balanced_tree(VOCAB)) if name.startswith("bt-") else make_policy()


def one_update(name: str, batch_size: int, accumulate: int, updates: int = 1, **options: Any) -> tuple[Tensor, Any]:
    """The weights after some updates of gradient descent, and the metrics of the last."""
    policy = policy_for(name)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    trainer = make_trainer(
        name, policy, optimizer=optimizer, batch_size=batch_size, accumulate=accumulate, max_grad_norm=None, **options
    )
    metrics = [trainer.step() for _ in range(updates)]
    return weights(policy), metrics[-1]


@pytest.mark.parametrize("name", APART)
def test_an_update_is_that_of_one_large_batch(name: str):
    whole, metrics = one_update(name, 8, 1)
    for batch_size, accumulate, micro_batch in ((4, 2, None), (8, 1, 3), (2, 4, 1)):
        parts, in_parts = one_update(name, batch_size, accumulate, micro_batch=micro_batch)
        torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-11)
        for field, value in vars(metrics).items():
            if value is None:
                assert getattr(in_parts, field) is None
            elif field not in DEPENDS_ON_PARTS:
                assert getattr(in_parts, field) == pytest.approx(value, rel=1e-9, nan_ok=True), field
        assert in_parts.gradient_norm == pytest.approx(metrics.gradient_norm, rel=1e-9)


@pytest.mark.parametrize("name", COUPLED)
def test_what_compares_contexts_does_so_within_a_batch(name: str):
    """As the documents say: then micro_batch gives the gradient of the whole batch, and accumulate does not."""
    whole = one_update(name, 8, 1, 2)[0]
    torch.testing.assert_close(one_update(name, 8, 1, 2, micro_batch=3)[0], whole, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(one_update(name, 4, 2, 2)[0], whole, rtol=1e-6)


def test_a_budget_is_for_each_batch():
    assert (
        one_update("arsm:budget=6", 4, 2)[1].rollouts_per_step > one_update("arsm:budget=6", 8, 1)[1].rollouts_per_step
    )


def test_everything_at_once_is_the_same_update():
    options: dict[str, Any] = {"kl": KL(0.3, target=0.5), "entropy": 0.1, "mle_weight": 0.2}
    options |= {
        "reward": {"like": likeness, "same": lambda sequences: [0.5] * len(sequences)},
        "reward_weights": [1, 2],
    }
    whole, metrics = one_update("arsm", 8, 1, 3, **options)
    parts, in_parts = one_update("arsm", 2, 4, 3, micro_batch=1, **options)
    torch.testing.assert_close(parts, whole, rtol=1e-8, atol=1e-10)
    for field in ("kl", "mle_loss", "reward", "entropy"):
        assert getattr(in_parts, field) == pytest.approx(getattr(metrics, field), rel=1e-7)
    assert in_parts.rewards == pytest.approx(metrics.rewards)


def test_epochs_and_the_last_update_of_an_epoch():
    """Twelve examples, three a batch, three batches an update: nine contexts, then three."""
    seen: list[list[int]] = []

    def record(sequences: list[list[int]], examples: list[int]) -> list[float]:
        seen.append(sorted(set(examples)))
        return [float(len(tokens)) for tokens in sequences]

    trainer = make_trainer("rloo-2", reward=record, batch_size=3, accumulate=3)
    assert trainer.updates_per_epoch == 2
    metrics = list(trainer.run(epochs=2))
    assert [(one.update, one.epoch) for one in metrics] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert [len(batch) for batch in seen] == [3] * 8
    assert sorted(chain(*seen[:4])) == sorted(chain(*seen[4:])) == list(range(100, 112))
    whole = make_trainer("rloo-2", batch_size=9, reward=record)
    assert [m.reward for m in whole.run(epochs=2)] == pytest.approx([m.reward for m in metrics], rel=1e-6)


@pytest.mark.parametrize("updates", [2, 3])  # at the end of an epoch, and inside one
def test_a_resumed_training_goes_on_where_it_was(updates: int):
    def trainer() -> Trainer:
        return make_trainer("rloo-3:baseline=fitted", batch_size=2, accumulate=3, ema_decay=0.9, mle_weight=0.1)

    whole, first, second = trainer(), trainer(), trainer()
    expected = [vars(m) for m in whole.run(updates=5)]
    list(first.run(updates=updates))
    second.load_state(first.state())
    found = [vars(m) for m in second.run(updates=5)]
    for one, other in zip(found, expected[updates:], strict=True):
        assert {k: v for k, v in one.items() if k not in TIMED} == {k: v for k, v in other.items() if k not in TIMED}
    assert torch.equal(weights(whole.policy), weights(second.policy))
    with pytest.raises(InputError, match="2 updates per epoch, but this one has 6"):
        make_trainer("rloo-3:baseline=fitted", batch_size=2, ema_decay=0.9).load_state(first.state())
    with pytest.raises(InputError, match=r"a training with a moving average of weights, but here ema_decay is 0\.0"):
        make_trainer("rloo-3:baseline=fitted", batch_size=2, accumulate=3).load_state(first.state())


def test_too_few_batches_are_told():
    with pytest.raises(InputError, match="accumulate must be a whole number and at least 1, not 0"):
        make_trainer(accumulate=0)


# By enumeration: temperature, divergence, entropy, micro-batches and accumulation together


def deviations(name: str, updates: int, contexts: int = 150, batches: int = 2) -> Tensor:
    """How far the mean gradient of accumulated micro-batches is from the exact one, in standard errors."""
    problem = problem_of(name)
    reference, temperature, kl, entropy = another(problem.policy), 1.7, 0.3, 0.2
    engine = problem.engine(temperature=temperature)
    regulariser = Regulariser(engine, KL(kl), entropy, reference)

    def reward(sequences: list[list[int]], finished: list[bool]) -> list[float]:
        rows = zip(sequences, finished, strict=True)
        return [problem.rewards[(*tokens, 0) if ended else tuple(tokens)] for tokens, ended in rows]

    data = Columns(context=torch.zeros(contexts * batches, dtype=torch.int64))
    gradients = []
    for number in range(updates):
        problem.policy.zero_grad()
        for first in range(0, len(data), contexts):
            batch = data.batch(range(first, first + contexts))
            sample = estimate(
                engine, batch, reward, name, Noise(number), regulariser=regulariser, micro_batch=contexts // 3
            )
            sample.backward(len(data))
        assert problem.policy.table.grad is not None
        gradients.append(-problem.policy.table.grad.flatten())
    g = torch.stack(gradients)
    exact = exact_gradient(problem, reference, temperature, kl, entropy).flatten()
    error, gap = g.std(0) / math.sqrt(len(g)), (g.mean(0) - exact).abs()
    return torch.where(error > 1e-12, gap / error, torch.where(gap < 1e-9, 0.0, torch.inf))


PROOFS = ("arsm", "set-2", "rloo-3", "bt-arsm", "pairs")


@pytest.mark.parametrize(
    ("name", "updates"),
    [*((name, 20) for name in PROOFS), *(pytest.param(name, 300, marks=pytest.mark.prove) for name in PROOFS)],
)
def test_the_mean_of_accumulated_gradients_is_the_gradient(name: str, updates: int):
    # With few updates the standard error is itself uncertain: Student's distribution has longer tails.
    assert deviations(name, updates).max() < (LIMIT if updates > 100 else 2 * LIMIT)
