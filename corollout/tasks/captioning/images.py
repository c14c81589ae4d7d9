"""Image files as networks see them, and their features batch by batch."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from corollout.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")

# More threads than this decode no faster than a network on the same machine computes.
_MOST_THREADS = 8


@runtime_checkable
class Network(Protocol):
    """What makes features of images: a class of one's own derives from this and says how it is called."""

    name: str
    side: int  # of the square that an image becomes, in pixels
    width: int  # how many numbers the features of an image are

    def __call__(self, images: UInt8[Tensor, "image side side 3"]) -> Float32[Tensor, "image width"]:
        """The features of images in red, green and blue; both are on the CPU."""
        ...

    def prepare(self, image: Image.Image) -> UInt8[np.ndarray, "side side 3"]:
        """The pixels of an RGB image as the network wants them: squashed to a square, unless a network knows better."""
        return np.asarray(image.resize((self.side, self.side), Image.Resampling.BICUBIC))

    def features(self, path: Path | str) -> Float32[Tensor, " width"]:
        """The features of one image file."""
        pixels = torch.from_numpy(self.prepare(read_image(path))[None].copy())
        return self(pixels)[0]


@dataclass(frozen=True)
class Extracted:
    """The features of image files, and what is wrong with files that were left out."""

    paths: list[Path]
    rows: Float32[np.ndarray, "image width"]
    bad: dict[Path, str]


def find_images(folder: Path | str) -> list[Path]:
    """The image files in a folder, by name; files in folders inside it and hidden files do not count."""
    place = Path(folder)
    try:
        entries = sorted(place.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"cannot read the folder of images {place}: {error.strerror}") from error
    found = [
        entry
        for entry in entries
        if entry.suffix.lower() in ENDINGS and not entry.name.startswith(".") and entry.is_file()
    ]
    if not found:
        raise InputError(f"no image in the folder {place}: files that end in {', '.join(ENDINGS)} are looked for")
    return found


def read_image(path: Path | str) -> Image.Image:
    """An image file in red, green and blue, the right way up, as a person sees it on white ground."""
    try:
        with Image.open(path) as image:
            return _rgb(ImageOps.exif_transpose(image))
    except MemoryError:
        raise
    except Exception as error:  # Decoders of damaged files raise whatever their authors did not think of.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "it is no image, whatever its name says"
        raise InputError(f"cannot read the image {path}: {reason}") from error


def extract(
    paths: Sequence[Path],
    network: Network,
    batch: int = 32,
    skip_bad: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Extracted:
    """The features of image files, all in memory.

    A file that is no sound image is an error, or with ``skip_bad`` left out. ``on_progress`` is told how many files are
    done.
    """
    whole = Extracted([], np.empty((0, network.width), np.float32), {})
    parts = [whole.rows]
    for part in extract_batches(paths, network, batch, skip_bad):
        whole.paths.extend(part.paths)
        whole.bad.update(part.bad)
        parts.append(part.rows)
        on_progress(len(whole.paths) + len(whole.bad))
    return Extracted(whole.paths, np.concatenate(parts), whole.bad)


def extract_batches(
    paths: Sequence[Path], network: Network, batch: int = 32, skip_bad: bool = False
) -> Iterator[Extracted]:
    """The same for ``batch`` files after the other; those of the next batch are decoded while the network computes."""
    if batch < 1:
        raise InputError(f"a batch must have at least one image, not {batch}")
    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS), thread_name_prefix="decoding")

    def begin(start: int) -> list[tuple[Path, Future[np.ndarray]]]:
        wanted = paths[start : start + batch]
        return [(path, pool.submit(lambda path: network.prepare(read_image(path)), path)) for path in wanted]

    try:
        ahead = begin(0)
        for start in range(0, len(paths), batch):
            current, ahead = ahead, begin(start + batch)
            yield _extract(current, network, skip_bad)
    finally:
        pool.shutdown(cancel_futures=True)


def _extract(decoding: list[tuple[Path, Future[np.ndarray]]], network: Network, skip_bad: bool) -> Extracted:
    good: list[Path] = []
    pixels: list[np.ndarray] = []
    bad: dict[Path, str] = {}
    for path, future in decoding:
        try:
            pixels.append(future.result())
            good.append(path)
        except InputError as error:
            if not skip_bad:
                raise InputError(f"{error}; repair it, remove it, or leave out such files with --skip-bad") from error
            bad[path] = str(error)
    if not good:
        return Extracted(good, np.empty((0, network.width), np.float32), bad)
    rows = network(torch.from_numpy(np.stack(pixels))).numpy()
    if rows.shape != (len(good), network.width) or rows.dtype != np.float32:
        raise InputError(
            f"the network {network.name} made {rows.dtype} {rows.shape} of {len(good)} images, "
            f"not float32 {(len(good), network.width)}"
        )
    return Extracted(good, rows, bad)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16 bits of grey, whose upper eight Pillow would not keep but cut off.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return image.convert("RGB")
