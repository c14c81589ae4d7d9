"""Token sequences in one array, as compiled loops read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from corollout.errors import InputError

MOST = 2**31 - 1


@dataclass(frozen=True)
class Tokens:
    """Sequences of token ids, one after the other: sequence i is ``flat[starts[i] : starts[i + 1]]``."""

    flat: np.ndarray  # int32[token]
    starts: np.ndarray  # int64[sequence + 1]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]]) -> "Tokens":
        """Lists of token ids."""
        starts = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, sequences), np.int64, len(sequences)), out=starts[1:])
        try:
            flat = np.fromiter(chain.from_iterable(sequences), np.int64, int(starts[-1]))
        except OverflowError:
            raise _refused("a larger one") from None
        return cls(_checked(flat), starts)

    @classmethod
    def padded(cls, tokens: np.ndarray, lengths: np.ndarray) -> "Tokens":
        """An integer array [sequence, step], of which only the first ``lengths[i]`` of row i count."""
        if tokens.ndim != 2 or lengths.shape != tokens.shape[:1] or tokens.dtype.kind not in "iu":
            raise InputError(
                f"expected whole numbers [sequence, step] and a length for each sequence, not {tokens.dtype} "
                f"{list(tokens.shape)} and {list(lengths.shape)}"
            )
        rows, width = tokens.shape
        if rows and not 0 <= lengths.min() <= lengths.max() <= width:
            raise InputError(f"lengths must be from 0 to {width}, the width of the array")
        starts = np.zeros(rows + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return cls(_checked(tokens[np.arange(width) < lengths[:, None]]), starts)


def _checked(flat: np.ndarray) -> np.ndarray:
    if len(flat) and not 0 <= flat.min() <= flat.max() <= MOST:
        raise _refused(str(flat[(flat < 0) | (flat > MOST)][0]))
    return flat.astype(np.int32)


def _refused(what: str) -> InputError:
    return InputError(f"token ids must be from 0 to {MOST}, but there is {what}")
