"""A Karel world: a grid with walls, markers and a hero; its JSON and tensor forms, and its drawing.

Cells are (row, column), rows counted from the bottom, so that north is up. Every ``World`` is valid: the constructor
checks it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from reprlib import repr as short
from typing import TypeVar

import numpy as np

from corollout.errors import InputError

DIRECTIONS = ("north", "east", "south", "west")
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # by direction
MOST_MARKERS = 101
LARGEST = 100

CHANNELS, TENSOR_SIDE = 16, 18
_PLANE = TENSOR_SIDE * TENSOR_SIDE
_WALL, _BORDER, _MARKERS = 4, 5, 6
_MOST_IN_TENSOR = CHANNELS - _MARKERS

_HERO = re.compile(rf"([0-9]{{1,4}}):([0-9]{{1,4}}):({'|'.join(DIRECTIONS)})")
_WALL_CELL = re.compile(r"([0-9]{1,4}):([0-9]{1,4})")
_MARKER = re.compile(r"([0-9]{1,4}):([0-9]{1,4}):([0-9]{1,4})")
_ENTRY = re.compile(r"([0-9]{1,4}):1(?:\.0*)?")

Cell = tuple[int, int]
T = TypeVar("T", str, int, bool)


@dataclass(frozen=True)
class World:
    """Rows and columns; the hero's row, column and direction, 0 … 3 for north, east, south, west; walls; markers."""

    rows: int
    cols: int
    hero: tuple[int, int, int]
    walls: frozenset[Cell] = frozenset()
    markers: tuple[tuple[Cell, int], ...] = ()  # cell, count; sorted

    def __post_init__(self) -> None:
        object.__setattr__(self, "markers", tuple(sorted(self.markers)))
        for name, size in (("rows", self.rows), ("cols", self.cols)):
            if not 1 <= size <= LARGEST:
                raise InputError(f"world, {name}: must be from 1 to {LARGEST}, not {size}")
        if not 0 <= self.hero[2] < len(DIRECTIONS):
            raise InputError(f"world, hero: the direction must be from 0 to {len(DIRECTIONS) - 1}, not {self.hero[2]}")
        marked = [cell for cell, _ in self.markers]
        for name, cells in (("hero", [self.hero[:2]]), ("blocked", sorted(self.walls)), ("markers", marked)):
            for row, col in cells:
                if not (0 <= row < self.rows and 0 <= col < self.cols):
                    size = f"{self.rows} rows and {self.cols} columns"
                    raise InputError(f"world, {name}: {row}:{col} is outside the grid of {size}")
                if name != "blocked" and (row, col) in self.walls:
                    raise InputError(f"world, {name}: {row}:{col} is a wall")
        for (row, col), count in self.markers:
            if not 1 <= count <= MOST_MARKERS:
                limits = f"a cell with markers has 1 to {MOST_MARKERS}"
                raise InputError(f"world, markers: {row}:{col} has {count}, but {limits}")
        for cell, following in pairwise(marked):
            if cell == following:
                raise InputError(f"world, markers: {cell[0]}:{cell[1]} has two counts")

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "World":
        """Read the public form: ``rows``, ``cols``, ``hero`` "r:c:east", ``blocked`` "r:c …", ``markers`` "r:c:n …"."""
        _field(data, "crashed", bool, False)  # not part of the state
        hero = _field(data, "hero", str)
        match = _HERO.fullmatch(hero)
        if not match:
            raise InputError(f"world, hero: expected row:column:direction as in 3:0:east, not {short(hero)}")
        walls = [(int(m[1]), int(m[2])) for m in _items(data, "blocked", _WALL_CELL, "row:column")]
        markers = [((int(m[1]), int(m[2])), int(m[3])) for m in _items(data, "markers", _MARKER, "row:column:count")]
        return cls(
            _field(data, "rows", int),
            _field(data, "cols", int),
            (int(match[1]), int(match[2]), DIRECTIONS.index(match[3])),
            frozenset(walls),
            tuple(markers),
        )

    def to_json(self, crashed: bool = False) -> dict[str, object]:
        """The public form; ``crashed`` says how the run ended."""
        row, col, direction = self.hero
        return {
            "rows": self.rows,
            "cols": self.cols,
            "hero": f"{row}:{col}:{DIRECTIONS[direction]}",
            "blocked": " ".join(f"{r}:{c}" for r, c in sorted(self.walls)),
            "markers": " ".join(f"{r}:{c}:{n}" for (r, c), n in self.markers),
            "crashed": crashed,
        }

    @classmethod
    def from_tensor(cls, tensor: str | np.ndarray) -> "World":
        """Read the public 16 × 18 × 18 tensor: sparse text "flat_index:1.0 …", or an array, of that shape or flat."""
        flat = _sparse(tensor) if isinstance(tensor, str) else _dense(tensor)
        cells: list[list[Cell]] = [[] for _ in range(CHANNELS)]
        for index in flat:
            channel, position = divmod(index, _PLANE)
            # The first row and column are the border: cell (r, c) is at (r + 1, c + 1).
            cells[channel].append((position // TENSOR_SIDE - 1, position % TENSOR_SIDE - 1))
        rows, cols = _size(cells[_BORDER])
        heroes = [(row, col, direction) for direction in range(len(DIRECTIONS)) for row, col in cells[direction]]
        if len(heroes) != 1:
            raise InputError(f"tensor, channels 0 to 3: expected one hero, found {len(heroes)}")
        markers = [(cell, n) for n in range(1, _MOST_IN_TENSOR + 1) for cell in cells[_MARKERS + n - 1]]
        return cls(rows, cols, heroes[0], frozenset(cells[_WALL]), tuple(markers))

    def to_tensor(self) -> str:
        """The public tensor as sparse text, indices in order."""
        smallest, largest = 2, TENSOR_SIDE - 2
        if not (smallest <= self.rows <= largest and smallest <= self.cols <= largest):
            size = f"{self.rows} rows and {self.cols} columns"
            raise InputError(f"a world of {size} has no tensor: both must be from {smallest} to {largest}")
        row, col, direction = self.hero
        filled = [(direction, (row, col))]
        filled += [(_WALL, cell) for cell in self.walls]
        filled += [(_BORDER, cell) for cell in _frame(self.rows, self.cols)]
        for cell, count in self.markers:
            if count > _MOST_IN_TENSOR:
                most = f"a tensor has at most {_MOST_IN_TENSOR}"
                raise InputError(f"cell {cell[0]}:{cell[1]} has {count} markers, but {most}")
            filled.append((_MARKERS + count - 1, cell))
        indices = sorted(channel * _PLANE + (r + 1) * TENSOR_SIDE + c + 1 for channel, (r, c) in filled)
        return " ".join(f"{index}:1.0" for index in indices)

    def draw(self) -> str:
        """A plain drawing, north at the top: hero ▲▶▼◀, walls █, numbers of markers."""
        cells = self.labels()
        edge = "─" * (sum(map(len, cells[0])) + 1)
        return "\n".join([f"┌{edge}┐", *(f"│{''.join(row)} │" for row in cells), f"└{edge}┘"])

    def labels(self) -> list[list[str]]:
        """The text of each cell in a drawing, all of one width, the northernmost row first."""
        counts = dict(self.markers)
        width = 1 + max((len(str(count)) for count in counts.values()), default=1)
        hero = (self.hero[0], self.hero[1])

        def label(cell: Cell) -> str:
            count = str(counts.get(cell, ""))
            if cell == hero:
                arrow = "▲▶▼◀"[self.hero[2]]
                return arrow + count.rjust(width - 1) if count else arrow.rjust(width)
            return "█" * width if cell in self.walls else (count or "·").rjust(width)

        return [[label((row, col)) for col in range(self.cols)] for row in reversed(range(self.rows))]


def same_state(a: World, b: World) -> bool:
    """Whether hero and markers agree: then two worlds count as equal."""
    return a.hero == b.hero and a.markers == b.markers


def _frame(rows: int, cols: int) -> list[Cell]:
    """The cells of the border."""
    sides = [(row, col) for row in range(rows) for col in (-1, cols)]
    return sides + [(row, col) for col in range(-1, cols + 1) for row in (-1, rows)]


def _size(border: list[Cell]) -> tuple[int, int]:
    """Rows and columns of the grid that a border encloses."""
    rows, cols = max((r for r, _ in border), default=0), max((c for _, c in border), default=0)
    if sorted(border) != sorted(_frame(rows, cols)) or min(rows, cols) < 2:
        raise InputError(
            f"tensor, channel {_BORDER}: expected the border of a grid of 2 to {TENSOR_SIDE - 2} rows and columns"
        )
    return rows, cols


def _sparse(text: str) -> list[int]:
    indices = []
    for entry in text.split():
        match = _ENTRY.fullmatch(entry)
        if not match or int(match[1]) >= CHANNELS * _PLANE:
            raise InputError(
                f"tensor: expected index:1.0 with an index from 0 to {CHANNELS * _PLANE - 1}, not {short(entry)}"
            )
        indices.append(int(match[1]))
    if len(set(indices)) < len(indices):
        twice = next(index for index in indices if indices.count(index) > 1)
        raise InputError(f"tensor: index {twice} occurs twice")
    return indices


def _dense(array: np.ndarray) -> list[int]:
    if array.shape not in ((CHANNELS, TENSOR_SIDE, TENSOR_SIDE), (CHANNELS * _PLANE,)):
        raise InputError(
            f"tensor: expected the shape {CHANNELS} × {TENSOR_SIDE} × {TENSOR_SIDE}, or a flat array of as "
            f"many numbers, not {tuple(array.shape)}"
        )
    if array.dtype.kind not in "biuf" or not ((array == 0) | (array == 1)).all():
        raise InputError("tensor: expected zeros and ones only")
    return np.flatnonzero(array).tolist()


def _field(data: Mapping[str, object], name: str, kind: type[T], default: T | None = None) -> T:
    value = data.get(name, default)
    if value is None and name not in data:
        raise InputError(f"world, {name}: missing")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {str: "a string", int: "a whole number", bool: "true or false"}
        raise InputError(f"world, {name}: expected {names[kind]}, not {short(value)}")
    return value


def _items(data: Mapping[str, object], name: str, form: re.Pattern[str], example: str) -> list[re.Match[str]]:
    """The blank-separated items of a field, all of this form."""
    matches = []
    for item in _field(data, name, str, "").split():
        match = form.fullmatch(item)
        if not match:
            raise InputError(f"world, {name}: expected {example}, not {short(item)}")
        matches.append(match)
    return matches
