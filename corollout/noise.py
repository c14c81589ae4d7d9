"""Counter-based noise: a number depends only on what it is for, never on what was drawn before.

Every draw is a hash of (seed, example, stream, step, position). An example therefore gets the same noise in a batch of
8 or of 64, in any order, on any worker and in a resumed run; and a branch with its parent's key gets its parent's noise
(common random numbers).

The hash is SplitMix64 (Steele, Lea, Flood 2014). A row's key absorbs its labels one by one; the numbers of a step are
the SplitMix64 stream that starts at the hash of (key, step). On the CPU the loops are compiled; elsewhere PyTorch
operations compute the same integers.
"""

from collections.abc import Callable
from functools import partial
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.numba_cache import numba
from corollout.row_threads import by_rows
from corollout.types import full_precision

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_TWO_POW_MINUS_53 = 2.0**-53
# The largest number below 1 of each type, which keeps log1p(-u) finite.
_BELOW_ONE = {torch.float32: 1 - 2.0**-24, torch.float64: 1 - 2.0**-53}

# The purpose of a key: the first label after the example, so that no two purposes share numbers.
MAIN, COPY, BRANCH, REFERENCES, BUDGET, ORDER, SET, REDRAW = range(8)
# Labels from here on are free for estimators outside the package.
FREE = 16

Keys = Int64[Tensor, " row"]
Steps = Int64[Tensor, " row"]


class Noise:
    """A seed from which the keys of rows are derived.

    ``noise.fold(epoch)`` is independent noise; ``noise.keys(example, MAIN, sample)`` has one key for each row.
    """

    def __init__(self, seed: int):
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InputError(f"the seed must be a whole number, not {seed!r}")
        # Mixed once more than labels are: seed and example must not be interchangeable.
        self._key = _mix_int(_mix_int(seed + _GAMMA) + _MIX_2)

    def fold(self, *labels: int) -> "Noise":
        """The noise for a part of the work (an epoch, a probe), independent of all other parts."""
        child = Noise.__new__(Noise)
        key = self._key
        for label in labels:
            key = _mix_int(key ^ _mix_int(label + _GAMMA))
        # One more round, with a constant that no key uses: the keys of a child are never those of its parent.
        child._key = _mix_int(key + _MIX_1)
        return child

    def keys(self, example: Int64[Tensor, " row"], *labels: Int64[Tensor, " row"] | int) -> Keys:
        """One key for each row, from the example's id and further labels (one number, or one for each row)."""
        key = torch.full_like(example, _signed(self._key))
        for label in (example, *labels):
            if isinstance(label, int):
                key = _mix(key ^ _signed(_mix_int(label + _GAMMA)))
            else:
                key = _mix(key ^ _mix(label + _signed(_GAMMA)))
        return key

    def shared_key(self, examples: Int64[Tensor, " row"], label: int) -> Int64[Tensor, " 1"]:
        """One key for a whole batch: it depends on the examples in the batch, not on their order."""
        return _mix(self.keys(examples, label).sum(0, keepdim=True))


def bits(keys: Keys, steps: Steps, width: int) -> Int64[Tensor, "row width"]:
    """53 random bits for each position of each row's step."""
    if keys.device.type == "cpu":
        out = torch.empty(len(keys), width, dtype=torch.int64)
        by_rows(_bits_compiled, width, _unsigned(keys), _unsigned(steps), _unsigned(out))
        return out
    return _bits_torch(keys, steps, width)


def uniform(keys: Keys, steps: Steps, width: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "row width"]:
    """Uniform numbers strictly between 0 and 1, with full relative precision near 0."""
    # Adding ½ after the conversion keeps small numbers exact; only those next to 1 can round up to 1.
    u = bits(keys, steps, width).to(dtype).add_(0.5).mul_(_TWO_POW_MINUS_53)
    return u.clamp_(max=_BELOW_ONE[dtype])


def exponential(keys: Keys, steps: Steps, width: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "row width"]:
    """Exp(1) numbers, finite and positive; precise where they are small, which is what decides a race."""
    return uniform(keys, steps, width, dtype).neg_().log1p_().neg_()


def exponential_into(out: np.ndarray, keys: np.ndarray, steps: np.ndarray) -> None:
    """Fill one row of ``out`` for each key with the numbers of ``exponential``, on the CPU and in one thread."""
    uniform_into(out, keys, steps)
    exponential_of(out)


