"""What is logged of an update: TRL's metrics by their names, and ours."""

import math

import torch

from corollout.training.estimates import Estimate
from corollout.training.metrics import RewardNumbers
from corollout.training.update_totals import UpdateTotals


def update_metrics(sample: Estimate) -> dict[str, float]:
    """The metrics of one estimate."""
    totals = UpdateTotals()
    totals.add(sample)
    lengths = sample.trajectories.lengths.double()
    metrics = {
        "reward": totals.rewards.mean,
        "reward_std": _spread_in_groups(sample),
        "frac_reward_zero_std": totals.equal_rewards,
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": totals.cut,
        "entropy": totals.entropy,
        "rollouts": float(sample.cost.rollouts),
        "tokens_generated": float(sample.cost.tokens),
        "tokens_scored": float(sample.cost.scored_tokens),
        "tokens_saved": float(sample.cost.saved_tokens),
        "reward_calls": float(sample.cost.reward_calls),
    }
    if totals.divergence is not None:
        metrics["kl"] = totals.divergence
    rows = len(sample.trajectories.tokens)
    for name, values in sample.reward_parts.items():
        numbers = RewardNumbers.of(values[:rows].tolist())
        metrics |= {f"rewards/{name}/mean": numbers.mean, f"rewards/{name}/std": numbers.std}
    return metrics


def _spread_in_groups(sample: Estimate) -> float:
    """The mean over prompts of their completions' standard deviation; NaN if each has only one."""
    rewards = sample.own_rewards[: len(sample.trajectories.tokens)]
    spreads = []
    for number in range(sample.contexts):
        group = rewards[sample.trajectories.contexts == number]
        group = group[~group.isnan()]
        if len(group) > 1:
            spreads.append(float(torch.std(group)))
    return math.fsum(spreads) / len(spreads) if spreads else math.nan
