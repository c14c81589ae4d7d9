"""Files of captioning: captions, features, images, prepared data and vocabularies."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.numpy
from PIL import Image

from corollout.files import file_digest
from corollout.tasks.captioning.captions import read_names
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.extraction import network_of, write_features
from corollout.tasks.captioning.features import open_features
from corollout.tasks.captioning.metrics import Scorer
from corollout.tasks.captioning.networks import read_image
from corollout.tasks.captioning.preparation import prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.scoring import score_files, write_frequencies
from corollout.tasks.captioning.settings import PreparationSettings
from corollout.tasks.captioning.view import photo_html
from corollout.tasks.captioning.vocabulary import Vocabulary
from tests.reliability.kinds.kind import Kind, update_json
from tests.support import caption_files
from tests.support.image_files import MeanColours, make_images, noise

NAMES = [f"{letter}.jpg" for letter in "gecadbf"]


def _make_captions(folder: Path) -> None:
    caption_files.karpathy(folder / "karpathy.json", {"train": 3, "val": 2}, 2)
    caption_files.coco(folder / "coco.json", [3, 5, 9], 2)
    caption_files.flickr(folder / "flickr.txt", NAMES[:4], 2)
    (folder / "train.txt").write_text("\n".join(NAMES[:3]))


def _use_captions(folder: Path, random: Random) -> None:
    skip_bad = random.random() < 0.5
    for options in (
        {"captions": folder / "karpathy.json"},
        {"splits": {"train": folder / "coco.json"}},
        {"captions": folder / "flickr.txt", "splits": {"train": folder / "train.txt"}},
    ):
        read = read_captions(**options, skip_bad=skip_bad)  # pyright: ignore[reportArgumentType]
        assert read.arrays.tokens.max() < len(read.words)
        "\n".join([*read.names, *read.words]).encode()


def _make_npy(folder: Path) -> None:
    np.save(folder / "x.npy", caption_files.numbers(7))
    (folder / "x_names.txt").write_text("\n".join(NAMES))


def _use_names(folder: Path, random: Random) -> None:
    names = read_names(folder / "x_names.txt")
    assert len(set(names)) == len(names) > 0


def _make_npz(folder: Path) -> None:
    np.savez_compressed(folder / "x.npz", features=caption_files.numbers(7), names=np.array(NAMES))


def _make_npz_by_name(folder: Path) -> None:
    rows = dict(zip(NAMES, caption_files.numbers(7), strict=True))
    np.savez(folder / "x.npz", allow_pickle=False, **rows)


def _make_safetensors(folder: Path) -> None:
    data = safetensors.numpy.save({"x": caption_files.numbers(7)}, {"names": json.dumps(NAMES)})
    (folder / "x.safetensors").write_bytes(data)


def _make_hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("features", data=caption_files.numbers(7), chunks=(2, 6), compression="gzip")
        file["names"] = NAMES


def _make_folder(folder: Path) -> None:
    (folder / "x").mkdir()
    for name, row in zip(NAMES, caption_files.numbers(7), strict=True):
        np.save(folder / "x" / f"{name}.npy", row)


def _features(name: str) -> Callable[[Path, Random], None]:
    def use(folder: Path, random: Random) -> None:
        features = open_features(folder / name)
        rows = features.rows(np.arange(len(features.names)))
        assert rows.shape == (len(features.names), features.width)
        assert rows.dtype in (np.float16, np.float32)

    return use


def _make_prepared(folder: Path) -> None:
    names = caption_files.karpathy(folder / "k.json", {"train": 4, "val": 2, "test": 1}, 2)
    captions = read_captions(folder / "k.json")
    prepare(captions, caption_files.table(names), folder / "data", PreparationSettings(more_than=0))
    (folder / "k.json").unlink()


def _use_prepared(folder: Path, random: Random) -> None:
    data = CaptionData.open(folder / "data")
    data.summary()
    for name in data.splits:
        split = data.split(name)
        assert split.features(np.arange(len(split))).shape == (len(split), data.width)
        scorer = Scorer(split.references)
        scorer.all([split.references[image][0] for image in range(len(split))])
        for image in range(len(split)):
            assert all(max(label) < data.vocabulary.size for label in split.labels[image])
            split.photo(image)
    data.verify()


def _correct_prepared(folder: Path) -> None:
    def correct(meta: dict[str, Any]) -> None:
        meta["digests"].update({name: file_digest(folder / "data" / name) for name in meta["digests"]})
        meta["features"]["digest"] = file_digest(folder / "data" / "features.npy")

    update_json(folder / "data" / "meta.json", correct)


def _make_vocabulary(folder: Path) -> None:
    Vocabulary.from_counts({"dog": 9, "cat": 8, "a": 7, "zebra": 1}, 2).save(folder / "vocabulary.txt")


def _use_vocabulary(folder: Path, random: Random) -> None:
    words = Vocabulary.load(folder / "vocabulary.txt")
    ids = words.encode(["dog", "zebra", "unheard"])
    assert max(words.label(ids, 5)) < words.size
    words.text(ids)


def _make_scores(folder: Path) -> None:
    caption_files.coco(folder / "refs.json", [3, 5, 9], 2)
    (folder / "hyps.json").write_text(json.dumps([{"image_id": n, "caption": "a dog runs"} for n in (3, 5, 9)]))
    write_frequencies(folder / "df.json", folder / "refs.json")


def _use_scores(folder: Path, random: Random) -> None:
    scores = score_files(folder / "refs.json", folder / "hyps.json", folder / "df.json", partial=True, meteor=False)
    assert all(np.isfinite(values).all() for values in scores.each.values())
    write_frequencies(folder / "again.json", folder / "refs.json")


def _make_images(folder: Path) -> None:
    for suffix, channels in (("png", 4), ("jpg", 3), ("webp", 3), ("bmp", 3)):
        Image.fromarray(noise(1, channels=channels)).save(folder / f"x.{suffix}")
    Image.fromarray(noise(2)[..., 0]).convert("P").save(folder / "p.png", transparency=3)


def _use_images(folder: Path, random: Random) -> None:
    for path in sorted(folder.iterdir()):
        image = read_image(path)
        assert image.mode == "RGB"
        photo_html(path, path.name)


def _make_extraction(folder: Path) -> None:
    paths = make_images(folder / "images", 5)
    (folder / "images" / "image-02.png").write_bytes(b"not an image")
    write_features(paths, MeanColours(), folder / "done.npy", 2, skip_bad=True)
    (folder / "part.npy.part").write_bytes((folder / "done.npy").read_bytes())
    about = json.loads((folder / "done.json").read_text())
    task = {name: about[name] for name in ("network", "side", "width", "files")}
    lines = [task, {"files": 2, "bad": {}}, {"files": 2, "bad": {"image-02.png": "damaged"}}]
    (folder / "part.npy.part.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _use_extraction(folder: Path, random: Random) -> None:
    paths = sorted((folder / "images").iterdir())
    network_of(folder / "done.npy")
    for name in ("part.npy", "done.npy"):
        done = write_features(paths, MeanColours(), folder / name, 2, skip_bad=True)
        assert done.rows == len(paths) - len(done.bad)
        if name == "part.npy":
            assert open_features(done.path).rows(np.arange(done.rows)).shape == (done.rows, MeanColours.width)


KINDS = {
    "captions": Kind(_make_captions, _use_captions, weight=12),
    "features, .npy": Kind(_make_npy, _features("x.npy"), weight=6),
    "features, .npz": Kind(_make_npz, _features("x.npz")),
    "features, .npz by name": Kind(_make_npz_by_name, _features("x.npz")),
    "features, .safetensors": Kind(_make_safetensors, _features("x.safetensors")),
    "features, HDF5": Kind(_make_hdf5, _features("x.h5")),
    "features, folder": Kind(_make_folder, _features("x")),
    "names": Kind(_make_npy, _use_names, None, "*.txt", 2),
    "prepared captions": Kind(_make_prepared, _use_prepared, _correct_prepared, weight=10),
    "vocabularies": Kind(_make_vocabulary, _use_vocabulary, weight=2),
    "captions to score": Kind(_make_scores, _use_scores, weight=8),
    "images": Kind(_make_images, _use_images, weight=8),
    "extraction of features": Kind(_make_extraction, _use_extraction, files="*.json*", weight=2),
}
