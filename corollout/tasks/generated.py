"""What is common to all tasks when sequences are written for some of their examples and shown."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rich.console import RenderableType
from rich.text import Text

from corollout.data import Columns
from corollout.rollouts.decoding import Decoded
from corollout.types import Sampler


@runtime_checkable
class Examples(Protocol):
    """Some examples of a task, by their places, and how that which is written for them is shown."""

    @property
    def columns(self) -> Columns: ...

    def identity(self, place: int) -> dict[str, Any]:
        """Which example it is, for JSON."""
        ...

    def heading(self, place: int) -> Text:
        """The same for people."""
        ...

    def records(self, place: int, found: Sequence[Decoded]) -> list[dict[str, Any]]:
        """How good each sequence is, for JSON."""
        ...

    def show(self, place: int, found: Sequence[Decoded], sampler: Sampler) -> RenderableType:
        """The same for people."""
        ...


class OfSplit:
    """Examples that are named by their numbers in a split."""

    def __init__(self, columns: Columns, split: str, noun: str, numbers: list[int]):
        self._all, self._split, self._noun, self.numbers = columns, split, noun, numbers

    @property
    def columns(self) -> Columns:
        batch = self._all.batch(self.numbers)
        return Columns(ids=batch.examples, **batch.columns)

    def identity(self, place: int) -> dict[str, Any]:
        number = self.numbers[place]
        return {"split": self._split, self._noun: number, "id": int(self._all.ids[number])}

    def heading(self, place: int) -> Text:
        return Text.assemble((f"{self._split}, {self._noun} {self.numbers[place]}", "bold"))
