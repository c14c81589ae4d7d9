"""Generated scenes: small pictures of coloured shapes with five captions each, and features without a network.

A scene depends only on the seed, its split and its number. Its objects are on a board of 3 × 3 cells.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from corollout.events import Callback, ignore
from corollout.noise import FREE, Noise, uniform
from corollout.tasks.captioning.captions import SPLITS, Captions, Collector
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.features import Features
from corollout.tasks.captioning.preparation import prepare
from corollout.tasks.captioning.settings import PreparationSettings
from corollout.tasks.captioning.wording import Dice, Group, Scene, describe

SIDE = 64
CELL = SIDE / 3
COLOURS = {
    "red": (214, 40, 40),
    "orange": (244, 140, 30),
    "yellow": (248, 220, 60),
    "green": (50, 160, 70),
    "blue": (40, 90, 210),
    "purple": (130, 60, 170),
    "pink": (245, 150, 190),
    "brown": (120, 75, 40),
    "gray": (130, 130, 130),
    "black": (20, 20, 20),
    "white": (245, 245, 245),
}
_GRID = 8  # cells of the features in each direction
_EIGHTH = np.float32(np.tan(np.pi / 8))  # slope between two of the four directions of edges
_LEVELS = 4  # of each colour channel
WIDTH = _GRID * _GRID * (3 + 4) + _LEVELS**3
# These scale colours, edges and shares of colours to a spread of about one.
_COLOUR_SPREAD, _EDGE_MEAN, _EDGE_SPREAD, _SHARE_SPREAD = 0.3, 0.04, 0.05, 0.12
_BLOCK = 256
_SCENE, _WORDS, _GRAIN = FREE, FREE + 1, FREE + 2

# Numbers of scenes; the largest scale has the size of COCO.
SCALES = {
    "tiny": {"train": 2_000, "val": 300, "test": 300},
    "small": {"train": 10_000, "val": 1_000, "test": 1_000},
    "paper": {"train": 113_287, "val": 5_000, "test": 5_000},
}


# An object: its scene, shape, centre (x and y, in pixels), radius and colour.
Object = tuple[int, str, list[float], float, list[float]]


def make_scenes(
    out: Path,
    counts: Mapping[str, int],
    *,
    seed: int = 0,
    settings: PreparationSettings | None = None,
    facts: Mapping[str, Any] | None = None,
    on_event: Callback = ignore,
) -> CaptionData:
    """Make a data set of ``counts`` generated scenes of each split in a new folder; pictures are in ``images``."""
    made = Scenes(counts, seed)
    return prepare(made.captions(), made.features(), out, settings, draw=made.save, facts=facts, on_event=on_event)


class Scenes:
    """Scenes in the order train, val, test."""

    def __init__(self, counts: Mapping[str, int], seed: int = 0):
        sizes = [counts.get(split, 0) for split in SPLITS]
        self._splits = np.repeat(np.arange(len(SPLITS)), sizes)
        numbers = np.concatenate([np.arange(size) for size in sizes])
        pairs = zip(self._splits.tolist(), numbers.tolist(), strict=True)
        self.names = [f"{SPLITS[split]}-{number:06}.png" for split, number in pairs]
        noise, labels = Noise(seed), (torch.from_numpy(numbers), torch.from_numpy(self._splits))
        self._keys = {use: noise.keys(*labels, use) for use in (_SCENE, _WORDS, _GRAIN)}

    def __len__(self) -> int:
        return len(self.names)

    def scene(self, index: int) -> Scene:
        return draw_scene(self._dice(index, _SCENE))

    def captions(self) -> Captions:
        collector = Collector()
        for index, name in enumerate(self.names):
            image = collector.add_image(name, SPLITS[self._splits[index]])
            for text in describe(self.scene(index), self._dice(index, _WORDS)):
                collector.add_caption(image, text)
        return collector.captions()

    def pictures(self, indices: np.ndarray) -> np.ndarray:
        """uint8[scene, SIDE, SIDE, 3]."""
        keys = self._keys[_GRAIN][torch.from_numpy(indices)]
        grain = uniform(keys, torch.zeros_like(keys), SIDE * SIDE).numpy().reshape(-1, SIDE, SIDE) * 2 - 1
        dice = [self._dice(index, _SCENE) for index in indices.tolist()]
        return render(*_objects([(draw_scene(own), own) for own in dice]), grain)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Features of some scenes."""
        blocks = range(0, len(indices), _BLOCK)
        return np.concatenate([pixel_features(self.pictures(indices[start : start + _BLOCK])) for start in blocks])

    def features(self) -> Features:
        """Features of all scenes, which are rendered on demand."""
        return Features(self.names, WIDTH, np.dtype(np.float32), self.rows)

    def save(self, folder: Path) -> None:
        """Write all pictures."""
        for start in range(0, len(self), _BLOCK):
            names = self.names[start : start + _BLOCK]
            for name, picture in zip(names, self.pictures(start + np.arange(len(names))), strict=True):
                Image.fromarray(picture).save(folder / name, compress_level=1)

    def _dice(self, index: int, use: int) -> Dice:
        return Dice(int(self._keys[use][index]))


