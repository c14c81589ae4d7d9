"""The optimisers that the package itself makes, and what they can do."""

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from corollout.errors import InputError
from corollout.text import quoted

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


def require_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raise an error unless this is a scheduler of the optimizer, and its state can be written to a checkpoint."""
    if not isinstance(scheduler, LRScheduler):
        raise InputError(f"scheduler must be one of torch.optim.lr_scheduler, not {quoted(scheduler)}")
    if scheduler.optimizer is not optimizer:
        raise InputError("the scheduler is of another optimizer than the one that the trainer was given")
    try:
        json.dumps(scheduler.state_dict())
    except (TypeError, ValueError) as error:
        kind = type(scheduler).__name__
        raise InputError(f"the state of the scheduler {kind} cannot be saved in a checkpoint: {error}") from error
