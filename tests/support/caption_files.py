"""Small files of captions and features for tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from corollout.events import Callback
from corollout.tasks.captioning.features import Features

WORDS = ("dog", "cat", "man", "ball", "park", "red", "blue", "runs", "sits", "plays")


def sentences(number: int, count: int = 5) -> list[str]:
    """Captions that differ from image to image."""
    return [f"A {WORDS[(number + i) % 10]} {WORDS[(number * 3 + i) % 10]} near the {WORDS[i]} ." for i in range(count)]


def karpathy(path: Path, splits: Mapping[str, int], captions: int = 5) -> list[str]:
    """Write a file in Karpathy's format, with so many images of each of its splits; the names of the images."""
    images: list[dict[str, object]] = []
    for split, count in splits.items():
        for _ in range(count):
            number = len(images)
            said = [{"tokens": text.lower().split(), "raw": text} for text in sentences(number, captions)]
            name = f"COCO_val2014_{100 + number:012}.jpg"
            images.append({"filename": name, "cocoid": 100 + number, "split": split, "sentences": said})
    path.write_text(json.dumps({"dataset": "coco", "images": images}))
    return [str(image["filename"]) for image in images]


def coco(path: Path, numbers: Sequence[int], captions: int = 5) -> None:
    """Write annotations of images with these numbers, one caption of each image after the other."""
    images = [{"id": number, "file_name": f"{number:012}.jpg"} for number in numbers]
    annotations = [
        {"image_id": number, "id": 10 * number + i, "caption": sentences(number, captions)[i]}
        for i in range(captions)
        for number in numbers
    ]
    path.write_text(json.dumps({"info": {"year": 2017}, "annotations": annotations, "images": images}))


def flickr(path: Path, names: Sequence[str], captions: int = 5) -> None:
    """Write a token.txt."""
    lines = [f"{name}#{i}\t{text}\n" for n, name in enumerate(names) for i, text in enumerate(sentences(n, captions))]
    path.write_text("".join(lines))


def listen(warnings: list[str]) -> Callback:
    """A callback that collects warnings."""
    return lambda event: warnings.append(event.record["text"]) if event.kind == "warning" else None


def numbers(count: int, width: int = 6, dtype: type = np.float32) -> np.ndarray:
    """Rows of features, all of them different."""
    return (np.arange(count * width).reshape(count, width) / 8).astype(dtype)


def table(names: Sequence[str], array: np.ndarray | None = None) -> Features:
    """Features in memory."""
    rows = numbers(len(names)) if array is None else array
    return Features(names, rows.shape[1], rows.dtype, lambda indices: rows[indices])
