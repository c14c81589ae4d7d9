"""A prepared data set of captions: a folder whose arrays are memory-mapped.

meta.json        version, splits, settings, digests of all other files
vocabulary.txt   words in the order of their ids
names.txt        file names of the images, one per line: train, then val, then test
ids.npy          int64[image]
tokens.npy, captions.npy, images.npy   the references as in ``CaptionArrays``, uncut and with rare words
features.npy     float16 or float32[image, width]
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from corollout.arrays import read_array
from corollout.data import Columns, Split
from corollout.errors import InputError
from corollout.files import digest_of, file_digest, os_errors, read_json, read_lines
from corollout.tasks.captioning.captions import SPLITS, CaptionArrays, file_name
from corollout.tasks.captioning.metrics import Scorer
from corollout.tasks.captioning.vocabulary import Vocabulary
from corollout.tasks.task import DataCheck

VERSION = 1
META, FEATURES = "meta.json", "features.npy"
_ARRAYS = {"ids": np.int64, "tokens": np.int32, "captions": np.int64, "images": np.int64}
SMALL = ("vocabulary.txt", "names.txt", *(f"{name}.npy" for name in _ARRAYS))
_PREPARE = "prepare it with `corollout data captions`"
_BLOCK = 4096  # rows of features verified at a time


@dataclass(frozen=True)
class CaptionData:
    """Images with captions and features, in splits."""

    folder: Path
    vocabulary: Vocabulary
    names: list[str]
    ids: np.ndarray  # int64[image], all different
    captions: CaptionArrays
    vectors: np.ndarray  # [image, width], memory-mapped
    splits: Mapping[str, int]  # number of images of each split, in the order of SPLITS
    longest: int  # words of a training target
    photos: Path | None  # the folder of the image files
    meta: Mapping[str, Any]

    @property
    def width(self) -> int:
        """The number of features of an image."""
        return self.vectors.shape[1]

    @classmethod
    def open(cls, folder: Path | str) -> "CaptionData":
        """Open a prepared folder; everything is checked, and all but the features is compared with its digest."""
        folder = Path(folder)
        if not (folder / META).is_file():
            raise InputError(f"{folder} is not a prepared data set of captions (it has no {META}): {_PREPARE}")
        meta = read_json(folder / META)
        kind, version = (meta.get(name) if isinstance(meta, dict) else None for name in ("kind", "version"))
        if (kind, version) != ("captions", VERSION):
            given, expected = f"{short(kind)}, version {short(version)}", f"'captions', version {VERSION}"
            raise InputError(f"{folder} has another format ({given}, not {expected}): {_PREPARE}")
        try:
            _check_meta(meta)
            for name in SMALL:
                with os_errors(f"read {folder / name}"):
                    if file_digest(folder / name) != meta["digests"].get(name):
                        raise InputError(f"{name} has changed")
            # Copy on write, because PyTorch warns about read-only arrays.
            ids, *arrays = (read_array(folder / f"{name}.npy", dtype, 1, "c") for name, dtype in _ARRAYS.items())
            vectors = read_array(folder / FEATURES, (np.float16, np.float32), 2)
            if (list(vectors.shape), str(vectors.dtype)) != (meta["features"]["shape"], meta["features"]["dtype"]):
                raise InputError(f"the shape of {FEATURES} has changed")
            data = cls(
                folder,
                Vocabulary.load(folder / "vocabulary.txt"),
                read_lines(folder / "names.txt"),
                ids,
                CaptionArrays(*arrays),
                vectors,
                {split: meta["splits"][split] for split in SPLITS if split in meta["splits"]},
                meta["longest"],
                None if meta["photos"] is None else folder / meta["photos"],  # relative if inside the data set
                meta,
            )
            data._check()
            return data
        except InputError as error:
            raise InputError(f"{folder} is damaged: {error}; {_PREPARE} again") from error

    @cached_property
    def photo_folders(self) -> list[Path]:
        """The folder of image files and its subfolders; empty if it does not exist."""
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
        """Compare the features with their digest, and check that they are finite; the rest was checked when opened."""
        if self._features_digest() != self.meta["features"].get("digest"):
            raise InputError(f"{self.folder} is damaged: {FEATURES} has changed; {_PREPARE} again")
        blocks = (self.vectors[start : start + _BLOCK] for start in range(0, len(self.vectors), _BLOCK))
        if not all(np.isfinite(block).all() for block in blocks):
            raise InputError(f"{self.folder} is damaged: there are non-finite features; {_PREPARE} again")

    def _check(self) -> None:
        """Raise an error unless all parts are consistent."""
        if (bounds := self.captions.problem()) is not None:
            raise InputError(bounds)
        count, words, tokens = len(self.names), len(self.vocabulary.words), self.captions.tokens
        sizes = {len(self.ids), len(self.captions), len(self.vectors), sum(self.splits.values())}
        problems = {
            "its parts have different lengths": sizes != {count} or self.width == 0,
            "two images have the same id": len(np.unique(self.ids)) != len(self.ids),
            "a word is not in the vocabulary": not 0 < tokens.min(initial=1) <= tokens.max(initial=1) < words,
        }
        if present := [problem for problem, is_present in problems.items() if is_present]:
            raise InputError(present[0])

    def digest(self) -> str:
        """A digest of everything that training depends on."""
        facts = [self.meta["digests"], self._features_digest(), dict(self.splits), self.longest]
        return digest_of([json.dumps(facts, sort_keys=True).encode()])

    def _features_digest(self) -> str:
        with os_errors(f"read {self.folder / FEATURES}"):
            return file_digest(self.folder / FEATURES)

    def summary(self) -> list[str]:
        """A few lines about the data set."""
        words, size = len(self.vocabulary.words), self.vocabulary.size
        features = f"features {self.width} wide ({self.vectors.dtype})"
        lines = [f"{self.folder}: {size:,} tokens, {words - size:,} rare words, {features}"]
        for name in self.splits:
            split = self.split(name)
            start, end = self.captions.captions[self.captions.images[[split.start, split.end]]]
            mean, count = (end - start) / split.caption_count, split.caption_count
            lines.append(f"  {name}: {len(split):,} images, {count:,} captions of {mean:.1f} words on average")
        return lines


@dataclass(frozen=True)
class CaptionSplit:
    """The images ``start`` to ``end − 1`` of a data set."""

    data: CaptionData
    name: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def ids(self) -> np.ndarray:
        """int64[image], unique in the whole data set."""
        return self.data.ids[self.start : self.end]

    @cached_property
    def names(self) -> Sequence[str]:
        """The images' file names."""
        return self.data.names[self.start : self.end]

    def features(self, images: np.ndarray) -> np.ndarray:
        """float32[image, width]: the features of some images."""
        if len(images) and not 0 <= images.min() <= images.max() < len(self):
            raise InputError(f"the split {self.name!r} has {len(self):,} images, not an image {images.max()}")
        return self.data.vectors[images + self.start].astype(np.float32)

    @property
    def references(self) -> "PerImage":
        """The captions of each image as lists of ids: uncut, with rare words, without end token."""
        return PerImage(len(self), lambda image: self.data.captions.of(self.start + image))

    @property
    def labels(self) -> "PerImage":
        """The captions of each image as training targets: rare words unknown, cut, without end token."""
        return PerImage(len(self), lambda image: [self.label(ids) for ids in self.references[image]])

    @property
    def caption_count(self) -> int:
        """The number of captions of all images."""
        return int(self.data.captions.images[self.end] - self.data.captions.images[self.start])

    @cached_property
    def image_of_caption(self) -> np.ndarray:
        """int64[caption]: the image of each caption."""
        return np.repeat(np.arange(len(self)), self.data.captions.counts[self.start : self.end])

    def first(self, count: int) -> "CaptionSplit":
        """The first images only."""
        if not 0 < count <= len(self):
            raise InputError(f"the split {self.name!r} has {len(self):,} images, not {count:,}")
        return CaptionSplit(self.data, self.name, self.start, self.start + count)

    def photo(self, image: int) -> Path | None:
        """The file of an image, if the folder of image files or one of its subfolders has it."""
        files = (folder / file_name(self.names[image]) for folder in self.data.photo_folders)
        return next((file for file in files if file.is_file()), None)

    def label(self, ids: list[int]) -> list[int]:
        """A caption as a training target."""
        return self.data.vocabulary.label(ids, self.data.longest)


