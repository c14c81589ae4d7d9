"""Rewards: any function of generated sequences and data set columns, scored once per distinct sequence."""

from corollout.rewards.function import Reward, RewardFunction, Scores

__all__ = ["Reward", "RewardFunction", "Scores"]
