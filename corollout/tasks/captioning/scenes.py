"""Generated scenes: small pictures of coloured shapes, five captions each, and features without any network.

A scene depends on the seed, its split and its number only. Everything in it is on a board of three by three cells.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from corollout.noise import FREE, Noise, uniform
from corollout.tasks.captioning.arrays import SPLITS
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.gathering import Captions, Gathering
from corollout.tasks.captioning.pixels import CELL, COLOURS, SHAPES, SIDE, WIDTH, Drawn, pixel_features, render
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.wording import Dice, Group, Scene, describe

_BLOCK = 256
_SCENE, _WORDS, _GRAIN = FREE, FREE + 1, FREE + 2


# How many scenes a scale has; the largest is as large as COCO.
SCALES = {
    "tiny": {"train": 2_000, "val": 300, "test": 300},
    "small": {"train": 10_000, "val": 1_000, "test": 1_000},
    "paper": {"train": 113_287, "val": 5_000, "test": 5_000},
}


def make_scenes(
    out: Path,
    counts: Mapping[str, int],
    *,
    seed: int = 0,
    settings: PreparationSettings | None = None,
    facts: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> CaptionData:
    """Make a data set of generated scenes, so many of each split, in a new folder; pictures are in ``images``."""
    made = Scenes(counts, seed)
    return prepare(made.captions(), made, out, settings, draw=made.save, facts=facts, on_progress=on_progress)


class Scenes:
    """Scenes by number, first those to train on; as features, they are rendered when they are asked for."""

    width, dtype = WIDTH, np.dtype(np.float32)

    def __init__(self, counts: Mapping[str, int], seed: int = 0):
        sizes = [counts.get(split, 0) for split in SPLITS]
        self._splits = np.repeat(np.arange(len(SPLITS)), sizes)
        numbers = np.concatenate([np.arange(size) for size in sizes])
        pairs = zip(self._splits.tolist(), numbers.tolist(), strict=True)
        self.names: Sequence[str] = [f"{SPLITS[split]}-{number:06}.png" for split, number in pairs]
        noise, labels = Noise(seed), (torch.from_numpy(numbers), torch.from_numpy(self._splits))
        self._keys = {use: noise.keys(*labels, use) for use in (_SCENE, _WORDS, _GRAIN)}

    def __len__(self) -> int:
        return len(self.names)

    def scene(self, place: int) -> Scene:
        """What is to be seen."""
        return draw_scene(self._dice(place, _SCENE))

    def captions(self) -> Captions:
        """All captions."""
        gathering = Gathering()
        for place, name in enumerate(self.names):
            image = gathering.image(name, SPLITS[self._splits[place]])
            for text in describe(self.scene(place), self._dice(place, _WORDS)):
                gathering.caption(image, text)
        return gathering.captions()

    def pictures(self, places: np.ndarray) -> np.ndarray:
        """uint8[scene, SIDE, SIDE, 3]."""
        keys = self._keys[_GRAIN][torch.from_numpy(places)]
        grain = uniform(keys, torch.zeros_like(keys), SIDE * SIDE).numpy().reshape(-1, SIDE, SIDE) * 2 - 1
        dice = [self._dice(place, _SCENE) for place in places.tolist()]
        return render(_drawn([(draw_scene(own), own) for own in dice]), grain)

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Features of some scenes."""
        blocks = range(0, len(places), _BLOCK)
        return np.concatenate([pixel_features(self.pictures(places[start : start + _BLOCK])) for start in blocks])

    def save(self, folder: Path) -> None:
        """Write all pictures."""
        for start in range(0, len(self), _BLOCK):
            places = np.arange(start, min(start + _BLOCK, len(self)))
            for place, picture in zip(places.tolist(), self.pictures(places), strict=True):
                Image.fromarray(picture).save(folder / self.names[place], compress_level=1)

    def _dice(self, place: int, use: int) -> Dice:
        return Dice(int(self._keys[use][place]))


def draw_scene(dice: Dice) -> Scene:
    """A scene: a background, and one group of one to four objects, or two groups on opposite sides."""
    background = dice.choose(list(COLOURS))
    if dice.chance(0.45):
        return _one_group(background, dice)
    counts = dice.choose([(1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3)])
    relation = dice.choose(["left", "right", "above", "below"])
    groups: list[Group] = []
    for count, side in zip(counts, (0, 2) if relation in ("left", "above") else (2, 0), strict=True):
        along = dice.some(range(3), count)
        cells = [(place, side) if relation in ("left", "right") else (side, place) for place in along]
        group = _group(background, count, cells, dice)
        while groups and (group.shape, group.colour) == (groups[0].shape, groups[0].colour):
            group = _group(background, count, cells, dice)
        groups.append(group)
    return Scene(background, tuple(groups), relation)


def _one_group(background: str, dice: Dice) -> Scene:
    count = dice.choose((1, 1, 2, 2, 3, 4))
    arranged = "" if count == 1 else dice.choose(("row", "column", "scattered")) if count < 4 else "scattered"
    line = dice.choose(range(3))
    if arranged == "row":
        cells = [(line, place) for place in dice.some(range(3), count)]
    elif arranged == "column":
        cells = [(place, line) for place in dice.some(range(3), count)]
    else:
        board = [(row, column) for row in range(3) for column in range(3)]
        cells = dice.some(board, count)
        while count > 1 and any(len({cell[axis] for cell in cells}) == 1 for axis in (0, 1)):
            cells = dice.some(board, count)
    return Scene(background, (_group(background, count, cells, dice),), arranged)


def _group(background: str, count: int, cells: list[tuple[int, int]], dice: Dice) -> Group:
    colour = dice.choose([colour for colour in COLOURS if colour != background])
    return Group(count, dice.choose(list(SHAPES)), colour, dice.choose(("small", "big")), tuple(cells))


def _drawn(scenes: list[tuple[Scene, Dice]]) -> Drawn:
    """Where and how large each object is, and in which shade of its colour: all a little different."""

    def shade(colour: str, dice: Dice) -> list[float]:
        return [level + 24 * (dice.number() - 0.5) for level in COLOURS[colour]]

    objects: list[tuple[int, str, list[float], float, list[float]]] = []
    backgrounds: list[list[float]] = []
    for place, (scene, dice) in enumerate(scenes):
        backgrounds.append(shade(scene.background, dice))
        for group in scene.groups:
            smallest = 5.0 if group.size == "small" else 8.5
            for row, column in group.cells:
                centre = [CELL * (at + 0.5) + 3 * (dice.number() - 0.5) for at in (column, row)]
                objects.append((place, group.shape, centre, smallest + dice.number(), shade(group.colour, dice)))
    where, shapes, centres, radii, colours = zip(*objects, strict=True)
    return Drawn(
        np.array(backgrounds, np.float32),
        np.array(where),
        np.array(shapes),
        np.array(centres, np.float32),
        np.array(radii, np.float32),
        np.array(colours, np.float32),
    )
