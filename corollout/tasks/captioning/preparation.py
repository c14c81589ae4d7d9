"""From captions and features, wherever they come from, to a prepared data set."""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from corollout.config import option
from corollout.data import shuffled
from corollout.errors import InputError
from corollout.noise import Noise
from corollout.tasks.captioning.arrays import SPLITS, CaptionArrays
from corollout.tasks.captioning.dataset import FEATURES, META, SMALL, VERSION, CaptionData
from corollout.tasks.captioning.features import Features
from corollout.tasks.captioning.files import new_folder
from corollout.tasks.captioning.gathering import NO_SPLIT, Captions
from corollout.tasks.captioning.names import NO_NUMBER, match
from corollout.tasks.captioning.vocabulary import Vocabulary
from corollout.tasks.digests import digest

_IMAGES = "images"
_BLOCK = 1024  # rows of features that are in memory at a time


@dataclass(frozen=True)
class PreparationSettings:
    """How a data set is made of captions."""

    more_than: int = option(5, "Words that occur more often in the captions to train on are learnt.", least=0)
    longest: int = option(16, "Words after which a caption is cut to be learnt.", least=1)
    hold_out: int = option(
        0, "Training images that become val, val becoming test, where test has no captions.", least=0
    )
    data_seed: int = option(0, "Seed of the images held out.")


def prepare(
    captions: Captions,
    features: Features,
    out: Path,
    settings: PreparationSettings | None = None,
    *,
    photos: Path | None = None,
    draw: Callable[[Path], None] | None = None,
    skip_bad: bool = False,
    facts: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    warn: Callable[[str], None] = lambda text: None,
) -> CaptionData:
    """Make a data set in a new folder; either the whole of it is there in the end or nothing.

    ``photos`` is the folder of the images themselves, or ``draw`` writes them into one in the data set; ``facts`` are
    kept with it, and ``on_progress`` is told how many images of how many have their features. An image without captions
    is left out with a warning; one without features is an error, or with ``skip_bad`` left out likewise.
    """
    settings = settings or PreparationSettings()
    if photos is not None and not photos.is_dir():
        raise InputError(f"there is no folder {photos} of images: name another, or none")
    with new_folder(out) as folder:
        chosen = _choose(captions, features, settings, skip_bad, warn)
        names = [captions.names[image] for image in chosen.images.tolist()]
        arrays, vocabulary = _with_vocabulary(captions, chosen, settings.more_than)
        vocabulary.save(folder / "vocabulary.txt")
        (folder / "names.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")
        np.save(folder / "ids.npy", image_ids(names))
        for name in ("tokens", "captions", "images"):
            np.save(folder / f"{name}.npy", getattr(arrays, name))
        _copy(features, chosen.rows, names, folder / FEATURES, on_progress)
        if draw is not None:
            (folder / _IMAGES).mkdir()
            draw(folder / _IMAGES)
        told = {"shape": [len(names), features.width], "dtype": str(features.dtype)}
        meta = {
            "kind": "captions",
            "version": VERSION,
            "splits": {split: count for split, count in chosen.counts.items() if count},
            **vars(settings),
            "photos": _IMAGES if draw is not None else photos and str(photos.resolve()),
            "features": {**told, "digest": digest(folder / FEATURES)},
            "digests": {name: digest(folder / name) for name in SMALL},
            "made": dict(facts or {}),
        }
        (folder / META).write_text(json.dumps(meta, indent=2) + "\n", "utf-8")
    return CaptionData.open(out)


class _Chosen(NamedTuple):
    """The images of a data set."""

    images: np.ndarray  # their places among those that were read: first those to train on, then val, then test
    rows: np.ndarray  # of the features
    counts: dict[str, int]  # by split


def _choose(
    captions: Captions, features: Features, settings: PreparationSettings, skip_bad: bool, warn: Callable[[str], None]
) -> _Chosen:
    if captions.bad:
        warn(f"left out {len(captions.bad):,} bad entries, the first: {captions.bad[0]}")
    _check_lists(captions, features, skip_bad, warn)
    rows = match(captions.names, captions.numbers.tolist(), features.names)
    splits = _with_features(_described(captions, warn), rows, captions.names, skip_bad, warn)
    if settings.hold_out:
        splits = _held_out(splits, captions.names, settings)
    images = np.concatenate([np.flatnonzero(splits == number) for number in range(len(SPLITS))])
    counts = {split: int((splits == number).sum()) for number, split in enumerate(SPLITS)}
    return _Chosen(images, rows[images], counts)


def image_ids(names: list[str]) -> np.ndarray:
    """A number for each image that depends on its name only."""
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in names)
    ids = np.frombuffer(digests, "<i8").astype(np.int64)
    if len(np.unique(ids)) != len(ids):  # one in billions, even for a million images
        raise InputError("two names of images have the same digest: rename one of them")
    return ids


