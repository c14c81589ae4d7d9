"""Fused optimisers go through memory as it lies: gradients and states must lie as their parameters do."""

from typing import Any

import torch
from torch import Tensor, nn

from corollout import Trainer
from corollout.events import ignore
from corollout.training.checkpoints import State
from corollout.training.optimizers import make_adam
from tests.support.small_task import make_data, make_engine, make_policy

PICTURE = torch.channels_last


class WithConvolution(nn.Module):
    """A policy one of whose weights lies in memory with channels last, and gets a gradient that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_policy().float()
        weight = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
        self.weight = nn.Parameter(weight.contiguous(memory_format=PICTURE))
        self.start, self.step = self.inner.start, self.inner.step
        self.score: Any = self.inner.score

    def encode(self, context: Tensor) -> Any:
        # The sum is zero, but its gradient is not.
        weights = torch.arange(48.0).view(4, 3, 2, 2)
        zero = (self.weight.contiguous() * weights).sum() - (self.weight.detach().contiguous() * weights).sum()
        memory = self.inner.encode(context)
        return {name: part + zero for name, part in memory.items()}


def make_trainer(policy: WithConvolution, optimizer: torch.optim.Optimizer) -> Trainer:
    def reward(sequences: list[list[int]]) -> list[float]:
        return [float(len(sequence)) for sequence in sequences]

    return Trainer(make_engine(policy), make_data(), reward, "rloo-4", optimizer, on_event=ignore)


def trained(stop: int) -> Tensor:
    """The weight after four updates, stopped in between."""
    policy = WithConvolution()
    first, second = (make_trainer(policy, make_adam(policy.parameters(), 0.01)) for _ in range(2))
    list(first.run(updates=stop))
    state = first.state()
    files = {name: tensor.contiguous() for name, tensor in state.tensors.items()}  # a file knows no layout
    second.load_state(State(files, state.values))
    list(second.run(updates=4))
    return policy.weight.detach().clone()


def test_a_gradient_may_lie_in_another_layout():
    gradient, results = torch.arange(48.0).view(4, 3, 2, 2) - 20, []
    for make in (make_adam, torch.optim.Adam):
        policy = WithConvolution()
        trainer = make_trainer(policy, make(policy.parameters(), 0.01))
        for sign in (1, -2):
            policy.weight.grad = sign * gradient.flip(0)
            assert policy.weight.grad.stride() != policy.weight.stride()
            trainer.step_optimizer()
        results.append(policy.weight.detach())
    torch.testing.assert_close(*results)


def test_a_resumed_optimiser_has_states_in_the_layout_of_their_parameters():
    assert torch.equal(trained(4), trained(2))
