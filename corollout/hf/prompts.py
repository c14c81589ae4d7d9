"""Prompts as a column of a data set."""

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from corollout.errors import InputError

PADDING = -1


class PromptColumn:
    """Lists of tokens, of any lengths; a batch of them is a tensor padded at the end with −1."""

    def __init__(self, prompts: Sequence[Sequence[int]]):
        self._prompts = [torch.tensor(prompt, dtype=torch.int64) for prompt in prompts]
        for number, prompt in enumerate(self._prompts):
            if prompt.ndim != 1 or len(prompt) == 0 or int(prompt.min()) < 0:
                raise InputError(f"prompt {number} must be a list of at least one token, each a whole number from 0")

    def __len__(self) -> int:
        return len(self._prompts)

    def gather(self, index: Int64[Tensor, " row"]) -> Int64[Tensor, "row position"]:
        chosen = [self._prompts[i] for i in index.tolist()]
        if not chosen:
            return torch.empty(0, 0, dtype=torch.int64)
        return torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=PADDING)
