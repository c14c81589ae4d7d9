"""Samples of a language model that never was."""

from typing import Any

from corollout.training.samples import Message, SampledBranch, SampledContext, SampledSequence, Samples

EVIL = "</script><img src=x onerror=alert(1)>\"'&[/red]\u202e\udcff\x07\r\n"


def make_sequence(token: str = "Crimson", **change: Any) -> SampledSequence:
    """ "Red sky", with branches at the first token."""
    branches = [
        SampledBranch(0, "Blue", "pseudo-action", " sea <end>", 1.0, 0.1, 0.01),
        SampledBranch(0, token, "pseudo-action", f" sky{token if token != 'Crimson' else ''}", 0.0, 0.4, 0.29),
    ]
    parts: dict[str, Any] = {
        "tokens": [7, 8, 2], "pieces": ["Red", " sky", "<end>"], "reward": 1.0, "log_probability": -2.0,
        "finished": True, "advantage": 0.5, "credit": [0.3, -0.1, 0.0], "probability": [0.5, 0.25, 1.0],
        "branches": branches, "branch_count": 2, "entropy": [1.25, 0.5, 0.0],
        "rewards": {"correct": 1.0, "short": -0.25},
    }  # fmt: skip
    return SampledSequence(**{**parts, **change})


def make_context(content: str = "Name a colour.", role: str = "user", **change: Any) -> SampledContext:
    """A good and a bad completion of a chat."""
    bad = make_sequence(reward=0.0, credit=[-0.2, 0.1, 0.0], branches=[], branch_count=0, advantage=-0.5)
    parts: dict[str, Any] = {
        "example": 5, "columns": {"wanted": "red", "nothing": None}, "sequences": [make_sequence(), bad],
        "prompt": [Message("system", "Be brief."), Message(role, content)], "sequence_count": 2,
    }  # fmt: skip
    return SampledContext(**{**parts, **change})


def make_samples(update: int = 1) -> Samples:
    """A prompt that teaches, and one with equal rewards."""
    same = [make_sequence(reward=0.0, credit=[0.0] * 3, branches=[], branch_count=0, advantage=0.0) for _ in range(2)]
    equal = make_context("Name another one.", sequences=same, equal_rewards=True, teaches=False)
    return Samples(update, "", [make_context(), equal], "RLOO-2", 0.25)
