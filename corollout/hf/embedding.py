"""The embedding of tokens, whose gradient is added to ``.grad`` row by row.

Autograd makes a dense gradient of the size of the matrix for every backward pass, of which only the rows of the tokens
that were read are not zero.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from corollout.policies.read_out import has_plain_gradient, sum_of_gradients


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Float[Tensor, "vocab width"], tokens: Int64[Tensor, "*any"], padding: int | None):
        ctx.weight, ctx.padding = weight, padding  # a leaf, whose numbers are not read again
        ctx.save_for_backward(tokens)
        return weight.detach()[tokens]

    @staticmethod
    def backward(ctx: Any, *gradients: Float[Tensor, "*any width"]) -> tuple[None, None, None]:
        (tokens,) = ctx.saved_tensors
        sums = sum_of_gradients(ctx.weight)
        assert sums is not None
        rows = gradients[0].flatten(0, -2)
        if ctx.padding is not None:
            rows = rows.masked_fill((tokens == ctx.padding).flatten()[:, None], 0.0)
        sums.index_add_(0, tokens.flatten(), rows.to(sums.dtype))
        return None, None, None


def _is_plain(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.Embedding)
        and type(module).forward is nn.Embedding.forward
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and has_plain_gradient(module.weight)
    )


@contextmanager
def embedding_by_rows(module: nn.Module) -> Generator[None, None, None]:
    """Inside, the gradient of an embedding is added row by row, if nothing but ``.grad`` waits for it."""
    if not torch.is_grad_enabled() or not _is_plain(module):
        yield
        return
    padding = module.padding_idx
    module.__dict__["forward"] = lambda tokens: _Embedding.apply(module.weight, tokens, padding)
    try:
        yield
    finally:
        del module.__dict__["forward"]
