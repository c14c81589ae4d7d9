"""An exact rollout budget: how to keep N of many branches so that the gradient stays unbiased."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

# A probability this close to one counts as one: it keeps two ticks out of one interval despite rounding.
_CERTAIN = 1 - 1e-9


def keep_probabilities(sizes: Float[Tensor, " branch"], count: int) -> Float[Tensor, " branch"]:
    """s_a = min(1, c · size_a), with c such that they add up to ``count`` (all are 1 if there are no more branches).

    A branch that has no size is as likely as the smallest that has one: no probability may be zero.
    """
    sizes = sizes.double()
    if count >= len(sizes):
        return torch.ones_like(sizes)
    if not sizes.max() > 0:
        sizes = torch.ones_like(sizes)
    elif not sizes.min() > 0:
        sizes = torch.where(sizes > 0, sizes, sizes[sizes > 0].min())
    sizes = sizes / sizes.max()
    # From the largest on: the first i are certain if what is left for the others would still give the next one ≥ 1.
    # No more than ``count`` can be; all others only count with their sum.
    largest, where = sizes.topk(count)
    tail = largest.flip(0).cumsum(0).flip(0) + sizes.scatter(0, where, 0.0).sum()
    left = count - torch.arange(count, device=sizes.device)
    certain = int((left * largest >= _CERTAIN * tail).long().cumprod(0).sum())
    if certain == count:
        certain -= 1
    scale = (count - certain) / tail[certain]
    s = sizes * scale
    return torch.where(s >= _CERTAIN, 1.0, s)


def systematic_sample(probabilities: Float[Tensor, " branch"], start: Float[Tensor, ""]) -> Int64[Tensor, " kept"]:
    """Positions kept by systematic sampling: a comb of spacing 1, shifted by ``start`` in (0, 1), on the cumulated
    probabilities. Each is kept with its probability, and their number is the sum of the probabilities, exactly."""
    certain = probabilities == 1
    # What is certain has no width here: no tick meets it.
    cumulated = torch.where(certain, 0.0, probabilities).cumsum(0)
    total = cumulated[-1:]
    comb = start.to(cumulated.dtype) + torch.arange(round(float(total.sum())), device=cumulated.device)
    last = torch.searchsorted(cumulated, total)
    hit = torch.minimum(torch.searchsorted(cumulated, comb, right=True), last)
    return torch.cat([certain.nonzero().squeeze(1), hit]).sort().values
