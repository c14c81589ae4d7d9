"""What is logged of a batch: TRL's metrics by their names, and ours, of all processes together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from corollout.data import Batch
from corollout.rewards import Scores
from corollout.training.estimates import Estimate
from corollout.training.metrics import RewardNumbers
from corollout.training.update_totals import UpdateTotals
from corollout.types import Trajectories


@dataclass(frozen=True)
class BatchNumbers:
    """Numbers of this process's part of a batch of training, from which metrics of the whole batch are made."""

    totals: dict[str, Any]
    spreads: list[float]  # of each prompt's rewards, if it has several
    lengths: list[int]
    prompt_tokens: int

    @classmethod
    def of(cls, sample: Estimate, batch: Batch) -> "BatchNumbers":
        totals = UpdateTotals()
        totals.add(sample)
        prompt_tokens = 0 if batch.is_stand_in else int((batch.context >= 0).sum())
        return cls(totals.record(), _spreads(sample), sample.trajectories.lengths.tolist(), prompt_tokens)

    def record(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True)
class BatchMetrics:
    """Metrics of a whole batch, and how many tokens it has read and generated."""

    values: dict[str, float]
    tokens: int  # of prompts and completions
    generated: int  # branches included, and no shared prefix twice

    @classmethod
    def of_all(cls, records: Sequence[dict[str, Any]]) -> "BatchMetrics":
        """Those of the parts of a batch, in order of ranks."""
        parts = [BatchNumbers(**record) for record in records]
        totals = UpdateTotals.of_all([part.totals for part in parts])
        lengths = [length for part in parts for length in part.lengths]
        spreads = [spread for part in parts for spread in part.spreads]
        cost = totals.cost
        values = {
            "reward": totals.rewards.mean,
            "reward_std": _mean(spreads),
            "frac_reward_zero_std": totals.equal_rewards,
            "completions/mean_length": _mean(lengths),
            "completions/min_length": float(min(lengths)),
            "completions/max_length": float(max(lengths)),
            "completions/clipped_ratio": totals.cut,
            "entropy": totals.entropy,
            "rollouts": float(cost.rollouts),
            "tokens_generated": float(cost.tokens),
            "tokens_scored": float(cost.scored_tokens),
            "tokens_saved": float(cost.saved_tokens),
            "reward_calls": float(cost.reward_calls),
        }
        if totals.divergence is not None:
            values["kl"] = totals.divergence
        for name, rewards in _by_name([part.totals["parts"] for part in parts]).items():
            numbers = RewardNumbers.of(rewards)
            values |= {f"rewards/{name}/mean": numbers.mean, f"rewards/{name}/std": numbers.std}
        return cls(values, sum(part.prompt_tokens for part in parts) + sum(lengths), cost.tokens)


def evaluation_record(trajectories: Trajectories, scores: Scores) -> dict[str, Any]:
    """Numbers of this process's part of a batch of evaluation."""
    return {
        "reward": scores.values.tolist(),
        "parts": {name: values.tolist() for name, values in scores.parts.items()},
        "lengths": trajectories.lengths.tolist(),
        "finished": trajectories.finished.tolist(),
    }


def evaluation_metrics(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The metrics of a batch of evaluation, from the numbers of its parts."""
    parts = _by_name([record["parts"] for record in records])
    finished = [done for record in records for done in record["finished"]]
    return {
        "reward": RewardNumbers.of([value for record in records for value in record["reward"]]).mean,
        **{f"rewards/{name}/mean": RewardNumbers.of(values).mean for name, values in parts.items()},
        "completions/mean_length": _mean([length for record in records for length in record["lengths"]]),
        "completions/clipped_ratio": 1 - sum(finished) / len(finished),
    }


def _spreads(sample: Estimate) -> list[float]:
    """The standard deviation of the completions' rewards of each prompt that has several."""
    rewards = sample.own_rewards[: len(sample.trajectories.tokens)]
    groups = (rewards[sample.trajectories.contexts == number] for number in range(sample.contexts))
    known = (group[~group.isnan()] for group in groups)
    return [float(torch.std(group)) for group in known if len(group) > 1]


def _by_name(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Each of several rewards, in all parts of a batch."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [value for part in parts for value in part.get(name, ())] for name in names}


def _mean(numbers: Sequence[int | float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
