"""Reward functions of text, with TRL's signature: ``f(prompts, completions, completion_ids, COLUMNS…, **kwargs)``."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corollout.arguments import require_callable
from corollout.errors import InputError
from corollout.hf.stop_strings import StopStrings
from corollout.hf.text import Text
from corollout.rewards import Reward, WeightedRewards
from corollout.rollouts import Engine

RewardFunction = Callable[..., Any]  # a list of numbers, None where the reward does not apply


class TextReward:
    """Calls a function of text where one of tokens is expected (:class:`corollout.Reward`).

    ``row`` are the rows of the data set. ``options`` are passed to every call besides, if the function takes them.
    """

    def __init__(
        self, function: RewardFunction, text: Text, end: int, options: Mapping[str, Any], stops: StopStrings | None
    ):
        self.function, self.text, self.end, self.stops = function, text, end, stops
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._names = {parameter.name for parameter in parameters}
        self._options = {name: value for name, value in options.items() if self._takes_all or name in self._names}

    def __call__(
        self, sequences: Sequence[Sequence[int]], finished: Sequence[bool], row: Sequence[Mapping[str, Any]]
    ) -> Any:
        prompts = [one["prompt"] for one in row]
        given: dict[str, Any] = {
            "prompts": prompts,
            "completions": self.text.completions(sequences, prompts),
            "completion_ids": [
                [*tokens, self.end] if ends and not self._stops(tokens) else list(tokens)
                for tokens, ends in zip(sequences, finished, strict=True)
            ],
            **{name: [one[name] for one in row] for name in row[0] if name not in ("prompt", "completion")},
            **self._options,
        }
        if not self._takes_all:
            given = {name: value for name, value in given.items() if name in self._names}
        returned = self.function(**given)
        return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned

    def _stops(self, tokens: Sequence[int]) -> bool:
        return self.stops is not None and self.stops.of(list(tokens))


async def _awaited(value: Any) -> Any:
    return await value


def text_rewards(
    functions: RewardFunction | Sequence[RewardFunction],
    text: Text,
    engine: Engine,
    *,
    weights: Sequence[float] | None = None,
    workers: int = 0,
    timeout: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> WeightedRewards:
    """One or several reward functions, ready for the sequences of an engine."""
    stops = engine.stops if isinstance(engine.stops, StopStrings) else None
    several: list[Any] = (
        list(functions) if isinstance(functions, Sequence) and not isinstance(functions, str) else [functions]
    )
    for function in several:
        if isinstance(function, str) or hasattr(function, "config"):
            raise InputError(
                f"a reward must be a function, not the model {getattr(function, 'name_or_path', function)!r}: call the "
                f"model in a function"
            )
        require_callable("a reward", function, "a function of prompts and completions")
    named: dict[str, Reward] = {}
    for function in several:
        name = getattr(function, "__name__", type(function).__name__)
        if name in named:
            raise InputError(f"two of the reward functions are called {name!r}: give them different names")
        adapted = TextReward(function, text, engine.eos, {} if workers else options or {}, stops)
        named[name] = Reward(adapted, workers=workers, timeout=timeout, name=name)
    return WeightedRewards(named, weights)
