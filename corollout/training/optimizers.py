"""The optimisers that the package itself makes, and what they can do."""

import json
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from corollout.errors import InputError

_FUSED_DEVICES = ("cpu", "cuda")
_FUSED_TYPES = (torch.float32, torch.float64)


def make_adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam in one pass over the parameters, where PyTorch has a kernel for their device and type."""
    parameters = list(parameters)
    fused = all(p.device.type in _FUSED_DEVICES and p.dtype in _FUSED_TYPES for p in parameters)
    return torch.optim.Adam(parameters, lr=learning_rate, fused=fused or None)


def divides_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step divides the gradients by the tensor ``optimizer.grad_scale``, while it reads them anyway.

    PyTorch's fused optimisers do, for its gradient scaler.
    """
    groups = optimizer.param_groups
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and all(
        group.get("fused") and all(p.is_cpu and p.dtype == torch.float32 for p in group["params"]) for group in groups
    )


def require_json(scheduler: LRScheduler) -> None:
    """Raise an error if the state of a scheduler cannot be written to a checkpoint."""
    try:
        json.dumps(scheduler.state_dict())
    except (TypeError, ValueError) as error:
        kind = type(scheduler).__name__
        raise InputError(f"the state of the scheduler {kind} cannot be saved in a checkpoint: {error}") from error
