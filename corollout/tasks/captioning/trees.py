"""Trees over the vocabulary of a captioning data set: from word vectors, a trained captioner, counts, or at random."""

from pathlib import Path

import numpy as np

from corollout import trees
from corollout.config import read_toml
from corollout.errors import InputError
from corollout.files import check_entries
from corollout.tasks.captioning.dataset import CaptionData, CaptionSplit
from corollout.tasks.captioning.settings import TREE_METHODS, TREE_SOURCES, TreeSettings
from corollout.tasks.captioning.vocabulary import END, Vocabulary
from corollout.weights import read_weights

_EMBEDDING = "embedding"  # the captioner's parameter


def build_tree(data: CaptionData, settings: TreeSettings) -> tuple[trees.Tree, str]:
    """A tree over the tokens of a model, and a line on how it was built."""
    words, depth, of = data.vocabulary.known, settings.max_depth, settings.of
    match settings.source.partition(":"):
        case "huffman", "", "":
            tree = trees.huffman_tree(token_counts(data.split("train")), depth)
            builder = "Huffman code of training captions"
        case "balanced", "", "":
            tree, builder = trees.balanced_tree(len(words), depth), "balanced, in the order of the vocabulary"
        case "random", "", "" if of is not None:
            other, seed = trees.load_tree(of, words), settings.seed or 0
            tree, builder = trees.permuted(other.tree, seed, depth), f"permutation by seed {seed} of: {other.builder}"
        case "vectors" | "run" as kind, ":", path if path:
            if kind == "run":
                vectors, name = run_embeddings(Path(path), data), f"the embeddings of {path}"
            else:
                vectors, known = trees.word_vectors(path, words)
                name = f"the vectors in {path} ({known.sum():,} of {len(known):,} words have one)"
            method = settings.method or TREE_METHODS[0]
            bisects = method == "bisect"
            tree = trees.bisect_tree(vectors, depth) if bisects else trees.cluster_tree(vectors, method, depth)
            builder = f"{method} clustering of {name}"
        case _:
            raise InputError(f"a tree is built from {TREE_SOURCES}, not from {settings.source!r}")
    return tree, builder if depth is None else f"{builder}; at most {depth} deep"


def token_counts(split: CaptionSplit) -> np.ndarray:
    """int64[V]: the count of each token in the training targets; a target that was cut has no end token."""
    arrays, longest, size = split.data.captions, split.data.longest, split.data.vocabulary.size
    bounds = arrays.captions[arrays.images[split.start] : arrays.images[split.end] + 1]
    lengths = np.diff(bounds)
    tokens = arrays.tokens[bounds[0] : bounds[-1]]
    positions = np.arange(len(tokens)) - np.repeat(bounds[:-1] - bounds[0], lengths)
    counts = np.bincount(np.minimum(tokens[positions < longest], size - 1), minlength=size)
    counts[END] += (lengths < longest).sum()
    return counts


def run_embeddings(directory: Path, data: CaptionData) -> np.ndarray:
    """The word embeddings of the best weights of a captioner that was trained on the same vocabulary."""
    settings, weights = directory / "config.toml", directory / "best.safetensors"
    if not settings.is_file():
        raise InputError(f"{directory} is not a run directory: it has no config.toml")
    config = read_toml(settings)
    if config.get("task") != "captions":
        raise InputError(f"{directory} is a run of the task {config.get('task')!r}, not of a captioner")
    tensors, _ = read_weights(weights)
    if _EMBEDDING not in tensors:
        raise InputError(f"{weights} has no parameter {_EMBEDDING!r}: it is not from a captioner")
    vectors, size = tensors[_EMBEDDING], data.vocabulary.size
    folder = check_entries(config.get("data"), settings, folder=str)["folder"]
    file = Path(folder) / "vocabulary.txt"
    # The run's data may have been moved since; then only the number of words is compared.
    same = not file.is_file() or Vocabulary.load(file).words[:size] == data.vocabulary.known
    if len(vectors) != size or not same:
        raise InputError(f"the captioner in {directory} has another vocabulary than {data.folder}")
    return vectors.numpy()
