"""Whether several ranks, some of them without a context, make the update of one process."""

from tests.support.ranks import run_ranks
from tests.support.shared_updates import Case, differences, updates_of

_COST = {"balance": "cost"}  # contexts of a rank are then not consecutive
CASES = [
    Case("reinforce", options=_COST),
    Case("reinforce:baseline=shrunk", options=_COST),
    Case("rloo-3:baseline=fitted", options=_COST),
    Case("arsm:samples=2,budget=20", options=_COST, updates=4),
    Case("pairs:budget_per=example", options=_COST, updates=4),
    Case("pairs", "tree"),
]


def ranks_agree() -> bool:
    return all(not differences(case, updates_of(case), run_ranks(3, lambda _, c=case: updates_of(c))) for case in CASES)
