"""Genuine files, where there are any: in the folder COROLLOUT_CAPTION_DATA, or in ../shared/data."""

import os
from pathlib import Path

import numpy as np
import pytest

from corollout.tasks.captioning.features import open_features
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.readers import read_captions

FOLDER = Path(os.environ.get("COROLLOUT_CAPTION_DATA", Path(__file__).parents[3] / "../shared/data"))


def genuine(name: str) -> Path:
    if not (FOLDER / name).exists():
        pytest.skip(f"{FOLDER / name} is not there")
    return FOLDER / name


def test_flickr8k(tmp_path: Path):
    folder = genuine("flickr8k")
    lists = {split: folder / f"{split}Images.txt" for split in ("train", "val", "test")}
    read = read_captions(folder / "captions.token.txt", lists)
    assert (len(read.names), len(read.arrays.captions) - 1, len(read.without)) == (7000, 35_000, 1000)
    source = open_features(folder / "features_1280_fp16.npy")
    warnings: list[str] = []
    settings = PreparationSettings(hold_out=500)
    data = prepare(read, source, tmp_path / "out", settings, photos=folder / "sample_images", warn=warnings.append)
    assert warnings == [f"{folder / 'testImages.txt'}: left out 1,000 images that have no captions"]
    assert data.splits == {"train": 5500, "val": 500, "test": 1000}
    assert (data.width, data.vectors.dtype) == (1280, np.float16)
    assert 2000 < data.vocabulary.size < 2500
    rows = np.load(folder / "features_1280_fp16.npy", mmap_mode="r")
    split = data.split("test")
    for image in (0, 17, 999):
        place = list(source.names).index(split.names[image])
        assert np.array_equal(split.features(np.array([image]))[0], rows[place].astype(np.float32))
    assert sum(split.photo(image) is not None for image in range(1000)) == 60


def test_coco():
    read = read_captions(splits={"train": genuine("coco/captions_val2017.json")})
    assert (len(read.names), len(read.arrays.captions) - 1) == (5000, 25_014)
    assert read.arrays.counts.min() >= 5
    place = read.names.index("000000397133.jpg")
    assert read.numbers[place] == 397133
    first = " ".join(read.words[token] for token in read.arrays.of(place)[0])
    assert first == "a man is in a kitchen making pizzas"
