"""Searches for several sequences of each context at once: beam search, and sampling without replacement.

Both keep the ``size`` best sequences of a context, complete ones and prefixes, extend the prefixes by a token and keep
the best again. A beam ranks them by their probability. Stochastic beam search (Kool, van Hoof, Welling 2019) ranks them
by a perturbed log-probability: a Gumbel number with the log-probability as its location. Of all sequences, those with
the largest are a sample without replacement; a prefix's number is the largest of the sequences that begin with it, so
those of its extensions are drawn given their maximum, and no more than ``size`` prefixes are ever needed.

Complete sequences need no further computation.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from corollout.noise import SET, Noise
from corollout.policies.protocol import Head, select
from corollout.rollouts.output import Checks, is_end
from corollout.rollouts.stops import Stops, stopped

Step = Callable[[Any, Int64[Tensor, " row"]], tuple[Tensor, Any]]


def search(
    head: Head,
    start: Any,
    read: Int64[Tensor, " context"],
    step: Step,
    examples: Int64[Tensor, " context"],
    *,
    ends: tuple[int, ...],
    max_length: int,
    size: int,
    noise: Noise | None,
    stops: Stops | None = None,
) -> "tuple[Slots, int]":
    """Beam search from the contexts' states and first tokens to read, or, with noise, sampling without replacement.

    Returns the sequences and how many tokens the policy computed.
    """
    count, device = len(examples), examples.device
    state = start
    owner = torch.arange(count, device=device)  # the context of each row under way, ascending
    slot = torch.zeros_like(owner)  # its number among its context's
    tokens = read
    prefix = torch.full((count, max_length), ends[0], device=device)
    log_prob = rank = torch.zeros(count, dtype=torch.float64, device=device)
    done = Slots(
        rank=torch.full((count, size), -torch.inf, dtype=torch.float64, device=device),
        log_prob=torch.zeros(count, size, dtype=torch.float64, device=device),
        tokens=torch.full((count, size, max_length), ends[0], device=device),
        length=torch.zeros(count, size, dtype=torch.int64, device=device),
        ended=torch.zeros(count, size, dtype=torch.bool, device=device),
        stopped=torch.zeros(count, size, dtype=torch.bool, device=device),
    )
    checks = Checks(by_row=True)
    generated = 0
    for t in range(max_length):
        if len(owner) == 0:
            break
        outputs, state = step(state, tokens)
        generated += len(owner)
        if noise is None:
            _, value, choice, valid = head.best(outputs, size)
            ranks = values = log_prob[:, None] + value.double()
        else:
            keys = noise.keys(examples[owner], SET, slot)
            ranks, values, choice, valid = head.perturbed(
                outputs, log_prob, rank, keys, torch.full_like(owner, t), size
            )
        checks.add(t, valid, None, owner)
        width = ranks.shape[1]
        candidates = ranks.new_full((count, size, width), -torch.inf)
        candidates[owner, slot] = ranks
        row_of = torch.zeros(count, size, dtype=torch.int64, device=device)
        row_of[owner, slot] = torch.arange(len(owner), device=device)
        best, index = torch.cat([done.rank, candidates.flatten(1)], 1).topk(size, 1)
        old, exists = index < size, best > -torch.inf
        origin, extended = index.clamp(max=size - 1), (index - size).clamp(min=0)
        row = row_of.gather(1, extended // width)
        token = choice[row, extended % width]
        chosen = torch.where(old, done.log_prob.gather(1, origin), values[row, extended % width])
        ended = is_end(token, ends)
        # A complete sequence keeps its slot; one that is completed now is its row's prefix and the last token.
        grown = prefix[row]
        grown[:, :, t] = token
        asked = (exists & ~old & ~ended).flatten()
        stops_now = stopped(stops, grown[:, :, : t + 1].flatten(0, 1), asked).view_as(ended)
        ended = ended | stops_now
        completes = ended if t + 1 < max_length else torch.ones_like(ended)
        complete = exists & (old | completes)
        gathered = done.tokens.gather(1, origin[:, :, None].expand_as(done.tokens))
        done = Slots(
            rank=torch.where(complete, best, -torch.inf),
            log_prob=chosen,
            tokens=torch.where((old | ~exists)[:, :, None], gathered, grown),
            length=torch.where(old, done.length.gather(1, origin), t + 1),
            ended=torch.where(old, done.ended.gather(1, origin), ended),
            stopped=torch.where(old, done.stopped.gather(1, origin), stops_now),
        )
        owner, slot = (exists & ~complete).nonzero(as_tuple=True)
        prefix, tokens = done.tokens[owner, slot], token[owner, slot]
        log_prob, rank = chosen[owner, slot], best[owner, slot]
        state = select(state, row[owner, slot])
    checks.report(lambda of: examples[of])
    return done, generated


@dataclass(frozen=True)
class Slots:
    """For each context a fixed number of slots, some of them with complete sequences, others with prefixes."""

    rank: Float[Tensor, "context slot"]  # −inf: the slot holds no complete sequence
    log_prob: Float[Tensor, "context slot"]
    tokens: Int64[Tensor, "context slot step"]
    length: Int64[Tensor, "context slot"]
    ended: Bool[Tensor, "context slot"]
    stopped: Bool[Tensor, "context slot"]

    @classmethod
    def join(cls, parts: "list[Slots]") -> "Slots":
        """The slots of several batches of contexts."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def ranking(self) -> tuple[Int64[Tensor, " row"], Int64[Tensor, " row"], Int64[Tensor, " row"]]:
        """Context, slot and number within its context of each complete sequence: by context, the best first."""
        owner, slot = (self.rank > -torch.inf).nonzero(as_tuple=True)
        ranked = self.rank.sort(dim=1, descending=True, stable=True).indices.argsort(1)
        order = (owner * self.rank.shape[1] + ranked[owner, slot]).argsort()
        owner, slot = owner[order], slot[order]
        return owner, slot, ranked[owner, slot]
