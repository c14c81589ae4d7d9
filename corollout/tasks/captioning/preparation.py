"""From captions and features in any format to a prepared data set."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corollout.arrays import map_array
from corollout.data import shuffled
from corollout.errors import InputError
from corollout.events import Callback, Progress, ignore, warning
from corollout.files import file_digest, write_file, write_json
from corollout.folders import new_folder
from corollout.noise import Noise
from corollout.tasks.captioning.captions import NO_NUMBER, NO_SPLIT, SPLITS, CaptionArrays, Captions, match
from corollout.tasks.captioning.dataset import FEATURES, META, SMALL, VERSION, CaptionData
from corollout.tasks.captioning.features import Features
from corollout.tasks.captioning.settings import PreparationSettings
from corollout.tasks.captioning.vocabulary import Vocabulary

_IMAGES = "images"
_BLOCK = 1024  # rows of features in memory at a time


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
    on_event: Callback = ignore,
) -> CaptionData:
    """Make a data set in a new folder, which appears only when it is complete.

    ``photos`` is the folder of the image files, or ``draw`` writes them into a folder of the data set; ``facts`` are
    stored as its origin. Images without captions are skipped with a warning; an image without features is an error, or
    is also skipped with ``skip_bad``.
    """
    settings = settings or PreparationSettings()
    if photos is not None and not photos.is_dir():
        raise InputError(f"the folder of images {photos} does not exist: choose another, or leave out --images")
    with new_folder(out, META) as folder:
        images, rows, counts = _choose(captions, features, settings, skip_bad, on_event)
        names = [captions.names[image] for image in images.tolist()]
        arrays, vocabulary = _with_vocabulary(captions, images, counts["train"], settings)
        vocabulary.save(folder / "vocabulary.txt")
        write_file(folder / "names.txt", "".join(f"{name}\n" for name in names))
        np.save(folder / "ids.npy", image_ids(names))
        for name in ("tokens", "captions", "images"):
            np.save(folder / f"{name}.npy", getattr(arrays, name))
        _copy(features, rows, names, folder / FEATURES, on_event)
        if draw is not None:
            (folder / _IMAGES).mkdir()
            draw(folder / _IMAGES)
        shape = {"shape": [len(names), features.width], "dtype": str(features.dtype)}
        meta = {
            "kind": "captions",
            "version": VERSION,
            "splits": {split: count for split, count in counts.items() if count},
            **vars(settings),
            "photos": _IMAGES if draw is not None else photos and os.path.realpath(photos),
            "features": {**shape, "digest": file_digest(folder / FEATURES)},
            "digests": {name: file_digest(folder / name) for name in SMALL},
            "made": dict(facts or {}),
        }
        write_json(folder / META, meta)
    return CaptionData.open(out)


def _choose(
    captions: Captions, features: Features, settings: PreparationSettings, skip_bad: bool, on_event: Callback
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Indices of images (train, then val, then test), their rows of features, and the number of images by split."""
    if captions.bad:
        on_event(warning(f"skipped {len(captions.bad):,} bad entries; the first: {captions.bad[0]}"))
    _check_lists(captions, features, skip_bad, on_event)
    names, splits = captions.names, captions.splits
    rows = match(names, captions.numbers.tolist(), features.names)
    if (outside := splits == NO_SPLIT).any():
        on_event(warning(f"skipped {outside.sum():,} images with captions that are in no split"))
    if (silent := ~outside & (captions.arrays.counts == 0)).any():
        first = names[int(silent.argmax())]
        on_event(warning(f"skipped {silent.sum():,} images without captions; the first: {first!r}"))
    wanted = ~outside & ~silent
    if (missing := wanted & (rows < 0)).any():
        images = f"{missing.sum():,} of {wanted.sum():,} images; the first: {names[int(missing.argmax())]!r}"
        if not skip_bad:
            raise InputError(f"no features for {images}; make them, or skip these images with --skip-bad")
        on_event(warning(f"skipped for lack of features: {images}"))
    splits = np.where(wanted & ~missing, splits, NO_SPLIT)
    if not (splits == SPLITS.index("train")).any():
        raise InputError("no training image has both captions and features: check the splits and the image names")
    used = np.flatnonzero(splits != NO_SPLIT)
    first_uses = np.unique(rows[used], return_index=True)[1]
    if len(first_uses) < len(used):
        twin = names[np.delete(used, first_uses)[0]]
        raise InputError(f"{twin!r} and another image match the same features: give each image its own")
    if settings.hold_out:
        splits = _held_out(splits, names, settings)
    by_split = [np.flatnonzero(splits == number) for number in range(len(SPLITS))]
    images = np.concatenate(by_split)
    return images, rows[images], dict(zip(SPLITS, map(len, by_split), strict=True))


