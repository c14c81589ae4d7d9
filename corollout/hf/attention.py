"""Attention in which the sequences of a prompt share what they have in common, for any model of transformers.

A model reads one flat row of tokens (``corollout.hf.inside``), so that nothing but attention knows which token belongs
to which sequence, no padding is computed, and every prompt and every shared prefix has its keys and values once:

    WholeAttention    trees of prefixes at once, with gradient: prompts, and the sequences that are scored
    StepAttention     one token for each of some rows, which see their prompts and the tokens that lead to them
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from corollout.hf.store import Store
from corollout.prefix_tree import Layout, places_within
from corollout.types import full_precision

Tokens = Float[Tensor, "head token _"]  # of one flat row
Keys = Float[Tensor, "key_head key _"]  # the same of keys and values: of the tokens, or of the encoder's output


class How(NamedTuple):
    """What a layer says of its attention."""

    scaling: float
    window: int | None = None  # a token sees so many, itself included
    softcap: float | None = None  # scores s become softcap · tanh(s / softcap)
    sinks: Float[Tensor, " head"] | None = None  # scores of nothing at all, which only take probability away
    bias: Float[Tensor, "head distance"] | None = None  # added to scores, by how far back a token is

    def scores(self, products: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Scores, from products of queries and keys."""
        scores = full_precision(products) * self.scaling
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def shares(self, scores: Float[Tensor, "... head query key"]) -> Float[Tensor, "... head query key"]:
        """The softmax of scores, with one of nothing beside the others if there are sinks."""
        if self.sinks is None:
            return scores.softmax(-1)
        nothing = self.sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, nothing], -1).softmax(-1)[..., :-1]


@dataclass(frozen=True)
class Prompts:
    """What a model has read before the first token of some sequences: keys and values of every layer.

    Of a decoder-only model these are the prompt's, without its last token; of one with an encoder, what its layers see
    of the encoder's output.
    """

    keys: list[Float[Tensor, "prompt head position width"]]
    values: list[Float[Tensor, "prompt head position width"]]
    lengths: Int64[Tensor, " prompt"]

    def detach(self) -> "Prompts":
        return Prompts([k.detach() for k in self.keys], [v.detach() for v in self.values], self.lengths)

    @property
    def visible(self) -> Bool[Tensor, "prompt position"]:
        positions = self.keys[0].shape[2] if self.keys else 0
        return torch.arange(positions, device=self.lengths.device) < self.lengths[:, None]


class Attention(ABC):
    """The attention of one forward pass."""

    @abstractmethod
    def attend(self, layer: int, crosses: bool, q: Tokens, k: Keys, v: Keys, how: How) -> Tokens:
        """What the tokens see; ``crosses`` says that they look at the encoder's output."""

    @property
    @abstractmethod
    def most_distant(self) -> int:
        """No token sees one that is so many positions before it."""


