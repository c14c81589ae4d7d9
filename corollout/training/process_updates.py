"""What each process knows of an update besides its gradient, and what that is of all of them together."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from corollout.processes import Processes
from corollout.training.agreement import require_same
from corollout.training.update_totals import UpdateTotals


class WholeUpdate(NamedTuple):
    """An update of all processes."""

    totals: UpdateTotals
    log_likelihood: float
    costs: list[tuple[int, float]]
    seconds: float  # of the process that took longest
    peak_memory: float  # of the process with most
    waiting: float  # mean share of the time that processes waited for others
    waiting_by_process: list[float]  # in order of ranks; empty if there is only one


@dataclass(frozen=True)
class ProcessUpdate:
    """A process's part of an update."""

    totals: UpdateTotals
    log_likelihood: float  # of the targets, if they are imitated
    costs: list[tuple[int, float]] = field(repr=False)  # of examples, if they are to be remembered
    seconds: float
    waited: float  # seconds
    peak_memory: float

    def of_all(self, processes: Processes, norms: list[float], update: int) -> WholeUpdate:
        """The update of all processes, the same in each; ``norms`` are numbers in which they must agree."""
        if processes.size == 1:
            return WholeUpdate(self.totals, self.log_likelihood, self.costs, self.seconds, self.peak_memory, 0.0, [])
        numbers = [self.log_likelihood, self.seconds, self.waited, self.peak_memory]
        records = processes.gather_values(
            {"totals": self.totals.record(), "numbers": numbers, "costs": self.costs, "norms": norms}
        )
        require_same((record["norms"] for record in records), update)
        log_likelihood, seconds, waited, peak_memory = zip(*(record["numbers"] for record in records), strict=True)
        longest = max(seconds)
        shares = [round(part / max(longest, 1e-9), 4) for part in waited]
        return WholeUpdate(
            UpdateTotals.of_all([record["totals"] for record in records]),
            math.fsum(log_likelihood),
            [(example, cost) for record in records for example, cost in record["costs"]],
            longest,
            max(peak_memory),
            sum(shares) / len(shares),
            shares,
        )
