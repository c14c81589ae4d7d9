"""Image files and a network to try things with, neither of which needs a pretrained model."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from corollout.tasks.captioning.networks import Network


class MeanColours(Network):
    """The mean colour of each of four quarters, and how many images went through it in each call."""

    name, side, width = "mean-colours", 6, 12

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, images: Tensor) -> Tensor:
        self.calls.append(len(images))
        return images.float().view(-1, 2, 3, 2, 3, 3).mean((2, 4)).flatten(1)


def noise(seed: int, rows: int = 9, columns: int = 14, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, channels), np.uint8)


def make_images(folder: Path, count: int) -> list[Path]:
    """Images of different sizes; their names are in the order of their making."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"image-{number:02}.png" for number in range(count)]
    for number, path in enumerate(paths):
        Image.fromarray(noise(number, 5 + number % 4, 7)).save(path)
    return paths


def slow_features(paths: list[Path]) -> np.ndarray:
    """One file after the other, the plain way."""
    pixels = [np.array(Image.open(path).convert("RGB").resize((6, 6), Image.Resampling.BICUBIC)) for path in paths]
    return np.stack([MeanColours()(torch.from_numpy(image[None]))[0].numpy() for image in pixels])
