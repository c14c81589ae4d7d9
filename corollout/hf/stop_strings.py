"""Stop strings: a completion ends with the token that completes one of them in its text."""

from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from corollout.errors import InputError
from corollout.text import quoted

# Besides a stop string's own tokens: those of a character that is not complete, and one at which decoding may strip.
_MORE = 8


class StopStrings:
    """Whether the text of a sequence contains one of some strings, once its last token is there.

    A token has at least one byte of text, special tokens apart, which have none. So a string that is completed now is
    in the text of the last tokens, as many as it has bytes; only where it is, the whole text is asked.
    """

    def __init__(self, strings: Any, tokenizer: Any):
        if not isinstance(strings, list | tuple) or not strings or not all(isinstance(one, str) for one in strings):
            raise InputError(f"stop_strings must be a list of strings, as in ['\\n\\n'], not {quoted(strings)}")
        if "" in strings:
            raise InputError("stop_strings contains an empty string: every completion would stop at its first token")
        if not callable(getattr(tokenizer, "batch_decode", None)):
            raise InputError("stop_strings need a tokenizer, which makes text of tokens: give the policy one")
        self.strings, self._tokenizer = tuple(strings), tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._length = max(len(one.encode()) for one in strings) + _MORE

    def __call__(self, tokens: Int64[Tensor, "row step"]) -> Bool[Tensor, " row"]:
        rows = tokens.tolist()
        stops = [self._contained(text) for text in self._texts([self._last(row) for row in rows])]
        likely = [number for number, stop in enumerate(stops) if stop]
        for number, text in zip(likely, self._texts([rows[number] for number in likely]), strict=True):
            stops[number] = self._contained(text)
        return torch.tensor(stops, dtype=torch.bool, device=tokens.device)

    def of(self, tokens: list[int]) -> bool:
        """The same of one sequence."""
        return bool(tokens) and bool(self(torch.tensor([tokens]))[0])

    def _last(self, row: list[int]) -> list[int]:
        """The last tokens that have text."""
        kept: list[int] = []
        for token in reversed(row):
            if token not in self._special:
                kept.append(token)
                if len(kept) == self._length:
                    break
        return kept[::-1]

    def _texts(self, rows: list[list[int]]) -> list[str]:
        return self._tokenizer.batch_decode(rows, skip_special_tokens=True) if rows else []

    def _contained(self, text: str) -> bool:
        return any(one in text for one in self.strings)
