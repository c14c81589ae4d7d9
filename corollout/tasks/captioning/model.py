"""The paper's FC model: the image is the first input of a maxout LSTM, words are the others.

Features are standardised first, by means and deviations that belong to the weights: they are of any size, and raw ones
are learnt from more slowly.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear

from corollout.policies.lstm import lstm, lstm_step
from corollout.policies.tree_head import TreeHead
from corollout.trees import Tree

State = tuple[Tensor, Tensor]
_LEAST_DEVIATION = 1e-3


class CaptionPolicy(nn.Module):
    """A captioner as a policy; a context is an image's vector of features, a memory its share of the first gates.

    With a tree, words are chosen by a walk down it, and the policy puts out the LSTM's state for the head to read.
    """

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
        # Two biases, as other libraries have them: one is the input's, one the recurrence's.
        self.bias = uniform(2, gates)
        if tree is None:
            self.head = None
            self.output = uniform(vocab, hidden, bound=0.1)
            self.output_bias = nn.Parameter(torch.zeros(vocab))
        else:
            self.head = TreeHead(hidden, tree)
        self.hidden, self.dropout, self.input_dropout = hidden, dropout, input_dropout

    def standardise(self, examples: Float[Tensor, "image width"]) -> None:
        """From now on, features that are distributed like these have mean 0 and deviation 1."""
        shift: Tensor = self.shift  # pyright: ignore[reportAssignmentType]
        factor: Tensor = self.factor  # pyright: ignore[reportAssignmentType]
        shift.copy_(examples.mean(0))
        factor.copy_(1 / (examples.std(0, correction=0) + _LEAST_DEVIATION))

    def standardised(self, context: Float[Tensor, "row width"]) -> Float[Tensor, "row width"]:
        return (context - self.shift) * self.factor  # pyright: ignore[reportOperatorIssue]

    def encode(self, context: Float[Tensor, "row width"]) -> Float[Tensor, "row gates"]:
        return self._projected(self.image(self.standardised(context)))

    def start(self, memory: Float[Tensor, "row gates"]) -> State:
        nothing = memory.new_zeros(len(memory), self.hidden)
        return lstm_step(memory, self.recurrent, nothing, nothing)

    def step(self, state: State, tokens: Int64[Tensor, " row"]) -> tuple[Float[Tensor, "row output"], State]:
        if torch.is_grad_enabled():
            raise RuntimeError("CaptionPolicy.step is for sampling, without gradient; score has the gradient")
        h, c = lstm_step(self._gates(tokens), self.recurrent, *state)
        return self._read_out(h), (h, c)

    def score(
        self, memory: Float[Tensor, "row gates"], tokens: Int64[Tensor, "row step"]
    ) -> Float[Tensor, "row step output"]:
        x = torch.cat([memory[None], self._gates(tokens.t())])
        nothing = x.new_zeros(len(tokens), self.hidden)
        h = lstm(x, self.recurrent, nothing, nothing)[1:].transpose(0, 1)
        return self._read_out(dropout(h, self.dropout, self.training))

    def _read_out(self, h: Float[Tensor, "... hidden"]) -> Float[Tensor, "... output"]:
        return h if self.head is not None else linear(h, self.output, self.output_bias)

    def _gates(self, tokens: Int64[Tensor, "..."]) -> Float[Tensor, "... gates"]:
        """The words' share of the gates. Many rows have the same word: each is projected once."""
        words, place = tokens.unique(return_inverse=True)
        return embedding(place, self._projected(embedding(words, self.embedding)))

    def _projected(self, inputs: Float[Tensor, "row width"]) -> Float[Tensor, "row gates"]:
        return torch.addmm(self.bias.sum(0), dropout(inputs, self.input_dropout, self.training), self.from_input)
