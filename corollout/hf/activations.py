"""What the backward pass of a model keeps, and how much that may be."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Activations may take a fourth of what weights take, which with gradients and Adam's moments are four times that.
_LEAST_BYTES = 1 << 27
_SHARE = 4


def most_activations(model: nn.Module) -> int:
    """The bytes that activations of a model may take at a time."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return max(_LEAST_BYTES, weights // _SHARE)


def kept_bytes(compute: Callable[[], Any], leaves: Iterable[Tensor]) -> int:
    """How much a graph of autograd keeps besides its leaves."""
    known = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    kept: dict[int, Tensor] = {}  # tensors are held, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in known:
            kept.setdefault(address, tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
