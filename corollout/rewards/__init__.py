"""Rewards: functions of generated sequences, made ready for use; several of them weighted."""

from corollout.rewards.function import Reward, RewardFunction, Scores
from corollout.rewards.weighted import AnyReward, WeightedRewards, as_reward

__all__ = ["AnyReward", "Reward", "RewardFunction", "Scores", "WeightedRewards", "as_reward"]
