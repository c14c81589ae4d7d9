"""What a language model keeps between steps: its prompts, and where sequences are in the store."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.hf.attention import Prompts
from corollout.hf.store import Store
from corollout.policies.protocol import as_leaves

Rows = Int64[Tensor, " row"]


@dataclass(frozen=True, eq=False)
class Memory:
    """Some of the prompts that a model has read; sequences of all of them share one store."""

    prompts: Prompts
    last: Int64[Tensor, " prompt"]  # the last token of each prompt of a decoder-only model, not read yet
    number: Rows
    store: Store = field(default_factory=Store)

    def select(self, rows: Rows) -> "Memory":
        return Memory(self.prompts, self.last, self.number[rows], self.store)

    def as_leaves(self) -> "tuple[Memory, Callable[[], None]]":
        """The same memory cut off from the graph, and a function that passes gradients on to the graph.

        The weights that read prompts read completions, too. With one backward pass for each, gradients of the weights
        are added up layer by layer; with one for both, autograd would hold those of completions until it has come to
        the prompts.
        """
        (keys, values), pass_on = as_leaves((self.prompts.keys, self.prompts.values))
        return Memory(Prompts(keys, values, self.prompts.lengths), self.last, self.number), pass_on

    def detach(self) -> "Memory":
        return Memory(self.prompts.detach(), self.last, self.number)


@dataclass(frozen=True, eq=False)
class State:
    """Where sequences are: the prompt of each, and the places of its tokens in the store."""

    memory: Memory
    number: Rows
    path: Int64[Tensor, "row step"]

    def __post_init__(self) -> None:
        self.memory.store.states.add(self)

    def select(self, rows: Rows) -> "State":
        return State(self.memory, self.number[rows], self.path[rows])

    @staticmethod
    def concat(states: "list[State]") -> "State":
        number, path = (torch.cat([getattr(state, name) for state in states]) for name in ("number", "path"))
        return State(states[0].memory, number, path)

    def rewind(self, steps: int) -> "State":
        return State(self.memory, self.number, self.path[:, : self.path.shape[1] - steps])

    def clone(self) -> "State":
        return self
