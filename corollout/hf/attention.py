"""Attention in which the sequences of a prompt share what they have in common, for any model of transformers.

Models of transformers ask a registry for the function that computes attention. Ours is registered there under a name of
its own and used inside :func:`attending` only. A model then reads one flat row of tokens, so that nothing but attention
knows which token belongs to which sequence, no padding is computed, and every prompt and every shared prefix has its
keys and values once:

    WholeAttention    trees of prefixes at once, with gradient: prompts, and the sequences that are scored
    StepAttention     one token for each of some rows, which see their prompts and the tokens that lead to them
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from corollout.hf.store import Store
from corollout.prefix_tree import Layout
from corollout.types import full_precision

NAME = "corollout"

Tokens = Float[Tensor, "head token _"]  # of one flat row
Keys = Float[Tensor, "key_head key _"]  # the same of keys and values: of the tokens, or of the encoder's output
Positions = Int64[Tensor, " token"]


class How(NamedTuple):
    """What a layer says of its attention."""

    scaling: float
    window: int | None = None  # a token sees so many, itself included
    softcap: float | None = None  # scores s become softcap · tanh(s / softcap)
    sinks: Float[Tensor, " head"] | None = None  # scores of nothing at all, which only take probability away
    bias: Float[Tensor, "head distance"] | None = None  # added to scores, by how far back a token is


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
    layer, laid out in rows: those of cross-attention, if there is one, else those of the tokens.
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
        depth = layout.spread(layout.depth.double()).long()
        self._distance = (depth[:, :, None] - depth[:, None]).clamp(min=0)
        self._depth = depth

    @property
    def most_distant(self) -> int:
        return int(self.layout.depth.max()) + 1 if len(self.layout.depth) else 1

    def attend(self, layer: int, crosses: bool, q: Tokens, k: Keys, v: Keys, how: How) -> Tokens:
        if crosses:
            keys, values, mask = self._encoder_side(layer, k, v)
        else:
            keys, values = self._laid_out(k, self.layout), self._laid_out(v, self.layout)
            mask = self._own_mask(how)
            if self.encoded is None and not self.crossing:
                self.seen.setdefault(layer, (keys, values))
            if self._prompts is not None and not self.crossing:
                before, seen = self._prompt_side(layer, how)
                keys, values = (torch.cat(both, 2) for both in zip(before, (keys, values), strict=True))
                mask = torch.cat([seen, mask], 2)
        queries = self._laid_out(q, self.layout)
        bias = None
        if how.bias is not None and not crosses:
            bias = how.bias[:, self._distance.clamp(max=how.bias.shape[1] - 1)].transpose(0, 1)
        out = _attention(queries, keys, values, mask, bias, how)
        return out.transpose(1, 2)[self.layout.row, self.layout.place].transpose(0, 1)

    def _laid_out(self, flat: Float[Tensor, "head token _"], layout: Layout) -> Float[Tensor, "row head place _"]:
        return layout.spread(flat.transpose(0, 1)).transpose(1, 2)

    def _own_mask(self, how: How) -> Bool[Tensor, "row place position"]:
        return self.layout.sees if how.window is None else self.layout.sees & (self._distance < how.window)

    def _prompt_side(self, layer: int, how: How) -> tuple[tuple[Tensor, Tensor], Bool[Tensor, "row place position"]]:
        prompts, prompt = self._prompts, self._prompt
        assert prompts is not None
        assert prompt is not None
        seen = prompts.visible[prompt][:, None].expand(-1, self._depth.shape[1], -1)
        if how.window is not None:
            position = prompts.lengths[prompt][:, None] + self._depth
            back = position[:, :, None] - torch.arange(seen.shape[2], device=position.device)
            seen = seen & (back < how.window)
        return (prompts.keys[layer][prompt], prompts.values[layer][prompt]), seen

    def _encoder_side(self, layer: int, k: Tokens, v: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        if self.encoded is not None:  # the first look at the encoder's output, one flat row
            keys, values = self._laid_out(k, self.encoded), self._laid_out(v, self.encoded)
            keys, values = self.seen.setdefault(layer, (keys, values))
            lengths = self.encoded.row.bincount(minlength=len(keys))
        else:
            assert self._prompts is not None
            assert self._prompt is not None
            keys, values = (part[layer][self._prompt] for part in (self._prompts.keys, self._prompts.values))
            lengths = self._prompts.lengths[self._prompt]
        mask = torch.arange(keys.shape[2], device=keys.device) < lengths[:, None]
        return keys, values, mask[:, None].expand(-1, self._depth.shape[1], -1)


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
    scores = full_precision(q @ k.transpose(2, 3)) * how.scaling
    if how.softcap is not None:
        scores = how.softcap * (scores / how.softcap).tanh()
    if bias is not None:
        scores = scores + bias.reshape(scores.shape)
    scores = scores.masked_fill(~allowed, -math.inf).reshape(rows, heads, queries, -1)
    shares = _shares(scores, None if how.sinks is None else how.sinks[:, None, None])
    return (shares.to(v.dtype).reshape(rows, k.shape[1], groups * queries, -1) @ v).reshape(
        rows, heads, queries, v.shape[3]
    )


def _shares(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over the last dimension, with a score of nothing beside the others if there are sinks."""
    if sinks is None:
        return scores.softmax(-1)
    nothing = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, nothing], -1).softmax(-1)[..., :-1]


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
        order = group.argsort(stable=True)
        counts = group.bincount(minlength=len(self._asked))
        place = torch.empty_like(group)
        first = counts.cumsum(0) - counts
        place[order] = torch.arange(len(group), device=group.device) - first[group[order]]
        self._group, self._place, self._most = group, place, int(counts.max()) if len(group) else 0
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
            scores.append(self._own_scores(full_precision(self._of_own(q, keys.transpose(2, 3))) * how.scaling, how))
        if crosses or not self._crossing:
            keys, prompted = (self._of_asked(part[layer]) for part in (self._prompts.keys, self._prompts.values))
            scores.append(
                self._prompt_scores(full_precision(self._of_prompts(q, keys.transpose(2, 3))) * how.scaling, how)
            )
        sinks = None if how.sinks is None else how.sinks[:, None, None]
        shares = _shares(torch.cat(scores, 2), sinks).to(v.dtype).split([part.shape[2] for part in scores], 2)
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
        if how.softcap is not None:
            scores = how.softcap * (scores / how.softcap).tanh()
        back = torch.arange(scores.shape[2] - 1, -1, -1, device=scores.device)
        if how.bias is not None:
            scores = scores + how.bias[:, back.clamp(max=how.bias.shape[1] - 1)][:, None]
        if how.window is not None and how.window < scores.shape[2]:
            scores = scores.masked_fill(back >= how.window, -math.inf)
        return scores

    def _prompt_scores(
        self, scores: Float[Tensor, "head row position"], how: How
    ) -> Float[Tensor, "head row position"]:
        if how.softcap is not None:
            scores = how.softcap * (scores / how.softcap).tanh()
        seen = self._seen
        if how.window is not None and not self._crossing:
            now = self._lengths + self._path.shape[1] - 1
            seen = seen & (now[:, None] - torch.arange(seen.shape[1], device=seen.device) < how.window)
        return scores.masked_fill(~seen, -math.inf)

    def _of_asked(self, part: Tensor) -> Tensor:
        return part if self._all_asked else part[self._asked]


