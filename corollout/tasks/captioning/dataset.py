"""A prepared data set of captions: one folder, whose arrays are mapped into memory.

meta.json        version, splits, settings, digests of everything else
vocabulary.txt   words in the order of their ids
names.txt        file names of the images, one a line: first those to train on, then val, then test
ids.npy          int64[image]
tokens.npy, captions.npy, images.npy   the references, as in ``CaptionArrays``, rare words kept, nothing cut
features.npy     float16 or float32[image, width]
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.arrays import SPLITS, CaptionArrays
from corollout.tasks.captioning.files import read_lines
from corollout.tasks.captioning.names import file_name
from corollout.tasks.captioning.vocabulary import Vocabulary
from corollout.tasks.digests import digest

VERSION = 1
META, FEATURES = "meta.json", "features.npy"
SMALL = ("vocabulary.txt", "names.txt", "ids.npy", "tokens.npy", "captions.npy", "images.npy")
_CHECKED = 4096  # rows of features that are looked at together


@dataclass(frozen=True)
class CaptionData:
    """Images with captions and features, in splits."""

    folder: Path
    vocabulary: Vocabulary
    names: list[str]
    ids: np.ndarray  # int64[image], all different
    captions: CaptionArrays
    vectors: np.ndarray  # [image, width], mapped
    splits: Mapping[str, int]  # how many images each split has, in the order of SPLITS
    longest: int  # words of a label
    photos: Path | None  # the folder of the images themselves
    meta: Mapping[str, Any]

    @property
    def width(self) -> int:
        """How many numbers describe an image."""
        return self.vectors.shape[1]

    @classmethod
    def open(cls, folder: Path | str) -> "CaptionData":
        """Open a folder that was prepared; all but the features is compared with its digest."""
        place = Path(folder)
        hint = "make one with `corollout data captions`"
        if not (place / META).is_file():
            raise InputError(f"{place} is no prepared data set of captions, for it has no {META}: {hint}")
        try:
            meta = json.loads((place / META).read_text("utf-8"))
            if meta["kind"] != "captions" or meta["version"] != VERSION:
                found = f"{meta['kind']}, version {meta['version']}"
                raise InputError(
                    f"{place} is prepared for other code ({found}, not captions, version {VERSION}): {hint}"
                )
            for name in SMALL:
                if digest(place / name) != meta["digests"][name]:
                    raise InputError(f"{place} is damaged: {name} is not what was written; prepare it again")
            return cls._opened(place, meta)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else repr(error)
            raise InputError(f"{place} is damaged, prepare it again: {reason}") from error

    @classmethod
    def _opened(cls, place: Path, meta: dict[str, Any]) -> "CaptionData":
        # Copy on write: PyTorch warns of arrays that it must not write to.
        arrays = [np.load(place / f"{name}.npy", mmap_mode="c") for name in ("tokens", "captions", "images")]
        vectors = np.load(place / FEATURES, mmap_mode="r")
        said = meta["features"]
        if list(vectors.shape) != said["shape"] or str(vectors.dtype) != said["dtype"]:
            raise InputError(f"{place} is damaged: {FEATURES} is not of the shape that was written; prepare it again")
        # A folder of images inside the data set moves with it.
        photos = None if meta["photos"] is None else place / meta["photos"]
        return cls(
            place,
            Vocabulary.load(place / "vocabulary.txt"),
            read_lines(place / "names.txt"),
            np.load(place / "ids.npy", mmap_mode="c"),
            CaptionArrays(*arrays),
            vectors,
            {split: int(meta["splits"][split]) for split in SPLITS if split in meta["splits"]},
            int(meta["longest"]),
            photos,
            meta,
        )

    @cached_property
    def photo_folders(self) -> list[Path]:
        """The folder of the images, and the folders in it; none if it is not there."""
        if self.photos is None or not self.photos.is_dir():
            return []
        return [self.photos, *sorted(entry for entry in self.photos.iterdir() if entry.is_dir())]

    def split(self, name: str) -> "CaptionSplit":
        """The images of a split: train, val or test."""
        if name not in self.splits:
            raise InputError(f"{self.folder} has no split {name!r}; it has {', '.join(self.splits)}")
        ends = dict(zip(self.splits, accumulate(self.splits.values()), strict=True))
        return CaptionSplit(self, name, ends[name] - self.splits[name], ends[name])

    def verify(self) -> None:
        """Compare the features with their digest, and look whether all parts belong together."""
        if digest(self.folder / FEATURES) != self.meta["features"]["digest"]:
            raise InputError(f"{self.folder} is damaged: {FEATURES} is not what was written; prepare it again")
        count, known = len(self.names), len(self.vocabulary.words)
        sizes = {len(self.ids), len(self.captions), len(self.vectors), sum(self.splits.values())}
        tokens = self.captions.tokens
        faults = {
            "its parts are of different lengths": sizes != {count},
            "ids are there twice": len(np.unique(self.ids)) != len(self.ids),
            f"{self.captions.fault()}": self.captions.fault() is not None,
            "a word is not in the vocabulary": not 0 < tokens.min(initial=1) <= tokens.max(initial=1) < known,
        }
        for fault, there in faults.items():
            if there:
                raise InputError(f"{self.folder} is no sound data set: {fault}; prepare it again")
        for start in range(0, count, _CHECKED):
            block = self.vectors[start : start + _CHECKED]
            if not np.isfinite(block).all():
                raise InputError(f"{self.folder} is no sound data set: features that are no numbers; prepare it again")


@dataclass(frozen=True)
class CaptionSplit:
    """The images of a data set from one to before another."""

    data: CaptionData
    name: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def ids(self) -> np.ndarray:
        """int64[image], different over the whole data set."""
        return self.data.ids[self.start : self.end]

    @cached_property
    def names(self) -> Sequence[str]:
        """The images' file names."""
        return self.data.names[self.start : self.end]

    def features(self, images: np.ndarray) -> np.ndarray:
        """float32[image, width]: what describes some images."""
        if len(images) and not 0 <= images.min() <= images.max() < len(self):
            raise InputError(f"the split {self.name!r} has {len(self):,} images: there is no image {images.max()}")
        return self.data.vectors[images + self.start].astype(np.float32)

    @property
    def references(self) -> "PerImage":
        """For each image its captions, as lists of ids: whole, with rare words, without an end token."""
        return PerImage(len(self), lambda image: self.data.captions.of(self.start + image))

    @property
    def labels(self) -> "PerImage":
        """The same as a model is taught them: rare words unknown, cut, without an end token."""
        return PerImage(len(self), lambda image: [self._label(ids) for ids in self.references[image]])

    @property
    def caption_count(self) -> int:
        """How many captions there are, of all images together."""
        return self._first_caption(self.end) - self._first_caption(self.start)

    @cached_property
    def image_of_caption(self) -> np.ndarray:
        """int64[caption]: the image that each caption is about."""
        return np.repeat(np.arange(len(self)), self.data.captions.counts[self.start : self.end])

    def label(self, caption: int) -> list[int]:
        """The label of one caption, captions being counted over all images of the split."""
        if not 0 <= caption < self.caption_count:
            raise IndexError(f"the split {self.name!r} has {self.caption_count:,} captions: there is no {caption}")
        return self._label(self.data.captions.caption(self._first_caption(self.start) + caption))

    def first(self, count: int) -> "CaptionSplit":
        """The first images only."""
        if not 0 < count <= len(self):
            raise InputError(f"the split {self.name!r} has {len(self):,} images: cannot take the first {count:,}")
        return CaptionSplit(self.data, self.name, self.start, self.start + count)

    def photo(self, image: int) -> Path | None:
        """The file of an image, if there is a folder of images, and if it or a folder in it has this one."""
        files = (folder / file_name(self.names[image]) for folder in self.data.photo_folders)
        return next((file for file in files if file.is_file()), None)

    def _label(self, ids: list[int]) -> list[int]:
        return self.data.vocabulary.label(ids, self.data.longest)

    def _first_caption(self, image: int) -> int:
        return int(self.data.captions.images[image])


class PerImage(Sequence[list[list[int]]]):
    """Something of every image, made when it is asked for."""

    def __init__(self, count: int, make: Callable[[int], list[list[int]]]):
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, image: int) -> list[list[int]]: ...
    @overload
    def __getitem__(self, image: slice) -> list[list[list[int]]]: ...
    def __getitem__(self, image: int | slice) -> list[list[int]] | list[list[list[int]]]:
        # A range knows what negative numbers and slices mean, and which numbers there are not.
        places = range(self._count)[image]
        return self._make(places) if isinstance(places, int) else [self._make(place) for place in places]
