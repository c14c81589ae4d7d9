"""Budgets without shortcuts: probabilities from plain sums, and a walk along them."""

from unittest.mock import patch

import torch

from corollout.estimators import budget

CASES = [
    ([1.0, 2.0, 3.0, 4.0], 2),
    ([1.0, 10.0, 1.0, 5.0, 2.0], 3),
    ([1.0, 10.0, 1.0, 5.0, 2.0, 2.5, 10.0, 0.5], 4),
    ([3.0, 3.0, 3.0, 1.0, 1.0, 1.0], 5),
    ([2.0 ** (i % 7) for i in range(300)], 20),
    ([float(i % 3 == 0) + 40.0 * (i in (131, 200)) + 0.1 for i in range(300)], 9),
]
STARTS = (0.05, 0.37, 0.61, 0.93)  # at no tie


def plain_choice(sizes: list[float], count: int, start: float) -> tuple[list[int], list[float]]:
    """The branches that a budget keeps, and their probabilities."""
    certain: set[int] = set()
    while True:
        rest = sum(size for i, size in enumerate(sizes) if i not in certain)
        s = [1.0 if i in certain else (count - len(certain)) * size / rest for i, size in enumerate(sizes)]
        above = {i for i, p in enumerate(s) if p >= 1}
        if above == certain:
            break
        certain = above
    kept, walked, tick = [], 0.0, start
    for i, p in enumerate(s):
        if i in certain:
            kept.append(i)
            continue
        walked += p
        if walked > tick:
            kept.append(i)
            tick += 1
    return kept, [s[i] for i in kept]


def choices_agree() -> bool:
    """Whether both implementations, the compiled one run as Python, choose as the walk does."""
    loops = ("_summary", "_largest", "_scale", "_sample", "_plus")
    for sizes, count in CASES:
        values = torch.tensor(sizes, dtype=torch.float64)
        for start in STARTS:
            tick = torch.tensor(start, dtype=torch.float64)
            wanted, probabilities = plain_choice(sizes, count, start)
            s = budget.keep_probabilities(values, count)
            hit = budget.systematic_sample(s, tick)
            with patch.multiple(budget, **{name: getattr(budget, name).py_func for name in loops}):
                chosen, chances = budget.choose(values, count, tick)
            expected = torch.tensor(probabilities, dtype=torch.float64)
            same = hit.tolist() == chosen.tolist() == wanted
            if not (same and torch.allclose(s[hit], expected) and torch.allclose(chances, expected)):
                return False
    return True
