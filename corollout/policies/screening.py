"""Tokens from hidden states without all of their logits: screened in bfloat16, decided in float32.

To continue a branch one needs the token that wins the race (``corollout.noise.race``) or has the largest logit, not the
logits. A product in bfloat16 takes half the time of one in float32 where the processor has instructions for it, and its
error has a bound; so only the few tokens that could win by that bound, most often one, are read out in float32. The
tokens are those that all logits in float32 would give, up to what the order of summation changes in these.

The bound. Let x be a hidden state, w the weights of a token, and x̂, ŵ the same rounded to bfloat16. By Cauchy–Schwarz

    |x·w − x̂·ŵ| = |(x − x̂)·ŵ + x·(w − ŵ)| ≤ ‖x − x̂‖ ‖ŵ‖ + ‖x‖ ‖w − ŵ‖,

and both differences are known: they are computed, not estimated. Products of two bfloat16 numbers are exact in float32;
a sum of n of them in float32, in any order, is off by at most n 2⁻²⁴ / (1 − n 2⁻²⁴) · Σ|x̂ᵢŵᵢ| ≤ n 2⁻²³ ‖x̂‖ ‖ŵ‖. The
result y is rounded to bfloat16, which has 8 significant bits: that adds at most 2⁻⁸ |y|. With ‖w − ŵ‖ ≤ ρ ‖ŵ‖,

    |x·w − y| ≤ radius(x) ‖ŵ‖ + 2⁻⁸ |y|,    radius(x) = ‖x − x̂‖ + ρ ‖x‖ + n 2⁻²³ ‖x̂‖.

Numbers so small that they or their squares may become zero are covered by adding 2⁻⁶⁰ √n to every norm.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import BFloat16, Bool, Float, Float32
from torch import Tensor

from corollout.noise import uniform_compiled
from corollout.numba_cache import numba
from corollout.policies.protocol import SOFTMAX, Greedy, Ints, head_of
from corollout.policies.read_out import ReadOut
from corollout.row_threads import by_rows

# With fewer weights, or fewer rows in all, the preparation is not worth it.
LEAST_WEIGHTS = 1 << 19
LEAST_ROWS = 32

_TINY = 2.0**-60
_HALF_ULP = 2.0**-8  # of bfloat16, relative
_ROUNDING = 2.0**-20  # more than the relative error of the few float32 operations that make up a score
_LANES = 256

Hidden = Float[Tensor, "output width"]
Near = BFloat16[Tensor, "output vocab"]


@cache
def bfloat16_is_fast() -> bool:
    """Whether this processor has instructions for products of bfloat16, which are then about twice as fast.

    Not measured: a run that is resumed must decide as it did before.
    """
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # PyTorch has no public ones
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


@dataclass(frozen=True)
class Screen:
    """A read-out's weights, and what the bound needs to know of them. It is not for later: weights change."""

    weight: Float32[Tensor, "vocab width"]
    bias: Float32[Tensor, " vocab"]
    rounded: BFloat16[Tensor, "vocab width"]
    norms: Float32[Tensor, " vocab"]  # ‖ŵ‖
    ratio: float  # ρ
    lift: Float32[Tensor, " vocab"]  # the bias as it enters a score: raised by what rounding may take

    @classmethod
    def of(cls, read_out: ReadOut) -> "Screen | None":
        """The screen of a read-out, or none if some of its numbers are not finite (a bias may be −inf)."""
        weight = read_out.weight.detach().contiguous()
        bias = weight.new_zeros(len(weight)) if read_out.bias is None else read_out.bias.detach().contiguous()
        rounded = weight.bfloat16()
        back = rounded.float()
        tiny = _TINY * weight.shape[1] ** 0.5
        norms = back.norm(dim=1) + tiny
        errors = back.sub_(weight).norm(dim=1) + tiny
        # A row of nothing but tiny numbers must not spoil the ratio of all.
        norms = norms.maximum(errors / _HALF_ULP)
        if not bool(norms.isfinite().all()) or not bool((bias < torch.inf).all()):
            return None
        lift = bias + torch.where(bias.isfinite(), bias.abs() + 128, 0.0) * _ROUNDING
        return cls(weight, bias, rounded, norms, float((errors / norms).max()), lift)

    def product(self, hidden: Hidden) -> tuple[Near, Float32[Tensor, " output"]]:
        """Approximate logits without bias, and the radius of each row.

        |logit − bias − y| ≤ radius · norm + 2⁻⁸ |y|.
        """
        width = hidden.shape[1]
        rounded = hidden.bfloat16()
        tiny = _TINY * width**0.5
        back = rounded.float()
        radius = (back.norm(dim=1) + tiny) * (width * 2.0**-23)
        radius += (hidden.norm(dim=1) + tiny) * self.ratio
        radius += (hidden - back).norm(dim=1) + tiny
        # The norms themselves were rounded.
        return rounded @ self.rounded.t(), radius * (1 + 2.0**-10)

    def choose(
        self,
        hidden: Hidden,
        keys: Ints,
        steps: Ints,
        greedy: Greedy,
        index: Ints | None = None,
        allowed: Bool[Tensor, "output vocab"] | None = None,
    ) -> Ints | None:
        """The tokens that ``Softmax.choose`` gives for the logits of these states.

        None if some logits may be invalid, or so large that the bound says nothing: then look at all of them.
        """
        hidden = hidden.contiguous()
        near, radius = self.product(hidden)
        # Rows with the same noise are neighbours: it is then computed once.
        order = keys.argsort()
        index = order if index is None else index[order]
        by_preference = torch.full_like(order, greedy, dtype=torch.bool) if isinstance(greedy, bool) else greedy[order]
        masks = torch.zeros(0, len(self.bias), dtype=torch.bool) if allowed is None else allowed.contiguous()
        winners = torch.empty_like(keys)
        loop = partial(
            _screen_compiled,
            hidden.numpy(),
            self.weight.numpy(),
            self.bias.numpy(),
            self.lift.numpy(),
            self.norms.numpy(),
            masks.numpy(),
            near.view(torch.int16).numpy(),
            radius.numpy(),
        )
        rows = (index, keys[order], steps[order], by_preference, winners)
        by_rows(loop, len(self.bias), *(tensor.numpy() for tensor in rows))
        if bool((winners < 0).any()):
            return None
        return torch.empty_like(winners).scatter_(0, order, winners)


