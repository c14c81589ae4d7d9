"""Heads: how what a policy puts out becomes tokens, probabilities and the logits that gradients are for.

A policy without a head puts out logits over the whole vocabulary: that is the softmax. One whose attribute ``head`` is
a ``Head`` puts out whatever that head reads; ``step`` gives it for each row, ``score`` for each row and step.

``logits`` always means the numbers that an estimate differentiates with respect to: V of them for each token of a
softmax, at most D, one for each decision on the way to the token, of a tree.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.noise import conditional_gumbels, exponential, race
from corollout.types import Decisions, full_precision

Keys = Int64[Tensor, " row"]
Steps = Int64[Tensor, " row"]
Outputs = Float[Tensor, "row width"]


class Choice(NamedTuple):
    """A token for each row, the logits that it was chosen by, and whether those were sound numbers."""

    tokens: Int64[Tensor, " row"]
    logits: Float[Tensor, "row logit"]
    sound: Bool[Tensor, " row"]


class Best(NamedTuple):
    """Each row's most probable tokens, best first, and whether their logits were sound numbers."""

    log_probs: Float[Tensor, "row best"]
    tokens: Int64[Tensor, "row best"]
    sound: Bool[Tensor, " row"]


class Perturbed(NamedTuple):
    """Each row's tokens with the largest perturbed log-probabilities, the largest first."""

    ranks: Float[Tensor, "row best"]  # the perturbed log-probabilities of the prefixes with these tokens
    log_probs: Float[Tensor, "row best"]  # those without noise
    tokens: Int64[Tensor, "row best"]
    sound: Bool[Tensor, " row"]


class Head(ABC):
    """What the rollout engine asks of a head."""

    keeps_outputs: bool = False
    """Whether ``finish`` will be asked for: then the outputs of main trajectories are kept."""

    @abstractmethod
    def choose(self, outputs: Outputs, keys: Keys, steps: Steps, greedy: Bool[Tensor, " row"] | bool) -> Choice:
        """A token for each row: by the decoder's own preference where ``greedy``, by the noise elsewhere."""

    @abstractmethod
    def best(self, outputs: Outputs, count: int) -> Best:
        """The ``count`` most probable tokens of each row, or all if there are fewer."""

    @abstractmethod
    def perturbed(
        self,
        outputs: Outputs,
        log_prob: Float[Tensor, " row"],
        rank: Float[Tensor, " row"],
        keys: Keys,
        steps: Steps,
        count: int,
    ) -> Perturbed:
        """The extensions of prefixes that are first in a sample without replacement, see ``corollout.rollouts.search``.

        ``log_prob`` and ``rank`` are those of the prefixes.
        """

    @abstractmethod
    def logits(
        self, outputs: Float[Tensor, "row step width"], tokens: Int64[Tensor, "row step"]
    ) -> Float[Tensor, "row step logit"]:
        """The logits by which each token was chosen, with gradient."""

    @abstractmethod
    def log_probs(
        self, logits: Float[Tensor, "row step logit"], tokens: Int64[Tensor, "row step"]
    ) -> Float[Tensor, "row step"]:
        """The tokens' log-probabilities, from their logits."""

    def gap(
        self,
        first: Float[Tensor, "row step logit"],
        second: Float[Tensor, "row step logit"],
        tokens: Int64[Tensor, "row step"],
    ) -> Float[Tensor, "row step"]:
        """How far apart the log-probabilities of the tokens are by two computations of their logits."""
        return (self.log_probs(first, tokens) - self.log_probs(second, tokens)).abs()

    def decisions(self, tokens: Int64[Tensor, "row step"]) -> Decisions | None:
        """The binary decisions that make up each token, if that is how tokens are chosen."""
        return None

    def finish(
        self,
        outputs: Outputs,
        started: Int64[Tensor, " row"],
        keys: Keys,
        steps: Steps,
        greedy: Bool[Tensor, " row"] | bool,
    ) -> Int64[Tensor, " row"]:
        """The tokens to which words that were begun lead, see ``Branches.token``."""
        raise NotImplementedError


class Softmax(Head):
    """Outputs are the logits of all tokens; a token is the winner of a race, or the one with the largest logit."""

    def choose(self, outputs: Outputs, keys: Keys, steps: Steps, greedy: Bool[Tensor, " row"] | bool) -> Choice:
        logits = full_precision(outputs)
        # The largest logit is finite exactly if none is NaN or +inf and not all are −inf.
        highest = logits.amax(1)
        sound = highest.isfinite()
        if greedy is True:
            return Choice(logits.argmax(1), logits, sound)
        tokens = race(logits, keys, steps, highest)
        if greedy is not False:
            tokens = torch.where(greedy, logits.argmax(1), tokens)
        return Choice(tokens, logits, sound)

    def best(self, outputs: Outputs, count: int) -> Best:
        logits = full_precision(outputs)
        values, tokens = logits.log_softmax(1).topk(min(count, logits.shape[1]), 1)
        return Best(values, tokens, logits.amax(1).isfinite())

    def perturbed(
        self,
        outputs: Outputs,
        log_prob: Float[Tensor, " row"],
        rank: Float[Tensor, " row"],
        keys: Keys,
        steps: Steps,
        count: int,
    ) -> Perturbed:
        logits = outputs.double()
        values = logits.log_softmax(1) + log_prob[:, None]
        free = values - exponential(keys, steps, logits.shape[1], torch.float64).log_()
        # Given their maximum, numbers are in the same order.
        largest, tokens = free.topk(min(count, logits.shape[1]), 1)
        ranks = conditional_gumbels(largest, rank)
        return Perturbed(ranks, values.gather(1, tokens), tokens, logits.amax(1).isfinite())

    def logits(
        self, outputs: Float[Tensor, "row step width"], tokens: Int64[Tensor, "row step"]
    ) -> Float[Tensor, "row step logit"]:
        return outputs

    def log_probs(
        self, logits: Float[Tensor, "row step logit"], tokens: Int64[Tensor, "row step"]
    ) -> Float[Tensor, "row step"]:
        return logits.gather(2, tokens[:, :, None]).squeeze(2) - logits.logsumexp(2)


SOFTMAX = Softmax()


def head_of(policy: Any) -> Head:
    """The policy's head: a softmax, unless it says otherwise."""
    head = getattr(policy, "head", None)
    return head if isinstance(head, Head) else SOFTMAX