def image_ids(names: list[str]) -> np.ndarray:
    """An id for each image that depends only on its name."""
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in names)
    ids = np.frombuffer(digests, "<i8").astype(np.int64)
    if len(np.unique(ids)) != len(ids):  # one in billions, even for a million images
        raise InputError("two image names have the same digest: rename one of them")
    return ids


def _check_lists(captions: Captions, features: Features, skip_bad: bool, on_event: Callback) -> None:
    """Images of a list must have captions or features; those that have only features are skipped."""
    listed = captions.without_captions
    rows = match([name for name, _, _ in listed], [NO_NUMBER] * len(listed), features.names).tolist()
    unknown = [image for image, row in zip(listed, rows, strict=True) if row < 0]
    if unknown and not skip_bad:
        name, file, line = unknown[0]
        images = f"the image {name!r} has neither captions nor features, nor do {len(unknown) - 1:,} others"
        raise InputError(f"{file}, line {line}: {images}; correct the list, or skip such images with --skip-bad")
    for file, count in Counter(file for _, file, _ in listed).items():
        on_event(warning(f"{file}: skipped {count:,} images without captions"))


def _held_out(splits: np.ndarray, names: list[str], settings: PreparationSettings) -> np.ndarray:
    """Move some training images to val, and val to test."""
    train, val, test = (np.flatnonzero(splits == number) for number in range(len(SPLITS)))
    if len(test) or not len(val):
        reason = f"there are already {len(test):,} test images" if len(test) else "there are no val images"
        raise InputError(f"--hold-out moves the val images to test, but {reason}: leave it out")
    if settings.hold_out >= len(train):
        raise InputError(f"--hold-out {settings.hold_out:,}: there are only {len(train):,} training images")
    ids = torch.from_numpy(image_ids([names[image] for image in train.tolist()]))
    order = shuffled(ids, Noise(settings.data_seed)).numpy()
    changed = splits.copy()
    changed[val] = SPLITS.index("test")
    changed[train[order[: settings.hold_out]]] = SPLITS.index("val")
    return changed


def _with_vocabulary(
    captions: Captions, images: np.ndarray, train: int, settings: PreparationSettings
) -> tuple[CaptionArrays, Vocabulary]:
    """The captions with the ids of a vocabulary, and the vocabulary; the first ``train`` images are those to train."""
    arrays, words = captions.arrays.take(images), captions.words
    counted = len(images) if settings.count_words == "all" else train
    learnt = arrays.tokens[: arrays.captions[arrays.images[counted]]]
    counts = np.bincount(learnt, minlength=len(words)).tolist()
    known = {words[word]: counts[word] for word in np.unique(arrays.tokens).tolist()}
    vocabulary = Vocabulary.from_counts(known, settings.more_than)
    ids = np.array(vocabulary.encode(words), np.int32)
    return replace(arrays, tokens=ids[arrays.tokens]), vocabulary


def _copy(features: Features, rows: np.ndarray, names: list[str], path: Path, on_event: Callback) -> None:
    """Copy rows of features to a file block by block, in the order of the source."""
    progress = Progress(on_event, "features", len(rows))
    np.lib.format.open_memmap(path, "w+", features.dtype, (len(rows), features.width))
    with path.open("r+b") as file:
        # A full disk is noticed here; while writing to mapped memory, it would kill the process.
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    order = np.argsort(rows, kind="stable")
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        vectors = features.rows(rows[block])
        wrong = ~np.isfinite(vectors).all(1)
        if wrong.any():
            name = names[block[int(wrong.argmax())]]
            raise InputError(f"the features of {name!r} are not all finite: compute them again")
        # Mapped again for each block, so that earlier blocks do not stay in memory.
        map_array(path, "r+")[block] = vectors
        progress.advance(len(block))