class Screening:
    """Chooses tokens by hidden states, screened where that pays. It is made anew whenever weights may have changed."""

    def __init__(self) -> None:
        self._read_out: ReadOut | None = None
        self._screen: Screen | None = None

    @staticmethod
    def offered_by(policy: Any, rows: int) -> "Screening | None":
        """Screening for a softmax policy, if it gives hidden states and so many rows are worth the preparation."""
        useful = rows >= LEAST_ROWS and hasattr(policy, "step_hidden") and head_of(policy) is SOFTMAX
        return Screening() if useful and bfloat16_is_fast() else None

    def choose(
        self, hidden: Hidden, read_out: ReadOut, keys: Ints, steps: Ints, greedy: Greedy, index: Ints | None = None
    ) -> tuple[Ints, Bool[Tensor, " output"]]:
        """A token for each row, and whether the logits of each output are valid, as ``Softmax.choose`` has them."""
        last = self._read_out
        if last is None or last.weight is not read_out.weight or last.bias is not read_out.bias:
            self._read_out, self._screen = read_out, Screen.of(read_out) if _suits(read_out) else None
        if self._screen is not None and hidden.dtype == torch.float32:
            tokens = self._screen.choose(hidden, keys, steps, greedy, index, read_out.allowed)
            if tokens is not None:
                return tokens, torch.ones(len(hidden), dtype=torch.bool)
        choice = SOFTMAX.choose(read_out.logits(hidden, slice(None)), keys, steps, greedy, index)
        return choice.tokens, choice.valid


def _suits(read_out: ReadOut) -> bool:
    """Whether a read-out is of the kind that can be screened, and large enough."""
    parts = [part for part in (read_out.weight, read_out.bias) if part is not None]
    usual = all(part.device.type == "cpu" and part.dtype == torch.float32 for part in parts)
    return usual and read_out.softcap is None and read_out.weight.numel() >= LEAST_WEIGHTS


_LN2 = float(np.log(2.0))


