"""An LSTM layer whose input part is given ready-made, so that what is constant in it can be projected once.

    i, f, o = σ(x_i + h W_i), …,   g = tanh(x_g + h W_g),   c ← f c + i g,   h ← o tanh(c)

``x`` holds the input's share of the four gates, in the order i, f, o, g, biases included.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def lstm_step(
    x: Float[Tensor, "row gates"],
    weight: Float[Tensor, "hidden gates"],
    h: Float[Tensor, "row hidden"],
    c: Float[Tensor, "row hidden"],
) -> tuple[Float[Tensor, "row hidden"], Float[Tensor, "row hidden"]]:
    """One step without gradient: the new h and c."""
    _, _, c, h = _step(x, weight, h, c)
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


def _step(x: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gates after their non-linearities, tanh of the new c, the new c and the new h."""
    hidden = h.shape[1]
    gates = torch.addmm(x, h, weight)
    gates[:, : 3 * hidden].sigmoid_()
    gates[:, 3 * hidden :].tanh_()
    i, f, o, g = gates.split(hidden, 1)
    c = torch.addcmul(i * g, f, c)
    squashed = c.tanh()
    return gates, squashed, c, o * squashed


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> Tensor:
        steps, rows, _ = x.shape
        hs = x.new_empty(steps + 1, rows, h.shape[1])
        cs, squashed, gates = torch.empty_like(hs), torch.empty_like(hs[1:]), torch.empty_like(x)
        hs[0], cs[0] = h, c
        for t in range(steps):
            gates[t], squashed[t], cs[t + 1], hs[t + 1] = _step(x[t], weight, hs[t], cs[t])
        ctx.save_for_backward(gates, squashed, cs, hs, weight)
        return hs[1:]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        gates, squashed, cs, hs, weight = ctx.saved_tensors
        steps, hidden = len(gates), hs.shape[2]
        dx = torch.empty_like(gates)
        dh, dc = torch.zeros_like(hs[0]), torch.zeros_like(hs[0])
        back = weight.t()
        for t in reversed(range(steps)):
            dh = dh + outer[0][t]
            i, f, o, g = gates[t].split(hidden, 1)
            dc = dc + dh * o * (1 - squashed[t] ** 2)
            di, df, do, dg = dx[t].split(hidden, 1)
            torch.mul(dc * g, i * (1 - i), out=di)
            torch.mul(dc * cs[t], f * (1 - f), out=df)
            torch.mul(dh * squashed[t], o * (1 - o), out=do)
            torch.mul(dc * i, 1 - g * g, out=dg)
            dh = dx[t] @ back
            dc = dc * f
        dweight = hs[:-1].flatten(0, 1).t() @ dx.flatten(0, 1)
        return dx, dweight, dh, dc
