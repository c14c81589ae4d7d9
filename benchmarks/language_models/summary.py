"""Curves and final rewards of methods over seeds, and how soon a method reaches a reward."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from benchmarks.language_models.evaluation import DECODINGS
from benchmarks.language_models.runs import evaluations

Cost = Literal["seconds", "tokens", "reward_calls"]
COSTS: tuple[Cost, ...] = ("seconds", "tokens", "reward_calls")
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half width of its 95 % interval (Student's t); None with a single seed."""

    mean: float
    half_width: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        if len(values) < 2:
            return cls(float(np.mean(values)), None)
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(float(np.mean(values)), error * float(student.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)))

    def text(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half_width is None else f" ± {self.half_width:.3f}")


@dataclass(frozen=True)
class MethodSummary:
    """The runs of a method, one for each seed, cut to the number of evaluations that all have."""

    method: str
    runs: list[list[dict[str, Any]]]

    @classmethod
    def read(cls, method: str, files: Sequence[Path]) -> "MethodSummary":
        runs = [evaluations(file) for file in files]
        shortest = min(map(len, runs))
        return cls(method, [run[:shortest] for run in runs])

    def costs(self, cost: Cost) -> list[float]:
        """At each evaluation, the mean over seeds."""
        return np.mean([[one[cost] for one in run] for run in self.runs], 0).tolist()

    def rewards(self, decoding: str, entry: str = "reward") -> list[Estimate]:
        """At each evaluation."""
        return [Estimate.of([one[decoding][entry] for one in column]) for column in zip(*self.runs, strict=True)]

    def final(self, decoding: str, entry: str = "reward") -> Estimate:
        return self.rewards(decoding, entry)[-1]

    def cost_to_reach(self, reward: float, decoding: str, cost: Cost) -> float | None:
        """Where the mean curve first is at a reward, between evaluations by interpolation; None if it never is."""
        means, costs = [one.mean for one in self.rewards(decoding)], self.costs(cost)
        for i, mean in enumerate(means):
            if mean >= reward:
                if i == 0:
                    return costs[0]
                share = (reward - means[i - 1]) / (mean - means[i - 1])
                return costs[i - 1] + share * (costs[i] - costs[i - 1])
        return None

    def numbers(self) -> dict[str, Any]:
        """Everything of it, for JSON."""
        curves = {
            decoding: {
                "mean": [one.mean for one in self.rewards(decoding)],
                "half_width": [one.half_width for one in self.rewards(decoding)],
            }
            for decoding in DECODINGS
        }
        return {"runs": self.runs, "costs": {cost: self.costs(cost) for cost in COSTS}, "rewards": curves}


def bar_of_trl(summaries: Mapping[str, MethodSummary], trl: Sequence[str], decoding: str) -> float | None:
    """The highest final reward of TRL's methods: what ours should reach in half of the seconds."""
    finals = [summaries[method].final(decoding).mean for method in trl if method in summaries]
    return max(finals, default=None)
