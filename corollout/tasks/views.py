"""The examples that sequences are written for, as people see them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from corollout.errors import InputError
from corollout.tasks.captioning.task import Split as CaptionSplit
from corollout.tasks.captioning.vocabulary import END_WORD, UNKNOWN_WORD, Vocabulary
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.language import decode, kind_of
from corollout.tasks.karel.task import Split as KarelSplit
from corollout.tasks.karel.world import World
from corollout.tasks.task import Split, Task


@runtime_checkable
class Subject(Protocol):
    """One example of a task."""

    task: str  # what is learnt
    noun: str  # what an example is called
    written: str  # what is written for it
    prose: bool  # sequences are sentences, which are read as a whole
    graded: bool  # rewards are higher and lower, not right and wrong

    def words(self, tokens: Sequence[int]) -> list[str]:
        """Tokens by name."""
        ...

    def kind(self, word: str) -> str:
        """What kind of token this is, for its colour."""
        ...

    def record(self) -> dict[str, Any]:
        """What is known of the example, for JSON."""
        ...


@dataclass(frozen=True)
class KarelSubject:
    """A task of Karel."""

    reference: list[int]
    worlds: list[tuple[World, World]]  # before and after; the last pair is held out

    task, noun, written = "Karel", "task", "program"
    prose = graded = False

    @classmethod
    def of(cls, split: KarelSplit, number: int) -> "KarelSubject":
        data = split.data
        before, after = data.inputs[number], data.outputs[number]
        worlds = [(unpack(before[e]), unpack(after[e])) for e in range(len(before.hero))]
        return cls(data.tokens[number, : data.lengths[number]].tolist(), worlds)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return decode(tokens)

    def kind(self, word: str) -> str:
        return kind_of(word)

    def record(self) -> dict[str, Any]:
        return {"reference": decode(self.reference)}


@dataclass(frozen=True)
class CaptionSubject:
    """An image with captions."""

    name: str
    photo: Path | None
    references: list[str]
    vocabulary: Vocabulary = field(repr=False)

    task, noun, written = "captioning", "image", "caption"
    prose = graded = True

    @classmethod
    def of(cls, split: CaptionSplit, number: int) -> "CaptionSubject":
        images, vocabulary = split.data, split.data.data.vocabulary
        references = [vocabulary.text(ids) for ids in images.references[number]]
        return cls(images.names[number], images.photo(number), references, vocabulary)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.vocabulary.words[token] for token in tokens]

    def kind(self, word: str) -> str:
        return "mark" if word in (END_WORD, UNKNOWN_WORD) else "word"

    def record(self) -> dict[str, Any]:
        photo = None if self.photo is None else str(self.photo)
        return {"name": self.name, "photo": photo, "references": self.references}


_SUBJECTS: dict[str, Callable[[Any, int], Subject]] = {"karel": KarelSubject.of, "captions": CaptionSubject.of}


def subject_of(task: Task, split: Split, number: int) -> Subject:
    """An example of a task, by its number in a split."""
    return _SUBJECTS[task.name](split, number)


def check_number(task: Task, split: Split, name: str, number: int) -> None:
    """Refuse the number of an example that a split does not have."""
    if not 0 <= number < len(split):
        examples = task.metric.examples
        have = f"only the {examples} 0 to {len(split) - 1}" if len(split) else f"no {examples}"
        raise InputError(f"the split {name} has {have}, not {number}")
