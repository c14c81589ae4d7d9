"""What the estimates of one update add up to: there is one for each batch that the update accumulates, and process."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corollout.training.estimates import Estimate
from corollout.training.metrics import (
    Departures,
    RewardNumbers,
    count_equal,
    departure_rates,
    departures_by_depth,
    departures_by_step,
)
from corollout.types import Cost


class UpdateTotals:
    """Sums over all estimates of an update; its properties are those of one estimate for all contexts together."""

    def __init__(self) -> None:
        self.cost = Cost()
        self.trajectories = 0
        self._rewards: list[float] = []  # of main trajectories
        self._parts: dict[str, list[float]] = {}
        self._equal = self._several = 0  # contexts
        self._finished, self._log_prob, self._divergence = 0, 0.0, 0.0
        self._has_divergence = False
        self._steps: list[tuple[Tensor, Tensor]] = []  # lengths of main trajectories, and where branches depart
        self._longest = 0
        self._by_step: list[Departures] = []  # of other processes
        self._by_depth: list[Departures] = []

    def add(self, sample: Estimate) -> None:
        trajectories, rows = sample.trajectories, len(sample.trajectories.tokens)
        # Sampling alone has none, and a plan would make empty tensors to say so.
        branches = sample.plan.branches if sample.cost.rollouts else None
        self.cost += sample.cost
        self.trajectories += rows
        self._rewards += sample.own_rewards.tolist()[:rows]
        for name, values in sample.reward_parts.items():
            self._parts.setdefault(name, []).extend(values[:rows].tolist())
        contexts = trajectories.contexts
        if branches is not None:
            contexts = torch.cat([contexts, contexts[branches.parent]])
        equal, several = count_equal(sample.own_rewards, contexts, sample.contexts)
        self._equal, self._several = self._equal + equal, self._several + several
        # Sums of lists: an operation of PyTorch takes longer than to add up so few numbers.
        self._finished += sum(trajectories.finished.tolist())
        self._log_prob += math.fsum(trajectories.log_probs.tolist())
        if sample.penalty is not None and sample.penalty.divergence is not None:
            self._has_divergence = True
            self._divergence += rows * sample.penalty.divergence
        lengths = trajectories.lengths
        self._steps.append((lengths, lengths.new_zeros(0) if branches is None else branches.step))
        self._longest = max(self._longest, trajectories.tokens.shape[1] if rows else 1)
        if trajectories.decisions is not None:
            self._by_depth.append(departures_by_depth(trajectories, sample.plan.branches))

    def record(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {
            "cost": list(vars(self.cost).values()),
            "counts": [self.trajectories, self._equal, self._several, self._finished],
            "sums": [self._log_prob, self._divergence if self._has_divergence else None],
            "rewards": self._rewards,
            "parts": self._parts,
            "by_step": [part.tolist() for part in self._departures()],
            "longest": self._longest,
            "by_depth": [part.tolist() for part in self._by_depth],
        }

    @classmethod
    def of_all(cls, records: Sequence[dict[str, Any]]) -> "UpdateTotals":
        """The totals of several processes together."""
        totals = cls()
        for record in records:
            totals.cost += Cost(*record["cost"])
            trajectories, equal, several, finished = record["counts"]
            totals.trajectories += trajectories
            totals._equal, totals._several = totals._equal + equal, totals._several + several
            totals._finished += finished
            log_prob, divergence = record["sums"]
            totals._log_prob += log_prob
            totals._divergence += divergence or 0.0
            totals._has_divergence |= divergence is not None
            totals._rewards += record["rewards"]
            for name, values in record["parts"].items():
                totals._parts.setdefault(name, []).extend(values)
            totals._by_step += [np.array(part) for part in record["by_step"]]
            totals._longest = max(totals._longest, record["longest"])
            totals._by_depth += [np.array(part) for part in record["by_depth"]]
        return totals

    def _departures(self) -> list[Departures]:
        """Branches that depart at each step."""
        return [*self._by_step, *(departures_by_step(*steps, self._longest) for steps in self._steps)]

    @property
    def rewards(self) -> RewardNumbers:
        """The rewards of the main trajectories, without penalties."""
        return RewardNumbers.of(self._rewards)

    @property
    def reward_means(self) -> dict[str, float]:
        """The mean of each of several rewards over the main trajectories to which it applies; NaN if there are none."""
        return {name: RewardNumbers.of(values).mean for name, values in self._parts.items()}

    @property
    def equal_rewards(self) -> float:
        """The share of contexts with several sequences, branches included, that all got the same reward."""
        return self._equal / self._several if self._several else math.nan

    @property
    def rollouts_per_step(self) -> float:
        return self.cost.rollouts / max(self.cost.main_tokens, 1)

    @property
    def rollouts_by_step(self) -> list[float]:
        return departure_rates(self._departures()) if self.cost.rollouts else [0.0] * self._longest

    @property
    def rollouts_by_depth(self) -> list[float]:
        return departure_rates(self._by_depth)

    @property
    def mean_length(self) -> float:
        return self.cost.main_tokens / max(self.trajectories, 1)

    @property
    def cut(self) -> float:
        """The share of main trajectories that were cut at the maximal length."""
        return 1 - self._finished / max(self.trajectories, 1)

    @property
    def entropy(self) -> float:
        """In nats a token."""
        return -self._log_prob / max(self.cost.main_tokens, 1)

    @property
    def divergence(self) -> float | None:
        """From the reference, in nats a sequence; None without a reference."""
        return self._divergence / max(self.trajectories, 1) if self._has_divergence else None
