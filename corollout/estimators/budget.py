"""A rollout budget: keep exactly N of many branches so that the gradient stays unbiased.

With a large vocabulary there are millions of branches. On the CPU, compiled loops read their sizes once for the sum and
the maximum, once for the sample, and twice more if some branches are certain; nothing as long as the list is written.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.numba_cache import numba

# A probability this close to 1 counts as 1, so that rounding never puts two ticks into one interval.
_CERTAIN = 1 - 1e-9
# Loops look at this many branches at a time.
_STRIDE = 128


def choose(
    sizes: Float[Tensor, " branch"], count: int, start: Float[Tensor, ""]
) -> tuple[Int64[Tensor, " kept"], Float[Tensor, " kept"]]:
    """The branches that :func:`systematic_sample` keeps with :func:`keep_probabilities`, and their probabilities."""
    if sizes.device.type == "cpu" and sizes.dtype in (torch.float32, torch.float64) and count < len(sizes):
        values = sizes.detach().contiguous().numpy()
        total, largest, smallest = _summary(values)
        if smallest > 0 and total < np.inf:
            scale, certain = _scale(values, count, total, largest)
            kept, s = _sample(values, scale, count - certain, float(start), count)
            return torch.from_numpy(kept), torch.from_numpy(s)
    s = keep_probabilities(sizes, count)
    kept = systematic_sample(s, start)
    return kept, s[kept]


def keep_probabilities(sizes: Float[Tensor, " branch"], count: int) -> Float[Tensor, " branch"]:
    """s_a = min(1, c · size_a), with c such that they add up to ``count`` (all are 1 if there are no more branches).

    A branch of size zero is as likely as the smallest of positive size: no probability may be zero.
    """
    sizes = sizes.double()
    if count >= len(sizes):
        return torch.ones_like(sizes)
    if not sizes.max() > 0:
        sizes = torch.ones_like(sizes)
    elif not sizes.min() > 0:
        sizes = torch.where(sizes > 0, sizes, sizes[sizes > 0].min())
    sizes = sizes / sizes.max()
    # From the largest on, a branch is certain as long as its share of the remaining budget is at least 1. At most
    # ``count`` branches are; of the others, only the sum matters.
    largest, index = sizes.topk(count)
    tail = largest.flip(0).cumsum(0).flip(0) + sizes.scatter(0, index, 0.0).sum()
    left = count - torch.arange(count, device=sizes.device)
    certain = int((left * largest >= _CERTAIN * tail).long().cumprod(0).sum())
    if certain == count:
        certain -= 1
    scale = (count - certain) / tail[certain]
    s = sizes * scale
    return torch.where(s >= _CERTAIN, 1.0, s)


def systematic_sample(probabilities: Float[Tensor, " branch"], start: Float[Tensor, ""]) -> Int64[Tensor, " kept"]:
    """The indices kept by systematic sampling: ticks at ``start``, ``start`` + 1, … on the cumulative probabilities.

    Each branch is kept with its probability, and exactly as many are kept as the probabilities add up to.
    """
    certain = probabilities == 1
    # Certain branches have no width here: no tick hits them.
    cumulative = torch.where(certain, 0.0, probabilities).cumsum(0)
    total = cumulative[-1:]
    ticks = start.to(cumulative.dtype) + torch.arange(round(float(total.sum())), device=cumulative.device)
    last = torch.searchsorted(cumulative, total)
    hit = torch.minimum(torch.searchsorted(cumulative, ticks, right=True), last)
    return torch.cat([certain.nonzero().squeeze(1), hit]).sort().values


@no_type_check
@numba.njit(cache=True, fastmath={"reassoc"})
def _plus(x, y):
    """A sum whose order does not matter, so that loops of it are vectorised."""
    return x + y


@no_type_check
@numba.njit(cache=True, nogil=True)
def _summary(sizes):
    """The sum, the largest and the smallest number; a sum of NaN if there is one."""
    total, largest, smallest = 0.0, sizes[0], sizes[0]
    for first in range(0, len(sizes), _STRIDE):
        part = sizes[first : first + _STRIDE]
        plain, larger, smaller = 0.0, 0, 0
        for i in range(len(part)):
            plain = _plus(plain, np.float64(part[i]))
            larger += part[i] > largest
            smaller += part[i] < smallest
        total += plain
        if larger or smaller:
            for i in range(len(part)):
                largest, smallest = max(largest, part[i]), min(smallest, part[i])
    return total, np.float64(largest), np.float64(smallest)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _largest(sizes, count):
    """The ``count`` largest numbers in descending order."""
    # Of those that are larger than ``count`` others, the smaller ones are removed when there are twice as many.
    buffer, used, least = np.empty(2 * count), 0, -np.inf
    for first in range(0, len(sizes), _STRIDE):
        part = sizes[first : first + _STRIDE]
        new = 0
        for i in range(len(part)):
            new += part[i] > least
        if new:
            for i in range(len(part)):
                if part[i] > least:
                    buffer[used] = part[i]
                    used += 1
                    if used == len(buffer):
                        buffer[:count] = np.sort(buffer)[count:]
                        used, least = count, buffer[0]
    return np.sort(buffer[:used])[::-1][:count]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _scale(sizes, count, total, largest):
    """The c of s_a = min(1, c · size_a), and how many are 1."""
    if count * largest < _CERTAIN * total:
        return count / total, 0
    # As ``keep_probabilities``: from the largest on.
    top = _largest(sizes, count)
    least, equal, rest = top[-1], 0, 0.0
    for first in range(0, len(sizes), _STRIDE):
        part = sizes[first : first + _STRIDE]
        plain, same = 0.0, 0
        for i in range(len(part)):
            plain = _plus(plain, np.float64(part[i]) if part[i] < least else 0.0)
            same += part[i] == least
        rest += plain
        equal += same
    for k in range(count):
        equal -= top[k] == least
    tail = np.empty(count)
    rest += equal * least
    for k in range(count - 1, -1, -1):
        rest += top[k]
        tail[k] = rest
    certain = 0
    while certain < count - 1 and (count - certain) * top[certain] >= _CERTAIN * tail[certain]:
        certain += 1
    scale = (count - certain) / tail[certain]
    while certain < count and top[certain] * scale >= _CERTAIN:
        certain += 1
    return scale, certain


@no_type_check
@numba.njit(cache=True, nogil=True)
def _sample(sizes, scale, ticks, start, count):
    """The branches that are certain or hit by a tick, and their probabilities."""
    kept, s = np.empty(count, np.int64), np.empty(count)
    used, hits, cumulative = 0, 0, 0.0
    for first in range(0, len(sizes), _STRIDE):
        part = sizes[first : first + _STRIDE]
        plain, certain = 0.0, 0
        for i in range(len(part)):
            x = np.float64(part[i]) * scale
            certain += x >= _CERTAIN
            plain = _plus(plain, x)
        if certain == 0 and (hits == ticks or cumulative + plain <= start + hits):
            cumulative += plain
            continue
        for i in range(len(part)):
            x = np.float64(part[i]) * scale
            if x >= _CERTAIN:
                kept[used], s[used] = first + i, 1.0
                used += 1
                continue
            cumulative += x
            if hits < ticks and cumulative > start + hits:
                kept[used], s[used] = first + i, x
                used += 1
                hits += 1
    # Rounding may leave a tick beyond the end: the last branch that is not kept gets it.
    branch = len(sizes) - 1
    while used < count:
        place = used
        while place > 0 and kept[place - 1] > branch:
            place -= 1
        if place > 0 and kept[place - 1] == branch:
            branch -= 1
            continue
        for k in range(used, place, -1):
            kept[k], s[k] = kept[k - 1], s[k - 1]
        kept[place], s[place] = branch, np.float64(sizes[branch]) * scale
        used += 1
    return kept, s
