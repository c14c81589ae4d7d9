"""Trees as files: safetensors with one array and some metadata. Reading one runs no code."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from corollout.errors import InputError
from corollout.files import os_errors, write_file
from corollout.json_text import decode_json
from corollout.trees.tree import Tree

KIND, VERSION = "vocabulary tree", 1
_META, _CHILDREN = "corollout", "children"
_REBUILD = "build it again with `corollout tree build`"


@dataclass(frozen=True)
class StoredTree:
    """A tree, how it was built, and a digest of its vocabulary, if that is known."""

    tree: Tree
    builder: str
    vocabulary: str | None


def words_digest(words: Sequence[str]) -> str:
    """A digest of a vocabulary: the words in the order of their ids."""
    return hashlib.blake2b(json.dumps(list(words)).encode(), digest_size=20).hexdigest()


def save_tree(
    path: Path | str, tree: Tree, builder: str, words: Sequence[str] | None = None, *, new: bool = False
) -> None:
    """Write a tree, how it was built, and a digest of its words, atomically; with ``new`` only where no file is."""
    _check_size(tree, words, "the tree")
    vocabulary = None if words is None else words_digest(words)
    meta: dict[str, Any] = {"kind": KIND, "version": VERSION, "builder": builder, "vocabulary": vocabulary}
    meta["digest"] = _digest(meta, tree.children)
    data = safetensors.numpy.save({_CHILDREN: tree.children}, {_META: json.dumps(meta)})
    write_file(Path(path), data, what="the tree ", new=new)


def load_tree(path: Path | str, words: Sequence[str] | None = None) -> StoredTree:
    """Read a file written by :func:`save_tree`. With ``words``, a tree of another vocabulary is an error."""
    if Path(path).is_dir():
        raise InputError(f"cannot read the tree {path}: it is a folder, not a file of `corollout tree build`")
    try:
        with os_errors(f"read the tree {path}"), safe_open(path, framework="numpy") as file:
            meta = decode_json((file.metadata() or {}).get(_META, "null"))
            if not isinstance(meta, dict) or meta.get("kind") != KIND:
                raise InputError(f"{path} is a safetensors file but not a vocabulary tree: {_REBUILD}")
            if (version := meta.get("version")) != VERSION:
                raise InputError(f"{path} is a tree of format version {version!r}, not {VERSION}: {_REBUILD}")
            kind = file.get_slice(_CHILDREN).get_dtype()
            if kind != "I32":  # NumPy does not have all the others
                raise InputError(f"{path} is damaged: its tree has numbers of the type {kind}: {_REBUILD}")
            children: np.ndarray = file.get_tensor(_CHILDREN)
    except InputError:
        raise
    except (SafetensorError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged or not a vocabulary tree ({error}): {_REBUILD}") from error
    if meta.pop("digest", None) != _digest(meta, children):
        raise InputError(f"{path} is damaged (its content does not match its digest): {_REBUILD}")
    builder, vocabulary = meta.get("builder"), meta.get("vocabulary")
    if not isinstance(builder, str) or not isinstance(vocabulary, str | None):
        raise InputError(f"{path} is damaged: it does not say how the tree was built: {_REBUILD}")
    try:
        stored = StoredTree(Tree(children), builder, vocabulary)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    _check_size(stored.tree, words, str(path))
    if words is not None and stored.vocabulary not in (None, words_digest(words)):
        raise InputError(f"{path} is a tree of another vocabulary of {len(words):,} words: {_REBUILD}")
    return stored


def _check_size(tree: Tree, words: Sequence[str] | None, name: str) -> None:
    if words is not None and len(words) != tree.size:
        raise InputError(f"{name} has {tree.size:,} tokens, but the vocabulary has {len(words):,}")


def _digest(meta: dict[str, Any], children: np.ndarray) -> str:
    digest = hashlib.blake2b(json.dumps([meta, str(children.dtype), children.shape]).encode(), digest_size=20)
    digest.update(np.ascontiguousarray(children).tobytes())
    return digest.hexdigest()