class PerImage(Sequence[list[list[int]]]):
    """A list for every image, made on demand."""

    def __init__(self, count: int, make: Callable[[int], list[list[int]]]):
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, image: int) -> list[list[int]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._make(range(self._count)[image])  # a range handles negative indices and those out of range


class FeatureColumn:
    """The column of contexts: the features of each image, or of the image of each caption."""

    def __init__(self, split: CaptionSplit, image: Int64[Tensor, " row"]):
        self._split, self._image = split, image

    def __len__(self) -> int:
        return len(self._image)

    def gather(self, index: Int64[Tensor, " context"]) -> Float[Tensor, "context width"]:
        return torch.from_numpy(self._split.features(self._image[index].numpy()))


class TargetColumn(Sequence[list[int]]):
    """The column of targets: every caption of every image, made on demand."""

    def __init__(self, split: CaptionSplit):
        self._split = split

    def __len__(self) -> int:
        return self._split.caption_count

    def __getitem__(self, index: int) -> list[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        captions, index = self._split.data.captions, range(len(self))[index]
        return self._split.label(captions.caption(int(captions.images[self._split.start]) + index))


class ImageSplit(Split):
    """Images of a data set; ``context`` is for the encoder, ``image`` (the index) for the reward."""

    data: CaptionSplit

    def __init__(self, data: CaptionSplit):
        indices, ids = torch.arange(len(data)), torch.from_numpy(data.ids.copy())
        super().__init__(Columns(ids=ids, context=FeatureColumn(data, indices), image=range(len(data))), data)

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.data.references)

    def first(self, count: int) -> "ImageSplit":
        return ImageSplit(self.data.first(min(count, len(self))))


def _check_meta(meta: Mapping[str, Any]) -> None:
    """Raise an error unless everything that is used of a description has its type."""
    splits, features, photos = meta.get("splits"), meta.get("features"), meta.get("photos", 0)
    sizes = [*splits.values(), meta.get("longest")] if isinstance(splits, dict) else [None]
    problems = {
        "splits or longest": any(type(size) is not int or size < 1 for size in sizes) or not splits,
        "features": not isinstance(features, dict) or not {"shape", "dtype"} <= features.keys(),
        "digests": not isinstance(meta.get("digests"), dict),
        "photos": not (photos is None or (isinstance(photos, str) and "\0" not in photos)),
        "made": not isinstance(meta.get("made", {}), dict),
    }
    if wrong := [name for name, is_wrong in problems.items() if is_wrong]:
        raise InputError(f"{META} has no valid {wrong[0]}")


def check_data(path: Path, skip_bad: bool = False) -> DataCheck | None:
    """Verify a prepared data set; None for anything else."""
    if not (path / META).is_file():
        return None
    data = CaptionData.open(path)
    data.verify()
    return DataCheck([*data.summary(), "  complete and unchanged"])
