"""What can be said of an image without any model of language: the consensus of what was said of images like it.

Of the captions of the k training images whose features have the largest cosine with the image's own, the one is taken
that agrees best with all of them, by CIDEr-D (Devlin et al. 2015).
"""

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.dataset import CaptionSplit
from corollout.text_metrics.cider import Cider, DocumentFrequencies
from corollout.text_metrics.references import References

_BLOCK = 512


def nearest(train: CaptionSplit, split: CaptionSplit, k: int) -> np.ndarray:
    """int64[image, k]: the training images that are most like each image, the most similar first."""
    if not 1 <= k <= len(train):
        raise InputError(f"there are {len(train):,} training images: cannot take the {k} nearest")
    known = _directions(train, np.arange(len(train)))
    found = []
    for start in range(0, len(split), _BLOCK):
        cosine = _directions(split, np.arange(start, min(start + _BLOCK, len(split)))) @ known.T
        best = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
        order = np.take_along_axis(-cosine, best, 1).argsort(1, kind="stable")
        found.append(np.take_along_axis(best, order, 1))
    return np.concatenate(found)


def _directions(split: CaptionSplit, images: np.ndarray) -> np.ndarray:
    vectors = split.features(images)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def consensus(train: CaptionSplit, split: CaptionSplit, k: int = 20) -> list[list[int]]:
    """A caption for each image of the split, from those of its k nearest training images."""
    candidates = [
        [caption for neighbour in row for caption in train.references[neighbour]]
        for row in nearest(train, split, k).tolist()
    ]
    # Each candidate is among its own references as well, which adds the same to all of them.
    frequencies = DocumentFrequencies.of(References(train.references))
    cider = Cider(References(candidates), frequencies)
    images = np.repeat(np.arange(len(candidates)), [len(own) for own in candidates])
    agreement = cider.scores([caption for own in candidates for caption in own], images)
    parts = np.split(agreement, np.cumsum([len(own) for own in candidates])[:-1])
    return [own[int(part.argmax())] for own, part in zip(candidates, parts, strict=True)]
