"""Micro-batches give the gradient of the whole batch; schedulers go on where they were."""

import json
import math
from typing import Any

import pytest
import torch

from benchmarks.synchronisations import CONTEXTS, Case, cases
from corollout import Columns, Engine, Estimate, InputError, Noise, Trainer, estimate
from corollout.events import ignore
from corollout.training.metrics import TIMED
from tests.support.enumeration import Problem

CASES = list(cases())
FITTED = ("rloo-4:baseline=fitted", "reinforce:baseline=fitted", "reinforce:baseline=shrunk", "grpo-4")
QUICK = ("rloo-4", "arsm", "bt-arsm", "pairs", "rloo-4:baseline=fitted")
UPDATES = [
    pytest.param(
        case,
        method,
        sizes,
        id=f"{case.name} {method}",
        marks=pytest.mark.prove if len(sizes) > 1 else (),
    )
    for case in CASES
    for method in (*case.estimators, *FITTED)
    for sizes in ((4,), (1, 4, 100))
    if len(sizes) > 1 or method in QUICK
]


def reward(sequences: list[list[int]]) -> list[float]:
    return [sum(tokens) % 3 for tokens in sequences]


def gradient_of(case: Case, method: str, size: int | None) -> tuple[torch.Tensor, Estimate]:
    policy: Any = case.policy
    engine = Engine(policy, bos=case.bos, eos=case.eos, max_length=8)
    batch = Columns(context=case.contexts).batch(range(CONTEXTS))
    policy.zero_grad()
    sample = estimate(engine, batch, reward, method, Noise(4), micro_batch=size)
    sample.backward()
    gradients = [p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in policy.parameters()]
    return torch.cat(gradients), sample


@pytest.mark.parametrize(("case", "method", "sizes"), UPDATES)
def test_the_gradient_is_that_of_the_whole_batch(case: Case, method: str, sizes: tuple[int, ...]):
    whole, at_once = gradient_of(case, method, None)
    assert whole.norm() > 0
    for size in sizes:
        parts, in_turn = gradient_of(case, method, size)
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
        assert in_turn.cost == at_once.cost


@pytest.mark.parametrize("method", ["rloo-4", "arsm", "rloo-4:baseline=fitted"])
def test_a_policy_that_only_scores(method: str, monkeypatch: pytest.MonkeyPatch):
    case = CASES[-1]
    monkeypatch.delattr(type(case.policy), "hidden_states")
    whole, _ = gradient_of(case, method, None)
    parts, _ = gradient_of(case, method, 2)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_a_graph_is_of_one_micro_batch(monkeypatch: pytest.MonkeyPatch):
    case = CASES[1]
    policy_class: Any = type(case.policy)
    encode, sizes = policy_class.encode, []

    def counted(self: Any, context: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            sizes.append(len(context))
        return encode(self, context)

    monkeypatch.setattr(policy_class, "encode", counted)
    gradient_of(case, "arsm", 4)
    assert sizes == [4, 2]


# In training


def trainer_of(rate: float = 0.1, schedule: Any = None, **options: Any) -> Trainer:
    problem = Problem.make(vocab=3, length=3, seed=5)
    optimizer = torch.optim.SGD(problem.policy.parameters(), lr=rate)
    scheduler = None if schedule is None else schedule(optimizer)
    data = Columns(context=torch.zeros(40, dtype=torch.int64))
    return Trainer(
        problem.engine(), data, lambda rows: [float(len(row)) for row in rows], "rloo-3", optimizer, batch_size=8,
        scheduler=scheduler, **options, on_event=ignore)  # fmt: skip


def warm_up(optimizer: torch.optim.Optimizer) -> Any:
    schedulers = torch.optim.lr_scheduler
    rise = schedulers.LinearLR(optimizer, 0.1, 1.0, total_iters=5)
    fall = schedulers.CosineAnnealingLR(optimizer, T_max=10)
    return schedulers.SequentialLR(optimizer, [rise, fall], milestones=[5])


def untimed(metrics: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(metrics).items() if name not in TIMED}


def test_a_scheduler_makes_a_step_after_every_update():
    rates = [metrics.learning_rate for metrics in trainer_of(schedule=warm_up).run(updates=15)]
    assert rates[:6] == pytest.approx([0.01, 0.028, 0.046, 0.064, 0.082, 0.1])
    assert rates[10] == pytest.approx(0.1 * (1 + math.cos(math.pi / 2)) / 2)
    assert [metrics.learning_rate for metrics in trainer_of().run(updates=3)] == [0.1] * 3


def test_a_resumed_training_goes_on_with_its_schedule():
    trainer = trainer_of(schedule=warm_up, micro_batch=3)
    for _ in trainer.run(updates=7):
        pass
    state = trainer.state()
    json.dumps(state.values)
    expected = [untimed(metrics) for metrics in trainer.run(updates=14)]
    resumed = trainer_of(schedule=warm_up, micro_batch=3)
    resumed.load_state(state)
    assert [untimed(metrics) for metrics in resumed.run(updates=14)] == expected


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_are_told():
    with pytest.raises(InputError, match="micro_batch must be at least 1 context, or None for the whole batch, not 0"):
        trainer_of(micro_batch=0)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(InputError, match="the scheduler is of another optimizer"):
        trainer_of(schedule=lambda _: torch.optim.lr_scheduler.ConstantLR(other))

    with pytest.raises(InputError, match=r"scheduler must be one of torch\.optim\.lr_scheduler, not 3"):
        trainer_of(schedule=lambda _: 3)

    class Odd(torch.optim.lr_scheduler.ConstantLR):
        def state_dict(self) -> dict[str, Any]:
            return {"what": object()}

    with pytest.raises(InputError, match="the state of the scheduler Odd cannot be saved in a checkpoint"):
        trainer_of(schedule=Odd)