class WholeAttention(Attention):
    """Trees of tokens at once, one for each context, with gradient.

    ``prompts`` are what the tokens see besides, if there is anything; ``prompt`` says which one belongs to each row of
    the layout. With ``crossing``, only layers that look at the encoder see it. ``seen`` collects keys and values by
    layer, laid out in rows, of what later tokens will see as their prompts: of the encoder's output, or of the tokens
    if there are no prompts yet.
    """

    def __init__(
        self,
        layout: Layout,
        prompts: Prompts | None = None,
        prompt: Int64[Tensor, " row"] | None = None,
        crossing: bool = False,
        encoded: Layout | None = None,
    ):
        self.layout, self.crossing, self.encoded = layout, crossing, encoded
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}
        self._prompts, self._prompt = prompts, prompt
        self._depth = layout.spread(layout.depth)
        self._masks: dict[int | None, Tensor] = {}  # by window: the same in all layers that have it

    @property
    def most_distant(self) -> int:
        return int(self.layout.depth.max()) + 1 if len(self.layout.depth) else 1

    @cached_property
    def _distance(self) -> Int64[Tensor, "row place place"]:
        """How far each place is before another one of its row."""
        return (self._depth[:, :, None] - self._depth[:, None]).clamp(min=0)

    def attend(self, layer: int, crosses: bool, q: Tokens, k: Keys, v: Keys, how: How) -> Tokens:
        if crosses:
            keys, values = self._of_encoder(layer, k, v)
            mask, bias = self._encoder_mask, None
        else:
            keys, values = self._laid_out(k, self.layout), self._laid_out(v, self.layout)
            mask, bias = self._mask(how.window), None
            if how.bias is not None:
                bias = how.bias[:, self._distance.clamp(max=how.bias.shape[1] - 1)].transpose(0, 1)
            if self._prompts is None and not self.crossing:
                self.seen.setdefault(layer, (keys, values))
            elif not self.crossing:
                before = self._of_prompts(layer)
                keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        out = _attention(self._laid_out(q, self.layout), keys, values, mask, bias, how)
        return out.transpose(1, 2)[self.layout.row, self.layout.place].transpose(0, 1)

    def as_prompts(self, lengths: Int64[Tensor, " prompt"]) -> Prompts:
        """What was seen, as the prompts of later tokens, so many positions of each."""
        keys, values = ([self.seen[layer][part] for layer in range(len(self.seen))] for part in (0, 1))
        return Prompts(keys, values, lengths)

    def _laid_out(self, flat: Float[Tensor, "head token _"], layout: Layout) -> Float[Tensor, "row head place _"]:
        return layout.spread(flat.transpose(0, 1)).transpose(1, 2)

    def _of_prompts(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of each row's prompt."""
        assert self._prompts is not None
        assert self._prompt is not None
        return self._prompts.keys[layer][self._prompt], self._prompts.values[layer][self._prompt]

    def _of_encoder(self, layer: int, k: Keys, v: Keys) -> tuple[Tensor, Tensor]:
        if self.encoded is None:
            return self._of_prompts(layer)
        # The first look at the encoder's output, one flat row.
        return self.seen.setdefault(layer, (self._laid_out(k, self.encoded), self._laid_out(v, self.encoded)))

    def _mask(self, window: int | None) -> Bool[Tensor, "row place position"]:
        """What each place sees of the prompt, if it sees one, and of its row."""
        if window not in self._masks:
            self._masks[window] = self._make_mask(window)
        return self._masks[window]

    def _make_mask(self, window: int | None) -> Bool[Tensor, "row place position"]:
        own = self.layout.sees if window is None else self.layout.sees & (self._distance < window)
        if self._prompts is None or self.crossing:
            return own
        seen = self._prompts.visible[self._prompt][:, None].expand(-1, own.shape[1], -1)
        if window is not None:
            now = self._prompts.lengths[self._prompt][:, None] + self._depth
            seen = seen & (now[:, :, None] - torch.arange(seen.shape[2], device=now.device) < window)
        return torch.cat([seen, own], 2)

    @cached_property
    def _encoder_mask(self) -> Bool[Tensor, "row place position"]:
        """What each place sees of the encoder's output."""
        if self.encoded is None:
            assert self._prompts is not None
            seen = self._prompts.visible[self._prompt]
        else:
            seen = self.encoded.spread(torch.ones_like(self.encoded.row, dtype=torch.bool))
        return seen[:, None].expand(-1, self._depth.shape[1], -1)


def _attention(
    q: Float[Tensor, "row head query width"],
    k: Float[Tensor, "row key_head key width"],
    v: Float[Tensor, "row key_head key value_width"],
    mask: Bool[Tensor, "row query key"],
    bias: Float[Tensor, "row head query key"] | None,
    how: How,
) -> Float[Tensor, "row head query value_width"]:
    rows, heads, queries, width = q.shape
    groups = heads // k.shape[1]  # query heads that share a key head lie side by side
    q = q.reshape(rows, k.shape[1], groups * queries, width)
    allowed = mask[:, None].repeat(1, 1, groups, 1)
    if how.softcap is None and how.sinks is None:
        added = allowed
        if bias is not None:
            folded = bias.reshape(rows, k.shape[1], groups * queries, -1)
            added = folded.to(q.dtype).masked_fill(~allowed, -math.inf)
        out = scaled_dot_product_attention(q, k, v, attn_mask=added, scale=how.scaling)
        return out.reshape(rows, heads, queries, v.shape[3])
    scores = how.scores(q @ k.transpose(2, 3))
    if bias is not None:
        scores = scores + bias.reshape(scores.shape)
    scores = scores.masked_fill(~allowed, -math.inf).reshape(rows, heads, queries, -1)
    shares = how.shares(scores).to(v.dtype).reshape(rows, k.shape[1], groups * queries, -1)
    return (shares @ v).reshape(rows, heads, queries, v.shape[3])


class StepAttention(Attention):
    """The next token of some rows. Nothing is copied for a row but what it sees of its own sequence.

    ``path`` are the places of a row's tokens in the store, the new one last; ``prompt`` is the number of its prompt.
    """

    def __init__(
        self,
        store: Store,
        prompts: Prompts,
        prompt: Int64[Tensor, " row"],
        path: Int64[Tensor, "row step"],
        crossing: bool,
    ):
        self._store, self._prompts, self._path, self._crossing = store, prompts, path, crossing
        self._lengths = prompts.lengths[prompt]
        # Rows of a prompt meet its keys together.
        self._asked, group = prompt.unique(return_inverse=True)
        self._group, (self._place, self._most) = group, places_within(group, len(self._asked))
        self._all_asked = len(self._asked) == len(prompts.lengths)
        self._seen = prompts.visible[prompt]

    @property
    def most_distant(self) -> int:
        return self._path.shape[1]

    def attend(self, layer: int, crosses: bool, q: Tokens, k: Keys, v: Keys, how: How) -> Tokens:
        scores: list[Tensor] = []  # of a row's own tokens, of its prompt's
        own = prompted = None
        if not crosses:
            self._store.write(layer, self._path[:, -1], k, v)
            keys, own = self._store.read(layer, self._path)  # [key head, row, step, width]
            scores.append(self._own_scores(how.scores(self._of_own(q, keys.transpose(2, 3))), how))
        if crosses or not self._crossing:
            keys, prompted = (self._of_asked(part[layer]) for part in (self._prompts.keys, self._prompts.values))
            scores.append(self._prompt_scores(how.scores(self._of_prompts(q, keys.transpose(2, 3))), how))
        shares = how.shares(torch.cat(scores, 2)).to(v.dtype).split([part.shape[2] for part in scores], 2)
        out = [self._of_own(shares[0], own)] if own is not None else []
        out += [self._of_prompts(shares[-1], prompted)] if prompted is not None else []
        return out[0] if len(out) == 1 else out[0] + out[1]

    def _of_own(
        self, flat: Float[Tensor, "head row _"], by: Float[Tensor, "key_head row _ _"]
    ) -> Float[Tensor, "head row _"]:
        """Each row's vector of each head times the row's matrix of the head's key head."""
        heads, rows, width = flat.shape
        folded = flat.reshape(len(by), heads // len(by), rows, width).transpose(1, 2)
        return (folded @ by).transpose(1, 2).reshape(heads, rows, by.shape[3])

    def _of_prompts(
        self, flat: Float[Tensor, "head row _"], by: Float[Tensor, "group key_head _ _"]
    ) -> Float[Tensor, "head row _"]:
        """The same with the matrix of the row's prompt: one product for all rows of a prompt."""
        heads, key_heads = len(flat), by.shape[1]
        grouped = flat.new_zeros(len(by), self._most, heads, flat.shape[2])
        grouped[self._group, self._place] = flat.transpose(0, 1)
        grouped = grouped.unflatten(2, (key_heads, heads // key_heads)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = (grouped @ by).unflatten(2, (heads // key_heads, self._most)).permute(0, 3, 1, 2, 4).flatten(2, 3)
        return out[self._group, self._place].transpose(0, 1)

    def _own_scores(self, scores: Float[Tensor, "head row step"], how: How) -> Float[Tensor, "head row step"]:
        back = torch.arange(scores.shape[2] - 1, -1, -1, device=scores.device)
        if how.bias is not None:
            scores = scores + how.bias[:, back.clamp(max=how.bias.shape[1] - 1)][:, None]
        if how.window is not None and how.window < scores.shape[2]:
            scores = scores.masked_fill(back >= how.window, -math.inf)
        return scores

    def _prompt_scores(
        self, scores: Float[Tensor, "head row position"], how: How
    ) -> Float[Tensor, "head row position"]:
        seen = self._seen
        if how.window is not None and not self._crossing:
            now = self._lengths + self._path.shape[1] - 1
            seen = seen & (now[:, None] - torch.arange(seen.shape[1], device=seen.device) < how.window)
        return scores.masked_fill(~seen, -math.inf)

    def _of_asked(self, part: Tensor) -> Tensor:
        return part if self._all_asked else part[self._asked]
