"""Many worlds in two arrays: the form in which the machine runs them and the encoder reads them.

A grid is a square of bytes with the world's frame in it: cell (r, c) of the world, rows counted from the bottom, stands
at (r + 1, c + 1), the frame of border cells around it, and whatever is left of the square is outside. A byte is a
number of markers, 0 … 101, or one of the codes below. The hero is its place in the flattened grid and its direction,
0 … 3 for north, east, south, west.
"""

from dataclasses import dataclass

import numpy as np

OUTSIDE, BORDER, WALL = 253, 254, 255
FIRST_BLOCKED = OUTSIDE
MOST_MARKERS = 101
DIRECTIONS = ("north", "east", "south", "west")


@dataclass(frozen=True)
class Grids:
    """Worlds of equal side, in any arrangement: ``cells[..., side, side]`` and ``hero[..., 2]``."""

    cells: np.ndarray  # uint8
    hero: np.ndarray  # int16: place, direction

    @property
    def side(self) -> int:
        """The square's side, frame included: a world of 8 × 8 needs 10."""
        return self.cells.shape[-1]

    def __getitem__(self, index: object) -> "Grids":
        return Grids(self.cells[index], self.hero[index])  # pyright: ignore[reportArgumentType]
