"""Warnings about a training that goes wrong, once each, with what to do about it."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from corollout.errors import RewardError

WINDOW = 20  # updates that are looked at together
_COLLAPSED = 0.1  # of the entropy at the start, if that is also below
_NATS = 0.02  # a token
_SPREADS = 5.0  # a reward that is so many standard errors, and
_FALL = 0.1  # such a share, below that of the start has fallen
_PATIENCE = 3  # updates without any reward, from the first on
_MOST = 0.5  # a share of sequences that are cut


@dataclass(frozen=True)
class Seen:
    """What the watchdog looks at in an update."""

    reward: float
    gradient_norm: float
    entropy: float
    cut: float


class Watchdog:
    """Looks at every update, and says what it has not said before."""

    def __init__(self) -> None:
        self._first: list[float] = []  # rewards of the first updates
        self._entropy: float | None = None  # at the start
        self._last: deque[Seen] = deque(maxlen=WINDOW)
        self._said: set[str] = set()

    def look(self, seen: Seen) -> list[str]:
        """The warnings that an update gives rise to."""
        if len(self._first) < WINDOW and not math.isnan(seen.reward):
            self._first.append(seen.reward)
        if self._entropy is None:
            self._entropy = seen.entropy
        self._last.append(seen)
        warnings = self._warnings() if len(self._last) == WINDOW else self._first_warnings(seen)
        new = {name: text for name, text in warnings if name not in self._said}
        self._said |= set(new)
        return list(new.values())

    def require_rewards(self, updates: int, name: str) -> None:
        """Raise an error if no reward was known in the first updates."""
        if updates == _PATIENCE and not self._first:
            raise RewardError(
                f"reward {name!r} returned None for all sequences of the first {_PATIENCE} updates: nothing can be "
                f"learned from it; return a number where a sequence can be judged"
            )

    def _first_warnings(self, seen: Seen) -> Iterator[tuple[str, str]]:
        """What is worth a warning after a single update."""
        if len(self._last) > 1:
            return
        if math.isnan(seen.reward):
            yield "rewards", "all rewards of the first update were None: nothing is learned from it"
        if seen.cut == 1:
            yield (
                "all cut",
                "all sequences of the first update were cut at the maximal length, before their end token: if that is "
                "not what you want, raise max_length, or make sure that eos is the token by which sequences end",
            )

    def _warnings(self) -> Iterator[tuple[str, str]]:
        last, entropy = list(self._last), self._entropy or 0.0
        if all(seen.gradient_norm == 0 for seen in last):
            yield (
                "gradient",
                f"the gradient has been exactly zero for {WINDOW} updates, because all rewards that are compared are "
                f"equal: nothing is learned. Draw more samples of each context, begin with easier examples, or use a "
                f"reward that also grades what is partly right",
            )
        now = _mean([seen.entropy for seen in last])
        if now < _NATS and now < _COLLAPSED * entropy:
            yield (
                "entropy",
                f"the entropy has collapsed from {entropy:.3g} to {now:.2g} nats a token: the policy hardly explores "
                f"any more. Try an entropy bonus (entropy=0.01), a penalty on the divergence from the start (kl=0.05) "
                f"or a smaller learning rate",
            )
        rewards = [seen.reward for seen in last if not math.isnan(seen.reward)]
        if len(self._first) == WINDOW and len(rewards) > 1:
            start, end = _mean(self._first), _mean(rewards)
            fall = start - end
            if fall > _FALL * abs(start) and fall > _SPREADS * _error_of_difference(self._first, rewards):
                yield (
                    "reward",
                    f"the reward has fallen from {start:.3g} in the first {WINDOW} updates to {end:.3g}. Try a smaller "
                    f"learning rate, larger batches, an estimator with less variance, or a penalty on the divergence "
                    f"from the start (kl=0.05)",
                )
        cut = _mean([seen.cut for seen in last])
        if cut > _MOST:
            yield (
                "cut",
                f"{cut:.0%} of the sequences were cut at the maximal length, before their end token: raise max_length, "
                f"or make sure that the policy learns to end",
            )

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        last = [[seen.reward, seen.gradient_norm, seen.entropy, seen.cut] for seen in self._last]
        return {"first": self._first, "entropy": self._entropy, "last": last, "said": sorted(self._said)}

    def load(self, state: dict[str, Any]) -> None:
        self._first, self._entropy = list(state["first"]), state["entropy"]
        self._last = deque((Seen(*numbers) for numbers in state["last"]), maxlen=WINDOW)
        self._said = set(state["said"])


def _mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _error_of_difference(first: list[float], last: list[float]) -> float:
    """Of the means of two windows, the standard error of their difference."""
    return math.sqrt((_variance(first) + _variance(last)) / WINDOW)


def _variance(numbers: list[float]) -> float:
    mean = _mean(numbers)
    return math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
