"""The network of Bunel et al. (2018), as used in the paper: a convolutional encoder of input-output pairs, and an LSTM
for each pair, whose outputs are max-pooled to predict the next token.

The encoder's part of the decoder's input is the same at every step, so it is projected once, when a context is encoded;
a state refers to it by index, so that rows are repeated and dropped without copying it.

With the grammar, tokens that are not allowed have the logit −inf, in ``step`` and ``score`` alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from corollout.numba_cache import numba
from corollout.policies.lstm import Cell, Input, lstm_levels, lstm_step, unread_product
from corollout.policies.protocol import GraphSizes, select
from corollout.policies.read_out import ReadOut
from corollout.prefix_tree import PrefixTree
from corollout.tasks.karel.grammar import Grammar, GrammarState
from corollout.tasks.karel.grids import BORDER, FIRST_BLOCKED, WALL, Grids
from corollout.tasks.karel.language import TOKENS

CHANNELS = 16
MOST_SHOWN = 10  # markers on a cell; a picture shows more as this many
State = tuple["Constants", tuple[tuple[Tensor, Tensor], ...], GrammarState | None, "Gates"]


# A graph has about so many numbers for each that is in a state, or in the picture of a pair after the convolutions; as
# many of both as need about so many bytes. At the paper's sizes only a beam exceeds that.
_COPIES = 16
_GRAPH_BYTES = 1_200_000_000


def pictures(grids: Grids) -> np.ndarray:
    """Worlds with a byte for each cell: markers + 11 · (direction + 1 if the hero is on it), or a code."""
    out = grids.cells.reshape(-1, grids.side**2).copy()
    _draw(out, np.ascontiguousarray(grids.hero).reshape(-1, 2))
    return out.reshape(grids.cells.shape)


@no_type_check
@numba.njit(cache=True, nogil=True)
def _draw(cells, hero):
    for world in range(len(cells)):
        for i in range(cells.shape[1]):
            if MOST_SHOWN < cells[world, i] < FIRST_BLOCKED:
                cells[world, i] = MOST_SHOWN
        cells[world, hero[world, 0]] += (MOST_SHOWN + 1) * (1 + hero[world, 1])


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
    """What the first layer's gates get from each row's pairs, a table and the index of each row in it, and from each
    token of the vocabulary.
    """

    table: Float[Tensor, "context pair gates"]
    index: Int64[Tensor, " row"]
    tokens: Float[Tensor, "vocab gates"]

    def select(self, rows: Int64[Tensor, " row"]) -> "Constants":
        return replace(self, index=self.index[rows])

    def detach(self) -> "Constants":
        return Constants(self.table.detach(), self.index, self.tokens.detach())

    @staticmethod
    def concat(parts: Sequence["Constants"]) -> "Constants":
        if all(part.table is parts[0].table for part in parts):
            return replace(parts[0], index=torch.cat([part.index for part in parts]))
        offsets = accumulate([len(part.table) for part in parts], initial=0)
        indices = [part.index + offset for part, offset in zip(parts, offsets, strict=False)]
        return Constants(torch.cat([part.table for part in parts]), torch.cat(indices), parts[0].tokens)

    def inputs(self, rows: Int64[Tensor, " row"], tokens: Int64[Tensor, " row"]) -> list[Input]:
        """The inputs of the first layer, for each pair of some rows that read these tokens."""
        pairs = self.table.shape[1]
        return [
            Input(self.tokens, tokens.repeat_interleave(pairs)),
            Input(self.table.flatten(0, 1), by_pair(self.index[rows], pairs)),
        ]


class Gates:
    """The gates of all layers after a step: scoring reads them again, but nothing that goes on from selected rows."""

    def __init__(self, layers: tuple[Tensor | None, ...] = ()):
        self.layers = layers

    def select(self, rows: Int64[Tensor, " row"]) -> "Gates":
        return NO_GATES

    def detach(self) -> "Gates":
        return self

    def clone(self) -> "Gates":
        return NO_GATES

    @staticmethod
    def concat(parts: Sequence["Gates"]) -> "Gates":
        return NO_GATES


NO_GATES = Gates()


def by_pair(rows: Int64[Tensor, " row"], pairs: int) -> Int64[Tensor, " pair_row"]:
    """The places of the pairs of some rows, where the pairs of a row are consecutive."""
    return (rows[:, None] * pairs + torch.arange(pairs, device=rows.device)).flatten()


def max_of_pairs(x: Float[Tensor, "row pair hidden"]) -> Float[Tensor, "row hidden"]:
    """The maximum over pairs, with gradient, which goes to the first of the largest.

    Compiled for the CPU: PyTorch's maximum with an index takes ten times as long.
    """
    if x.is_cpu and x.dtype in (torch.float32, torch.float64):
        return _MaxOfPairs.apply(x)
    return x.max(1).values


class _MaxOfPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.detach().contiguous()
        values, ctx.pair = x[:, 0].clone(), np.zeros((len(x), x.shape[2]), np.int32)
        _find_largest(x.numpy(), values.numpy(), ctx.pair)
        ctx.shape = x.shape
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = outer[0].new_empty(ctx.shape)
        _give_to_largest(outer[0].contiguous().numpy(), ctx.pair, gradient.numpy())
        return gradient


@no_type_check
@numba.njit(cache=True, nogil=True)
def _find_largest(x, values, pair):
    """``values`` are those of the first pair, and ``pair`` is 0."""
    for row in range(x.shape[0]):
        value, which = values[row], pair[row]
        for k in range(1, x.shape[1]):
            other = x[row, k]
            for j in range(len(value)):
                larger = other[j] > value[j] or other[j] != other[j]  # NaN is, and stays
                value[j] = other[j] if larger else value[j]
                which[j] = k if larger else which[j]


@no_type_check
@numba.njit(cache=True, nogil=True)
def _give_to_largest(outer, pair, gradient):
    for row in range(gradient.shape[0]):
        given, which = outer[row], pair[row]
        for k in range(gradient.shape[1]):
            part = gradient[row, k]
            for j in range(len(part)):
                part[j] = given[j] if which[j] == k else 0


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
        # The part of each token in the gates: cheaper than a product for each row.
        tokens = self.embedding.weight @ self.from_token
        return Constants(table, torch.arange(rows, device=context.device), tokens)

    def start(self, memory: Constants) -> State:
        shape = (len(memory.index), memory.table.shape[1], self.hidden)
        grammar_state = self.grammar.start(shape[0]) if self.grammar is not None else None
        return memory, tuple((h.expand(shape), c.expand(shape)) for h, c in self.first), grammar_state, NO_GATES

    def step(self, state: State, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row vocab"], State]:
        if torch.is_grad_enabled():
            raise RuntimeError("KarelPolicy.step samples without gradient: call it under torch.no_grad(), or use score")
        memory, layers, grammar_state, _ = state
        pairs = memory.table.shape[1]
        inputs = memory.inputs(torch.arange(len(tokens), device=tokens.device), tokens)
        after, gates = [], []
        for layer, (h, c) in enumerate(layers):
            h, c, gate = lstm_step(inputs, self.recurrent[layer], h.flatten(0, 1), c.flatten(0, 1))
            after.append((h.unflatten(0, (-1, pairs)), c.unflatten(0, (-1, pairs))))
            gates.append(gate)
            if layer + 1 < len(layers):
                inputs = [Input(self._upwards(layer, h))]
        logits = self.output(after[-1][0].amax(1))
        if self.grammar is not None and grammar_state is not None:
            grammar_state = self.grammar.advance(grammar_state, tokens)
            logits = logits.masked_fill(~self.grammar.allowed(grammar_state), -torch.inf)
        return logits, (memory, tuple(after), grammar_state, Gates(tuple(gates)))

    def score(self, memory: Constants, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]:
        rows, steps = tokens.shape
        every = torch.arange(rows, device=tokens.device)
        inputs = memory.inputs(every.repeat(steps), tokens.t().flatten())
        pooled = self._run(inputs, memory.table.shape[1], every.repeat(steps), [rows] * steps)
        logits = self.output(pooled).view(steps, rows, -1).transpose(0, 1)
        if self.grammar is not None:
            logits = logits.masked_fill(~self.grammar.allowed_after(tokens), -torch.inf)
        return logits

    def hidden_states(self, memory: Constants, tree: PrefixTree) -> Float[Tensor, "prefix hidden"]:
        inputs = memory.inputs(tree.context, tree.token)
        return self._run(inputs, memory.table.shape[1], tree.parent, tree.sizes)

    def hidden_states_again(
        self, memory: Constants, tree: PrefixTree, states: Sequence[State], kept: Int64[Tensor, " prefix"] | None
    ) -> Float[Tensor, "prefix hidden"]:
        pairs = memory.table.shape[1]
        rows = slice(None) if kept is None else by_pair(kept, pairs)
        known = []
        for layer in range(len(self.first)):
            gates = [state[3].layers[layer] for state in states]
            if any(gate is None for gate in gates):
                return self.hidden_states(memory, tree)
            h, c = (torch.cat([state[1][layer][part] for state in states]).flatten(0, 1) for part in range(2))
            parts = (h, c, torch.cat([gate for gate in gates if gate is not None]))
            known.append(Cell(*(part[rows] for part in parts)))
        inputs = memory.inputs(tree.context, tree.token)
        return self._run(inputs, pairs, tree.parent, tree.sizes, known)

    def graph_sizes(self, context: UInt8[Tensor, "row pair 2 side side"]) -> GraphSizes:
        """How many tokens a graph may have, and how many of them the encoding of a context is worth."""
        rows, pairs = context.shape[:2]
        size = self.first.element_size() * pairs
        token = size * _COPIES * len(self.first) * self.hidden
        picture = size * _COPIES * self.encoder.output.in_features
        return GraphSizes([-(-picture // token)] * rows, max(1, _GRAPH_BYTES // token))

    def read_out(self, tree: PrefixTree) -> ReadOut:
        return ReadOut(self.output.weight, self.output.bias, self._allowed(tree))

    def _run(
        self,
        inputs: Sequence[Input],
        pairs: int,
        parent: Int64[Tensor, " row"],
        sizes: Sequence[int],
        known: Sequence[Cell | None] = (),
    ) -> Float[Tensor, "row hidden"]:
        """The last layer's state of each row, the maximum over pairs, with gradient; see ``lstm_levels``.

        ``known`` is what is known of each layer, if anything is.
        """
        parents = by_pair(parent, pairs)
        parents[: sizes[0] * pairs] = 0  # all begin in the same state
        x, of_pairs = parents, [size * pairs for size in sizes]
        for layer, (h, c) in enumerate(self.first):
            cells = known[layer] if known else None
            x = lstm_levels(inputs, self.recurrent[layer], h[None], c[None], parents, of_pairs, cells)
            if layer + 1 < len(self.first):
                inputs = [Input(self._upwards(layer, x, unread=bool(known)))]
        return max_of_pairs(x.view(-1, pairs, self.hidden))

    def _upwards(self, layer: int, h: Float[Tensor, "row hidden"], unread: bool = False) -> Float[Tensor, "row gates"]:
        """What the next layer's gates get from a layer's state; ``unread`` if only the gradient counts."""
        bias, weight = self.bias[layer + 1].sum(0), self.from_below[layer]
        return unread_product(h, weight, bias) if unread else torch.addmm(bias, h, weight)

    def _allowed(self, tree: PrefixTree) -> Bool[Tensor, "prefix vocab"] | None:
        """The tokens that the grammar allows after each prefix."""
        if self.grammar is None or not tree.sizes:
            return None
        state, allowed = self.grammar.start(tree.sizes[0]), []
        for number, level in enumerate(tree.levels()):
            state = select(state, level.parent) if number else state
            state = self.grammar.advance(state, level.token)
            allowed.append(self.grammar.allowed(state))
        return torch.cat(allowed)
