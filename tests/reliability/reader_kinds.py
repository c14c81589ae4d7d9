"""Every kind of file that is read: how a small valid one is made, how its digests are corrected, how it is used."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from PIL import Image

from corollout.config import from_table, read_toml, write_toml
from corollout.events import ignore
from corollout.export import runtime
from corollout.files import file_digest, read_weights, write_weights
from corollout.lab.store import FILE as MEASUREMENTS
from corollout.lab.store import Store
from corollout.policies import TreeHead
from corollout.reports.report import open_report
from corollout.tasks.captioning.captions import read_names
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.export import write_export
from corollout.tasks.captioning.extraction import network_of, write_features
from corollout.tasks.captioning.features import open_features
from corollout.tasks.captioning.metrics import Scorer
from corollout.tasks.captioning.model import ModelSettings
from corollout.tasks.captioning.networks import read_image
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.readers import read_captions
from corollout.tasks.captioning.scoring import score_files, write_frequencies
from corollout.tasks.captioning.view import photo_html
from corollout.tasks.captioning.vocabulary import Vocabulary
from corollout.tasks.karel import parse
from corollout.tasks.karel import run as run_karel
from corollout.tasks.karel.commands import _read_world
from corollout.tasks.karel.dataset import KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.grids import unpack
from corollout.tasks.karel.machine import Programs, judge
from corollout.tasks.karel.model import pictures
from corollout.training.checkpoints import State, newest_checkpoint, write_checkpoint
from corollout.training.runs import Run
from corollout.trees import balanced_tree
from corollout.trees.files import load_tree, save_tree
from corollout.trees.vectors import word_vectors
from tests.support import caption_files
from tests.support.image_files import MeanColours, make_images, noise
from tests.support.random_captioners import TREES, WIDTH, WORDS, captioner

NAMES = [f"{letter}.jpg" for letter in "gecadbf"]


@dataclass(frozen=True)
class Kind:
    """``make`` writes valid files into a folder; ``use`` reads and uses them; ``correct`` makes digests fit again."""

    make: Callable[[Path], None]
    use: Callable[[Path, Random], None]
    correct: Callable[[Path], None] | None = None
    files: str = "**/*"  # those that are changed
    weight: int = 4


# --- Karel -----------------------------------------------------------------------------------------------------------


def _make_karel(folder: Path) -> None:
    generate({"train": 4}, seed=3, longest=12, largest=4)["train"].write(folder / "train.jsonl", "both")


def _make_karel_lines(folder: Path) -> None:
    _make_karel(folder)
    for file in (folder / "train.jsonl.cache").iterdir():
        file.unlink()
    (folder / "train.jsonl.cache").rmdir()


def _use_karel(folder: Path, random: Random) -> None:
    data = KarelData.open(folder / "train.jsonl", skip_bad=random.random() < 0.5)
    data.check()
    tasks = np.arange(len(data))
    assert judge(Programs(data.tokens, data.lengths), tasks, data.inputs, data.outputs).valid.all()
    for grids in (data.inputs, data.outputs):
        assert pictures(grids).shape == grids.cells.shape
        unpack(grids[0, 0])


def _correct_karel(folder: Path) -> None:
    cache = folder / "train.jsonl.cache"
    _update(
        cache / "meta.json",
        lambda meta: meta["arrays"].update({file.stem: file_digest(file) for file in cache.glob("*.npy")}),
    )


def _make_world(folder: Path) -> None:
    world = {"rows": 4, "cols": 5, "hero": "1:2:east", "blocked": "0:0 3:3", "markers": "1:1:4 2:2:9", "crashed": False}
    (folder / "world.json").write_text(json.dumps({"inpgrid_json": world}))


def _use_world(folder: Path, random: Random) -> None:
    run_karel(parse("DEF run m( move turnLeft putMarker m)"), _read_world(str(folder / "world.json")))


# --- captions and features -------------------------------------------------------------------------------------------


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

    _update(folder / "data" / "meta.json", correct)


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


# --- trees, exports, weights, runs -----------------------------------------------------------------------------------


def _make_tree(folder: Path) -> None:
    save_tree(folder / "tree.safetensors", balanced_tree(7), "balanced")


def _use_tree(folder: Path, random: Random) -> None:
    stored = load_tree(folder / "tree.safetensors")
    tree = stored.tree
    assert sorted(tree.order.tolist()) == list(range(tree.size))
    assert tree.codes.nodes.shape == (tree.size, tree.depth)
    stored.builder.encode()
    if tree.size > 1:
        keys = torch.arange(5)
        TreeHead(3, tree).choose(torch.ones(5, 3), keys, keys, False)


def _correct_tree(folder: Path) -> None:
    from corollout.trees import files

    path = folder / "tree.safetensors"
    data = path.read_bytes()
    arrays = safetensors.numpy.load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    meta = json.loads(header["__metadata__"]["corollout"])
    meta.pop("digest", None)
    meta["digest"] = files._digest(meta, arrays["children"])
    path.write_bytes(safetensors.numpy.save(arrays, {"corollout": json.dumps(meta)}))


def _make_vectors(folder: Path) -> None:
    (folder / "vectors.txt").write_text("3 4\n" + "".join(f"{word} 0.5 1 -2 3e-1\n" for word in ("dog", "cat", "a")))


def _use_vectors(folder: Path, random: Random) -> None:
    vectors, known = word_vectors(folder / "vectors.txt", ["dog", "dogs", "cat", "zebra"])
    assert np.isfinite(vectors).all()
    assert known.any()


def _make_export(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        write_export(folder / "export", captioner(TREES[name]), WORDS)
        (folder / "export" / "runtime.py").unlink()
        np.save(folder / "ids.npy", np.arange(2))

    return make


def _use_export(folder: Path, random: Random) -> None:
    model = runtime.Captioner.load(folder / "export", compiled=random.random() < 0.5)
    ids = runtime._load_array(folder / "ids.npy", "ids")
    features = np.ones((len(ids), WIDTH), np.float32)
    model.generate(features)
    model.generate(features, "sample", ids=ids)
    model.beams(features, 2)


def _correct_export(folder: Path) -> None:
    def correct(model: dict[str, Any]) -> None:
        for name in (runtime.WEIGHTS, runtime.VOCABULARY):
            model["digests"][name] = hashlib.sha256((folder / "export" / name).read_bytes()).hexdigest()

    _update(folder / "export" / runtime.MODEL, correct)


def _make_weights(folder: Path) -> None:
    write_weights(folder / "w.safetensors", {"a": torch.ones(3, 2), "b": torch.arange(4)}, {"x": "1"})


def _use_weights(folder: Path, random: Random) -> None:
    tensors, _ = read_weights(folder / "w.safetensors")
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


def _make_run(folder: Path) -> None:
    with Run.create(folder / "run", {"task": "karel", "kind": "pretrain", "model": {"hidden": 8}}) as run:
        run.log("update", {"update": 1, "loss": 0.5})
        run.log("evaluation", {"update": 1, "generalization": 0.25})
        run.save(1, State({"a": torch.ones(2)}, {"b": {"c": [1, 2.5, None]}}))
        run.finish({"updates": 1, "val": {"generalization": 0.5}})


def _use_run(folder: Path, random: Random) -> None:
    run = Run.open(folder / "run")
    for record in (*run.records(), *run.records("update")):
        assert isinstance(record["kind"], str)
    assert isinstance(run.summary, dict | None)
    if (loaded := run.load()) is not None:
        assert isinstance(loaded[1].values, dict)


def _make_checkpoint(folder: Path) -> None:
    for step in (3, 7):
        write_checkpoint(
            folder / "checkpoints", step, State({"a": torch.ones(3)}, {"b": [step, 0.5], "c": {"d": None}})
        )


def _use_checkpoint(folder: Path, random: Random) -> None:
    found = newest_checkpoint(folder / "checkpoints", ignore)
    assert found is None or (found[0] in (3, 7) and isinstance(found[1].values, dict))


def _make_settings(folder: Path) -> None:
    write_toml(folder / "settings.toml", {"embedding": 16, "hidden": 32, "dropout": 0.5})


def _use_settings(folder: Path, random: Random) -> None:
    settings = from_table(ModelSettings, read_toml(folder / "settings.toml"), "settings.toml")
    assert isinstance(settings.hidden, int)


def _make_report(folder: Path) -> None:
    from corollout.reports.report import Facts, Html, Paragraph, Report, Section, Table
    from tests.reports.test_report import CURVES, DRAWN

    table = Table("Numbers", ["method", "a|b"], [["x", "1"], ["y", "–"]], ["A note."])
    sections = [
        Section("Numbers", [Paragraph("words"), table, CURVES, DRAWN, Html("<b>b</b>"), Facts({"a": {"b": 1}})])
    ]
    content = Report("test", "A title", "A lead.", sections, {"command": "x"}, {"third": 1 / 3}).to_json()
    (folder / "report.json").write_text(json.dumps(content))


def _use_report(folder: Path, random: Random) -> None:
    report = open_report(folder)
    report.markdown()
    if random.random() < 0.1:  # drawing is slow
        report.page()


SETTINGS = {"seed": 0, "contexts": 4}


def _make_lab(folder: Path) -> None:
    store = Store(folder, SETTINGS)
    store.seconds = {"rloo": [0.5, 0.25]}
    store.save()


def _use_lab(folder: Path, random: Random) -> None:
    store = Store(folder, SETTINGS)
    assert isinstance(store.measurements, dict)
    assert all(isinstance(one, list) for one in store.seconds.values())


def _update(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


KINDS: Mapping[str, Kind] = {
    "Karel records": Kind(_make_karel_lines, _use_karel, weight=8),
    "Karel caches": Kind(_make_karel, _use_karel, _correct_karel, "*.cache/*", weight=12),
    "Karel worlds": Kind(_make_world, _use_world),
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
    "trees": Kind(_make_tree, _use_tree, _correct_tree, weight=8),
    "word vectors": Kind(_make_vectors, _use_vectors),
    "exports, softmax": Kind(_make_export("softmax"), _use_export, _correct_export),
    "exports, tree": Kind(_make_export("balanced"), _use_export, _correct_export, weight=6),
    "weights": Kind(_make_weights, _use_weights),
    "runs": Kind(_make_run, _use_run, weight=4),
    "checkpoints": Kind(_make_checkpoint, _use_checkpoint),
    "settings": Kind(_make_settings, _use_settings, weight=2),
    "reports": Kind(_make_report, _use_report, weight=6),
    "measurements": Kind(_make_lab, _use_lab, files=MEASUREMENTS, weight=2),
}
