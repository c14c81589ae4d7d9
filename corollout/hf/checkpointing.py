"""Gradient checkpointing: layers that are computed again in the backward pass, with the attention that they had."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from corollout.hf.attention import Attention
from corollout.hf.inside import Inside, Positions, attending


@contextmanager
def checkpointed(inside: Inside, attention: Attention, positions: Positions) -> Generator[None, None, None]:
    """Inside, layers with ``gradient_checkpointing`` keep their inputs only.

    Models of transformers do that themselves in training mode, which has dropout; policies are in evaluation mode.
    """
    layers = [layer for layer in inside.checkpointed if getattr(layer, "gradient_checkpointing", False)]
    if not torch.is_grad_enabled():
        layers = []

    def computed_again(forward: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*given: Any, **options: Any) -> Any:
            with attending(inside, attention, positions):
                return forward(*given, **options)

        return lambda *given, **options: checkpoint(inner, *given, use_reentrant=False, **options)

    try:
        for layer in layers:
            layer.__dict__["forward"] = computed_again(layer.forward)
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]