@no_type_check
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _dot(x, w):
    total = 0.0
    for k in range(len(x)):
        total += np.float64(x[k]) * np.float64(w[k])
    return total


@no_type_check
@numba.njit(cache=True, nogil=True)
def _score(x, w, bias, key, step, position, greedy):
    """ln e − φ, with φ as precise as float32 has it."""
    logit = np.float64(np.float32(_dot(x, w) + bias))
    return -logit if greedy else np.log(-np.log1p(-uniform_compiled(key, step, position))) - logit


@no_type_check
@numba.njit(cache=True, nogil=True, inline="always")
def _from_bfloat16(bits):
    return np.int32(np.int32(bits) << 16).view(np.float32)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _noise_below(key, step, out):
    """At most ln e for each position, since e ≥ u, and log₂ of a number 2ᵏ(1 + m) is at least k + m: its bits."""
    for i in range(len(out)):
        u = np.float32(uniform_compiled(key, step, i))
        out[i] = np.float32(u.view(np.int32)) * np.float32(_LN2 * 2.0**-23) - np.float32(127 * _LN2)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _scores_below(noise, near, lift, norms, radius, scores, lows):
    """At most the score ln e − φ of each position, and the least of each lane: of every _LANES-th position.

    There are no branches and no reductions: the inner loop is vectorised.
    """
    wide = np.float32(_HALF_ULP * (1 + 2.0**-10) + _ROUNDING)
    lows[:] = np.inf
    for start in range(0, len(scores), _LANES):
        some = slice(start, start + _LANES)
        noises, nears, lifts, lengths, out = noise[some], near[some], lift[some], norms[some], scores[some]
        for i in range(len(out)):
            y = _from_bfloat16(nears[i])
            score = noises[i] - lifts[i] - y - abs(y) * wide - lengths[i] * radius
            out[i] = score
            lows[i] = score if score < lows[i] else lows[i]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _mask(allowed, scores, lows):
    lows[:] = np.inf
    for i in range(len(scores)):
        if not allowed[i]:
            scores[i] = np.inf
        lows[i % _LANES] = min(lows[i % _LANES], scores[i])


@no_type_check
@numba.njit(cache=True, nogil=True)
def _all_finite(near):
    largest = np.int16(0)
    for i in range(len(near)):
        largest = max(largest, np.int16(near[i] & np.int16(0x7FFF)))
    return largest < np.int16(0x7F80)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _screen_compiled(
    hidden, weight, bias, lift, norms, allowed, near, radius, index, keys, steps, by_preference, winners
):
    """The winner of each row: the least ln e − φ, with e = 1 where greedy; −1 where that cannot be said."""
    vocab = len(lift)
    nothing, noise = np.zeros(vocab, np.float32), np.empty(vocab, np.float32)
    scores, lows = np.empty(vocab, np.float32), np.empty(_LANES, np.float32)
    have_noise, noise_key, noise_step = False, np.int64(0), np.int64(0)
    for r in range(len(index)):
        o, key, step, greedy = index[r], keys[r], steps[r], by_preference[r]
        winners[r] = -1
        if not (_all_finite(near[o]) and np.isfinite(radius[o])):
            continue
        if not greedy and not (have_noise and noise_key == key and noise_step == step):
            _noise_below(key, step, noise)
            have_noise, noise_key, noise_step = True, key, step
        _scores_below(nothing if greedy else noise, near[o], lift, norms, radius[o], scores, lows)
        if len(allowed):
            _mask(allowed[o], scores, lows)
        # First the one that is likely to win, so that few others remain.
        lane = np.argmin(lows)
        first, low = lane, lows[lane]
        if not np.isfinite(low):
            continue
        while scores[first] != low:
            first += _LANES
        best = _score(hidden[o], weight[first], bias[first], key, step, first, greedy)
        winner, sound = first, np.isfinite(best)
        for lane in range(_LANES):
            if lows[lane] <= best:
                for i in range(lane, vocab, _LANES):
                    if scores[i] <= best and i != first:
                        score = _score(hidden[o], weight[i], bias[i], key, step, i, greedy)
                        sound = sound and np.isfinite(score)
                        if score < best or (score == best and i < winner):
                            winner, best = i, score
        if sound:
            winners[r] = winner
