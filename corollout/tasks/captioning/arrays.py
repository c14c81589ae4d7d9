"""Captions of images in three flat arrays: a million captions are no million Python objects."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class CaptionArrays:
    """Images with some captions each, every caption some words, which are numbers."""

    tokens: np.ndarray  # int32[token]: all captions, one after the other
    captions: np.ndarray  # int64[caption + 1]: where each caption begins in ``tokens``, and where the last one ends
    images: np.ndarray  # int64[image + 1]: where each image's captions begin in ``captions``, likewise

    def __len__(self) -> int:
        return len(self.images) - 1

    @property
    def counts(self) -> np.ndarray:
        """How many captions each image has."""
        return np.diff(self.images)

    def of(self, image: int) -> list[list[int]]:
        """The captions of an image as lists."""
        first, last = self.images[image : image + 2].tolist()
        bounds = self.captions[first : last + 1].tolist()
        tokens = self.tokens[bounds[0] : bounds[-1]].tolist()
        starts = [bound - bounds[0] for bound in bounds]
        return [tokens[start:end] for start, end in pairwise(starts)]

    def caption(self, place: int) -> list[int]:
        """One caption, captions being counted over all images."""
        start, end = self.captions[place : place + 2].tolist()
        return self.tokens[start:end].tolist()

    def take(self, images: np.ndarray) -> "CaptionArrays":
        """Some images with their captions, in the order given."""
        captions, image_ends = _ranges(self.images, images)
        tokens, caption_ends = _ranges(self.captions, captions)
        return CaptionArrays(self.tokens[tokens], caption_ends, image_ends)

    def fault(self) -> str | None:
        """What makes these arrays no captions, if anything does."""
        for inner, outer, name in ((self.images, self.captions, "image"), (self.captions, self.tokens, "caption")):
            holds = len(outer) - (name == "image")
            if len(inner) == 0 or inner[0] != 0 or inner[-1] != holds or (np.diff(inner) < 1).any():
                return f"the {name}s do not begin and end where they should"
        return None


def _ranges(bounds: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All places within the chosen ranges, one range after the other, and the bounds of these ranges among them."""
    starts, lengths = bounds[chosen], bounds[chosen + 1] - bounds[chosen]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths), ends
