"""Samples of a training: sequences of an update with their rewards, the credit of every token, and the branches.

A trainer makes one :class:`Samples` every so many updates; a run keeps them in ``samples.jsonl``.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corollout.data import Batch, plain_entry
from corollout.errors import InputError
from corollout.text import quoted, shortened
from corollout.training.credit import MainSequence, take_apart
from corollout.training.estimates import Estimate

# How token ids become text: a function of a list of them, or the name of each token in the order of ids.
Decode = Callable[[list[int]], str] | Sequence[str]

CONTEXTS = 4  # of a batch
SEQUENCES = 8  # of a context
BRANCHES = 40  # of a sequence: those whose rewards differ most from its own
_TEXT = 600  # characters of an example's column
_END = "<end>"


@dataclass(frozen=True)
class SampledBranch:
    """A departure from a sequence: at which step, with which token, and how it was completed."""

    step: int
    token: str
    kind: str  # "pseudo-action", "greedy" or "completion"
    continuation: str
    reward: float | None  # None if it was skipped


@dataclass(frozen=True)
class SampledSequence:
    """A sequence of the update. ``credit`` says how much the estimate raises the log-probability of each token."""

    tokens: list[int]
    pieces: list[str]  # the text of each token
    reward: float | None
    log_probability: float
    finished: bool  # ends with the end token, not at the maximal length
    advantage: float | None  # if it is the same for all tokens
    credit: list[float]
    probability: list[float]
    branches: list[SampledBranch] = field(default_factory=list)
    branch_count: int = 0  # including those that are not kept


@dataclass(frozen=True)
class SampledContext:
    """An example and the first of its sequences."""

    example: int
    columns: dict[str, Any]
    sequences: list[SampledSequence]


@dataclass(frozen=True)
class Samples:
    """What was kept of an update."""

    update: int
    separator: str  # between pieces: they are names of tokens, or parts of a text
    contexts: list[SampledContext]


class Renderer:
    """Token ids as text, by what the user has given."""

    def __init__(self, decode: Decode | None, ends: tuple[int, ...]):
        if isinstance(decode, str) or not (decode is None or callable(decode) or isinstance(decode, Sequence)):
            raise InputError(
                f"decode must be a function of token ids, or the names of all tokens, not {quoted(decode)}"
            )
        self._decode, self.ends = decode, ends
        self.separator = "" if callable(decode) else " "

    def pieces(self, ids: list[int], finished: bool = False) -> list[str]:
        """The text of each token; joined by the separator, they are the text of the sequence.

        Where a decoder joins tokens, a piece is what its token adds to the text of those before it.
        """
        if not callable(self._decode):
            return [self._name(token) for token in ids]
        inside = ids[:-1] if finished else ids
        pieces, before = [], ""
        for count in range(1, len(inside) + 1):
            text = self._text(inside[:count])
            pieces.append(
                text.removeprefix(before) if text.startswith(before) else self._text(inside[count - 1 : count])
            )
            before = text
        return [*pieces, _END] if finished else pieces

    def text(self, ids: list[int], finished: bool = False) -> str:
        """The text of a part of a sequence, which ends with the end token if it is ``finished``."""
        if not callable(self._decode):
            return " ".join(map(self._name, ids))
        inside = ids[:-1] if finished else ids
        return " ".join(filter(None, [self._text(inside) if inside else "", _END if finished else ""]))

    def _name(self, token: int) -> str:
        if self._decode is None:
            return _END if token in self.ends else str(token)
        assert not callable(self._decode)
        if token >= len(self._decode):
            raise InputError(f"decode has names of {len(self._decode)} tokens, but the policy has drawn token {token}")
        return str(self._decode[token])

    def _text(self, ids: list[int]) -> str:
        assert callable(self._decode)
        try:
            text = self._decode(ids)
        except Exception as error:  # it is the user's, and may raise anything
            raise InputError(f"decode raised {type(error).__name__} for the tokens {quoted(ids)}: {error}") from error
        if not isinstance(text, str):
            raise InputError(f"decode must return a string, not {quoted(text)} for the tokens {quoted(ids)}")
        return text


def take_samples(sample: Estimate, batch: Batch, update: int, renderer: Renderer) -> Samples:
    """The sequences of the first contexts of an update's estimate, before its weights have changed."""
    mains = take_apart(sample, min(CONTEXTS, len(batch)))
    contexts = []
    for context in range(min(CONTEXTS, len(batch))):
        own = [main for main in mains if main.context == context][:SEQUENCES]
        columns = {name: _short(plain_entry(column[context])) for name, column in batch.columns.items()}
        sequences = [_sequence(main, renderer) for main in own]
        contexts.append(SampledContext(int(batch.examples[context]), columns, sequences))
    return Samples(update, renderer.separator, contexts)


def _sequence(main: MainSequence, renderer: Renderer) -> SampledSequence:
    departing = [(step, branch) for step, at in enumerate(main.steps) for branch in at.branches]
    gaps = [abs(branch.reward - main.reward) for _, branch in departing]
    order = sorted(range(len(gaps)), key=lambda index: 0.0 if math.isnan(gaps[index]) else -gaps[index])
    kept = [departing[index] for index in sorted(order[:BRANCHES])]
    branches = []
    for step, branch in kept:
        rest = branch.sequence[step + 1 :]
        # A branch ends as its sequence does, or at the maximal length.
        ended = branch.sequence[-1] in renderer.ends
        continuation = renderer.text(rest, ended and bool(rest))
        token = renderer.pieces([branch.token], ended and not rest)[0]
        branches.append(SampledBranch(step, token, branch.kind, continuation, _number(branch.reward)))
    return SampledSequence(
        tokens=main.sequence,
        pieces=renderer.pieces(main.sequence, main.finished and main.sequence[-1] in renderer.ends),
        reward=_number(main.reward),
        log_probability=_rounded(main.log_probability),
        finished=main.finished,
        advantage=None if main.advantage is None else _rounded(main.advantage),
        credit=[_rounded(step.credit) for step in main.steps],
        probability=[_rounded(step.probability) for step in main.steps],
        branches=branches,
        branch_count=len(departing),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _number(value: float) -> float | None:
    return None if math.isnan(value) else _rounded(value)


def _short(value: Any) -> Any:
    """A value that JSON can hold, and not too long to be kept with every record."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        value = str(value)
    if isinstance(value, list) and len(value) > 64:
        return shortened(str(value), _TEXT)
    return shortened(value, _TEXT) if isinstance(value, str) else value
