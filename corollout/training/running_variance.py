"""The running variance of gradients along training, from a short sketch of each of them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from corollout.errors import InputError
from corollout.noise import Noise, bits
from corollout.training.base import Gradient, flat_gradient

WIDTH = 1 << 16
# The same for every run: variances of different runs have the same error in common, and a state fits any seed.
_NOISE = Noise(0).fold(0x5CE7C4)
_SIGNS, _OFFSETS, _FLIPS = range(3)


class GradientSketch:
    """The gradients of some parameters as one vector of at most ``width`` numbers, whose variance is the same.

    Up to ``width`` parameters the sketch is the gradient itself. Otherwise it is a count sketch (Charikar, Chen,
    Farach-Colton 2002) by blocks of ``width`` parameters: entry j of block b has the sign τ_j σ_b and is added to entry
    (j + r_b) mod ``width``, where the signs and the offsets r_b are random but fixed. This is a linear map A with
    E[AᵀA] = I, so for any covariance C of gradients the trace of A C Aᵀ, which is the variance of the sketches, has the
    expectation trace C. Its standard deviation over A is at most about √(2 / width) ‖C‖_F ≤ 0.6 % of trace C, however
    the gradients are distributed, and however large their mean is. Where all gradients are equal, it is 0.

    A sketch reads each gradient once and writes little, where averages of the gradient and of its square would read and
    write several vectors of the model's size.
    """

    def __init__(self, parameters: list[nn.Parameter], width: int = WIDTH):
        self.parameters, self.width = parameters, width
        self.is_exact = sum(p.numel() for p in parameters) <= width
        if self.is_exact:
            return
        # Half precision is too coarse for sums.
        self._dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self._device = parameters[0].device
        blocks = torch.arange(sum(-(-p.numel() // width) for p in parameters))
        self._signs = (1.0 - 2.0 * _random(torch.arange(width), _SIGNS, 2)).to(self._device, self._dtype)
        self._offsets = _random(blocks, _OFFSETS, width).tolist()
        self._flips = (1.0 - 2.0 * _random(blocks, _FLIPS, 2)).tolist()

    @property
    def size(self) -> int:
        """How many numbers a sketch has."""
        return sum(p.numel() for p in self.parameters) if self.is_exact else self.width

    def __call__(self) -> Float[Tensor, " sketch"]:
        """The sketch of the current gradients; a parameter without a gradient counts as zeros."""
        if self.is_exact:
            return flat_gradient(self.parameters)
        folded = torch.zeros(2 * self.width, dtype=self._dtype, device=self._device)
        block = 0
        for parameter in self.parameters:
            if parameter.grad is None:
                block += -(-parameter.numel() // self.width)
                continue
            for piece in parameter.grad.reshape(-1).split(self.width):
                place = folded[self._offsets[block] :][: len(piece)]
                place.addcmul_(piece.to(self._dtype), self._signs[: len(piece)], value=self._flips[block])
                block += 1
        return folded[: self.width] + folded[self.width :]


def _random(index: Tensor, label: int, below: int) -> Tensor:
    """For each index a number in 0 … below − 1; ``below`` is a power of two."""
    keys = _NOISE.keys(index, label)
    return bits(keys, torch.zeros_like(keys), 1)[:, 0] % below


class RunningVariance:
    """Exponential averages of the gradient and of its square, as the paper plots them:

        m ← β m + (1 − β) g,   s ← β s + (1 − β) g²,   variance = Σ_parameters (s − m²),

    m and s being corrected by 1 / (1 − β^t). Training gives it the :class:`GradientSketch` of each gradient: the sum is
    then over the entries of the sketch, and estimates the sum over parameters without bias.

    It mixes noise with the drift of the mean gradient, so compare it only at equal decay; ``probe_variance`` does not.
    """

    def __init__(self, decay: float = 0.9):
        if not 0 <= decay < 1:
            raise InputError(f"the decay of the running variance must be in [0, 1), not {decay}")
        self.decay = decay
        self.count = 0
        self.mean: Tensor | None = None
        self.square: Tensor | None = None

    def load(self, count: int, mean: Tensor | None, square: Tensor | None) -> None:
        """Continue from the averages of a checkpoint."""
        self.count = count
        self.mean, self.square = (None if moment is None else moment.double() for moment in (mean, square))

    def add(self, gradient: Gradient) -> float:
        """Add a gradient; return the variance so far (0 after the first)."""
        gradient = gradient.double()  # in which squares do not overflow
        if self.mean is None or self.square is None:
            self.mean, self.square = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self.mean.lerp_(gradient, 1 - self.decay)
        self.square.lerp_(gradient**2, 1 - self.decay)
        self.count += 1
        correction = 1 - self.decay**self.count
        return float((self.square / correction - (self.mean / correction) ** 2).sum().clamp(min=0))
