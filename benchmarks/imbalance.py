"""How long do processes wait for the one among them that has most to do? By simulation, from recorded counts.

What an example takes varies: sequences end early or late, and an adaptive estimator completes many branches for one
example and none for another. An update ends when the last process has finished its share of the batch. Here batches are
drawn from the examples of a recorded fine-tuning (``benchmarks.rollout_counts``), divided among any number of processes
by the functions that a ``Trainer`` uses, and priced:

    seconds of a process = contexts · context + longest · step + main tokens · main + branch tokens · branch

``longest`` is the number of steps of its longest main trajectory, plus that of its longest branch: rows of a batch are
generated together, and branches after all main trajectories.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from benchmarks.rollout_counts import Recording
from corollout.division import divide_by_cost, divide_evenly
from corollout.estimators import make_estimator

SEED = 1


class Prices(NamedTuple):
    """What the parts of a process's share cost, in any unit."""

    context: float
    step: float
    main: float  # a token of a main trajectory, generated and scored
    branch: float  # a token of a branch, which is only generated


# In forward passes of one token, where nothing but tokens takes time: on a CPU, or on a GPU that is kept busy. The
# backward pass takes as long as two of them.
PASSES = Prices(context=0.0, step=0.0, main=4.0, branch=1.0)


@dataclass(frozen=True)
class Counts:
    """A recording as arrays: of every visit but the first, what it took and what the visit before had cost."""

    recording: Recording

    def _array(self, field: str) -> np.ndarray:
        visits = self.recording.visits
        return np.array([getattr(visit, field) for visit in visits], dtype=np.float64)

    @cached_property
    def table(self) -> np.ndarray:
        """Rows: visits of examples. Columns: main tokens, longest main, branches, branch tokens, longest branch."""
        fields = ("main_tokens", "main_longest", "branches", "branch_tokens", "branch_longest")
        return np.stack([self._array(field)[1:].ravel() for field in fields], axis=1)

    @cached_property
    def expected(self) -> np.ndarray:
        """What the visit before cost, as a ``Trainer`` remembers it: tokens generated and scored."""
        return (2 * self._array("main_tokens") + self._array("branch_tokens"))[:-1].ravel()

    @property
    def sequences(self) -> int:
        """Main trajectories of a context."""
        return make_estimator(self.recording.estimator).sampler.count

    @property
    def mean_length(self) -> float:
        """Of a main trajectory, in tokens."""
        return float(self.table[:, 0].mean()) / self.sequences

    @property
    def mean_branches(self) -> float:
        return float(self.table[:, 2].mean())

    def variation(self, prices: Prices = PASSES) -> float:
        """Standard deviation over mean of what contexts cost one by one."""
        cost = self.seconds(np.arange(len(self.table)), np.arange(len(self.table)), len(self.table), prices)
        return float(cost.std() / cost.mean())

    @property
    def correlation(self) -> float:
        """Between what an example cost at a visit and at the one before."""
        cost = self.table @ np.array([PASSES.main, 0, 0, PASSES.branch, 0])
        return float(np.corrcoef(cost, self.expected)[0, 1])

    def seconds(self, visits: np.ndarray, owners: np.ndarray, ranks: int, prices: Prices) -> np.ndarray:
        """What each process takes, if the owner of each visit is given."""
        rows = self.table[visits]
        longest = np.zeros((2, ranks))
        np.maximum.at(longest[0], owners, rows[:, 1])
        np.maximum.at(longest[1], owners, rows[:, 4])
        weights = prices.context + prices.main * rows[:, 0] + prices.branch * rows[:, 3]
        return prices.step * longest.sum(0) + np.bincount(owners, weights, ranks)


class Load(NamedTuple):
    """Seconds of processes between two meetings, averaged over batches."""

    mean: float  # of all processes
    most: float  # of the last one

    @property
    def waiting(self) -> float:
        """The share of its time that a process waits, on average."""
        return 1 - self.mean / self.most


Shares = Sequence[Sequence[int]]
# How a batch is divided, given what its contexts are expected to cost and what they will cost.
DIVISIONS: dict[str, Callable[[np.ndarray, np.ndarray, int], Shares]] = {
    "even": lambda expected, known, ranks: divide_evenly(len(expected), ranks),
    "by expected cost": lambda expected, known, ranks: divide_by_cost(expected.tolist(), ranks),
    "by known cost": lambda expected, known, ranks: divide_by_cost(known.tolist(), ranks),
}


def owners_of(shares: Shares, count: int) -> np.ndarray:
    """The process of each context of a batch."""
    owners = np.empty(count, dtype=np.int64)
    for rank, share in enumerate(shares):
        owners[np.asarray(share, dtype=np.int64)] = rank
    return owners


def simulate(
    counts: Counts, ranks: int, per_rank: int, batches: int, division: str = "even", prices: Prices = PASSES
) -> Load:
    """Divide random batches of ``ranks · per_rank`` contexts."""
    generator = np.random.default_rng([SEED, ranks, per_rank])  # the same batches for each division
    size, mean, most = ranks * per_rank, 0.0, 0.0
    for _ in range(batches):
        visits = generator.integers(len(counts.table), size=size)
        known = counts.seconds(visits, np.arange(size), size, prices)
        shares = DIVISIONS[division](counts.expected[visits], known, ranks)
        seconds = counts.seconds(visits, owners_of(shares, size), ranks, prices)
        mean, most = mean + float(seconds.mean()) / batches, most + float(seconds.max()) / batches
    return Load(mean, most)
