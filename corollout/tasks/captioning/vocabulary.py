"""The words of captions and their ids.

0 is start, end and padding; 1 … V − 2 are the words of the model, most frequent first; V − 1 stands for any other word.
Words from V on are too rare to be learned: models never generate them, but references keep them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from corollout.errors import InputError
from corollout.files import read_text, write_file

END = 0
END_WORD, UNKNOWN_WORD = "<end>", "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """All words in the order of their ids, and how many of them are tokens of a model."""

    words: tuple[str, ...]
    size: int  # V

    def __post_init__(self) -> None:
        valid = 2 < self.size <= len(self.words)
        if not valid or (self.words[END], self.words[self.size - 1]) != (END_WORD, UNKNOWN_WORD):
            raise InputError(f"expected {END_WORD}, then some words, then {UNKNOWN_WORD}, then rare words")
        if len(self._ids) != len(self.words):
            raise InputError(f"the word {Counter(self.words).most_common(1)[0][0]!r} occurs twice")

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], more_than: int) -> "Vocabulary":
        """Words by frequency, ties in alphabetical order; those with a count of at most ``more_than`` are rare."""
        ordered = sorted(counts.keys() - {END_WORD, UNKNOWN_WORD}, key=lambda word: (-counts[word], word))
        frequent = sum(counts[word] > more_than for word in ordered)
        if frequent == 0:
            rare = f"no word occurs more than {more_than} times in the captions that are counted"
            raise InputError(f"{rare}: choose a smaller --more-than")
        return cls((END_WORD, *ordered[:frequent], UNKNOWN_WORD, *ordered[frequent:]), frequent + 2)

    @property
    def known(self) -> tuple[str, ...]:
        """The tokens of a model, in the order of their ids."""
        return self.words[: self.size]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    def encode(self, words: Sequence[str]) -> list[int]:
        """The ids of words, including rare ones; an unknown word has the id V − 1."""
        # The end token is not a word, even if a caption contains it.
        return [self._ids.get(word, END) or self.size - 1 for word in words]

    def label(self, ids: Sequence[int], longest: int) -> list[int]:
        """A caption as a training target: rare words become unknown, and it is cut after ``longest`` words."""
        return [min(word, self.size - 1) for word in ids[:longest]]

    def text(self, ids: Sequence[int]) -> str:
        """Ids as text, up to the end token."""
        return " ".join(self.words[word] for word in takewhile(lambda word: word != END, ids))

    def save(self, path: Path | str) -> None:
        """Write the words, one per line, in the order of their ids."""
        write_file(Path(path), "".join(f"{word}\n" for word in self.words))

    @classmethod
    def load(cls, path: Path | str) -> "Vocabulary":
        """Read a file written by :meth:`save`."""
        words = tuple(read_text(Path(path), "the vocabulary ").split("\n")[:-1])
        try:
            return cls(words, words.index(UNKNOWN_WORD) + 1 if UNKNOWN_WORD in words else 0)
        except InputError as error:
            raise InputError(f"{path} is not a vocabulary: {error}") from error
