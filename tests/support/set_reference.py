"""The weights of the unordered-set estimator in exact fractions, from the probability to draw a set in any order."""

import math
from collections import Counter
from fractions import Fraction
from functools import cache
from unittest.mock import patch

import torch
from torch import Tensor

from corollout.estimators import plans, sets
from corollout.types import Trajectories


@cache
def probability(members: tuple[Fraction, ...], left: Fraction) -> Fraction:
    """The probability to draw the members in any order, if everything that can be drawn has the probability ``left``.

    Σ over orders Π p / (left − Σ before): the sum over the first member here, over the others by recursion.
    """
    if not members:
        return Fraction(1)
    total = Fraction(0)
    for p, times in Counter(members).items():  # equal members give equal terms
        index = members.index(p)
        total += times * p / left * probability(members[:index] + members[index + 1 :], left - p)
    return total


def without(p: list[Fraction], *removed: int) -> Fraction:
    """P_{−C}(S∖C): the probability of the rest of a set, if the removed members cannot be drawn."""
    kept = sorted(one for i, one in enumerate(p) if i not in removed)
    return probability(tuple(kept), 1 - sum(p[i] for i in removed))


def plain_weight(p: list[Fraction], s: int) -> float:
    """p(s) R(S, s)."""
    return float(p[s] * without(p, s) / without(p))


def plain_mix(p: list[Fraction], s: int, o: int) -> float:
    """p(s') R(S, s' | s)."""
    return float(p[s] if s == o else p[o] * without(p, s, o) / without(p, s))


def logarithm(p: Fraction) -> float:
    return math.log(p.numerator) - math.log(p.denominator)


def of_weights(weights: list[int], rest: Fraction | int) -> list[Fraction]:
    """Probabilities proportional to the weights; ``rest`` is the weight of everything outside the set."""
    return [w / (sum(weights) + Fraction(rest)) for w in weights]


SETS = {
    "two": of_weights([3, 5], 4),
    "three": of_weights([3, 1, 5], 2),
    "six": of_weights([1, 2, 3, 4, 5, 6], 7),
    "six equal ones": of_weights([1] * 6, 30),
    "one": of_weights([2], 5),
    "most of it": of_weights([1000, 1, 30, 2, 7], 3),
    "one above all others": of_weights([10**9, 1, 30, 2, 7], 20),
    "very little": of_weights([3, 1, 2, 5], 11 * 10**12),
    "next to nothing": of_weights([3, 1, 2, 5, 10**6], 10**90),
    "nearly all": of_weights([3, 1, 2, 5], Fraction(11, 10**12)),
    "everything": of_weights([3, 1, 2, 5, 7], 0),
    "everything, and very unequal": of_weights([10**15, 1, 10**5], 0),
}


def together(some: list[list[Fraction]], size: int) -> Tensor:
    """The log-probabilities of several sets, −inf where they have fewer than ``size`` members."""
    out = torch.full((len(some), size), -torch.inf, dtype=torch.float64)
    for row, p in enumerate(some):
        out[row, : len(p)] = torch.tensor([logarithm(one) for one in p], dtype=torch.float64)
    return out


def difference(p: list[Fraction], weight: Tensor, mix: Tensor) -> float:
    """The largest difference from the exact weights, which are zero for missing members."""
    exact_weight, exact_mix = torch.zeros_like(weight), torch.zeros_like(mix)
    for s in range(len(p)):
        exact_weight[s] = plain_weight(p, s)
        for o in range(len(p)):
            exact_mix[s, o] = plain_mix(p, s, o)
    gaps = torch.cat([(weight - exact_weight)[None], mix - exact_mix])
    return math.inf if bool(gaps.isnan().any()) else float(gaps.abs().max())


# Rounding makes the sum larger than 1: all ratios are 1.
ABOVE_ONE = [0.5, 0.3, 0.2 + 1e-15]


def set_weights_agree() -> bool:
    """Whether the weights of all sets at once, and in several chunks, are exact."""
    log_probs = together(list(SETS.values()), 7)
    parts = [sets.set_weights(log_probs)]
    with patch.object(sets, "_CHUNK", 3 * 7**2 * 400):
        parts.append(sets.set_weights(log_probs))
    all_exact = all(
        difference(p, weight[row], mix[row]) < 1e-9 for weight, mix in parts for row, p in enumerate(SETS.values())
    )
    above = torch.tensor([ABOVE_ONE], dtype=torch.float64)
    weight, mix = sets.set_weights(above.log())
    return all_exact and torch.allclose(weight, above) and torch.allclose(mix, above[:, None].expand(-1, 3, -1))


def tables_agree() -> bool:
    """Whether rows are listed by context and index, also for incomplete sets and for no sets at all."""
    contexts, samples = torch.tensor([0, 0, 2, 1, 2]), torch.tensor([1, 0, 0, 0, 2])
    some, none = (plans.rows_by_context(_rows(c, n), 3) for c, n in ((contexts, samples), (contexts[:0], samples[:0])))
    # Any negative number means none.
    return some.clamp(min=-1).tolist() == [[1, 0, -1], [3, -1, -1], [2, -1, 4]] and none.shape == (0, 3)


def _rows(contexts: Tensor, samples: Tensor) -> Trajectories:
    zeros = torch.zeros_like(contexts)
    return Trajectories(
        tokens=zeros[:, None],
        lengths=zeros + 1,
        finished=zeros == 0,
        contexts=contexts,
        examples=zeros,
        samples=samples,
        keys=zeros,
        log_probs=zeros.double(),
        logits=zeros[:, None, None].double(),
    )
