"""Reward functions for the tests with worker processes, which have to import them."""

import os
import time
from collections.abc import Sequence
from enum import IntEnum


class Do(IntEnum):
    """Tokens that tell `obey` what to do."""

    SLEEP = 1000
    HANG = 1001
    EXIT = 1002
    RAISE = 1003
    QUIT = 1004
    NAN = 1005


def obey(sequences: list[list[int]]) -> list[float | None]:
    """Do what the tokens say, one after the other; those that say nothing are added to the reward."""
    return [sum(_obey(token) for token in tokens) for tokens in sequences]


def _obey(command: int) -> float:
    match command:
        case Do.SLEEP:
            time.sleep(0.4)
            return 0.4
        case Do.HANG:
            print("hanging", flush=True)
            time.sleep(600)
        case Do.EXIT:
            os._exit(3)
        case Do.RAISE:
            raise LookupError("no such thing")
        case Do.QUIT:
            raise SystemExit("enough")
        case Do.NAN:
            return float("nan")
    return float(command)


def mixed(sequences: list[list[int]], weight: Sequence[float], finished: list[bool]) -> list[float | None]:
    """Looks at a column and at `finished`, is not a round number, and skips empty sequences."""
    return [
        sum(tokens) * w / 3 - (0 if done else 1) if tokens else None
        for tokens, w, done in zip(sequences, weight, finished, strict=True)
    ]


class SlowToLoad:
    """The reward `mixed`, but it takes a second to unpickle."""

    def __call__(self, sequences: list[list[int]], weight: list[float], finished: list[bool]) -> list[float | None]:
        return mixed(sequences, weight, finished)

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return _load_slowly, ()


def _load_slowly() -> SlowToLoad:
    time.sleep(1)
    return SlowToLoad()


class DiesWhenLoaded:
    """A reward that ends any process that unpickles it."""

    def __call__(self, sequences: list[list[int]]) -> list[float | None]:
        return [0.0 for _ in sequences]

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (4,)
