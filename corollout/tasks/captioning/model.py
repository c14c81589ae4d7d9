"""The paper's FC model: the image is the first input of a maxout LSTM, words are the next ones.

Features are standardised first, with means and deviations that are part of the weights: learning is faster than on raw
features, which may have any scale.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear

from corollout.policies.lstm import Input, lstm, lstm_levels, lstm_step
from corollout.policies.read_out import ReadOut
from corollout.policies.tree_head import TreeHead
from corollout.prefix_tree import PrefixTree
from corollout.trees import Tree

State = tuple[Tensor, Tensor]
Gates = Float[Tensor, "row gates"]
_LEAST_DEVIATION = 1e-3


class CaptionPolicy(nn.Module):
    """A captioner as a policy; a context is an image's feature vector, a memory its contribution to the first gates.

    With a tree, words are chosen by a walk down it, and the policy outputs the LSTM's state for the tree head.
    """

    shift: Tensor
    factor: Tensor

    def __init__(
        self,
        vocab: int,
        width: int = 2048,
        embedding: int = 512,
        hidden: int = 512,
        dropout: float = 0.5,
        input_dropout: float = 0.0,
        tree: Tree | None = None,
    ):
        super().__init__()
        bound = hidden**-0.5

        def uniform(*shape: int, bound: float = bound) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))

        gates = 5 * hidden
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("factor", torch.ones(width))
        self.image = nn.Linear(width, embedding)
        self.embedding = uniform(vocab, embedding, bound=0.1)
        self.from_input = uniform(embedding, gates)
        self.recurrent = uniform(hidden, gates)
        # Two biases as in other libraries: one for the input, one for the recurrence.
        self.bias = uniform(2, gates)
        if tree is None:
            self.head = None
            self.output = uniform(vocab, hidden, bound=0.1)
            self.output_bias = nn.Parameter(torch.zeros(vocab))
        else:
            self.head = TreeHead(hidden, tree)
        self.hidden, self.dropout, self.input_dropout = hidden, dropout, input_dropout

    def standardise(self, examples: Float[Tensor, "image width"]) -> None:
        """Set the mean and deviation by which features are standardised to those of some examples."""
        self.shift.copy_(examples.mean(0))
        self.factor.copy_(1 / (examples.std(0, correction=0) + _LEAST_DEVIATION))

    def standardised(self, context: Float[Tensor, "row width"]) -> Float[Tensor, "row width"]:
        return (context - self.shift) * self.factor

    def encode(self, context: Float[Tensor, "row width"]) -> Gates:
        return self._projected(self.image(self.standardised(context)))

    def start(self, memory: Gates) -> State:
        nothing = memory.new_zeros(len(memory), self.hidden)
        return lstm_step(memory, self.recurrent, nothing, nothing)[:2]

    def step(self, state: State, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row output"], State]:
        h, state = self._advance(state, tokens)
        return self._read_out(h), state

    def step_hidden(self, state: State, tokens: Int64[Tensor, " row"]) -> tuple[Tensor, ReadOut, State]:
        h, state = self._advance(state, tokens)
        return h, ReadOut(self.output, self.output_bias), state

    def score(self, memory: Gates, tokens: Int64[Tensor, "row step"]) -> Float[Tensor, "row step output"]:
        x = torch.cat([memory[None], self._gates(tokens.t())])
        nothing = x.new_zeros(len(tokens), self.hidden)
        h = lstm(x, self.recurrent, nothing, nothing)[1:].transpose(0, 1)
        return self._read_out(dropout(h, self.dropout, self.training))

    def hidden_states(self, memory: Gates, tree: PrefixTree) -> Float[Tensor, "prefix hidden"]:
        images = tree.context[: tree.sizes[0]]  # one prefix of the first level for each
        words, index = tree.token.unique(return_inverse=True)
        table = torch.cat([memory, self._projected(embedding(words, self.embedding))])
        inputs = [Input(table, torch.cat([images, len(memory) + index]))]
        # The image is a level of its own, before all words.
        parent = tree.parent.clone()
        parent[: len(images)] = torch.arange(len(images), device=images.device)
        parent = torch.cat([torch.zeros_like(images), parent])
        nothing = table.new_zeros(1, self.hidden)
        h = lstm_levels(inputs, self.recurrent, nothing, nothing, parent, [len(images), *tree.sizes])
        return dropout(h[len(images) :], self.dropout, self.training)

    def read_out(self, tree: PrefixTree) -> ReadOut:
        return ReadOut(self.output, self.output_bias)

    def _advance(self, state: State, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row hidden"], State]:
        if torch.is_grad_enabled():
            raise RuntimeError("CaptionPolicy.step has no gradient: call it in torch.no_grad(), or use score")
        # A word that is in several rows is projected once; but how many words there are, a device had to be asked.
        words, index = tokens.unique(return_inverse=True) if tokens.device.type == "cpu" else (tokens, None)
        h, c, _ = lstm_step([Input(self._projected(embedding(words, self.embedding)), index)], self.recurrent, *state)
        return h, (h, c)

    def _read_out(self, h: Float[Tensor, "... hidden"]) -> Float[Tensor, "... output"]:
        return h if self.head is not None else linear(h, self.output, self.output_bias)

    def _gates(self, tokens: Int64[Tensor, "..."]) -> Float[Tensor, "... gates"]:
        """The words' contribution to the gates; a word that is in several rows is projected once."""
        words, index = tokens.unique(return_inverse=True)
        return embedding(index, self._projected(embedding(words, self.embedding)))

    def _projected(self, inputs: Float[Tensor, "row width"]) -> Gates:
        return torch.addmm(self.bias.sum(0), dropout(inputs, self.input_dropout, self.training), self.from_input)