def draw_scene(dice: Dice) -> Scene:
    """A background with one group of one to four objects, or two groups on opposite sides."""
    background = dice.choose(list(COLOURS))
    if dice.number() < 0.45:
        return _one_group(background, dice)
    counts = dice.choose([(1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3)])
    relation = dice.choose(["left", "right", "above", "below"])
    groups: list[Group] = []
    for count, side in zip(counts, (0, 2) if relation in ("left", "above") else (2, 0), strict=True):
        along = dice.some(range(3), count)
        cells = [(at, side) if relation in ("left", "right") else (side, at) for at in along]
        group = _group(background, count, cells, dice)
        while groups and (group.shape, group.colour) == (groups[0].shape, groups[0].colour):
            group = _group(background, count, cells, dice)
        groups.append(group)
    return Scene(background, tuple(groups), relation)


def _one_group(background: str, dice: Dice) -> Scene:
    count = dice.choose((1, 1, 2, 2, 3, 4))
    arranged = "" if count == 1 else dice.choose(("row", "column", "scattered")) if count < 4 else "scattered"
    line = dice.choose(range(3))
    if arranged in ("row", "column"):
        along = dice.some(range(3), count)
        cells = [(line, at) if arranged == "row" else (at, line) for at in along]
    else:
        board = [(row, column) for row in range(3) for column in range(3)]
        cells = dice.some(board, count)
        while count > 1 and any(len({cell[axis] for cell in cells}) == 1 for axis in (0, 1)):
            cells = dice.some(board, count)
    return Scene(background, (_group(background, count, cells, dice),), arranged)


def _group(background: str, count: int, cells: list[tuple[int, int]], dice: Dice) -> Group:
    colour = dice.choose([colour for colour in COLOURS if colour != background])
    return Group(count, dice.choose(list(SHAPES)), colour, dice.choose(("small", "big")), tuple(cells))


def _objects(scenes: list[tuple[Scene, Dice]]) -> tuple[list[list[float]], list[Object]]:
    """The colour of each background, and all objects; position, size and shade are slightly varied."""

    def shade(colour: str, dice: Dice) -> list[float]:
        return [level + 24 * (dice.number() - 0.5) for level in COLOURS[colour]]

    objects: list[Object] = []
    backgrounds: list[list[float]] = []
    for index, (scene, dice) in enumerate(scenes):
        backgrounds.append(shade(scene.background, dice))
        for group in scene.groups:
            smallest = 5.0 if group.size == "small" else 8.5
            for row, column in group.cells:
                centre = [CELL * (at + 0.5) + 3 * (dice.number() - 0.5) for at in (column, row)]
                objects.append((index, group.shape, centre, smallest + dice.number(), shade(group.colour, dice)))
    return backgrounds, objects


