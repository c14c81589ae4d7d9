"""Kinds of branches and their differences in budgeted branching, the slow and obvious way."""

import math

import torch
from torch import Tensor

from corollout.estimators import Pairs, pairs
from corollout.estimators.pairs import PairsPlan
from corollout.types import Branches

# Differences that vary between kinds of branches.
GAPS = 50 * torch.rand(2, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def plain_kind(p: float, step: int) -> int:
    """Which of eight halvings of the probability, and which of eight spans of four steps."""
    halvings = next((n for n in range(7) if p > 0.5 ** (n + 1)), 7)
    return 8 * halvings + min(step // 4, 7)


def plain_gap(gaps: Tensor | None, p: float, step: int) -> float:
    """The root mean square difference of a kind relative to all kinds, with four average branches added."""
    if gaps is None:
        return 1.0
    counts, squares = gaps.tolist()
    kind, mean = plain_kind(p, step), sum(squares) / sum(counts)
    return math.sqrt((squares[kind] / mean + 4) / (counts[kind] + 4))


def kinds_agree() -> bool:
    """Whether branches of all probabilities and steps have the right kinds and expected differences."""
    for step in (0, 3, 4, 27, 28, 31, 32, 99):
        for p in (0.99, 0.51, 0.49, 0.26, 0.24, 0.02, 0.0079, 0.0077, 0.003, 1e-30):
            kind = pairs._kinds(torch.tensor([p], dtype=torch.float64), torch.tensor([step]))
            for gaps in (None, GAPS, 1e-5 * GAPS):
                if not math.isclose(float(Pairs(gaps=gaps)._gap(kind)), plain_gap(gaps, p, step), rel_tol=1e-12):
                    return False
            if int(kind) != plain_kind(p, step):
                return False
    return True


def updates_agree() -> bool:
    """Whether branches are counted and squared differences added up by kind, without skipped rewards."""
    nan = math.nan
    parent, kinds = [0, 2, 2, 1, 0, 2], [5, 5, 63, 0, 9, 9]
    rewards = [1.0, nan, 2.5, 4.0, 3.0, -1.0, 7.0, nan, 0.5]
    wanted = torch.zeros(2, 64, dtype=torch.float64)
    for source, (row, kind) in enumerate(zip(parent, kinds, strict=True), start=3):
        square = (rewards[source] - rewards[row]) ** 2
        if square == square:
            wanted[:, kind] += torch.tensor([1.0, square])
    empty = torch.empty(0, dtype=torch.int64)
    row = torch.tensor(parent)
    plan = PairsPlan(
        branches=Branches.of(row, torch.zeros_like(row), torch.zeros_like(row)),
        **dict.fromkeys(("row", "step", "token", "plus", "minus"), empty),
        weight=torch.empty(0),
        centre="nothing",
        kinds=torch.tensor(kinds),
    )
    for before, expected in ((None, wanted), (GAPS, 0.9 * GAPS + wanted)):
        after = Pairs(gaps=before).updated(plan, torch.tensor(rewards), torch.zeros(3, 1, 1)).gaps
        if after is None or not torch.allclose(after, expected, rtol=1e-12, atol=0):
            return False
    return True
