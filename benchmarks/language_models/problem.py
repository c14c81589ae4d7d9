"""What a run needs of a problem: prompts, and scores of what is written for them. The runs know nothing else of it."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Score(Protocol):
    """Some numbers, of which ``reward`` is optimised and the others are reported."""

    @property
    def reward(self) -> float: ...


class Scorer(Protocol):
    """Scores texts for some examples, each of which has a prompt."""

    measures: tuple[str, ...]  # the names of a score's numbers

    @property
    def prompts(self) -> Sequence[str]: ...
    def scores(self, texts: Sequence[str], indices: Sequence[int]) -> Sequence[Score]:
        """The score of each text for the example with that index."""
        ...


class RewardCounter:
    """How often a reward was asked for, how many completion tokens it was given, and the rewards of late."""

    def __init__(self) -> None:
        self.calls = self.tokens = 0
        self._sum, self._count = 0.0, 0

    def add(self, rewards: Sequence[float], completion_ids: Sequence[Sequence[int]]) -> None:
        self.calls += len(rewards)
        self.tokens += sum(map(len, completion_ids))
        self._sum, self._count = self._sum + sum(rewards), self._count + len(rewards)

    def take_mean(self) -> float | None:
        """The mean reward since it was last asked for."""
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


def reward_function(scorer: Scorer, counter: RewardCounter) -> Callable[..., list[float]]:
    """A reward with the signature that trainers of language models call; the data have a column ``example``."""

    def scored(completions: list[str], completion_ids: list[list[int]], example: list[int], **_: object) -> list[float]:
        rewards = [score.reward for score in scorer.scores(completions, example)]
        counter.add(rewards, completion_ids)
        return rewards

    return scored
