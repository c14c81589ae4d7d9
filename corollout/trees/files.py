"""Trees as files: safetensors with one array and a few words about it. Nothing in them can run when they are read."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from corollout.errors import InputError
from corollout.trees.tree import Tree

KIND, VERSION = "vocabulary tree", 1
_ABOUT, _CHILDREN = "corollout", "children"


@dataclass(frozen=True)
class StoredTree:
    """A tree, how it was made, and a digest of the words that its tokens stand for, if they are known."""

    tree: Tree
    builder: str
    vocabulary: str | None


def words_digest(words: Sequence[str]) -> str:
    """A digest of a vocabulary, words being in the order of their ids."""
    return hashlib.blake2b(json.dumps(list(words)).encode(), digest_size=20).hexdigest()


def save_tree(path: Path | str, tree: Tree, builder: str, words: Sequence[str] | None = None) -> None:
    """Write a tree, how it was made, and of which words; the file is replaced at once."""
    if words is not None:
        _check_size(tree, words, "the tree")
    about: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "builder": builder,
        "vocabulary": None if words is None else words_digest(words),
    }
    about["digest"] = _digest(about, tree.children)
    data = safetensors.numpy.save({_CHILDREN: tree.children}, {_ABOUT: json.dumps(about)})
    target = Path(path)
    temporary = target.with_name(f".temporary-{target.name}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"cannot write the tree {target}: {error.strerror or error}") from error


def load_tree(path: Path | str, words: Sequence[str] | None = None) -> StoredTree:
    """Read what :func:`save_tree` wrote. With ``words``, a tree of another vocabulary is refused."""
    again = "build it again with `corollout tree build`"
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_ABOUT)
            about = {} if text is None else json.loads(text)
            if not isinstance(about, dict) or about.get("kind") != KIND:
                raise InputError(f"{path} is a safetensors file, but not of a vocabulary tree: {again}")
            if about.get("version") != VERSION:
                raise InputError(
                    f"{path} is a vocabulary tree of version {about.get('version')!r}, and this code reads {VERSION}: "
                    f"{again}"
                )
            children: np.ndarray = file.get_tensor(_CHILDREN)
    except OSError as error:
        raise InputError(f"cannot read the tree {path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged, or no file of a tree ({error}): {again}") from error
    if about.pop("digest", None) != _digest(about, children):
        raise InputError(f"{path} is damaged (its content does not match its digest): {again}")
    stored = StoredTree(Tree(children), about["builder"], about["vocabulary"])
    if words is not None:
        _check_size(stored.tree, words, str(path))
        if stored.vocabulary not in (None, words_digest(words)):
            raise InputError(f"{path} is a tree of another vocabulary with {len(words):,} words as well: {again}")
    return stored


def _check_size(tree: Tree, words: Sequence[str], name: str) -> None:
    if len(words) != tree.size:
        raise InputError(f"{name} has {tree.size:,} tokens, but the vocabulary has {len(words):,}")


def _digest(about: dict[str, Any], children: np.ndarray) -> str:
    digest = hashlib.blake2b(json.dumps([about, str(children.dtype), children.shape]).encode(), digest_size=20)
    digest.update(np.ascontiguousarray(children).tobytes())
    return digest.hexdigest()
