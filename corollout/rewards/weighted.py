"""Several rewards as one: their weighted sum, and what each of them says."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from corollout.arguments import is_number, require_instance
from corollout.errors import InputError
from corollout.rewards.function import Reward, RewardFunction, Scores
from corollout.text import quoted


class WeightedRewards:
    """The weighted sum of several rewards, each a function or a :class:`Reward`: Σ weight · reward.

    A reward that returns None for a sequence does not apply to it and is left out of its sum; a sequence to which none
    applies is skipped. Each scores distinct sequences once, with its own cache and its own worker processes. In metrics
    they have the names of a mapping, or those of the functions.

    Args:
        rewards: a sequence of rewards, or a mapping from names to rewards.
        weights: a number for each of them, in the same order; all 1 by default. A reward of weight 0 is only measured.
    """

    def __init__(
        self,
        rewards: Sequence[Reward | RewardFunction] | Mapping[str, Reward | RewardFunction],
        weights: Sequence[float | int] | None = None,
    ) -> None:
        if isinstance(rewards, Mapping):
            named = {name: _ready(reward, name) for name, reward in rewards.items()}
        else:
            ready = [_ready(reward) for reward in rewards]
            named = {reward.name: reward for reward in ready}
            if len(named) < len(ready):
                names = [reward.name for reward in ready]
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(
                    f"two of the rewards are called {twice!r}: give them different names, as in "
                    f"{{'short': f, 'correct': g}}"
                )
        if not named:
            raise InputError("the list of rewards is empty: give one reward or more")
        weights = [1.0] * len(named) if weights is None else list(weights)
        if len(weights) != len(named):
            raise InputError(
                f"there are {len(weights)} reward weights for {len(named)} rewards ({', '.join(named)}): give one for "
                f"each"
            )
        for name, weight in zip(named, weights, strict=True):
            if not (is_number(weight) and math.isfinite(weight)):
                raise InputError(f"the weight of reward {name!r} must be a finite number, not {quoted(weight)}")
        self.rewards: dict[str, Reward] = named
        self.weights: dict[str, float] = dict(zip(named, map(float, weights), strict=True))
        self.name = " + ".join(f"{weight:g} {name}" for name, weight in self.weights.items())

    def __call__(
        self,
        sequences: list[list[int]],
        examples: Sequence[int],
        columns: Mapping[str, Sequence[Any]],
        finished: Sequence[bool] | None = None,
    ) -> Scores:
        """Score sequences by all rewards; the arguments are those of :class:`Reward`.

        ``calls`` counts the sequences on which each function was evaluated, added up.
        """
        scores = {name: reward(sequences, examples, columns, finished) for name, reward in self.rewards.items()}
        parts = {name: score.values for name, score in scores.items()}
        total = sum(
            (self.weights[name] * values.nan_to_num(0.0) for name, values in parts.items()),
            torch.zeros(len(sequences), dtype=torch.float64),
        )
        applies = torch.stack([~values.isnan() for values in parts.values()]).any(0)
        calls = sum(score.calls for score in scores.values())
        return Scores(torch.where(applies, total, torch.nan), calls, parts)

    def close(self) -> None:
        """End the worker processes of all rewards."""
        for reward in self.rewards.values():
            reward.close()

    def __enter__(self) -> "WeightedRewards":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Whatever can be rewarded with: one reward, or several.
AnyReward = (
    Reward
    | WeightedRewards
    | RewardFunction
    | Sequence[Reward | RewardFunction]
    | Mapping[str, Reward | RewardFunction]
)


def as_reward(reward: AnyReward, weights: Sequence[float | int] | None = None) -> Reward | WeightedRewards:
    """A reward ready for use; ``weights`` are for several of them."""
    if weights is not None:
        require_instance("reward_weights", weights, (list, tuple), "a list of numbers")
    if isinstance(reward, Mapping | Sequence):
        return WeightedRewards(reward, weights)
    if weights is not None:
        raise InputError("reward_weights are for several rewards: give a list of rewards, or leave the weights out")
    return reward if isinstance(reward, Reward | WeightedRewards) else Reward(reward)


def _ready(reward: Reward | RewardFunction, name: str | None = None) -> Reward:
    if isinstance(reward, Reward):
        return reward
    if not callable(reward):
        raise InputError(f"a reward must be a function or a Reward, not {quoted(reward)}")
    return Reward(reward, name=name)
