"""How an example, and sequences generated for it, are shown in the terminal, on a page and as JSON.

The base class shows any task; a task with more to show subclasses it.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from corollout.data import Columns, Split, plain_entry
from corollout.errors import InputError
from corollout.rewards import Reward
from corollout.types import Decoded, Sampler


class ExampleView:
    """One example of a split."""

    example_noun: ClassVar[str] = "example"
    output_noun: ClassVar[str] = "sequence"
    is_prose: ClassVar[bool] = False  # sequences are sentences, to be read as a whole
    is_graded: ClassVar[bool] = True  # rewards are higher and lower, not just right and wrong
    token_styles: ClassVar[dict[str, str]] = {"token": ""}  # terminal styles by key; on a page, the key is a CSS class
    css: ClassVar[str] = ""

    def __init__(
        self,
        split_name: str,
        split: Split,
        index: int,
        vocabulary: Sequence[str] | None = None,
        reward: Reward | None = None,
    ):
        if not 0 <= index < len(split):
            examples = f"{self.example_noun}s"
            valid = f"only the {examples} 0 to {len(split) - 1}" if len(split) else f"no {examples}"
            raise InputError(f"the split {split_name} has {valid}, not {index}")
        self.split_name, self.split, self.index = split_name, split, index
        self._vocabulary, self._reward = vocabulary, reward

    @property
    def id(self) -> int:
        return int(self.split.columns.ids[self.index])

    def heading(self) -> Text:
        """Which example it is."""
        return Text.assemble((f"{self.split_name}, {self.example_noun} {self.index}", "bold"))

    def identity(self) -> dict[str, Any]:
        """Which example it is, for JSON."""
        return {"split": self.split_name, self.example_noun: self.index, "id": self.id}

    def record(self) -> dict[str, Any]:
        """The example itself, for JSON."""
        return self._fields()

    def show(self) -> RenderableType:
        """The example itself, for the terminal."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim")
        for name, value in self._fields().items():
            grid.add_row(name, Text(str(value)))
        return grid

    def html(self) -> str:
        """The example itself, for a page."""
        cells = [(escape(name), escape(str(value))) for name, value in self._fields().items()]
        return f"<table>{''.join(f'<tr><th>{name}</th><td>{value}</td></tr>' for name, value in cells)}</table>"

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Names of tokens."""
        return [str(token) if self._vocabulary is None else self._vocabulary[token] for token in ids]

    def token_style(self, token: str) -> str:
        """A key of ``token_styles``."""
        return "token"

    def tokens_text(self, ids: Sequence[int]) -> Text:
        """Tokens in colour, for the terminal."""
        return Text(" ").join(Text(token, self.token_styles[self.token_style(token)]) for token in self.tokens(ids))

    def tokens_html(self, ids: Sequence[int]) -> str:
        """Tokens in colour, for a page."""
        spans = (f'<span class="{self.token_style(token)}">{escape(token)}</span>' for token in self.tokens(ids))
        return f"<code>{' '.join(spans)}</code>"

    def output_records(self, outputs: Sequence[Decoded]) -> list[dict[str, Any]]:
        """Generated sequences and how good they are, for JSON."""
        records = [{"tokens": self.tokens(one.tokens), "log_probability": one.log_probability} for one in outputs]
        if (rewards := self._rewards(outputs)) is not None:
            records = [{**record, "reward": reward} for record, reward in zip(records, rewards, strict=True)]
        return records

    def show_outputs(self, outputs: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        """Generated sequences and how good they are, below the example itself, for the terminal."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        table.add_column(self.output_noun if sampler.mode == "greedy" else f"{self.output_noun}s, {sampler.mode}")
        rewards = self._rewards(outputs)
        if rewards is not None:
            table.add_column("reward", justify="right", vertical="top")
        table.add_column("log-probability", justify="right", vertical="top")
        for row, output in enumerate(outputs):
            reward = [] if rewards is None else ["–" if rewards[row] is None else f"{rewards[row]:.3g}"]
            text = self.tokens_text(output.tokens) or Text("(empty)")
            table.add_row(text, *reward, f"{output.log_probability:.2f}")
        return Group(self.show(), "", table)

    def _rewards(self, outputs: Sequence[Decoded]) -> list[float | None] | None:
        if self._reward is None:
            return None
        values = output_rewards(self._reward, self.split.columns, [self.index] * len(outputs), outputs).tolist()
        return [None if np.isnan(value) else value for value in values]

    def _fields(self) -> dict[str, Any]:
        """The example's entry in each column; tensors other than short vectors by their shape."""
        batch = self.split.columns.batch([self.index])
        return {name: self._field(name, column[0]) for name, column in batch.columns.items()}

    def _field(self, name: str, value: Any) -> Any:
        return self.tokens(value) if name == "target" and not isinstance(value, Tensor) else plain_entry(value)


def output_rewards(
    reward: Reward, columns: Columns, index: Sequence[int], outputs: Sequence[Decoded], batch_size: int = 256
) -> np.ndarray:
    """The reward of a sequence for each of some examples, given by their positions; NaN where it is skipped."""
    parts = []
    for rows in torch.arange(len(outputs)).split(batch_size):
        batch = columns.batch([index[row] for row in rows.tolist()])
        some = [outputs[row] for row in rows.tolist()]
        sequences, finished = [one.tokens for one in some], [one.finished for one in some]
        aligned = batch.aligned(torch.arange(len(some)))
        parts.append(reward(sequences, batch.examples.tolist(), aligned, finished).values.numpy())
    return np.concatenate(parts) if parts else np.empty(0)
