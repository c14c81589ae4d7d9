"""The network of Bunel et al. (2018), as used in the paper: a convolutional encoder of input-output pairs, and an LSTM
for each pair, whose outputs are max-pooled to predict the next token.

The encoder's part of the decoder's input is the same at every step, so it is projected once, when a context is encoded;
a state refers to it by index, so that rows are repeated and dropped without copying it.

With the grammar, tokens that are not allowed have the logit −inf, in ``step`` and ``score`` alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn.functional import embedding, relu

from corollout.policies.lstm import lstm, lstm_step
from corollout.tasks.karel.grammar import Grammar, GrammarState
from corollout.tasks.karel.grids import BORDER, FIRST_BLOCKED, WALL, Grids
from corollout.tasks.karel.language import TOKENS

CHANNELS = 16
MOST_SHOWN = 10  # markers on a cell; a picture shows more as this many
State = tuple["Constants", tuple[tuple[Tensor, Tensor], ...], GrammarState | None]


def pictures(grids: Grids) -> np.ndarray:
    """Worlds with a byte for each cell: markers + 11 · (direction + 1 if the hero is on it), or a code."""
    shown = np.where(grids.cells < FIRST_BLOCKED, np.minimum(grids.cells, MOST_SHOWN), grids.cells)
    flat, hero = shown.reshape(-1, grids.side**2), grids.hero.reshape(-1, 2).astype(np.int64)
    flat[np.arange(len(flat)), hero[:, 0]] += ((MOST_SHOWN + 1) * (1 + hero[:, 1])).astype(np.uint8)
    return flat.reshape(shown.shape)


def _channels_of_codes() -> Tensor:
    """The sixteen channels of the public tensor for each byte of a picture."""
    table = torch.zeros(256, CHANNELS)
    codes = table[: 5 * (MOST_SHOWN + 1)].view(5, MOST_SHOWN + 1, CHANNELS)  # hero, markers, channel
    for direction in range(4):
        codes[direction + 1, :, direction] = 1
    for markers in range(1, MOST_SHOWN + 1):
        codes[:, markers, 5 + markers] = 1
    table[WALL, 4] = table[BORDER, 5] = 1
    return table


class PairEncoder(nn.Module):
    """Embeds pairs of worlds: a convolution for each world, residual blocks on both, and a linear layer."""

    def __init__(self, side: int, channels: int, blocks: int, width: int):
        super().__init__()
        self.register_buffer("table", _channels_of_codes(), persistent=False)
        self.before = nn.Conv2d(CHANNELS, channels, 3, padding=1)
        self.after = nn.Conv2d(CHANNELS, channels, 3, padding=1)
        both = 2 * channels
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(both, both, 3, padding=1) for _ in range(3)) for _ in range(blocks)
        )
        self.output = nn.Linear(both * side * side, width)
        # Channels last, as in the pictures.
        for convolution in (self.before, self.after, *(c for block in self.blocks for c in block.children())):
            weight = convolution.weight
            assert isinstance(weight, Tensor)
            nn.init.kaiming_normal_(weight, nonlinearity="relu")
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        # Most of a picture is empty. With weights of the usual size, its embedding would be so small that the
        # decoder would ignore it for many epochs.
        nn.init.kaiming_normal_(self.output.weight, nonlinearity="relu")

    def forward(self, worlds: UInt8[Tensor, "pair 2 side side"]) -> Float[Tensor, "pair width"]:
        table: Tensor = self.table  # pyright: ignore[reportAssignmentType]
        dense = table.index_select(0, worlds.flatten().int()).view(*worlds.shape, CHANNELS).permute(1, 0, 4, 2, 3)
        x = relu(torch.cat([self.before(dense[0]), self.after(dense[1])], 1))
        for block in self.blocks:
            y = x
            for number, convolution in enumerate(block):  # pyright: ignore[reportArgumentType]
                y = convolution(y) if number == 0 else convolution(relu(y))
            x = relu(x + y)
        return self.output(x.permute(0, 2, 3, 1).flatten(1))


@dataclass(frozen=True)
class Constants:
    """The constant part of the gates of each row: a table, and the index of each row in it."""

    table: Float[Tensor, "context pair gates"]
    index: Int64[Tensor, " row"]

    def select(self, rows: Int64[Tensor, " row"]) -> "Constants":
        return Constants(self.table, self.index[rows])

    def detach(self) -> "Constants":
        return Constants(self.table.detach(), self.index)

    @staticmethod
    def concat(parts: Sequence["Constants"]) -> "Constants":
        if all(part.table is parts[0].table for part in parts):
            return Constants(parts[0].table, torch.cat([part.index for part in parts]))
        offsets = accumulate([len(part.table) for part in parts], initial=0)
        indices = [part.index + offset for part, offset in zip(parts, offsets, strict=False)]
        return Constants(torch.cat([part.table for part in parts]), torch.cat(indices))


class KarelPolicy(nn.Module):
    """Program synthesis as a policy; a context has a picture of each input-output pair that is shown.

    With ``grammar``, every sampled sequence is a program that ends within ``max_length`` tokens, the engine's.
    """

    def __init__(
        self,
        side: int = 18,
        channels: int = 32,
        blocks: int = 2,
        pair_width: int = 512,
        token_width: int = 256,
        hidden: int = 256,
        layers: int = 2,
        grammar: bool = False,
        max_length: int = 48,
    ):
        super().__init__()
        self.grammar = Grammar(max_length) if grammar else None
        self.encoder = PairEncoder(side, channels, blocks, pair_width)
        self.embedding = nn.Embedding(len(TOKENS), token_width)
        bound = hidden**-0.5

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))

        gates = 4 * hidden
        self.from_token = uniform(token_width, gates)
        self.from_pair = nn.Parameter(torch.randn(pair_width, gates) * pair_width**-0.5)
        self.from_below = nn.ParameterList(uniform(hidden, gates) for _ in range(layers - 1))
        self.recurrent = nn.ParameterList(uniform(hidden, gates) for _ in range(layers))
        # Two biases, as in PyTorch: one of the input, one of the recurrence.
        self.bias = nn.ParameterList(uniform(2, gates) for _ in range(layers))
        self.first = nn.Parameter(torch.zeros(layers, 2, hidden))
        self.output = nn.Linear(hidden, len(TOKENS))
        self.hidden = hidden

    def encode(self, context: UInt8[Tensor, "row pair 2 side side"]) -> Constants:
        rows, pairs = context.shape[:2]
        vectors = self.encoder(context.flatten(0, 1))
        table = (vectors @ self.from_pair + self.bias[0].sum(0)).view(rows, pairs, -1)
        return Constants(table, torch.arange(rows, device=context.device))

    def start(self, memory: Constants) -> State:
        shape = (len(memory.index), memory.table.shape[1], self.hidden)
        grammar_state = self.grammar.start(shape[0]) if self.grammar is not None else None
        return memory, tuple((h.expand(shape), c.expand(shape)) for h, c in self.first), grammar_state

    def step(self, state: State, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row vocab"], State]:
        if torch.is_grad_enabled():
            raise RuntimeError("KarelPolicy.step samples without gradient: call it under torch.no_grad(), or use score")
        memory, layers, grammar_state = state
        pairs = memory.table.shape[1]
        x = (self._token_gates()[tokens][:, None] + memory.table[memory.index]).flatten(0, 1)
        after = []
        for layer, (h, c) in enumerate(layers):
            if layer:
                x = torch.addmm(self.bias[layer].sum(0), x, self.from_below[layer - 1])
            h, c = lstm_step(x, self.recurrent[layer], h.flatten(0, 1), c.flatten(0, 1))
            after.append((h.unflatten(0, (-1, pairs)), c.unflatten(0, (-1, pairs))))
            x = h
        logits = self.output(after[-1][0].amax(1))
        if self.grammar is not None and grammar_state is not None:
            grammar_state = self.grammar.advance(grammar_state, tokens)
            logits = logits.masked_fill(~self.grammar.allowed(grammar_state), -torch.inf)
        return logits, (memory, tuple(after), grammar_state)

    def score(self, memory: Constants, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]:
        rows, steps = tokens.shape
        pairs = memory.table.shape[1]
        x = embedding(tokens.t(), self._token_gates())[:, :, None] + memory.table[memory.index]
        x = x.flatten(1, 2)
        for layer, (h, c) in enumerate(self.first):
            if layer:
                x = torch.addmm(self.bias[layer].sum(0), x.flatten(0, 1), self.from_below[layer - 1])
                x = x.view(steps, rows * pairs, -1)
            shape = (rows * pairs, self.hidden)
            x = lstm(x, self.recurrent[layer], h.expand(shape), c.expand(shape))
        pooled = x.view(steps, rows, pairs, -1).amax(2)
        logits = self.output(pooled).transpose(0, 1)
        if self.grammar is not None:
            logits = logits.masked_fill(~self.grammar.allowed_after(tokens), -torch.inf)
        return logits

    def _token_gates(self) -> Float[Tensor, "vocab gates"]:
        """The part of each token in the first layer's gates: cheaper than a product for each row."""
        return self.embedding.weight @ self.from_token
