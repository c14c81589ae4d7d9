"""Samples of a training: sequences of an update with their rewards, the credit of every token, and the branches.

A trainer makes one :class:`Samples` every so many updates; a run keeps them in ``samples.jsonl``.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from corollout.data import Batch, plain_entry
from corollout.division import Division
from corollout.errors import InputError
from corollout.text import quoted, shortened
from corollout.training.credit import Branch, MainSequence, main_sequences, moved_rows
from corollout.training.estimates import Estimate
from corollout.training.metrics import RewardNumbers

# How token ids become text: a function of a list of them, or the name of each token in the order of ids.
Decode = Callable[[list[int]], str] | Sequence[str]

CONTEXTS = 4  # of a batch: the first ones
SEQUENCES = 8  # of a context: those whose rewards are farthest from their mean
BRANCHES = 40  # of a sequence: those whose rewards differ most from its own
_TEXT = 600  # characters of an example's column
_PROMPT = 4000  # characters of a message
_CONTINUATION = 1200  # characters
_BEFORE = 8  # tokens that are decoded before one, as it may depend on them how it is written
_END = "<end>"
_PARTIAL = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Message:
    """A part of a prompt: a message of a chat, or the whole prompt, which then has no role."""

    role: str
    content: str


@dataclass(frozen=True)
class SampledBranch:
    """A departure from a sequence: at which step, with which token, and how it was completed.

    The gradient is linear in the rewards of branches. ``weight`` is the norm of this one's coefficients; ``credit`` is
    what it adds to the credit of the token that it departs from, compared with a branch that has the sequence's reward.
    """

    step: int
    token: str
    kind: str  # "pseudo-action", "greedy" or "completion"
    continuation: str
    reward: float | None  # None if it was skipped
    weight: float = 0.0
    credit: float = 0.0


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
    entropy: list[float] = field(default_factory=list)  # of the policy at each token, in nats; empty in a tree
    rewards: dict[str, float | None] = field(default_factory=dict)  # each of several, None where it does not apply


@dataclass(frozen=True)
class SampledContext:
    """An example and some of its sequences."""

    example: int
    columns: dict[str, Any]
    sequences: list[SampledSequence]
    prompt: list[Message] = field(default_factory=list)  # of a language model
    sequence_count: int = 0  # including those that are not kept
    equal_rewards: bool = False  # several sequences, branches included, that all have the same reward
    teaches: bool = True  # whether the gradient for some logits of its sequences is not zero


@dataclass(frozen=True)
class Samples:
    """What was kept of an update."""

    update: int
    separator: str  # between pieces: they are names of tokens, or parts of a text
    contexts: list[SampledContext]
    estimator: str = ""
    reward: float | None = None  # mean over all sequences of the batch, kept or not; None if all were skipped


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

        Where a decoder joins tokens, a piece is what its token adds to the text of those before it: nothing, for the
        first bytes of a character that is spread over several tokens.
        """
        if not callable(self._decode):
            return [self._name(token) for token in ids]
        inside, end = (ids[:-1], [_END]) if finished else (ids, [])
        whole, pieces = self._text(inside), self._near_pieces(inside)
        return [*(pieces if "".join(pieces) == whole else self._exact_pieces(inside, whole)), *end]

    def departure(self, ids: list[int], step: int, finished: bool = False) -> tuple[str, str]:
        """The text of a token of a sequence, and of all that follows it."""
        if not callable(self._decode):
            return self._name(ids[step]), " ".join(map(self._name, ids[step + 1 :]))
        inside, end = (ids[:-1], _END) if finished else (ids, "")
        if step == len(inside):
            return end, ""
        first = max(0, step - _BEFORE)
        whole = self._text(inside[first:])
        before, until = (_shared(self._text(inside[first:stop]), whole) for stop in (step, step + 1))
        return whole[before:until], " ".join(filter(None, [whole[until:], end]))

    def _near_pieces(self, ids: list[int]) -> list[str]:
        """The pieces if the text of a token depends on no tokens but those of the piece before it."""
        pieces, first, start = [], 0, 0
        for stop in range(1, len(ids) + 1):
            text = self._text(ids[first:stop])
            if text.endswith(_PARTIAL) and stop < len(ids):  # a character whose last bytes are in the next token
                pieces.append("")
            else:
                pieces.append(text[len(self._text(ids[first:start])) :])
                first, start = start, stop
        return pieces

    def _exact_pieces(self, ids: list[int], whole: str) -> list[str]:
        """The pieces by decoding every beginning of the sequence: as much of each as stays there in the end."""
        ends = [0]
        for stop in range(1, len(ids)):
            ends.append(max(ends[-1], _shared(self._text(ids[:stop]), whole)))
        return [whole[start:end] for start, end in pairwise([*ends, len(whole)])]

    def _name(self, token: int) -> str:
        if self._decode is None:
            return _END if token in self.ends else str(token)
        assert not callable(self._decode)
        if token >= len(self._decode):
            raise InputError(f"decode has names of {len(self._decode)} tokens, but the policy has drawn token {token}")
        return str(self._decode[token])

    def _text(self, ids: list[int]) -> str:
        assert callable(self._decode)
        if not ids:
            return ""
        try:
            text = self._decode(ids)
        except Exception as error:  # it is the user's, and may raise anything
            raise InputError(f"decode raised {type(error).__name__} for the tokens {quoted(ids)}: {error}") from error
        if not isinstance(text, str):
            raise InputError(f"decode must return a string, not {quoted(text)} for the tokens {quoted(ids)}")
        return text


