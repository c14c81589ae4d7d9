"""The rollout engine: sample, branch, search and decode. It knows tokens, not text."""

from corollout.rollouts.engine import Completions, Engine, Mains, Prefixes, score_tolerance

__all__ = ["Completions", "Engine", "Mains", "Prefixes", "score_tolerance"]
