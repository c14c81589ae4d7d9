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
    positive = sizes[sizes > 0]
    sizes = torch.where(sizes > 0, sizes, positive.min()) / positive.max() if len(positive) else sizes + 1
    # From the largest on: the first i are certain if what is left for the others would still give the next one ≥ 1.
    ordered = sizes.sort(descending=True).values
    tail = ordered.flip(0).cumsum(0).flip(0)
    left = count - torch.arange(len(sizes), device=sizes.device)
    certain = int((left[:count] * ordered[:count] >= _CERTAIN * tail[:count]).long().cumprod(0).sum())
    if certain == count:
        certain -= 1
    scale = (count - certain) / tail[certain]
    s = sizes * scale
    return torch.where(s >= _CERTAIN, 1.0, s)


def systematic_sample(probabilities: Float[Tensor, " branch"], start: Float[Tensor, ""]) -> Int64[Tensor, " kept"]:
    """Positions kept by systematic sampling: a comb of spacing 1, shifted by ``start`` in (0, 1), on the cumulated
    probabilities. Each is kept with its probability, and their number is the sum of the probabilities, exactly."""
    certain = probabilities == 1
    open_ends = (~certain).nonzero().squeeze(1)
    cumulated = probabilities[open_ends].cumsum(0)
    ticks = round(float(cumulated[-1])) if len(open_ends) else 0
    comb = start.to(cumulated.dtype) + torch.arange(ticks, device=cumulated.device)
    hit = torch.searchsorted(cumulated, comb, right=True).clamp_(max=len(open_ends) - 1)
    return torch.cat([certain.nonzero().squeeze(1), open_ends[hit]]).sort().values