def _shared(text: str, other: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    differing = (place for place, (a, b) in enumerate(zip(text, other, strict=False)) if a != b)
    return next(differing, min(len(text), len(other)))


def take_samples(
    sample: Estimate,
    batch: Batch,
    update: int,
    renderer: Renderer,
    estimator: str = "",
    prompts: Sequence[Sequence[Message]] = (),
    most: int = CONTEXTS,
) -> Samples:
    """Sequences of the first contexts of an update's estimate, before its weights have changed: those of them that this
    process has.

    ``prompts`` are the contexts of a language model as it was given them.
    """
    places = torch.arange(len(batch)) if batch.division is None else batch.division.places
    count, mains = int((places < most).sum()), sample.trajectories
    members = [(mains.contexts == context).nonzero().squeeze(1).tolist() for context in range(count)]
    kept = [_farthest(rows, sample) for rows in members]
    sequences: dict[int, list[SampledSequence]] = {}
    for main in main_sequences(sample, [row for rows in kept for row in rows]):
        parts = {name: _number(float(values[main.row])) for name, values in sample.reward_parts.items()}
        sequences.setdefault(main.context, []).append(_sequence(main, renderer, parts))
    moved, given = moved_rows(sample), prompts or [()] * count
    contexts = [
        SampledContext(
            example=int(batch.examples[context]),
            columns={name: _short(plain_entry(column[context])) for name, column in batch.columns.items()},
            sequences=sequences.get(context, []),
            prompt=[Message(one.role, shortened(one.content, _PROMPT)) for one in given[context]],
            sequence_count=len(rows),
            equal_rewards=_has_equal_rewards(sample, context),
            teaches=bool(moved[rows].any()),
        )
        for context, rows in enumerate(members)
    ]
    return Samples(update, renderer.separator, contexts, estimator, _number(sample.mean_reward))


def samples_of_all(record: dict[str, Any], sample: Estimate, division: Division) -> dict[str, Any]:
    """The record of samples of the whole batch, from those of each process: each has some of the first contexts."""
    rewards = sample.own_rewards[: len(sample.trajectories.tokens)].tolist()
    mine = {"places": division.places.tolist(), "contexts": record["contexts"], "rewards": rewards}
    everyone = division.processes.gather_values(mine)
    contexts = [one for part in everyone for one in zip(part["places"], part["contexts"], strict=False)]
    contexts = [context for _, context in sorted(contexts, key=lambda one: one[0])]
    mean = RewardNumbers.of([reward for part in everyone for reward in part["rewards"]]).mean
    return {**record, "contexts": contexts, "reward": _number(mean)}


def _farthest(rows: list[int], sample: Estimate) -> list[int]:
    """The rows that are kept of a context, in order."""
    rewards = sample.own_rewards[rows]
    distance = (rewards - rewards.nanmean()).abs().nan_to_num(-1.0)
    return sorted(rows[place] for place in distance.argsort(descending=True, stable=True)[:SEQUENCES].tolist())


def _has_equal_rewards(sample: Estimate, context: int) -> bool:
    contexts = sample.trajectories.contexts
    contexts = torch.cat([contexts, contexts[sample.plan.branches.parent]])
    rewards = sample.own_rewards[(contexts == context).to(sample.own_rewards.device)]
    rewards = rewards[~rewards.isnan()]
    return len(rewards) > 1 and bool((rewards == rewards[0]).all())


def _sequence(main: MainSequence, renderer: Renderer, rewards: dict[str, float | None]) -> SampledSequence:
    departing = [(step, branch) for step, at in enumerate(main.steps) for branch in at.branches]
    gaps = [abs(branch.reward - main.reward) for _, branch in departing]
    order = sorted(range(len(gaps)), key=lambda index: 0.0 if math.isnan(gaps[index]) else -gaps[index])
    kept = [departing[index] for index in sorted(order[:BRANCHES])]
    entropy = [_rounded(step.entropy) for step in main.steps if step.entropy is not None]
    return SampledSequence(
        tokens=main.sequence,
        pieces=renderer.pieces(main.sequence, main.finished and main.sequence[-1] in renderer.ends),
        reward=_number(main.reward),
        log_probability=_rounded(main.log_probability),
        finished=main.finished,
        advantage=None if main.advantage is None else _rounded(main.advantage),
        credit=[_rounded(step.credit) for step in main.steps],
        probability=[_rounded(step.probability) for step in main.steps],
        branches=[_branch(step, branch, main, renderer) for step, branch in kept],
        branch_count=len(departing),
        entropy=entropy,
        rewards=rewards,
    )


def _branch(step: int, branch: Branch, main: MainSequence, renderer: Renderer) -> SampledBranch:
    # A branch ends as its sequence does, or at the maximal length.
    ended = branch.sequence[-1] in renderer.ends
    token, rest = renderer.departure(branch.sequence, step, ended)
    return SampledBranch(
        step=step,
        token=token,
        kind=branch.kind,
        continuation=shortened(rest, _CONTINUATION),
        reward=_number(branch.reward),
        weight=_rounded(branch.norm),
        credit=_rounded(branch.credit),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}") + 0.0  # not −0


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
