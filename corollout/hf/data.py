"""Data sets of prompts: a table of ``datasets``, or any sequence of rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from corollout.data import Batch
from corollout.division import Division
from corollout.errors import InputError
from corollout.hf.prompts import PromptColumn
from corollout.hf.text import Text
from corollout.text import quoted

Row = dict[str, Any]


class PromptRows(torch.utils.data.Dataset[Row]):
    """The rows of a data set, each with its number, by which the noise of its completions is drawn."""

    def __init__(self, rows: Any, what: str = "train_dataset"):
        if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__") or isinstance(rows, str | Mapping):
            raise InputError(f"{what} must be a table of datasets, or a list of rows, not {quoted(rows)}")
        if len(rows) == 0:
            raise InputError(f"{what} has no rows")
        first = rows[0]
        if not isinstance(first, Mapping) or "prompt" not in first:
            names = sorted(map(str, first)) if isinstance(first, Mapping) else quoted(first)
            raise InputError(f"{what} needs a column 'prompt', with strings or chat messages; it has {names}")
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Row:
        return {"number": int(number), "row": dict(self.rows[int(number)])}


def collate(rows: list[Row]) -> list[Row]:
    """A batch is the list of its rows."""
    return rows


def batch_of(
    rows: Sequence[Row], text: Text, most: int | None, device: torch.device | str, division: Division | None = None
) -> Batch:
    """A batch of prompts; ``most`` is the number of tokens that a prompt may have. With a ``division``, they are this
    process's part of the batch.
    """
    prompts = [text.prompt_tokens(one["row"]["prompt"], one["number"]) for one in rows]
    for one, tokens in zip(rows, prompts, strict=True):
        if most is not None and len(tokens) > most:
            raise InputError(
                f"prompt {one['number']} has {len(tokens)} tokens, but with the completion only {most} fit into the "
                f"model's context window: shorten it, or lower max_completion_length"
            )
    context = PromptColumn(prompts).gather(torch.arange(len(prompts))).to(device)
    numbers = torch.tensor([one["number"] for one in rows], dtype=torch.int64, device=device)
    return Batch(numbers, {"context": context, "row": [one["row"] for one in rows]}, division)
