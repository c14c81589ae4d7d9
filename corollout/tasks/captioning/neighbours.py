"""A baseline without a language model: the consensus of the captions of similar images.

Of the captions of the k training images whose features have the largest cosine with the image's, take the one that
agrees best with all of them by CIDEr-D (Devlin et al. 2015).
"""

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.dataset import CaptionSplit
from corollout.text_metrics import Cider, DocumentFrequencies, References

_BLOCK = 512


def nearest(train: CaptionSplit, split: CaptionSplit, k: int) -> np.ndarray:
    """int64[image, k]: the training images most similar to each image, the most similar first."""
    if not 1 <= k <= len(train):
        raise InputError(f"k must be from 1 to {len(train):,}, the number of training images, not {k}")
    known = _directions(train, np.arange(len(train)))
    neighbours = []
    for start in range(0, len(split), _BLOCK):
        cosine = _directions(split, np.arange(start, min(start + _BLOCK, len(split)))) @ known.T
        best = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
        order = np.take_along_axis(-cosine, best, 1).argsort(1, kind="stable")
        neighbours.append(np.take_along_axis(best, order, 1))
    return np.concatenate(neighbours)


def _directions(split: CaptionSplit, images: np.ndarray) -> np.ndarray:
    vectors = split.features(images)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def consensus(train: CaptionSplit, split: CaptionSplit, k: int = 20) -> list[list[int]]:
    """A caption for each image of the split, from those of its k nearest training images."""
    candidates = [
        [caption for neighbour in row for caption in train.references[neighbour]]
        for row in nearest(train, split, k).tolist()
    ]
    # Each candidate is also one of its references, which adds the same to all scores.
    frequencies = DocumentFrequencies.of(References(train.references))
    cider = Cider(References(candidates), frequencies)
    best = (int(cider.scores(group, [image] * len(group)).argmax()) for image, group in enumerate(candidates))
    return [group[index] for group, index in zip(candidates, best, strict=True)]