def _polygon_star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Distance to the line between a tip and the next notch; all ten such lines are folded onto one."""
    fifth = 2 * np.pi / 5
    angle = np.abs((np.arctan2(u, -v) + fifth / 2) % fifth - fifth / 2)
    distance = np.hypot(u, v)
    notch = 0.45 * np.array([np.cos(fifth / 2), np.sin(fifth / 2)], np.float32)
    along = notch - np.array([1, 0], np.float32)
    normal = np.array([along[1], -along[0]]) / np.hypot(*along)
    return (distance * np.cos(angle) - 1) * normal[0] + distance * np.sin(angle) * normal[1]


def _heart(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u = np.abs(u)
    lobes = np.hypot(u - 0.47, v + 0.35) - 0.52
    point = np.maximum((1.2 * u + 0.9 * v - 0.9) / 1.5, -v - 0.35)
    return np.minimum(lobes, point)


def _cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u, v = np.abs(u), np.abs(v)
    return np.minimum(np.maximum(u - 0.33, v - 1), np.maximum(u - 1, v - 0.33))


# Signed distance from the edge, negative inside; x and y (downwards) are relative to the centre; all in radii.
SHAPES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "circle": lambda u, v: np.hypot(u, v) - 1,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.85,
    "triangle": lambda u, v: np.maximum(v - 0.8, (1.8 * np.abs(u) - v - 1) / 2.06),
    "star": _polygon_star,
    "cross": _cross,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.75) - 0.25,
    "diamond": lambda u, v: (np.abs(u) + np.abs(v) - 1.15) / 1.42,
    "heart": _heart,
}


def render(backgrounds: Sequence[Sequence[float]], objects: list[Object], grain: np.ndarray) -> np.ndarray:
    """uint8[scene, SIDE, SIDE, 3]; ``grain[scene, SIDE, SIDE]``, from −1 to 1, is added as noise."""
    positions = np.arange(SIDE, dtype=np.float32) + 0.5
    shade = ((positions / SIDE - 0.5) * 24)[:, None, None]  # darker at the top
    colours = np.array(backgrounds, np.float32)[:, None, None]
    pictures = np.broadcast_to(colours + shade, (*grain.shape, 3)).copy()
    for scene, shape, centre, size, colour in sorted(objects, key=lambda one: list(SHAPES).index(one[1])):
        # Only the square around an object changes.
        radius, x, y = np.array([size, *centre], np.float32)
        across, down = (slice(max(0, int(at - radius - 2)), int(at + radius + 3)) for at in (x, y))
        u, v = (positions[None, across] - x) / radius, (positions[down, None] - y) / radius
        cover = np.clip(0.5 - SHAPES[shape](u, v) * radius, 0, 1)[..., None]
        part = pictures[scene, down, across]
        part += cover * (np.array(colour, np.float32) - part)
    pictures += 8 * grain[..., None]
    return np.clip(np.rint(pictures), 0, 255).astype(np.uint8)


def pixel_features(pictures: np.ndarray) -> np.ndarray:
    """float32[picture, WIDTH]: the 512 features of each picture.

    The mean colour of each of 8 × 8 cells; in each cell, the mean strength of edges in four directions (summed over the
    colour channels, by differences of neighbours); and the square root of the share of each of 4³ colours. Each kind
    is shifted and scaled by constants to a spread of about one.
    """
    count = len(pictures)
    x = pictures.astype(np.float32) / 255
    colours = (_pooled(x) - 0.5) / _COLOUR_SPREAD
    right, down = np.zeros_like(x), np.zeros_like(x)
    right[:, :, 1:-1], down[:, 1:-1] = x[:, :, 2:] - x[:, :, :-2], x[:, 2:] - x[:, :-2]
    strength = np.sqrt(right * right + down * down)
    upright, level = (np.abs(a) * _EIGHTH > np.abs(b) for a, b in ((right, down), (down, right)))
    rising = ~upright & ~level & (right * down > 0)
    directions = (upright, level, rising, ~(upright | level | rising))
    kinds = [np.where(direction, strength, 0).sum(-1) for direction in directions]
    edges = (_pooled(np.stack(kinds, -1)) - _EDGE_MEAN) / _EDGE_SPREAD
    levels = pictures.astype(np.int64) * _LEVELS // 256
    bins = (levels[..., 0] * _LEVELS + levels[..., 1]) * _LEVELS + levels[..., 2]
    bins += np.arange(count)[:, None, None] * _LEVELS**3
    shares = np.bincount(bins.reshape(-1), minlength=count * _LEVELS**3).reshape(count, -1) / SIDE**2
    parts = (colours, edges, np.sqrt(shares) / _SHARE_SPREAD)
    return np.concatenate([part.reshape(count, -1) for part in parts], 1).astype(np.float32)


def _pooled(x: np.ndarray) -> np.ndarray:
    """Means over the cells of the grid."""
    size = SIDE // _GRID
    return x.reshape(len(x), _GRID, size, _GRID, size, -1).mean((2, 4))