# --- inside a model -------------------------------------------------------------------------------------------------

_current: ContextVar[Attention | None] = ContextVar("attention", default=None)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls: one flat row of tokens, [1, head, token, width] → [1, token, head, width]."""
    attention = _current.get()
    if attention is None:
        raise RuntimeError(f"the attention {NAME!r} works inside corollout.hf.attention.attending only")
    scaling = options.get("scaling")
    bias = options.get("position_bias")
    how = How(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=options.get("sliding_window"),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
        bias=None if bias is None else bias[0, :, 0],
    )
    crosses = not getattr(module, "is_causal", True)
    out = attention.attend(module.layer_idx, crosses, query[0], key[0], value[0], how)
    return out.transpose(0, 1)[None].contiguous(), None


AttentionInterface.register(NAME, _attend)


@dataclass(frozen=True)
class Inside:
    """The places of a decoder where attention has to be told what it is about."""

    decoder: nn.Module
    configs: list[Any] = field(default_factory=list)
    biases: list[Any] = field(default_factory=list)  # modules that add a bias by distance, as T5's
    positions: list[Any] = field(
        default_factory=list
    )  # embeddings of positions that count tokens themselves, as BART's
    checkpointed: list[nn.Module] = field(default_factory=list)  # layers that are computed again in the backward pass

    @classmethod
    def of(cls, decoder: nn.Module) -> "Inside":
        modules = list(decoder.modules())
        configs = {id(m.config): m.config for m in modules if hasattr(m, "config")}
        return cls(
            decoder,
            list(configs.values()),
            [m for m in modules if getattr(m, "has_relative_attention_bias", False)],
            [m.embed_positions for m in modules if hasattr(m, "embed_positions")],
            [
                m
                for m in modules
                if hasattr(type(m), "gradient_checkpointing") and hasattr(m, "_gradient_checkpointing_func")
            ],
        )


@contextmanager
def attending(inside: Inside, attention: Attention, positions: Positions) -> Generator[None, None, None]:
    """Inside, a decoder computes this attention for one flat row of tokens at these positions."""
    token = _current.set(attention)
    names = [config._attn_implementation for config in inside.configs]
    replaced: list[tuple[Any, str]] = []

    def replace(module: Any, name: str, function: Callable[..., Any]) -> None:
        module.__dict__[name] = function
        replaced.append((module, name))

    try:
        for config in inside.configs:
            config._attn_implementation = NAME
        for module in inside.biases:
            replace(module, "compute_bias", _bias_by_distance(module, attention.most_distant))
        for module in inside.positions:
            replace(module, "forward", _at_positions(module, positions))
        yield
    finally:
        _current.reset(token)
        for config, name in zip(inside.configs, names, strict=True):
            config._attn_implementation = name
        for module, name in replaced:
            del module.__dict__[name]


def _bias_by_distance(module: Any, distances: int) -> Callable[..., Tensor]:
    def compute_bias(*_: Any, device: Any = None, **__: Any) -> Float[Tensor, "1 head 1 distance"]:
        weight = module.relative_attention_bias.weight
        back = -torch.arange(distances, device=weight.device)
        bucket = module._relative_position_bucket(
            back,
            bidirectional=False,
            num_buckets=module.relative_attention_num_buckets,
            max_distance=module.relative_attention_max_distance,
        )
        return module.relative_attention_bias(bucket).t()[None, :, None]

    return compute_bias


def _at_positions(module: Any, positions: Positions) -> Callable[..., Tensor]:
    original = module.forward

    def forward(*given: Any, **options: Any) -> Tensor:
        return original(*given, **{**options, "position_ids": positions})

    return forward
