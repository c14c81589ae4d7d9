"""The optimisers that the package itself makes."""

from collections.abc import Iterable

import torch
from torch import nn

_FUSED_DEVICES = ("cpu", "cuda")
_FUSED_TYPES = (torch.float32, torch.float64)


def make_adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam in one pass over the parameters, where PyTorch has a kernel for their device and type."""
    parameters = list(parameters)
    fused = all(p.device.type in _FUSED_DEVICES and p.dtype in _FUSED_TYPES for p in parameters)
    return torch.optim.Adam(parameters, lr=learning_rate, fused=fused or None)
