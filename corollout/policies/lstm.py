"""An LSTM layer whose input is projected beforehand, so that constant inputs are projected only once.

    o, i, f = σ(x_o + h W_o), …,   g = tanh(x_g + h W_g),   c ← f c + i g,   h ← o tanh(c)

``x`` holds the input's contribution to the four gates, in the order o, i, f, g, biases included. With five parts
instead of four the cell is a maxout LSTM: the candidate is g = max(x_a + h W_a, x_b + h W_b), without a tanh.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def lstm_step(
    x: Float[Tensor, "row gates"],
    weight: Float[Tensor, "hidden gates"],
    h: Float[Tensor, "row hidden"],
    c: Float[Tensor, "row hidden"],
) -> tuple[Float[Tensor, "row hidden"], Float[Tensor, "row hidden"]]:
    """One step without gradient: the new h and c."""
    _, c, _, h = _step(x, weight, h, c)
    return h, c


def lstm(
    x: Float[Tensor, "step row gates"],
    weight: Float[Tensor, "hidden gates"],
    h: Float[Tensor, "row hidden"],
    c: Float[Tensor, "row hidden"],
) -> Float[Tensor, "step row hidden"]:
    """All steps, with gradient; h of every step.

    The backward pass is written out: each step adds one small product, and the weight's gradient is one large product
    over all steps at the end. Automatic differentiation would do one for each step.
    """
    return _LSTM.apply(x, weight, h, c)


def _step(x: Tensor, weight: Tensor, h: Tensor, c: Tensor, out: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
    """The gates after their non-linearities, the new c, its tanh, and the new h, written to ``out`` if it is given."""
    gates, new_c, squashed, new_h = out or (None, None, None, None)
    hidden = h.shape[1]
    gates = torch.addmm(x, h, weight, out=gates)
    gates[:, : 3 * hidden].sigmoid_()
    o, i, f, *parts = gates.split(hidden, 1)
    g = torch.maximum(*parts) if len(parts) == 2 else parts[0].tanh_()
    new_c = torch.mul(i, g, out=new_c).addcmul_(f, c)
    squashed = torch.tanh(new_c, out=squashed)
    return gates, new_c, squashed, torch.mul(o, squashed, out=new_h)


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> Tensor:
        steps, rows, _ = x.shape
        hs = x.new_empty(steps + 1, rows, h.shape[1])
        cs, squashed, gates = torch.empty_like(hs), torch.empty_like(hs[1:]), torch.empty_like(x)
        hs[0], cs[0] = h, c
        for t in range(steps):
            _step(x[t], weight, hs[t], cs[t], (gates[t], cs[t + 1], squashed[t], hs[t + 1]))
        ctx.save_for_backward(gates, squashed, cs, hs, weight)
        return hs[1:]

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gates, squashed, cs, hs, weight = ctx.saved_tensors
        steps, rows, hidden = squashed.shape
        # What each step multiplies dh and dc with, for all steps at once.
        o, i, f, *parts = gates.split(hidden, 2)
        factors = torch.empty_like(gates).view(steps, rows, 3 + len(parts), hidden)
        torch.mul(squashed, o * (1 - o), out=factors[:, :, 0])
        if len(parts) == 2:
            first = parts[0] >= parts[1]
            g = torch.maximum(*parts)
            torch.mul(i, first, out=factors[:, :, 3])
            torch.mul(i, ~first, out=factors[:, :, 4])
        else:
            (g,) = parts
            torch.mul(i, 1 - g * g, out=factors[:, :, 3])
        torch.mul(g, i * (1 - i), out=factors[:, :, 1])
        torch.mul(cs[:-1], f * (1 - f), out=factors[:, :, 2])
        through = o * (1 - squashed * squashed)
        dx = torch.empty_like(factors)
        dh, dc = torch.zeros_like(hs[0]), torch.zeros_like(hs[0])
        back = weight.t()
        for t in reversed(range(steps)):
            dh = dh + outer[0][t]
            dc = torch.addcmul(dc, dh, through[t])
            torch.mul(dh, factors[t, :, 0], out=dx[t, :, 0])
            torch.mul(dc[:, None], factors[t, :, 1:], out=dx[t, :, 1:])
            dh = dx[t].flatten(1) @ back
            dc = dc * f[t]
        dx = dx.flatten(2)
        dweight = hs[:-1].flatten(0, 1).t() @ dx.flatten(0, 1)
        return dx, dweight, dh, dc
