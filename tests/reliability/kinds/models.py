"""Files of models: trees, word vectors, exports and weights."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from corollout.export import runtime
from corollout.policies import TreeHead
from corollout.tasks.captioning.export import write_export
from corollout.trees import balanced_tree
from corollout.trees.files import load_tree, save_tree
from corollout.trees.vectors import word_vectors
from corollout.weights import read_weights, write_weights
from tests.reliability.kinds.kind import Kind, update_json
from tests.support.random_captioners import TREES, WIDTH, WORDS, captioner


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

    update_json(folder / "export" / runtime.MODEL, correct)


def _make_weights(folder: Path) -> None:
    write_weights(folder / "w.safetensors", {"a": torch.ones(3, 2), "b": torch.arange(4)}, {"x": "1"})


def _use_weights(folder: Path, random: Random) -> None:
    tensors, _ = read_weights(folder / "w.safetensors")
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())


KINDS = {
    "trees": Kind(_make_tree, _use_tree, _correct_tree, weight=8),
    "word vectors": Kind(_make_vectors, _use_vectors),
    "exports, softmax": Kind(_make_export("softmax"), _use_export, _correct_export),
    "exports, tree": Kind(_make_export("balanced"), _use_export, _correct_export, weight=6),
    "weights": Kind(_make_weights, _use_weights),
}
