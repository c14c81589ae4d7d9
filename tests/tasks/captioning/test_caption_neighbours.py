"""Captions by consensus of neighbours, against plain loops."""

from pathlib import Path

import numpy as np
import pytest

from corollout.errors import InputError
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.neighbours import consensus, nearest
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.text_metrics.cider import Cider, DocumentFrequencies
from corollout.text_metrics.references import References
from tests.support.caption_files import karpathy, table


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> CaptionData:
    folder = tmp_path_factory.mktemp("neighbours")
    names = karpathy(folder / "dataset.json", {"train": 12, "val": 3})
    features = np.random.default_rng(0).normal(size=(len(names), 6)).astype(np.float32)
    captions = read_captions(folder / "dataset.json")
    return prepare(captions, table(names, features), Path(folder / "data"), PreparationSettings(more_than=0))


def test_the_nearest_have_the_largest_cosines(data: CaptionData):
    train, val = data.split("train"), data.split("val")
    found = nearest(train, val, 4)
    known, asked = train.features(np.arange(12)), val.features(np.arange(3))
    for image, row in enumerate(found.tolist()):
        cosines = [
            float(known[i] @ asked[image] / np.linalg.norm(known[i]) / np.linalg.norm(asked[image])) for i in range(12)
        ]
        assert row == sorted(range(12), key=lambda i: -cosines[i])[:4]


def test_the_consensus_agrees_best_with_all_candidates(data: CaptionData):
    train, val = data.split("train"), data.split("val")
    frequencies = DocumentFrequencies.of(References(train.references))
    for image, chosen in enumerate(consensus(train, val, 3)):
        candidates = [c for i in nearest(train, val, 3)[image].tolist() for c in train.references[i]]
        one = Cider(References([candidates]), frequencies)
        scores = [float(one.scores([caption], [0])[0]) for caption in candidates]
        assert chosen == candidates[int(np.argmax(scores))]


def test_no_more_neighbours_than_images(data: CaptionData):
    with pytest.raises(InputError, match="there are 12 training images: cannot take the 13 nearest"):
        nearest(data.split("train"), data.split("val"), 13)
