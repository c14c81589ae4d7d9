"""Trees over the vocabulary of a captioning data set: from word vectors, a trained captioner, counts, or chance."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corollout.errors import InputError
from corollout.tasks.captioning.dataset import CaptionData, CaptionSplit
from corollout.tasks.captioning.vocabulary import END, Vocabulary
from corollout.training.checkpoints import read_weights
from corollout.training.runs import Run
from corollout.trees import (
    Tree,
    balanced_tree,
    bisect_tree,
    cluster_tree,
    huffman_tree,
    load_tree,
    permuted,
    word_vectors,
)

SOURCES = "vectors:FILE, run:DIRECTORY, random, huffman or balanced"
METHODS = ("ward", "complete", "average", "bisect")
_EMBEDDING = "embedding"  # the captioner's parameter


@dataclass(frozen=True)
class TreeSettings:
    """What a tree is made from, and how."""

    source: str
    method: str | None = None  # of clustering: one of METHODS
    max_depth: int | None = None
    seed: int | None = None  # of a random tree
    of: Path | None = None  # the tree whose shape a random one has

    def __post_init__(self) -> None:
        if self.source != "random" and (self.of, self.seed) != (None, None):
            raise InputError("--of and --seed are for a random tree: leave them out, or choose --from random")
        if self.source == "random" and self.of is None:
            raise InputError("a random tree is a permutation of another one: name its file with --of")
        if self.method is not None and not self.source.startswith(("vectors:", "run:")):
            raise InputError("--method is for clustering vectors: leave it out, or choose --from vectors:… or run:…")
        if self.method not in (None, *METHODS):
            raise InputError(f"no method of clustering is called {self.method!r}: choose one of {', '.join(METHODS)}")


def build_tree(data: CaptionData, settings: TreeSettings) -> tuple[Tree, str]:
    """A tree over the words that a model may say, and a line about how it was made."""
    words, depth, of = data.vocabulary.known, settings.max_depth, settings.of
    match settings.source.partition(":"):
        case "huffman", "", "":
            tree, builder = huffman_tree(token_counts(data.split("train")), depth), "Huffman code of training captions"
        case "balanced", "", "":
            tree, builder = balanced_tree(len(words), depth), "balanced, in the order of the vocabulary"
        case "random", "", "" if of is not None:
            other, seed = load_tree(of, words), settings.seed or 0
            tree, builder = permuted(other.tree, seed, depth), f"permutation by seed {seed} of: {other.builder}"
        case "vectors", ":", file if file:
            vectors, found = word_vectors(file, words)
            known = f"{found.sum():,} of {len(found):,} words have one"
            tree, builder = _clustered(vectors, settings, f"the vectors in {file} ({known})")
        case "run", ":", run if run:
            tree, builder = _clustered(run_embeddings(Path(run), data), settings, f"the embeddings of {run}")
        case _:
            raise InputError(f"a tree cannot be made from {settings.source!r}: choose one of {SOURCES}")
    return tree, builder if depth is None else f"{builder}; at most {depth} deep"


def token_counts(split: CaptionSplit) -> np.ndarray:
    """int64[V]: how often each token is taught, rare words being unknown ones; a caption that is cut has no end."""
    arrays, longest, size = split.data.captions, split.data.longest, split.data.vocabulary.size
    bounds = arrays.captions[arrays.images[split.start] : arrays.images[split.end] + 1]
    lengths = np.diff(bounds)
    tokens = arrays.tokens[bounds[0] : bounds[-1]]
    places = np.arange(len(tokens)) - np.repeat(bounds[:-1] - bounds[0], lengths)
    counts = np.bincount(np.minimum(tokens[places < longest], size - 1), minlength=size)
    counts[END] += (lengths < longest).sum()
    return counts


def run_embeddings(directory: Path, data: CaptionData) -> np.ndarray:
    """The word embeddings of a captioner's best weights, if it was trained on the same vocabulary."""
    run = Run.open(directory)
    if run.config.get("task") != "captions":
        raise InputError(f"{directory} is no run of a captioner, but of the task {run.config.get('task')!r}")
    tensors, _ = read_weights(run.best)
    if _EMBEDDING not in tensors:
        raise InputError(f"{run.best} has no parameter {_EMBEDDING!r}: it is not of a captioner")
    vectors, size = tensors[_EMBEDDING], data.vocabulary.size
    told = Path(run.config["data"]["folder"]) / "vocabulary.txt"
    # The run's folder may have been moved since; the number of words is compared in any case.
    same = not told.is_file() or Vocabulary.load(told).words[:size] == data.vocabulary.known
    if len(vectors) != size or not same:
        raise InputError(f"the captioner in {directory} has learnt another vocabulary than that of {data.folder}")
    return vectors.numpy()


def _clustered(vectors: np.ndarray, settings: TreeSettings, of_what: str) -> tuple[Tree, str]:
    method, depth = settings.method or METHODS[0], settings.max_depth
    tree = bisect_tree(vectors, depth) if method == "bisect" else cluster_tree(vectors, method, depth)
    return tree, f"{method} clustering of {of_what}"