def _check_lists(captions: Captions, features: Features, skip_bad: bool, warn: Callable[[str], None]) -> None:
    """What a list names must be somewhere: an image with features but without captions is one to be left out."""
    if not captions.without:
        return
    names = [listed.name for listed in captions.without]
    places = match(names, [NO_NUMBER] * len(names), features.names).tolist()
    unknown = [listed for listed, place in zip(captions.without, places, strict=True) if place < 0]
    if unknown and not skip_bad:
        name, file, line = unknown[0]
        raise InputError(
            f"{file}, line {line}: the image {name!r} has neither captions nor features, and {len(unknown) - 1:,} more "
            "have not; correct the list, or leave such images out with --skip-bad"
        )
    for file, count in Counter(listed.file for listed in captions.without).items():
        warn(f"{file}: left out {count:,} images that have no captions")


def _described(captions: Captions, warn: Callable[[str], None]) -> np.ndarray:
    """The splits of images, NO_SPLIT for those that have no captions."""
    outside = captions.splits == NO_SPLIT
    if outside.any():
        warn(f"left out {outside.sum():,} images with captions that are in no split")
    silent = ~outside & (captions.arrays.counts == 0)
    if silent.any():
        first = captions.names[int(silent.argmax())]
        warn(f"left out {silent.sum():,} images that have no captions, the first being {first!r}")
    return np.where(silent, NO_SPLIT, captions.splits)


def _held_out(splits: np.ndarray, names: list[str], settings: PreparationSettings) -> np.ndarray:
    """Some images to train on become val, and val becomes test."""
    train, val, test = (np.flatnonzero(splits == number) for number in range(len(SPLITS)))
    if len(test) or not len(val):
        reason = f"there are {len(test):,} test images with captions" if len(test) else "there are no val images"
        raise InputError(f"--hold-out makes test images of val images, but {reason}: leave it out")
    if settings.hold_out >= len(train):
        raise InputError(f"--hold-out {settings.hold_out:,}: there are only {len(train):,} images to train on")
    ids = torch.from_numpy(image_ids([names[image] for image in train.tolist()]))
    order = shuffled(ids, Noise(settings.data_seed)).numpy()
    changed = splits.copy()
    changed[val] = SPLITS.index("test")
    changed[train[order[: settings.hold_out]]] = SPLITS.index("val")
    return changed


def _with_features(
    splits: np.ndarray, rows: np.ndarray, names: list[str], skip_bad: bool, warn: Callable[[str], None]
) -> np.ndarray:
    """The splits of images, NO_SPLIT for those that have no features."""
    wanted = splits != NO_SPLIT
    missing = wanted & (rows < 0)
    if missing.any():
        said = f"{missing.sum():,} of {wanted.sum():,} images, the first being {names[int(missing.argmax())]!r}"
        if not skip_bad:
            raise InputError(f"no features for {said}; make them, or leave these images out with --skip-bad")
        warn(f"left out for want of features: {said}")
    splits = np.where(missing, NO_SPLIT, splits)
    if not (splits == SPLITS.index("train")).any():
        raise InputError("no image to train on has captions and features: name a split, and features that belong to it")
    used = np.flatnonzero(splits != NO_SPLIT)
    first = np.unique(rows[used], return_index=True)[1]
    if len(first) < len(used):
        twin = used[np.setdiff1d(np.arange(len(used)), first)[0]]
        raise InputError(f"the features of {names[twin]!r} are also those of another image: give each its own")
    return splits


def _with_vocabulary(captions: Captions, chosen: _Chosen, more_than: int) -> tuple[CaptionArrays, Vocabulary]:
    """The captions with the ids of a vocabulary, whose words are counted in those to train on."""
    arrays, words = captions.arrays.take(chosen.images), captions.words
    learnt = arrays.tokens[: arrays.captions[arrays.images[chosen.counts["train"]]]]
    counts = np.bincount(learnt, minlength=len(words)).tolist()
    known = {words[place]: counts[place] for place in np.unique(arrays.tokens).tolist()}
    vocabulary = Vocabulary.from_counts(known, more_than)
    ids = np.array(vocabulary.encode(words), np.int32)
    return replace(arrays, tokens=ids[arrays.tokens]), vocabulary


def _copy(
    features: Features, rows: np.ndarray, names: list[str], path: Path, on_progress: Callable[[int, int], None]
) -> None:
    """Copy rows of features to a file, in blocks, in the order in which they are read."""
    shape, dtype = (len(rows), features.width), features.dtype
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        # A disk that is full is noticed here; in memory that is mapped to a file, it would end the process.
        file.flush()
        os.posix_fallocate(file.fileno(), file.tell(), max(1, shape[0] * shape[1] * dtype.itemsize))
    order = np.argsort(rows, kind="stable")
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        vectors = features.rows(rows[block])
        wrong = ~np.isfinite(vectors).all(1)
        if wrong.any():
            name = names[block[int(wrong.argmax())]]
            raise InputError(f"the features of {name!r} have entries that are not finite numbers: compute them anew")
        # Mapped anew for each block, so that what was written before does not stay in memory.
        np.load(path, mmap_mode="r+")[block] = vectors
        on_progress(start + len(block), len(order))
