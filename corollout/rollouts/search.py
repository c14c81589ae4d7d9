"""Searches for several sequences of each context at once: beam search, and sampling without replacement.

Both keep the ``size`` best sequences of a context, complete ones and prefixes, extend the prefixes by a token and keep
the best again. A beam ranks them by their probability. Stochastic beam search (Kool, van Hoof, Welling 2019) ranks them
by a perturbed log-probability: a Gumbel number with the log-probability as its location. Of all sequences, those with
the largest are a sample without replacement; a prefix's number is the largest of the sequences that begin with it, so
those of its extensions are drawn given their maximum, and no more than ``size`` prefixes are ever needed.

What is complete is kept without any computation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.noise import SET, Noise
from corollout.policies.heads import Head
from corollout.policies.protocol import select

Step = Callable[[Any, Int64[Tensor, " row"]], tuple[Tensor, Any]]
Check = Callable[[Bool[Tensor, " row"], int, Int64[Tensor, " row"]], None]


@dataclass(frozen=True)
class Found:
    """The sequences of all contexts, in the order of contexts, the best of each first."""

    context: Int64[Tensor, " sequence"]
    number: Int64[Tensor, " sequence"]  # among its context's
    tokens: Int64[Tensor, "sequence step"]
    lengths: Int64[Tensor, " sequence"]
    ended: Bool[Tensor, " sequence"]
    log_probs: Float[Tensor, " sequence"]
    generated: int  # tokens


def search(
    head: Head,
    start: Any,
    step: Step,
    check: Check,
    examples: Int64[Tensor, " context"],
    *,
    bos: int,
    eos: int,
    max_length: int,
    size: int,
    noise: Noise | None,
) -> Found:
    """Beam search from the contexts' states, or sampling without replacement if there is noise."""
    count, device = len(examples), examples.device
    state = start
    owner = torch.arange(count, device=device)  # the context of each row under way, ascending
    slot = torch.zeros_like(owner)  # its number among its context's
    tokens = torch.full_like(owner, bos)
    prefix = torch.full((count, max_length), eos, device=device)
    log_prob = rank = torch.zeros(count, dtype=torch.float64, device=device)
    done = _Complete.nothing(count, size, max_length, eos, device)
    generated = 0
    for t in range(max_length):
        if len(owner) == 0:
            break
        outputs, state = step(state, tokens)
        generated += len(owner)
        if noise is None:
            value, choice, sound = head.best(outputs, size)
            ranks = values = log_prob[:, None] + value.double()
        else:
            keys = noise.keys(examples[owner], SET, slot)
            ranks, values, choice, sound = head.perturbed(
                outputs, log_prob, rank, keys, torch.full_like(owner, t), size
            )
        check(sound, t, owner)
        width = ranks.shape[1]
        candidates = ranks.new_full((count, size, width), -torch.inf)
        candidates[owner, slot] = ranks
        row_of = torch.zeros(count, size, dtype=torch.int64, device=device)
        row_of[owner, slot] = torch.arange(len(owner), device=device)
        best, place = torch.cat([done.rank, candidates.flatten(1)], 1).topk(size, 1)
        old, there = place < size, best > -torch.inf
        origin, extended = place.clamp(max=size - 1), (place - size).clamp(min=0)
        row = row_of.gather(1, extended // width)
        token = choice[row, extended % width]
        chosen = torch.where(old, done.log_prob.gather(1, origin), values[row, extended % width])
        ends = (token == eos) if t + 1 < max_length else torch.ones_like(token, dtype=torch.bool)
        complete = there & (old | ends)
        # What is complete is kept in place; a sequence completed now is its row's prefix and the last token.
        grown = prefix[row]
        grown[:, :, t] = token
        gathered = done.tokens.gather(1, origin[:, :, None].expand_as(done.tokens))
        done = _Complete(
            rank=torch.where(complete, best, -torch.inf),
            log_prob=chosen,
            tokens=torch.where((old | ~there)[:, :, None], gathered, grown),
            length=torch.where(old, done.length.gather(1, origin), t + 1),
            ended=torch.where(old, done.ended.gather(1, origin), token == eos),
        )
        owner, slot = (there & ~complete).nonzero(as_tuple=True)
        prefix, tokens = done.tokens[owner, slot], token[owner, slot]
        log_prob, rank = chosen[owner, slot], best[owner, slot]
        state = select(state, row[owner, slot])
    return done.found(generated)


@dataclass(frozen=True)
class _Complete:
    """For each context the sequences that are complete, in some of its places, and prefixes in others."""

    rank: Float[Tensor, "context place"]  # −inf: nothing complete there
    log_prob: Float[Tensor, "context place"]
    tokens: Int64[Tensor, "context place step"]
    length: Int64[Tensor, "context place"]
    ended: Bool[Tensor, "context place"]

    @classmethod
    def nothing(cls, count: int, size: int, max_length: int, eos: int, device: torch.device) -> "_Complete":
        shape = (count, size)
        return cls(
            rank=torch.full(shape, -torch.inf, dtype=torch.float64, device=device),
            log_prob=torch.zeros(shape, dtype=torch.float64, device=device),
            tokens=torch.full((*shape, max_length), eos, device=device),
            length=torch.zeros(shape, dtype=torch.int64, device=device),
            ended=torch.zeros(shape, dtype=torch.bool, device=device),
        )

    def found(self, generated: int) -> Found:
        """What is complete, best first."""
        size = self.rank.shape[1]
        owner, slot = (self.rank > -torch.inf).nonzero(as_tuple=True)
        ranked = self.rank.sort(dim=1, descending=True, stable=True).indices.argsort(1)
        picked = (owner * size + ranked[owner, slot]).argsort()
        owner, slot = owner[picked], slot[picked]
        return Found(
            context=owner,
            number=ranked[owner, slot],
            tokens=self.tokens[owner, slot],
            lengths=self.length[owner, slot],
            ended=self.ended[owner, slot],
            log_probs=self.log_prob[owner, slot],
            generated=generated,
        )