def uniform_into(out: np.ndarray, keys: np.ndarray, steps: np.ndarray) -> None:
    """Fill one row of ``out`` for each key with the numbers of ``uniform``, on the CPU and in one thread."""
    below_one = out.dtype.type(_BELOW_ONE[torch.float32 if out.dtype == np.float32 else torch.float64])
    _uniform_into(out, keys.view(np.uint64), steps.view(np.uint64), below_one)


def exponential_of(u: np.ndarray) -> None:
    """Turn numbers of ``uniform`` into those of ``exponential``, in place and in one thread."""
    in_pieces(lambda e: e.neg_().log1p_().neg_(), u)


# PyTorch computes this many numbers in one thread.
_PIECE = 1 << 15


def in_pieces(function: Callable[..., Tensor], *arrays: np.ndarray) -> None:
    """Apply PyTorch operations to contiguous arrays of equal sizes, in pieces so small that they start no threads.

    Threads of PyTorch's own would keep the cores busy that ``by_rows`` has given work.
    """
    tensors = [torch.from_numpy(array).view(-1) for array in arrays]
    for i in range(0, len(tensors[0]), _PIECE):
        function(*(tensor[i : i + _PIECE] for tensor in tensors))


def dirichlet(keys: Keys, steps: Steps, width: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "row width"]:
    """π ~ Dirichlet(1, …, 1): exponential numbers divided by their sum."""
    e = exponential(keys, steps, width, dtype)
    return e.div_(e.sum(1, keepdim=True))


def race(
    logits: Float[Tensor, "output vocab"],
    keys: Keys,
    steps: Steps,
    highest: Float[Tensor, " output"] | None = None,
    index: Int64[Tensor, " row"] | None = None,
) -> Int64[Tensor, " row"]:
    """A draw from softmax(logits): argmin_i e_i exp(−φ_i) = argmin_i (ln π_i − φ_i), with e from ``exponential``.

    The compiled loop computes few logarithms: e ≥ u, so a position whose u exp(−φ) is behind the leader cannot win.
    ``highest`` is the largest of each row of logits, if it is known already. With ``index``, rows share logits: it says
    which ones a row draws from.
    """
    logits = full_precision(logits)
    if logits.device.type == "cpu":
        # exp(max − φ) overflows only where the probability is zero in the same precision.
        highest = logits.amax(1) if highest is None else highest
        weights = (highest[:, None] - logits).exp_()
        index = torch.arange(len(keys)) if index is None else index
        winners = torch.zeros_like(keys)
        loop = partial(_race_compiled, weights.numpy())
        by_rows(loop, logits.shape[1], index.numpy(), _unsigned(keys), _unsigned(steps), winners.numpy())
        return winners
    return _race_torch(logits if index is None else logits[index], keys, steps)


def dirichlet_given(
    winners: Int64[Tensor, " row"], logits: Float[Tensor, "row vocab"], keys: Keys, steps: Steps
) -> Float[Tensor, "row vocab"]:
    """π ~ Dirichlet(1, …, 1), given the winner of the race with these logits, argmin_i (ln π_i − φ_i).

    The time of the first arrival, T = min_i e_i exp(−φ_i) = τ / Σ_i exp(φ_i) with τ ~ Exp(1), is independent of the
    winner, and exponential numbers are memoryless: the others then need as long again as at the start. So

        e_i = τ p_i + [i ≠ winner] e'_i,    p = softmax(φ),

    with fresh e' ~ Exp(1); the winner's e', which is not needed, serves as τ. A masked action's e is unconditional.
    """
    e, winners = exponential(keys, steps, logits.shape[1], logits.dtype), winners[:, None]
    first = e.gather(1, winners)
    # No e is below 2⁻⁵⁴, so the p of a winner is not far below that: τ p stays positive.
    e.scatter_(1, winners, 0.0).addcmul_(first, logits.softmax(1))
    return e.div_(e.sum(1, keepdim=True))


def conditional_gumbels(
    free: Float[Tensor, "row number"], maximum: Float[Tensor, " row"]
) -> Float[Tensor, "row number"]:
    """Independent Gumbel numbers given their maximum, from unconditional ones (Kool et al. 2019, appendix B.3).

    −log(exp(−maximum) − exp(−highest) + exp(−free)), where highest is the maximum of ``free``, without overflow.
    """
    gap = free - free.amax(1, keepdim=True)
    maximum = maximum[:, None]
    # At the highest number the logarithm is −inf, and the result is ``maximum``.
    v = maximum - free + torch.where(gap > -0.6931, torch.log(-torch.expm1(gap)), torch.log1p(-torch.exp(gap)))
    return maximum - v.clamp(min=0) - torch.nn.functional.softplus(-v.abs())


