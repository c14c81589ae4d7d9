"""What trainers of several processes agree on, remember and refuse."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from corollout import Columns, InputError, Trainer
from corollout.errors import ProcessError
from corollout.estimators import Estimator, GroupPlan
from corollout.noise import Noise
from corollout.processes import Processes
from corollout.training.agreement import add_gradients, require_same
from corollout.training.balance import context_costs
from corollout.training.base import flat_gradient
from corollout.types import Sampler, Trajectories
from tests.support.ranks import Rank, run_ranks
from tests.support.shared_updates import BUILDING, Case, differences, make_trainer, updates_of
from tests.support.small_task import estimated, make_data, make_policy
from tests.support.small_task import make_trainer as make_small_trainer


def built(**options: Any) -> Trainer:
    with BUILDING:
        return make_small_trainer(**options)


# one process


def test_a_process_that_is_alone_exchanges_nothing(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any):
        raise AssertionError("an exchange")

    trainer = make_small_trainer("rloo-3:baseline=fitted")
    for name in ("gather", "gather_values", "from_first", "add"):
        monkeypatch.setattr(trainer.processes, name, refuse)
    metrics = trainer.step()
    assert (metrics.waiting, metrics.waiting_by_process) == (0.0, [])


def test_ranks_exchange_a_few_times_in_an_update():
    def calls(rank: Rank, name: str) -> list[str]:
        trainer = built(estimator=name)
        trainer.step()
        rank.calls.clear()
        trainer.step()
        return rank.calls

    once = ["add", "gather_values"]
    for name, expected in {
        "rloo-3": once,
        "arsm": once,
        "reinforce": ["gather", *once],
        "arsm:budget=9": ["gather", "gather", *once],
        "rloo-3:baseline=fitted": ["gather", "gather", *once],
    }.items():
        assert run_ranks(2, lambda rank, name=name: calls(rank, name)) == [expected] * 2


# gradients


def test_gradients_that_some_have_are_added_and_those_that_nobody_has_stay_away():
    def added(rank: Rank) -> list[Any]:
        one, two, three = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
        one.grad = torch.full((2,), float(rank.rank))
        if rank.rank == 1:
            two.grad = torch.ones(2)
        add_gradients([one, two, three], rank)
        return [p.grad if p.grad is None else p.grad.tolist() for p in (one, two, three)]

    assert run_ranks(3, added) == [[[3.0, 3.0], [1.0, 1.0], None]] * 3
    parameter = torch.nn.Parameter(torch.zeros(2))
    add_gradients([parameter], Processes())
    assert parameter.grad is None


# agreement


@pytest.mark.parametrize(
    ("what", "advice"),
    [
        ("weights", "make the policy with the same seed"),
        ("data", "give all of them the whole data set"),
        ("settings", "give their trainers the same arguments"),
        ("counts", "let all of them resume from the same state"),
    ],
)
def test_processes_that_do_not_train_the_same_are_refused(what: str, advice: str):
    def step(rank: Rank) -> str:
        second = rank.rank == 1
        trainer = built(data=make_data(12 - 1 * (second and what == "data")), seed=int(second and what == "settings"))
        if second and what == "weights":
            with torch.no_grad():
                trainer.parameters[0][0, 0] += 1e-9
        if second and what == "counts":
            trainer.updates += 1
        with pytest.raises(InputError) as error:
            trainer.step()
        return str(error.value)

    texts = run_ranks(2, step)
    assert texts[0] == texts[1]
    assert f"the {what} of rank 1 differ from those of rank 0" in texts[0]
    assert advice in texts[0]


def test_entries_of_the_data_are_compared():
    def step(rank: Rank) -> None:
        data = make_data(12)
        contexts = data.columns["context"].clone()
        contexts[-1, 0] += rank.rank
        trainer = built(data=Columns(context=contexts, target=data.columns["target"], ids=data.ids))
        with pytest.raises(InputError, match="the data of rank 1 differ"):
            trainer.step()

    run_ranks(2, step)


def test_ranks_that_have_gone_apart_are_noticed():
    require_same([(1.0, math.inf), (1.0, math.inf)], 3)
    with pytest.raises(ProcessError, match="gone apart by update 3"):
        require_same([(1.0, 2.0), (1.0, 2.0 + 1e-15)], 3)

    def train(rank: Rank) -> None:
        trainer = built(estimator="rloo-2", optimizer=None)
        trainer.step()
        if rank.rank:
            trainer._most_weight += 1e-6
        with pytest.raises(ProcessError, match="gone apart by update 2"):
            trainer.step()

    run_ranks(2, train)


# balance


def test_costs_are_tokens_generated_and_scored():
    sample = estimated(make_policy(), make_data().batch(range(6)), "mc-1")
    mains, branches = sample.trajectories, sample.plan.branches
    costs = [0.0] * 6
    for context, length in zip(mains.contexts.tolist(), mains.lengths.tolist(), strict=True):
        costs[context] += 2 * length
    for number, (parent, step) in enumerate(zip(branches.parent.tolist(), branches.step.tolist(), strict=True)):
        costs[int(mains.contexts[parent])] += int(sample.completed.lengths[number]) - step
    assert context_costs(sample).tolist() == costs


def test_what_examples_cost_is_remembered_and_divides_the_next_epoch():
    def shares(rank: Rank) -> tuple[list[list[int]], list[float]]:
        case = Case("arsm:budget=9", options={"balance": "cost", "batch_size": 7})
        with BUILDING:
            trainer, _ = make_trainer(case, [])
        trainer.step()
        costs = trainer.divider.tensors()["example_costs"]
        division = trainer.divide(torch.arange(7))
        return [share.tolist() for share in division.shares], costs.tolist()

    (first, costs), second = run_ranks(2, shares)
    assert second == (first, costs)
    assert all(cost > 0 for cost in costs)
    loads = [sum(costs[place] for place in share) for share in first]
    assert max(loads) <= 4 / 3 * sum(costs) / 2
    assert first != [[0, 1, 2, 3], [4, 5, 6]]


def test_a_resumed_training_divides_batches_as_if_nothing_had_happened():
    def train(rank: Rank, stop: int) -> tuple[list[Any], list[Any]]:
        case = Case("pairs", options={"balance": "cost", "batch_size": 3})
        with BUILDING:
            trainer, reward = make_trainer(case, [])
        for _ in range(stop):
            trainer.step()
        if stop < 6:
            state = trainer.state()
            with BUILDING:
                trainer, reward = make_trainer(case, [])
            trainer.load_state(state)
        seen = []
        while trainer.updates < 6:
            reward.seen.clear()
            trainer.step()
            seen.append(sorted(reward.seen))
        return seen, flat_gradient(trainer.parameters).tolist()

    whole = run_ranks(2, lambda rank: train(rank, 0))
    for stop in (1, 4):
        parts = run_ranks(2, lambda rank, stop=stop: train(rank, stop))
        for (seen, gradient), (all_seen, expected) in zip(parts, whole, strict=True):
            assert seen == all_seen[stop:]
            assert gradient == expected


def test_a_state_fits_any_number_of_processes():
    def train(before: dict[str, Any] | None, updates: int) -> dict[str, Any]:
        with BUILDING:
            trainer, _ = make_trainer(Case("rloo-3:baseline=fitted"), [])
        if before is not None:
            trainer.load_state(before["state"])
        while trainer.updates < updates:
            trainer.step()
        return {"state": trainer.state(), "gradient": flat_gradient(trainer.parameters)}

    alone = train(None, 2)
    together = run_ranks(3, lambda _: train(alone, 4))
    back = train(together[0], 6)
    torch.testing.assert_close(back["gradient"], train(None, 6)["gradient"], rtol=1e-8, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_a_wrong_balance_is_refused():
    with pytest.raises(InputError, match="balance must be one of even, cost"):
        make_small_trainer(balance="random")


# estimators of users


@dataclass(frozen=True)
class Plain(Estimator):
    """Knows nothing of other processes, and cannot be asked about no contexts."""

    names = ()

    @property
    def sampler(self) -> Sampler:
        return Sampler("sample", 2)

    def plan(self, trajectories: Trajectories, noise: Noise) -> GroupPlan:
        assert int(trajectories.contexts.max()) + 1 > 0
        assert trajectories.division is None
        ones = torch.ones_like(trajectories.log_probs)
        return GroupPlan(trajectories, trajectories.contexts, share=ones, weight=ones / 2, leave_one_out=True)


def test_an_estimator_that_knows_nothing_of_processes_goes_on_working():
    def gradients(estimator: Any) -> list[Any]:
        trainer = built(estimator=estimator, data=make_data(7), batch_size=5)
        found = []
        for _ in range(4):
            trainer.step()
            found.append(flat_gradient(trainer.parameters).tolist())
        return found

    alone = gradients("rloo-2")
    for each in run_ranks(3, lambda _: gradients(Plain())):
        for gradient, expected in zip(each, alone, strict=True):
            assert gradient == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_baseline_of_a_rank_alone_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    case = Case("reinforce")
    alone = updates_of(case)
    monkeypatch.setattr("corollout.estimators.score.Reinforce.compares_contexts", False)
    assert any(
        text.startswith("gradients") for text in differences(case, alone, run_ranks(2, lambda _: updates_of(case)))
    )
