"""Pictures of scenes, and what is measured on them: plain arithmetic on pixels, always the same."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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
_EIGHTH = np.float32(np.tan(np.pi / 8))  # how steep an edge is between two of the four directions
_LEVELS = 4  # of each colour channel
WIDTH = _GRID * _GRID * (3 + 4) + _LEVELS**3
# What brings colours, edges and shares of colours to a spread of about one.
_COLOUR_SPREAD, _EDGE_MEAN, _EDGE_SPREAD, _SHARE_SPREAD = 0.3, 0.04, 0.05, 0.12


@dataclass(frozen=True)
class Drawn:
    """What is to be drawn: some scenes, and all their objects together."""

    backgrounds: np.ndarray  # float32[scene, 3]
    scene: np.ndarray  # int64[object]: where it belongs
    shape: np.ndarray  # object: its name
    centre: np.ndarray  # float32[object, 2]: x and y, in pixels
    radius: np.ndarray  # float32[object]
    colour: np.ndarray  # float32[object, 3]


def _polygon_star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Distance to the line between a tip and the notch beside it; all ten such lines are folded onto one."""
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


# Distance from the edge in radii, negative inside, where x and y (downwards) are counted in radii from the centre.
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


def render(drawn: Drawn, grain: np.ndarray) -> np.ndarray:
    """uint8[scene, SIDE, SIDE, 3]; ``grain[scene, SIDE, SIDE]`` is from −1 to 1 and makes no pixel like another."""
    places = np.arange(SIDE, dtype=np.float32) + 0.5
    shade = ((places / SIDE - 0.5) * 24)[:, None, None]  # darker above
    pictures = np.broadcast_to(drawn.backgrounds[:, None, None] + shade, (*grain.shape, 3)).copy()
    for name, distance in SHAPES.items():
        for one in np.flatnonzero(drawn.shape == name):
            # Only the square around an object changes.
            radius, (x, y) = drawn.radius[one], drawn.centre[one]
            across, down = (slice(max(0, int(at - radius - 2)), int(at + radius + 3)) for at in (x, y))
            u, v = (places[None, across] - x) / radius, (places[down, None] - y) / radius
            cover = np.clip(0.5 - distance(u, v) * radius, 0, 1)[..., None]
            part = pictures[drawn.scene[one], down, across]
            part += cover * (drawn.colour[one] - part)
    pictures += 8 * grain[..., None]
    return np.clip(np.rint(pictures), 0, 255).astype(np.uint8)


def pixel_features(pictures: np.ndarray) -> np.ndarray:
    """float32[picture, WIDTH]: what is to be seen in pictures, in 512 numbers.

    The mean colour of each of 8 × 8 cells; the mean strength, in each of them, of edges in four directions (of all
    three colour channels, by differences of neighbours); and which share of the picture is of which colour, among 4³
    (as its square root). Each kind is shifted and scaled by constants, so that it spreads by about one.
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