def subsets(keys: Keys, steps: Steps, population: int, size: int) -> Int64[Tensor, "row size"]:
    """For each row, ``size`` distinct numbers below ``population``; all subsets are equally likely."""
    if not 0 <= size <= population:
        raise InputError(f"cannot draw {size} distinct numbers from {population}")
    if size > 64:
        return bits(keys, steps, population).argsort(1)[:, :size]
    # Floyd's algorithm: `size` draws for any population.
    u = uniform(keys, steps, max(size, 1), torch.float64)
    chosen = torch.full((len(keys), size), -1, dtype=torch.int64, device=keys.device)
    for i in range(size):
        top = population - size + i
        draw = (u[:, i] * (top + 1)).long().clamp_(max=top)
        taken = (chosen[:, :i] == draw[:, None]).any(1)
        chosen[:, i] = torch.where(taken, top, draw)
    return chosen


# --- integers: Python, PyTorch and compiled forms of the same hash -------------------------------------------------


def _mix_int(x: int) -> int:
    x &= 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * _MIX_1) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * _MIX_2) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    """The 64-bit pattern of x as PyTorch's int64 holds it."""
    return x - 2**64 if x >= 2**63 else x


def _unsigned(x: Int64[Tensor, "..."]) -> np.ndarray:
    return x.numpy().view(np.uint64)


def _shift(x: Tensor, n: int) -> Tensor:
    """Logical shift to the right: PyTorch's shift copies the sign bit."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_2)
    return x ^ _shift(x, 31)


def _bits_torch(keys: Tensor, steps: Tensor, width: int) -> Tensor:
    origin = _mix(keys + (steps + 1) * _signed(_MIX_2))
    counter = torch.arange(1, width + 1, device=keys.device) * _signed(_GAMMA)
    return _shift(_mix(origin[:, None] + counter), 11)


def _race_torch(logits: Tensor, keys: Tensor, steps: Tensor) -> Tensor:
    return (exponential(keys, steps, logits.shape[1], logits.dtype).log_() - logits).argmin(1)


_U = np.uint64


@no_type_check
@numba.njit(cache=True, inline="always")
def mix_compiled(x):
    x = (x ^ (x >> _U(30))) * _U(_MIX_1)
    x = (x ^ (x >> _U(27))) * _U(_MIX_2)
    return x ^ (x >> _U(31))


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def uniform_compiled(key, step, position):
    """One number of ``uniform``, in double precision."""
    origin = mix_compiled(_U(key) + (_U(step) + _U(1)) * _U(_MIX_2))
    draw = mix_compiled(origin + (_U(position) + _U(1)) * _U(_GAMMA)) >> _U(11)
    return min((np.float64(draw) + 0.5) * _TWO_POW_MINUS_53, 1 - 2.0**-53)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _bits_compiled(keys, steps, out):
    for r in range(len(keys)):
        x = mix_compiled(keys[r] + (steps[r] + _U(1)) * _U(_MIX_2))
        for i in range(out.shape[1]):
            x += _U(_GAMMA)
            out[r, i] = mix_compiled(x) >> _U(11)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _uniform_into(out, keys, steps, below_one):
    kind = out.dtype.type
    half, scale = kind(0.5), kind(_TWO_POW_MINUS_53)
    for r in range(len(keys)):
        x = mix_compiled(keys[r] + (steps[r] + _U(1)) * _U(_MIX_2))
        for i in range(out.shape[1]):
            x += _U(_GAMMA)
            out[r, i] = min((kind(np.int64(mix_compiled(x) >> _U(11))) + half) * scale, below_one)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _race_compiled(weights, index, keys, steps, winners):
    width = weights.shape[1]
    draws, bounds = np.empty(width), np.empty(width)
    for r in range(len(index)):
        row = weights[index[r]]
        x = mix_compiled(keys[r] + (steps[r] + _U(1)) * _U(_MIX_2))
        # A loop without branches is vectorised.
        for i in range(width):
            x += _U(_GAMMA)
            draws[i] = (np.float64(mix_compiled(x) >> _U(11)) + 0.5) * _TWO_POW_MINUS_53
            bounds[i] = draws[i] * row[i]
        best = np.inf
        for i in range(width):
            if bounds[i] < best:
                arrival = -np.log1p(-min(draws[i], 1 - 2.0**-53)) * row[i]
                if arrival < best:
                    best = arrival
                    winners[r] = i
