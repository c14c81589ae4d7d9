"""The optimisers of runs: fused where that is possible, and equal to the plain ones."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from corollout.training import start
from corollout.training.checkpoints import State, read_checkpoint
from corollout.training.optimizers import largest_change, make_adam
from corollout.training.settings import FinetuneSettings, MachineSettings
from corollout.training.start import create_finetuning, resume_run
from tests.support.small_karel import small_run
from tests.support.small_task import make_policy, make_trainer, weights

SETTINGS = FinetuneSettings(estimator="rloo-2", batch_size=2, budget=3.0, evaluate_every=1.0, train_eval_examples=2)


def is_fused(optimizer: torch.optim.Optimizer) -> list[bool]:
    return [bool(group["fused"]) for group in optimizer.param_groups]


def test_adam_is_fused_where_pytorch_can():
    for dtype, expected in ((torch.float32, True), (torch.float64, True), (torch.float16, False)):
        assert is_fused(make_adam(make_policy().to(dtype).parameters(), 0.01)) == [expected]
    mixed = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]
    assert is_fused(make_adam(mixed, 0.01)) == [False]
    assert is_fused(make_adam([nn.Parameter(torch.zeros(2, device="meta"))], 0.01)) == [False]
    assert make_adam(mixed, 0.25).param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize("fused_first", [True, False])
def test_a_state_goes_on_in_the_other_implementation(fused_first: bool):
    def trainer(fused: bool):
        policy = make_policy()
        optimizer = torch.optim.Adam(policy.parameters(), 0.01, fused=fused)
        return make_trainer(policy=policy, optimizer=optimizer)

    first, second = trainer(fused_first), trainer(not fused_first)
    list(first.run(updates=3))
    second.load_state(first.state())
    assert is_fused(second.optimizer) == [not fused_first]
    for one in (first, second):
        list(one.run(updates=6))
    torch.testing.assert_close(weights(second.policy), weights(first.policy), rtol=1e-9, atol=1e-12)
    assert not torch.equal(weights(second.policy), weights(trainer(True).policy))


def test_a_run_that_began_without_it_becomes_fused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    def plain(parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=learning_rate)

    def last(run: Path) -> State:
        return read_checkpoint(run / "checkpoints", 3)

    def groups(state: State) -> list[bool]:
        return [bool(group["fused"]) for group in state.values["state"]["learner"]["optimizer"]["groups"]]

    def create(name: str) -> Path:
        create_finetuning(tmp_path / name, small_run(tmp_path_factory), SETTINGS, MachineSettings())
        return tmp_path / name

    old, new = create("old"), create("new")
    with monkeypatch.context() as patch:
        patch.setattr(start, "make_adam", plain)
        resume_run(old)
    resume_run(new)
    assert groups(last(old)) == [False]
    assert groups(last(new)) == [True]
    for name, tensor in last(old).tensors.items():
        torch.testing.assert_close(last(new).tensors[name], tensor, rtol=1e-4, atol=1e-6)
    (old / "summary.json").unlink()
    shutil.rmtree(old / "checkpoints" / "step-00000003")
    assert resume_run(old)["updates"] == 3
    assert groups(last(old)) == [True]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
def test_no_step_of_adam_changes_a_parameter_by_more_than_is_said(betas: tuple[float, float]):
    """Also after gradients as large as they get, small ones, and none."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(torch.zeros(500))
    optimizer = torch.optim.Adam([weights], lr=0.1, betas=betas)
    bound, largest = largest_change(optimizer), 0.0
    sizes = torch.tensor([0.0, 1e-30, 1e-8, 1.0, 1.0, 1e10, 1e29])
    for number in range(60):
        size = sizes[torch.randint(len(sizes), (500,), generator=generator)] if number > 5 else torch.tensor(1e-8)
        weights.grad = size * (2 * torch.randint(2, (500,), generator=generator) - 1)
        before = weights.detach().clone()
        optimizer.step()
        largest = max(largest, float((weights.detach() - before).abs().max()))
    assert 0.05 < largest <= bound
    assert bool(weights.isfinite().all())


def test_what_other_optimisers_do_is_not_known():
    weights = torch.nn.Parameter(torch.zeros(3))
    assert largest_change(torch.optim.SGD([weights], lr=0.1)) == math.inf
    assert largest_change(torch.optim.Adam([weights], weight_decay=0.1)) == math.inf
    assert largest_change(torch.optim.Adam([weights], eps=1e-20)) == math.inf
    assert largest_change(torch.optim.Adam([weights], betas=(0.99, 0.9))) == math.inf
    hooked = torch.optim.Adam([weights])
    hooked.register_step_post_hook(lambda *_: None)
    assert largest_change(hooked) == math.inf
