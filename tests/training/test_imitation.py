"""Imitation beside a reward: the gradient of both, against automatic differentiation and enumeration."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from corollout import Columns, Engine, InputError, Noise, Trainer
from corollout.policies import evaluation_mode
from corollout.training.base import flat_gradient
from corollout.training.imitation import Imitation
from corollout.training.metrics import TIMED
from corollout.trees import balanced_tree
from tests.support.enumeration import Problem
from tests.support.small_task import (
    BOS,
    EOS,
    VOCAB,
    make_data,
    make_engine,
    make_policy,
    make_trainer,
    make_tree_policy,
    weights,
)
from tests.support.unbiased_cases import LIMIT
from tests.training.test_mle import ScoreOnly

KINDS = {
    "softmax": make_policy,
    "score only": lambda: ScoreOnly(make_policy()),
    "tree": lambda: make_tree_policy(balanced_tree(VOCAB)),
}


def mean_log_likelihood(engine: Engine, data: Columns, rows: list[int]) -> Tensor:
    """One target at a time, token by token."""
    policy, total = engine.policy, torch.zeros((), dtype=torch.float64)
    for row in rows:
        target = [*data.columns["target"][row], EOS][: engine.max_length]
        tokens = torch.tensor([target])
        memory = policy.encode(data.columns["context"][row : row + 1])
        outputs = policy.score(memory, torch.tensor([[BOS, *target[:-1]]]))
        total = total + engine.head.log_probs(engine.head.logits(outputs, tokens), tokens).sum()
    return total / len(rows)


@pytest.mark.parametrize("micro_batch", [None, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_mean_log_likelihood(kind: str, micro_batch: int | None):
    policy: Any = KINDS[kind]()
    engine, data = make_engine(policy, max_length=4), make_data(7)  # which cuts the targets
    imitation = Imitation(engine, 0.3, data, None, Noise(0), micro_batch)
    policy.zero_grad()
    total = imitation.backward(data.batch(range(7)), 0, 7, "cpu")
    found = flat_gradient(policy.parameters())
    policy.zero_grad()
    with evaluation_mode(policy):
        value = mean_log_likelihood(engine, data, list(range(7)))
        (-0.3 * value).backward()
    assert total / 7 == pytest.approx(value.item())
    torch.testing.assert_close(found, flat_gradient(policy.parameters()), rtol=1e-8, atol=1e-12)
    assert found.norm() > 0


def test_dropout_is_off():
    policy = make_policy(dropout=0.5)
    imitation = Imitation(make_engine(policy), 1.0, make_data(7), None, Noise(0), None)
    values = {imitation.backward(make_data(7).batch(range(7)), 0, 7, "cpu") for _ in range(3)}
    assert len(values) == 1


@pytest.mark.parametrize("name", ["arsm", "rloo-3"])
def test_a_mixed_update_is_the_sum_of_both(name: str):
    def update(**options: Any) -> tuple[Tensor, Any]:
        policy = make_policy()
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        trainer = make_trainer(name, policy, optimizer=optimizer, batch_size=12, max_grad_norm=None, **options)
        before = weights(policy)
        metrics = trainer.step()
        return weights(policy) - before, metrics

    reward_only, plain = update()
    both, mixed = update(mle_weight=0.4)
    policy, data = make_policy(), make_data(12)
    value = mean_log_likelihood(make_engine(policy), data, list(range(12)))
    (0.4 * value).backward()
    torch.testing.assert_close(both - reward_only, flat_gradient(policy.parameters()), rtol=1e-7, atol=1e-12)
    assert mixed.mle_loss == pytest.approx(-value.item())
    assert mixed.reward == plain.reward
    assert plain.mle_loss is None


@pytest.mark.parametrize(("name", "updates"), [("rloo-3", 30), pytest.param("arsm", 400, marks=pytest.mark.prove)])
def test_the_mean_of_updates_is_the_gradient_of_the_mixed_objective(name: str, updates: int):
    """By enumeration of all sequences: E[r] + λ ln p(target)."""
    problem, target, weight, rate = Problem.make(vocab=3, length=3, seed=5), (2, 1, 0), 0.7, 1e-9
    data = Columns(context=torch.zeros(300, dtype=torch.int64), target=[list(target[:-1])] * 300)

    def reward(sequences: list[list[int]], finished: list[bool]) -> list[float]:
        rows = zip(sequences, finished, strict=True)
        return [problem.rewards[(*tokens, 0) if ended else tuple(tokens)] for tokens, ended in rows]

    gradients: list[Tensor] = []

    class Recording(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            assert problem.policy.table.grad is not None
            gradients.append(-problem.policy.table.grad.flatten())

    optimizer = Recording(problem.policy.parameters(), lr=rate)
    trainer = Trainer(
        problem.engine(), data, reward, name, optimizer, batch_size=150, accumulate=2, mle_weight=weight,
        max_grad_norm=None,
    )  # fmt: skip
    for _ in trainer.run(updates=updates):
        pass
    g, tokens = torch.stack(gradients), torch.tensor([target])
    place = problem.policy.prefix_numbers(tokens)[0], tokens[0]
    objective = problem.expected_reward() + weight * problem.token_log_probs()[place].sum()
    (exact,) = torch.autograd.grad(objective, problem.policy.table)
    error, gap = g.std(0) / math.sqrt(len(g)), (g.mean(0) - exact.flatten()).abs()
    assert torch.where(error > 1e-12, gap / error, gap * 1e9).max() < LIMIT


# Targets of their own


def own_data(count: int = 5) -> Columns:
    context = torch.randint(1, VOCAB, (count, 3), generator=torch.Generator().manual_seed(9))
    return Columns(context=context, target=[row[::-1] for row in context.tolist()])


def without_targets() -> Columns:
    data = make_data(12)
    return Columns(ids=data.ids, context=data.columns["context"], goal=data.columns["target"])


def goal(sequences: list[list[int]], goal: list[list[int]]) -> list[float]:
    return [float(tokens[:1] == wanted[:1]) for tokens, wanted in zip(sequences, goal, strict=True)]


def mixed_trainer(**options: Any) -> Trainer:
    settings = {"data": without_targets(), "reward": goal, "mle_weight": 0.5, "mle_data": own_data(), **options}
    return make_trainer("rloo-3", **settings)


def test_own_examples_take_turns(monkeypatch: pytest.MonkeyPatch):
    used: list[int] = []
    batch = Columns.batch
    own = own_data()

    def recorded(self: Columns, index: Any, device: Any = "cpu") -> Any:
        if self is own:
            used.extend(torch.as_tensor(index).tolist())
        return batch(self, index, device)

    monkeypatch.setattr(Columns, "batch", recorded)
    list(mixed_trainer(mle_data=own, batch_size=3, accumulate=2).run(updates=5))
    assert len(used) == 30
    rounds = [used[first : first + 5] for first in range(0, 30, 5)]
    assert all(sorted(one) == list(range(5)) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_own_examples_go_on_after_a_resume(accumulate: int):
    whole, first, second = (mixed_trainer(batch_size=4, accumulate=accumulate) for _ in range(3))
    expected = [{k: v for k, v in vars(m).items() if k not in TIMED} for m in whole.run(updates=7)]
    list(first.run(updates=4))
    second.load_state(first.state())
    found = [{k: v for k, v in vars(m).items() if k not in TIMED} for m in second.run(updates=7)]
    assert found == expected[4:]
    assert torch.equal(weights(whole.policy), weights(second.policy))


def test_imitation_raises_the_likelihood():
    losses = [m.mle_loss for m in mixed_trainer(lr=0.05, batch_size=12).run(updates=40)]
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mle_data": None},
            "mle_weight needs a column 'target' of token lists, but the data set has only context, go",
        ),
        ({"mle_data": without_targets()}, "mle_data has only context, goal: add it, or give data that has it"),
        ({"mle_weight": -1.0}, "mle_weight must be 0 or positive, not -1.0"),
        ({"mle_weight": math.inf}, "mle_weight must be 0 or positive, not inf"),
        ({"mle_weight": 0.0}, "set mle_weight, too"),
        ({"mle_data": own_data(0)}, "mle_data has no example to learn from"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        mixed_trainer(**options)
