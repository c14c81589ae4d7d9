"""A small causal transformer with a key-value cache."""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from corollout.errors import InputError
from corollout.policies.protocol import select
from corollout.policies.read_out import ReadOut
from corollout.prefix_tree import PrefixTree


@dataclass(frozen=True)
class Cache:
    """Keys and values of every position read so far, rows first, and which positions are not padding."""

    keys: list[Float[Tensor, "row head position width"]]
    values: list[Float[Tensor, "row head position width"]]
    real: Bool[Tensor, "row position"]
    length: Int64[Tensor, " row"]  # without padding: the position of the next token

    def rewind(self, steps: int) -> "Cache":
        """What the cache was before the last tokens."""
        keep = self.real.shape[1] - steps
        keys, values = ([part[:, :, :keep] for part in parts] for parts in (self.keys, self.values))
        return Cache(keys, values, self.real[:, :keep], self.length - self.real[:, keep:].sum(1))


class TransformerPolicy(nn.Module):
    """A decoder-only transformer (pre-norm, learned positions): the context's tokens come first, then the sequence.

    A context is ``Int64[row, position]``, −1 being padding at the end; its tokens have an embedding of their own.
    """

    def __init__(
        self,
        context_vocab: int,
        vocab: int,
        max_positions: int,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        if width % heads:
            raise InputError(f"the width {width} must be a multiple of the number of heads {heads}")
        self.context_embedding = nn.Embedding(context_vocab, width)
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(max_positions, width)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocab)

    def _blocks(self) -> "list[_Block]":
        return cast("list[_Block]", list(self.blocks))

    def encode(self, context: Int64[Tensor, "row position"]) -> Cache:
        rows = len(context)
        empty = [block.empty_cache(rows) for block in self._blocks()]  # keys or values
        nothing = torch.zeros(rows, 0, dtype=torch.bool, device=context.device)
        lengths = torch.zeros(rows, dtype=torch.int64, device=context.device)
        cache = Cache(empty, empty, nothing, lengths)
        return self._read(cache, self.context_embedding(context.clamp(min=0)), context >= 0)[1]

    def start(self, memory: Cache) -> Cache:
        return memory

    def step(self, state: Cache, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row vocab"], Cache]:
        y, cache = self._read(state, self.embedding(tokens[:, None]))
        return self.output(y[:, 0]), cache

    def score(self, memory: Cache, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]:
        return self.output(self._read(memory, self.embedding(tokens))[0])

    def hidden_states(self, memory: Cache, tree: PrefixTree) -> Float[Tensor, "prefix width"]:
        """Each context's prefixes as one row of positions, in which a prefix sees the tokens that lead to it."""
        layout = tree.layout()
        cache = select(memory, layout.contexts)
        position = cache.length[layout.row] + layout.depth
        self._check_positions(position, at_most=cache.real.shape[1] + len(tree.sizes) - 1)
        x = layout.spread(self.embedding(tree.token) + self.positions(position))
        visible = torch.cat([cache.real[:, None].expand(-1, x.shape[1], -1), layout.sees], 2)
        for block, k, v in zip(self._blocks(), cache.keys, cache.values, strict=True):
            x, _, _ = block(x, k, v, visible[:, None])
        return self.norm(x)[layout.row, layout.place]

    def read_out(self, tree: PrefixTree) -> ReadOut:
        return ReadOut(self.output.weight, self.output.bias)

    def _check_positions(self, position: Int64[Tensor, "..."], at_most: int) -> None:
        """``at_most`` is a bound that is known without looking, which a device would have to be waited for."""
        if at_most < self.positions.num_embeddings:
            return
        if position.numel() and int(position.max()) >= self.positions.num_embeddings:
            raise InputError(
                f"context and sequence have {int(position.max()) + 1} tokens together, but the transformer was "
                f"made for max_positions={self.positions.num_embeddings}"
            )

    def _read(
        self, cache: Cache, x: Float[Tensor, "row new width"], real: Bool[Tensor, "row new"] | None = None
    ) -> tuple[Float[Tensor, "row new width"], Cache]:
        """Read new positions after those in the cache."""
        rows, new, _ = x.shape
        if real is None:
            real = torch.ones(rows, new, dtype=torch.bool, device=x.device)
        position = cache.length[:, None] + real.long().cumsum(1) - 1
        self._check_positions(position, at_most=cache.real.shape[1] + new - 1)
        x = x + self.positions(position.clamp(min=0))
        every = torch.cat([cache.real, real], 1)
        old = cache.real.shape[1]
        index = torch.arange(old + new, device=x.device)
        visible = (every[:, None] & (index <= index[old:, None])) | (index == index[old:, None])
        keys, values = [], []
        for block, k, v in zip(self._blocks(), cache.keys, cache.values, strict=True):
            x, k, v = block(x, k, v, visible[:, None])
            keys.append(k)
            values.append(v)
        return self.norm(x), Cache(keys, values, every, cache.length + real.sum(1))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def empty_cache(self, rows: int) -> Tensor:
        return self.merge.weight.new_zeros(rows, self.heads, 0, self.merge.in_features // self.heads)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, visible: Bool[Tensor, "row 1 new position"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.project(self.norm_1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        attended = scaled_dot_product_attention(q, keys, values, attn_mask=visible)
        x = x + self.dropout(self.merge(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.feed(self.norm_2(x))), keys, values
