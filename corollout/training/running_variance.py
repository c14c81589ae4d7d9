"""The running variance of gradients along training, from a short sketch of each of them."""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from corollout.errors import InputError
from corollout.noise import Noise, bits
from corollout.numba_cache import numba
from corollout.training.base import Gradient, flat_gradient
from corollout.training.norms import addresses, can_loop, is_safe, memory_order, numbers_at, sum_of_squares, total_norm

WIDTH = 1 << 14
# The same for every run: variances of different runs have the same error in common, and a state fits any seed.
_NOISE = Noise(0).fold(0x5CE7C4)
_SIGNS, _OFFSETS, _FLIPS = range(3)


class GradientSketch:
    """The gradients of some parameters as one vector of at most ``width`` numbers, whose variance is the same.

    Up to ``width`` parameters the sketch is the gradient itself. Otherwise it is a count sketch (Charikar, Chen,
    Farach-Colton 2002) by blocks of ``width`` parameters, in the order in which they lie in memory: entry j of block b
    has the sign τ_j σ_b and is added to entry (j + r_b) mod ``width``, where the signs and the offsets r_b are random
    but fixed. This is a linear map A with E[AᵀA] = I, so for any covariance C of gradients the trace of A C Aᵀ, which
    is the variance of the sketches, has the expectation trace C. Its standard deviation over A is at most about
    √(2 / width) ‖C‖_F ≤ 1.1 % of trace C, however the gradients are distributed, and however large their mean is. Where
    all gradients are equal, it is 0.

    A sketch reads each gradient once and writes little, where averages of the gradient and of its square would read and
    write several vectors of the model's size. The gradients' norm comes of the same pass.
    """

    def __init__(self, parameters: list[nn.Parameter], width: int = WIDTH):
        self.parameters, self.width = parameters, width
        self.is_exact = sum(p.numel() for p in parameters) <= width
        if self.is_exact:
            return
        # Half precision is too coarse for sums.
        self._dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self._device = parameters[0].device
        blocks = [-(-p.numel() // width) for p in parameters]
        self._first = np.cumsum([0, *blocks])  # block of each parameter
        self._orders = [None if p.is_contiguous() else memory_order(p) for p in parameters]
        number = torch.arange(sum(blocks))
        self._signs = (1.0 - 2.0 * _random(torch.arange(width), _SIGNS, 2)).to(self._device, self._dtype)
        self._offsets = _random(number, _OFFSETS, width)
        self._flips = (1.0 - 2.0 * _random(number, _FLIPS, 2)).to(self._dtype)
        self._arrays = [part.cpu().numpy() for part in (self._signs, self._offsets, self._flips)]

    @property
    def size(self) -> int:
        """How many numbers a sketch has."""
        return sum(p.numel() for p in self.parameters) if self.is_exact else self.width

    def __call__(self) -> Float[Tensor, " sketch"]:
        """The sketch of the current gradients; a parameter without a gradient counts as zeros."""
        return self.with_norm()[0]

    def with_norm(self) -> tuple[Float[Tensor, " sketch"], float]:
        """The sketch of the current gradients, and their norm as ``total_norm`` has it."""
        if self.is_exact:
            return flat_gradient(self.parameters), total_norm(p.grad for p in self.parameters if p.grad is not None)
        known, gradients = [], []
        for number, (parameter, order) in enumerate(zip(self.parameters, self._orders, strict=True)):
            gradient = parameter.grad
            if gradient is not None:
                known.append(number)
                gradients.append(gradient if order is None else gradient.permute(order))
        if can_loop(gradients):
            at, sizes, like, _kept = addresses(gradients)
            signs, offsets, flips = self._arrays
            first = self._first if len(known) == len(self.parameters) else self._first[known]
            sketch = np.zeros(self.width, signs.dtype)
            square = _fold(at, sizes, like, first, signs, offsets, flips, sketch)
            return torch.from_numpy(sketch), math.sqrt(square)
        folded = torch.zeros(2 * self.width, dtype=self._dtype, device=self._device)
        for number, gradient in zip(known, gradients, strict=True):
            for block, piece in enumerate(gradient.reshape(-1).split(self.width), int(self._first[number])):
                place = folded[int(self._offsets[block]) :][: len(piece)]
                place.addcmul_(piece.to(self._dtype), self._signs[: len(piece)], value=float(self._flips[block]))
        return folded[: self.width] + folded[self.width :], total_norm(gradients)


# Numbers that a loop reads twice, the second time from the cache.
_PIECE = 1 << 12


@no_type_check
@numba.njit(cache=True, nogil=True)
def _fold(at, sizes, like, first, signs, offsets, flips, sketch):
    """Add gradients, of which the first blocks are given, to a sketch; return the sum of their squares.

    Where all numbers are zero, as in the embeddings of words that did not occur, there is nothing to add.
    """
    width, total = len(signs), 0.0
    size = min(width, _PIECE)  # powers of two: a piece has only one block
    for k in range(len(at)):
        gradient = numbers_at(at[k], sizes[k], like)
        for start in range(0, len(gradient), size):
            piece = gradient[start : start + size]
            if piece[0] == 0 and piece[-1] == 0 and sum_of_squares(piece) == 0:
                continue
            block, sign = first[k] + start // width, signs[start % width :]
            place = (offsets[block] + start) % width
            before = min(len(piece), width - place)  # the end of the sketch, where the rest begins anew
            square = _add(sketch[place:], piece[:before], sign, flips[block])
            square += _add(sketch, piece[before:], sign[before:], flips[block])
            total += square if is_safe(square) else sum_of_squares(piece)
    return total


@no_type_check
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add(sketch, piece, signs, flip):
    """Add a piece to the sketch; return the sum of its squares, in its own precision."""
    total = piece.dtype.type(0)
    for i in range(len(piece)):
        number = piece[i]
        total += number * number
        sketch[i] += flip * signs[i] * number
    return np.float64(total)


def _random(index: Tensor, label: int, below: int) -> Tensor:
    """For each index a number in 0 … below − 1; ``below`` is a power of two."""
    keys = _NOISE.keys(index, label)
    return bits(keys, torch.zeros_like(keys), 1)[:, 0] % below


class RunningVariance:
    """Exponential averages of the gradient and of its square, as the paper plots them:

        m ← β m + (1 − β) g,   s ← β s + (1 − β) ‖g‖²,   variance = s − ‖m‖²,

    m and s being corrected by 1 / (1 − β^t): the sum of the variances of all parameters. Training gives it the
    :class:`GradientSketch` of each gradient: the sum is then over the entries of the sketch, and estimates the sum over
    parameters without bias.

    It mixes noise with the drift of the mean gradient, so compare it only at equal decay; ``probe_variance`` does not.
    """

    def __init__(self, decay: float = 0.9):
        if not 0 <= decay < 1:
            raise InputError(f"the decay of the running variance must be in [0, 1), not {decay}")
        self.decay = decay
        self.count = 0
        self.mean: Tensor | None = None
        self.square = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """The averages, for checkpoints."""
        if self.mean is None:
            return {}
        return {"mean": self.mean.clone(), "square": torch.tensor(self.square, dtype=torch.float64)}

    def load(self, count: int, mean: Tensor | None, square: Tensor | None) -> None:
        """Continue from the averages of a checkpoint."""
        self.count, self.mean = count, None if mean is None else mean.double()
        self.square = 0.0 if square is None else float(square)

    def add(self, gradient: Gradient) -> float:
        """Add a gradient; return the variance so far (0 after the first)."""
        if self.mean is None:
            self.mean = torch.zeros_like(gradient, dtype=torch.float64)
        weight = 1 - self.decay
        if can_loop([gradient]):
            square, of_mean = _average(self.mean.numpy(), gradient.numpy(), weight)
        else:
            gradient = gradient.double()  # in which squares do not overflow
            self.mean.lerp_(gradient, weight)
            square, of_mean = float(gradient.dot(gradient)), float(self.mean.dot(self.mean))
        self.square += weight * (square - self.square)
        self.count += 1
        correction = 1 - self.decay**self.count
        return max(0.0, self.square / correction - of_mean / correction**2)


@no_type_check
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _average(mean, gradient, weight):
    """Move the mean towards a gradient; return the squared norms of the gradient and of the new mean."""
    square, of_mean = 0.0, 0.0
    for i in range(len(mean)):
        number = np.float64(gradient[i])
        moved = mean[i] + weight * (number - mean[i])
        mean[i] = moved
        square += number * number
        of_mean += moved * moved
    return square, of_mean
