"""Where sequences stop besides at end tokens."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

Asked = Bool[Tensor, " row"]
# Says of some sequences whether they stop with their last tokens. It must depend on the tokens of a sequence only, so
# that what is sampled is a distribution over sequences.
Stops = Callable[[Int64[Tensor, "row step"]], Bool[Tensor, " row"]]


def stopped(stops: Stops | None, tokens: Int64[Tensor, "row step"], asked: Asked) -> Asked:
    """Which of the sequences that are asked for stop."""
    out = torch.zeros_like(asked)
    if stops is not None:
        rows = asked.nonzero().squeeze(1)
        if len(rows):
            out[rows] = stops(tokens[rows])
    return out
