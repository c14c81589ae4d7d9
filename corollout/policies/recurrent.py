"""Reference LSTM and GRU decoders."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from corollout.policies.protocol import select
from corollout.policies.read_out import ReadOut
from corollout.prefix_tree import PrefixTree

State = tuple[Float[Tensor, "row layer hidden"], ...]


class TokenEncoder(nn.Module):
    """A bidirectional GRU that makes a vector of each context of token ids, −1 being padding at the end."""

    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab + 1, width)  # the last is padding
        self.forwards = nn.GRU(width, width, batch_first=True)
        self.backwards = nn.GRU(width, width, batch_first=True)
        self.width = 2 * width

    def forward(self, context: Int64[Tensor, "row position"]) -> Float[Tensor, "row width"]:
        lengths = (context >= 0).sum(1)
        if context.shape[1] == 0:
            return self.embedding.weight.new_zeros(len(context), self.width)
        position = torch.arange(context.shape[1], device=context.device)
        x = self.embedding(torch.where(context >= 0, context, self.embedding.num_embeddings - 1))
        mirrored = (lengths[:, None] - 1 - position).clamp(min=0)
        x_mirrored = x.gather(1, mirrored[:, :, None].expand_as(x))
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
        ends = [rnn(y)[0].gather(1, last).squeeze(1) for rnn, y in ((self.forwards, x), (self.backwards, x_mirrored))]
        return torch.cat(ends, 1) * (lengths > 0)[:, None]


class RecurrentPolicy(nn.Module):
    """An LSTM or GRU decoder that starts from, and at every step sees, a vector that describes the context.

    ``encoder`` maps a batch of contexts to ``Float[row, width]``: a ``TokenEncoder``, an ``nn.Linear`` on image
    features, or any other module.
    """

    def __init__(
        self,
        encoder: nn.Module,
        width: int,
        vocab: int,
        hidden: int = 128,
        layers: int = 1,
        cell: Literal["lstm", "gru"] = "lstm",
        dropout: float = 0.0,
    ):
        super().__init__()
        self.encoder = encoder
        self.embedding = nn.Embedding(vocab, hidden)
        self.bridge = nn.Linear(width, layers * hidden)
        self.inject = nn.Linear(width, hidden)
        self.rnn = (nn.LSTM if cell == "lstm" else nn.GRU)(hidden, hidden, layers, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, vocab)

    def encode(self, context: Any) -> dict[str, Tensor]:
        vector = self.encoder(context)
        hidden = self.bridge(vector).tanh().unflatten(1, (self.rnn.num_layers, -1))
        return {"hidden": hidden, "input": self.inject(vector)}

    def start(self, memory: dict[str, Tensor]) -> tuple[Tensor, State]:
        hidden = memory["hidden"]
        recurrent = (hidden, torch.zeros_like(hidden)) if isinstance(self.rnn, nn.LSTM) else (hidden,)
        return memory["input"], recurrent

    def step(
        self, state: tuple[Tensor, State], tokens: Int64[Tensor, " row"]
    ) -> tuple[Float[Tensor, "row vocab"], tuple[Tensor, State]]:
        hidden, state = self._step(state, tokens)
        return self.output(hidden), state

    def step_hidden(
        self, state: tuple[Tensor, State], tokens: Int64[Tensor, " row"]
    ) -> tuple[Float[Tensor, "row hidden"], ReadOut, tuple[Tensor, State]]:
        hidden, state = self._step(state, tokens)
        return hidden, ReadOut(self.output.weight, self.output.bias), state

    def score(self, memory: dict[str, Tensor], tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step vocab"]:
        constant, recurrent = self.start(memory)
        y, _ = self._run(self.embedding(tokens) + constant[:, None], recurrent)
        return self.output(self.dropout(y))

    def hidden_states(self, memory: dict[str, Tensor], tree: PrefixTree) -> Float[Tensor, "prefix hidden"]:
        constant, recurrent = self.start(memory)
        hidden = []
        for level in tree.levels():
            recurrent = select(recurrent, level.parent)
            x = self.embedding(level.token) + constant[tree.context[level.nodes]]
            y, recurrent = self._run(x[:, None], recurrent)
            hidden.append(y[:, 0])
        return self.dropout(torch.cat(hidden))

    def read_out(self, tree: PrefixTree) -> ReadOut:
        return ReadOut(self.output.weight, self.output.bias)

    def _step(self, state: tuple[Tensor, State], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, State]]:
        constant, recurrent = state
        y, recurrent = self._run(self.embedding(tokens)[:, None] + constant[:, None], recurrent)
        return self.dropout(y[:, 0]), (constant, recurrent)

    def _run(self, x: Float[Tensor, "row step hidden"], recurrent: State) -> tuple[Tensor, State]:
        # nn.LSTM wants layers first; our states have rows first.
        layered = tuple(part.transpose(0, 1).contiguous() for part in recurrent)
        y, after = self.rnn(x, layered if isinstance(self.rnn, nn.LSTM) else layered[0])
        after = after if isinstance(after, tuple) else (after,)
        return y, tuple(part.transpose(0, 1) for part in after)
