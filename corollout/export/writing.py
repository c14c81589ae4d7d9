"""Writing an exported captioner: what it needs to generate, and the one file that does it.

model.json            kind, version, sizes, head, tokens of start and end, digests, where it comes from
weights.safetensors   float32, and the tree as int32; constants that can be added up beforehand are
vocabulary.txt        the words that the model may say, one a line, in the order of their tokens
runtime.py            a copy of ``corollout.export.runtime``
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from torch import Tensor

import corollout
from corollout.errors import InputError
from corollout.export import runtime
from corollout.policies import TreeHead
from corollout.rollouts import Engine
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.training import start as jobs
from corollout.training.runs import Run

RUNTIME = "runtime.py"


@dataclass(frozen=True)
class Export:
    """A folder that was written: what its ``model.json`` says, and how many bytes each file has."""

    folder: Path
    model: dict[str, Any]
    sizes: dict[str, int]


def export_run(directory: Path | str, out: Path | str, weights: str = "best") -> Export:
    """Export a run's captioner with its best weights, those of its newest checkpoint, or those of a file."""
    directory, out = Path(directory), Path(out)
    run = Run.open(directory)
    task = run.config.get("task")
    if task != "captions":
        raise InputError(f"only captioners are exported, and {directory} is a run of the task {task!r}")
    _refuse(out)  # before anything is read
    opened = jobs.open_weights(run, weights)
    source = {"run": str(directory.resolve()), "weights": weights, "update": opened.update}
    return write_export(out, opened.engine, opened.task.words, source)


def write_export(out: Path | str, engine: Engine, words: Sequence[str], source: dict[str, Any] | None = None) -> Export:
    """Export an engine whose policy is a captioner; a folder that holds an earlier export is replaced."""
    out, policy = Path(out), engine.policy
    if not isinstance(policy, CaptionPolicy):
        raise InputError(f"only captioners are exported, not a {type(policy).__name__}")
    arrays = _arrays(policy)
    if len(words) != len(arrays["embedding"]):
        raise InputError(f"the captioner has {len(arrays['embedding']):,} tokens, but there are {len(words):,} words")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InputError(f"the model's weights {name!r} are not all finite numbers: choose others by --weights")
    files = {
        runtime.WEIGHTS: safetensors.numpy.save(arrays),
        runtime.VOCABULARY: "".join(f"{word}\n" for word in words).encode(),
        RUNTIME: Path(runtime.__file__).read_bytes(),
    }
    embedding, width = arrays["image.weight"].shape
    tree = policy.head.tree if isinstance(policy.head, TreeHead) else None
    model = {
        "kind": runtime.KIND,
        "version": runtime.VERSION,
        "sizes": {"vocabulary": len(words), "features": width, "embedding": embedding, "hidden": policy.hidden},
        "head": "softmax" if tree is None else "tree",
        "depth": None if tree is None else tree.depth,
        "bos": engine.bos,
        "eos": engine.eos,
        "longest": engine.max_length,
        "digests": {name: hashlib.sha256(files[name]).hexdigest() for name in (runtime.WEIGHTS, runtime.VOCABULARY)},
        "source": {"corollout": corollout.__version__, **(source or {})},
    }
    files = {runtime.MODEL: json.dumps(model, indent=2).encode() + b"\n", **files}
    _refuse(out)
    try:
        _write(out, files)
    except OSError as error:
        raise InputError(f"cannot write the export {out}: {error.strerror or error}") from error
    return Export(out, model, {name: len(data) for name, data in files.items()})


def _arrays(policy: CaptionPolicy) -> dict[str, np.ndarray]:
    """What generation needs. Standardising is not folded into the image's weights: that would lose digits."""
    state = policy.state_dict()

    def plain(tensor: Tensor) -> np.ndarray:
        return np.ascontiguousarray(tensor.detach().float().cpu().numpy())

    names = ("shift", "factor", "image.weight", "image.bias", "embedding", "from_input", "recurrent")
    arrays = {name: plain(state[name]) for name in names}
    arrays["bias"] = plain(state["bias"].sum(0))
    if isinstance(policy.head, TreeHead):
        arrays["children"] = np.ascontiguousarray(policy.head.tree.children)
        return arrays | {"node.weight": plain(policy.head.weight), "node.bias": plain(policy.head.bias)}
    return arrays | {name: plain(state[name]) for name in ("output", "output_bias")}


def _refuse(out: Path) -> None:
    """Only what is no folder yet, or an empty one, or an earlier export, is written to."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} is no folder: choose another with --out")
    if any(out.iterdir()):
        try:
            kind = json.loads((out / runtime.MODEL).read_bytes())["kind"]
        except (OSError, ValueError, KeyError, TypeError):
            kind = None
        if kind != runtime.KIND:
            raise InputError(f"{out} holds something else than an earlier export: choose another with --out")


def _write(out: Path, files: dict[str, bytes]) -> None:
    """Write a folder beside its place and rename it, so that it is there whole or not at all."""
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    new, old = (out.with_name(f".temporary-{kind}-{out.name}") for kind in ("new", "old"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir()
    for name, data in files.items():
        with (new / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
