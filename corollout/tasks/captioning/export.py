"""Export of a captioner: everything that generation needs, and the one file that does it.

model.json            kind, version, sizes, head, tokens of start and end, digests, source
weights.safetensors   float32, and the tree as int32; constant terms are already summed
vocabulary.txt        the tokens, one per line, in the order of their ids
runtime.py            a copy of ``corollout.export.runtime``
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from torch import Tensor

import corollout
from corollout.errors import InputError
from corollout.export import RUNTIME, Export, runtime
from corollout.folders import new_folder
from corollout.policies import TreeHead
from corollout.rollouts import Engine
from corollout.tasks.captioning.model import CaptionPolicy
from corollout.tasks.captioning.task import CaptionTask


def export_captioner(task: CaptionTask, engine: Engine, out: Path, source: dict[str, Any]) -> Export:
    """Export a captioner of a run; ``source`` says which one."""
    return write_export(out, engine, task.tokens, source)


def write_export(out: Path | str, engine: Engine, words: Sequence[str], source: dict[str, Any] | None = None) -> Export:
    """Export an engine whose policy is a captioner to a new or empty folder."""
    out, policy = Path(out), engine.policy
    if not isinstance(policy, CaptionPolicy):
        raise InputError(f"only captioners can be exported, not a {type(policy).__name__}")
    arrays = _arrays(policy)
    if len(words) != len(arrays["embedding"]):
        raise InputError(f"the captioner has {len(arrays['embedding']):,} tokens, but there are {len(words):,} words")
    if engine.max_length > runtime.LONGEST:
        raise InputError(f"captions of up to {engine.max_length:,} words are too long: {runtime.LONGEST:,} are allowed")
    if wrong := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise InputError(f"the weights {wrong[0]!r} are not all finite: choose others with --weights")
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
    with new_folder(out, last=runtime.MODEL) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
    return Export(out, model, {name: len(data) for name, data in files.items()})


def _arrays(policy: CaptionPolicy) -> dict[str, np.ndarray]:
    """The weights. Standardisation is not folded into the image's weights, which would lose precision."""
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
