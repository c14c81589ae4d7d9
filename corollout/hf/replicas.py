"""The weights of a policy in each of several processes: what they exchange around an update.

Every process samples and scores with whole weights, and nothing is sent meanwhile: processes may need different numbers
of forward passes. The gradients of all of them are summed when an update is complete.

    Replica          optimizer and weights are the same in every process (data parallelism)
    ShardedReplica   the optimizer changes shards of the weights, which are gathered into whole ones after each of its
                     steps (FSDP2)
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from corollout.processes import Processes
from corollout.training.agreement import add_gradients
from corollout.training.micro_batches import spans
from corollout.training.norms import total_norm

_CHECKPOINTED = "_checkpoint_wrapped_module."  # in names of weights, where accelerate checkpoints activations
_AT_ONCE = 1 << 28  # bytes of weights that are copied for a message


class Replica:
    """Whole weights in every process, and an optimizer that changes them."""

    def __init__(self, model: nn.Module, processes: Processes):
        self.model, self.processes = model, processes

    def trained(self) -> nn.Module:
        """The model that the optimizer changes."""
        return self.model

    @torch.no_grad()
    def copy_first(self, device: torch.device) -> None:
        """Give all processes the weights of rank 0: it may be the only one that has read them. ``device`` is the one
        from which they are sent.
        """
        if self.processes.size == 1:
            return
        tensors = [*self.model.parameters(), *(one for one in self.model.buffers() if one.is_floating_point())]
        for first, stop in spans([tensor.nbytes for tensor in tensors], _AT_ONCE):
            some = tensors[first:stop]
            # Sums, to which the others add nothing.
            sent = [one.to(device, copy=True) if self.processes.is_first else _zeros(one, device) for one in some]
            self.processes.add(sent)
            for tensor, new in zip(some, sent, strict=True):
                tensor.copy_(new)

    def attach(self, trained: nn.Module) -> None:
        """Take over the weights of the model that the optimizer changes, as it is now."""

    def gather(self) -> None:
        """Take over weights that the optimizer has changed."""

    def sum_gradients(self) -> float:
        """Sum gradients over all processes, for the optimizer; return their norm."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        add_gradients(weights, self.processes)
        return total_norm(weight.grad for weight in weights if weight.grad is not None)


class ShardedReplica(Replica):
    """Whole weights in every process, and a sharded copy of them that the optimizer changes."""

    def trained(self) -> nn.Module:
        """A copy that will be sharded: until then it has the memory of the weights in common with them."""
        memo: dict[int, Any] = {
            id(weight): nn.Parameter(weight.data, requires_grad=weight.requires_grad)
            for weight in self.model.parameters()
        }
        return copy.deepcopy(self.model, memo)

    def attach(self, trained: nn.Module) -> None:
        if any(_CHECKPOINTED in name for name, _ in trained.named_parameters()):
            whole: Any = self.model
            whole.gradient_checkpointing_enable()
        shards = {name.replace(_CHECKPOINTED, ""): shard for name, shard in trained.named_parameters()}
        self._pairs: list[tuple[Tensor, Any]] = [(one, shards[name]) for name, one in self.model.named_parameters()]
        self._gather(self._pairs)

    def gather(self) -> None:
        self._gather([(whole, shard) for whole, shard in self._pairs if whole.requires_grad])

    @torch.no_grad()
    def _gather(self, pairs: list[tuple[Tensor, Any]]) -> None:
        for whole, shard in pairs:
            # Converted before they are sent: weights in 16 bits may have shards in 32.
            whole.copy_(shard.detach().to(whole.dtype).full_tensor())

    def sum_gradients(self) -> float:
        trained = [(whole, shard) for whole, shard in self._pairs if whole.requires_grad]
        used = torch.tensor([whole.grad is not None for whole, _ in trained], dtype=torch.int64)
        self.processes.add([used])
        summed: list[Tensor] = []
        for (whole, shard), count in zip(trained, used.tolist(), strict=True):
            if count:
                mesh = shard.device_mesh
                part = torch.zeros_like(whole) if whole.grad is None else whole.grad
                part = DTensor.from_local(part.to(shard.dtype), mesh, [Partial()] * mesh.ndim, run_check=False)
                shard.grad = part.redistribute(placements=shard.placements)
                summed.append(shard.grad)
            whole.grad = None
        norm: Any = nn.utils.get_total_norm(summed) if summed else torch.zeros(())
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _zeros(like: Tensor, device: torch.device) -> Tensor:
    return torch.zeros_like(like, device=device)
