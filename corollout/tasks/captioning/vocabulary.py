"""The words of captions and their ids.

0 is start, end and padding; 1 … V − 2 are the words that a model may say, the most frequent first; V − 1 stands for any
other. Words from V on are too rare to be learnt: no model says them, but the references that it is judged by keep them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from corollout.errors import InputError

END = 0
END_WORD, UNKNOWN_WORD = "<end>", "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """All words, each at the place of its id, and how many of these a model may say."""

    words: tuple[str, ...]
    size: int  # V

    def __post_init__(self) -> None:
        sound = 2 < self.size <= len(self.words)
        if not sound or (self.words[END], self.words[self.size - 1]) != (END_WORD, UNKNOWN_WORD):
            raise InputError(f"it must be {END_WORD}, then some words, then {UNKNOWN_WORD}, then rare words")
        if len(self._ids) != len(self.words):
            raise InputError(f"a word is there twice: {Counter(self.words).most_common(1)[0][0]!r}")

    @classmethod
    def build(
        cls, captions: Iterable[Sequence[str]], more_than: int, others: Iterable[Sequence[str]] = ()
    ) -> "Vocabulary":
        """Words that occur more than so many times in the captions; all others, also those of ``others``, are rare."""
        counts = Counter(word for caption in captions for word in caption)
        return cls.from_counts(counts, more_than, {word for caption in others for word in caption})

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], more_than: int, others: Iterable[str] = ()) -> "Vocabulary":
        """Words by how often they occur, the most frequent first, equally frequent ones by the alphabet."""
        known = dict.fromkeys(others, 0) | dict(counts)
        ordered = sorted(known.keys() - {END_WORD, UNKNOWN_WORD}, key=lambda word: (-known[word], word))
        frequent = sum(known[word] > more_than for word in ordered)
        if frequent == 0:
            raise InputError(
                f"no word occurs more than {more_than} times in the captions to train on: set more_than lower"
            )
        return cls((END_WORD, *ordered[:frequent], UNKNOWN_WORD, *ordered[frequent:]), frequent + 2)

    @property
    def known(self) -> tuple[str, ...]:
        """The words that a model may say, each at the place of its token."""
        return self.words[: self.size]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def encode(self, words: Sequence[str]) -> list[int]:
        """The ids of words, of rare ones too; an unknown word has the id V − 1."""
        unknown = self.size - 1
        # The end is no word, even if somebody writes it.
        return [self._ids.get(word, END) or unknown for word in words]

    def label(self, ids: Sequence[int], longest: int) -> list[int]:
        """What a model is taught to say for a caption: no rare words, and no more than so many words."""
        unknown = self.size - 1
        return [min(word, unknown) for word in ids[:longest]]

    def text(self, ids: Sequence[int]) -> str:
        """Ids as text, up to the end."""
        return " ".join(self.words[word] for word in takewhile(lambda word: word != END, ids))

    def save(self, path: Path | str) -> None:
        """Write the words, one a line, in the order of their ids."""
        Path(path).write_text("".join(f"{word}\n" for word in self.words), "utf-8")

    @classmethod
    def load(cls, path: Path | str) -> "Vocabulary":
        """Read what :meth:`save` wrote."""
        try:
            words = tuple(Path(path).read_text("utf-8").split("\n")[:-1])
        except OSError as error:
            raise InputError(f"cannot read the vocabulary {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"the vocabulary {path} is no UTF-8 text: {error}") from error
        try:
            return cls(words, words.index(UNKNOWN_WORD) + 1 if UNKNOWN_WORD in words else 0)
        except InputError as error:
            raise InputError(f"{path} is no vocabulary: {error}") from error
