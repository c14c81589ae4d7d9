"""What is recorded of an update of fine-tuning."""

import math
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.types import Branches, Trajectories

# Metrics that differ from run to run, also where everything else is the same to the bit.
TIMED = frozenset(["seconds", "tokens_per_second", "peak_memory", "waiting", "waiting_by_process"])


@dataclass(frozen=True)
class Metrics:
    """What is recorded of an update."""

    update: int
    epoch: int
    reward: float  # mean over the main trajectories
    reward_std: float
    reward_min: float
    reward_max: float
    rewards: dict[str, float]  # the mean of each of several rewards by name, before it is weighted
    equal_rewards: float  # share of the contexts with several sequences, branches included, that all got one reward
    gradient_norm: float  # before clipping
    learning_rate: float  # the largest of the optimizer's groups
    clipped: float  # 1 if the gradient was clipped, else 0
    gradient_variance: float  # exponential average, see RunningVariance
    rollouts_per_step: float  # branches, greedy baselines included, per token of the main trajectories
    rollouts_by_step: list[float]  # the same at each step: mean over the main trajectories that reach it
    rollouts_by_depth: list[float]  # the same at each depth of a tree: mean over the tokens that have a decision there
    mean_length: float
    cut: float  # share of the main trajectories that were cut at the maximal length
    entropy: float  # of the policy, in nats a token, estimated by the main trajectories
    mle_loss: float | None  # minus the mean log-likelihood of the targets, in nats a sequence; None without imitation
    kl: float | None  # from the reference, in nats a sequence, estimated by the main trajectories; None without one
    tokens: int  # generated so far; a prefix that sequences share counts once
    scored_tokens: int  # computed with gradient so far
    saved_tokens: int  # so far: what sharing prefixes, and gradients of zero, made unnecessary
    reward_calls: int  # so far
    seconds: float  # so far, updates only
    tokens_per_second: float  # of this update
    peak_memory: float  # of the process so far, in MB; on a GPU, of the tensors there; of several, that with most
    waiting: float  # share of this update's seconds that processes waited for others, their mean; 0 for one process
    waiting_by_process: list[float]  # the same of each of several, in order of ranks


class RewardNumbers(NamedTuple):
    """The rewards of some sequences in a few numbers; NaN if none is known."""

    mean: float
    std: float
    least: float
    largest: float

    @classmethod
    def of(cls, rewards: list[float]) -> "RewardNumbers":
        known = [reward for reward in rewards if not math.isnan(reward)]
        if not known:
            return cls(math.nan, math.nan, math.nan, math.nan)
        mean = math.fsum(known) / len(known)
        variance = math.fsum((reward - mean) ** 2 for reward in known) / len(known)
        return cls(mean, math.sqrt(variance), min(known), max(known))


def count_equal(rewards: Float[Tensor, " source"], contexts: Int64[Tensor, " source"], count: int) -> tuple[int, int]:
    """How many contexts have several rewards that are all equal, and how many have several; each has one at least."""
    if len(rewards) == count:
        return 0, 0
    values, owners = rewards.cpu().numpy(), contexts.cpu().numpy()
    known = ~np.isnan(values)
    values, owners = values[known], owners[known]
    several = np.bincount(owners, minlength=count) > 1
    if not several.any():
        return 0, 0
    example = np.empty(count, values.dtype)
    example[owners] = values  # one of each context's rewards
    unequal = np.bincount(owners, values != example[owners], minlength=count)
    return int((several & (unequal == 0)).sum()), int(several.sum())


def peak_memory(device: torch.device | str) -> float:
    """The most memory that was in use so far, in MB."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


# How many branches depart at each step or depth, and from how many places they could.
Departures = Int64[np.ndarray, "2 _"]


def departures_by_step(lengths: Int64[Tensor, " row"], departing: Int64[Tensor, " branch"], steps: int) -> Departures:
    """Branches that depart at each step, and main trajectories that reach it, given their lengths."""
    reaching = len(lengths) - np.bincount(lengths.cpu().numpy(), minlength=steps).cumsum()[:steps]
    return np.stack([np.bincount(departing.cpu().numpy(), minlength=steps)[:steps], reaching])


def departures_by_depth(trajectories: Trajectories, branches: Branches) -> Departures:
    """Branches that leave a token's path at each depth of a tree, and tokens that decide there."""
    decisions = trajectories.decisions
    assert decisions is not None
    cell = (branches.parent, branches.step)
    departing = ((decisions.other[cell] == branches.token[:, None]) & decisions.valid[cell]).sum(0)
    reaching = (decisions.valid & trajectories.mask[:, :, None]).sum((0, 1))
    return torch.stack([departing, reaching]).cpu().numpy()


def departure_rates(counts: Sequence[Departures]) -> list[float]:
    """Branches per place at each step or depth, over several estimates."""
    if not counts:
        return []
    total = np.zeros((2, max(part.shape[1] for part in counts)), np.int64)
    for part in counts:
        total[:, : part.shape[1]] += part
    return [round(rate, 4) for rate in (total[0] / total[1].clip(min=1)).tolist()]
