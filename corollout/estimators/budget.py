"""A rollout budget: keep exactly N of many branches so that the gradient stays unbiased."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

# A probability this close to 1 counts as 1, so that rounding never puts two ticks into one interval.
_CERTAIN = 1 - 1e-9


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
