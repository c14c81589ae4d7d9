"""The settings of captioning and of its commands; scales/*.toml hold those of each scale."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from corollout.config import argument, option, required, switch
from corollout.errors import InputError
from corollout.tasks.spec import SCALES

Format = Literal["karpathy", "coco", "flickr"]
# Networks that make features.
DEFAULT_NETWORK = "efficientnet-lite2"
NETWORKS = ("efficientnet-lite0", "efficientnet-lite1", DEFAULT_NETWORK)
# What trees are built from, and how vectors are clustered.
TREE_SOURCES = "vectors:FILE, run:DIRECTORY, random, huffman or balanced"
TREE_METHODS = ("ward", "complete", "average", "bisect")
_DATA = "Folder prepared by `corollout data captions`."


@dataclass(frozen=True)
class ModelSettings:
    """The network; the defaults are the paper's."""

    embedding: int = option(512, "Width of the embeddings of words and of the image.", least=1, most=100_000)
    hidden: int = option(512, "Width of the LSTM.", least=1, most=100_000)
    dropout: float = option(0.5, "Dropout on the LSTM's output in pre-training.", least=0, most=1)
    input_dropout: float = option(0.0, "Dropout on the LSTM's input in pre-training.", least=0, most=1)
    head: str = option("softmax", "Choose words by a softmax or by a walk down a tree.", choices=("softmax", "tree"))


@dataclass(frozen=True)
class PreparationSettings:
    """How captions become a data set."""

    more_than: int = option(5, "Learn words that occur more often than this in the captions that are counted.", least=0)
    count_words: Literal["train", "all"] = option(
        "train", "Captions whose words are counted: those of training images, or of all, as the paper's authors do."
    )
    longest: int = option(16, "Cut training targets after this many words.", least=1)
    hold_out: int = option(0, "Move this many training images to val, and val to test.", least=0)
    data_seed: int = option(0, "Seed of generated scenes and of the images held out.", flags=("--seed",))


@dataclass(frozen=True)
class FileSettings:
    """Captions and features in files."""

    captions: Path | None = option(None, "Captions: Karpathy's dataset_*.json, COCO's annotations, Flickr's token.txt.")
    train: Path | None = option(None, "With --captions, the list of training images; otherwise their captions.")
    val: Path | None = option(None, "The same for validation.")
    test: Path | None = option(None, "The same for the test.")
    format: Format | None = option(None, "Format of the captions. [default: detected]")
    features: Path | None = option(None, "Features: .npy, .npz, .safetensors, .h5, or a folder of NAME.npy.")
    names: Path | None = option(None, "Image names of a .npy file's rows. [default: *_names.txt beside it]")
    images: Path | None = option(None, "Folder of the image files, to show them.")


@dataclass(frozen=True)
class SceneSettings:
    """Numbers of generated scenes."""

    scale: str | None = option(None, "Number of scenes. [default: tiny]", choices=SCALES)
    train_images: int | None = option(None, "Number of training scenes. [default: from the scale]", least=1)
    val_images: int | None = option(None, "Number of validation scenes. [default: from the scale]", least=0)
    test_images: int | None = option(None, "Number of test scenes. [default: from the scale]", least=0)


@dataclass(frozen=True)
class CaptionsSettings:
    out: Path = required("Folder of the data set; new or empty.")
    files: FileSettings = field(default_factory=FileSettings)
    generate: bool = switch("Generate scenes instead of reading captions.")
    scenes: SceneSettings = field(default_factory=SceneSettings)
    preparation: PreparationSettings = field(default_factory=PreparationSettings)
    skip_bad: bool = switch("Skip and count bad entries, and images without features.")


@dataclass(frozen=True)
class FeaturesSettings:
    images: Path = required("Folder of images (jpg, jpeg, png, webp, bmp).")
    out: Path = required("File for the features, X.npy; the names of the images go to X_names.txt.")
    network: str = option(DEFAULT_NETWORK, f"Network: {', '.join(NETWORKS)}, or the folder of a Hugging Face model.")
    batch: int = option(32, "Images per batch.", least=1)
    device: str = option("cpu", "Where to compute: cpu, cuda, cuda:1 and so on.")
    skip_bad: bool = switch("Skip invalid images instead of stopping at the first one.")


@dataclass(frozen=True)
class NeighboursSettings:
    data: Path = argument(_DATA)
    split: str = option("test", "Images to caption: val or test.")
    k: int = option(20, "Number of nearest training images.", least=1, flags=("-k",))
    json: bool = switch("Print the numbers as JSON.")


@dataclass(frozen=True)
class ScoreSettings:
    refs: Path = required("References: COCO's annotations, JSON.", metavar="<file>")
    hyps: Path | None = option(None, "Captions to score: COCO's results, JSON.", metavar="<file>")
    df: Path | None = option(
        None, "Document frequencies: annotations, or a file of --write-df. [default: those of --refs]", metavar="<file>"
    )
    write_df: Path | None = option(None, "Write the document frequencies of the references.", metavar="<file>")
    partial: bool = switch("Ignore images that have references but no caption.")
    per_example: bool = switch("Also print the scores of each caption.")
    no_meteor: bool = switch("Leave out METEOR, which takes longest.")
    json: bool = switch("Print the scores as JSON, not multiplied by 100.")


@dataclass(frozen=True)
class TreeSettings:
    """What a tree is built from, and how."""

    source: str = required(f"What to build the tree from: {TREE_SOURCES}.", flags=("--from",), metavar="<source>")
    method: str | None = option(None, "How to cluster vectors. [default: ward]", choices=TREE_METHODS)
    max_depth: int | None = option(None, "Maximum number of decisions for a word. [default: unlimited]", least=0)
    seed: int | None = option(None, "For random: seed of the permutation. [default: 0]")
    of: Path | None = option(None, "For random: file of the tree to permute.", metavar="<file>")

    def __post_init__(self) -> None:
        if self.source != "random" and (self.of, self.seed) != (None, None):
            raise InputError("--of and --seed are only for random trees: leave them out, or choose --from random")
        if self.source == "random" and self.of is None:
            raise InputError("a random tree is a permutation of another tree: give its file with --of")
        if self.method is not None and not self.source.startswith(("vectors:", "run:")):
            raise InputError("--method is only for vectors: leave it out, or choose --from vectors:… or run:…")


@dataclass(frozen=True)
class TreeBuildSettings:
    tree: TreeSettings
    data: Path = required(_DATA)
    out: Path = required("File of the tree, in safetensors format.")


@dataclass(frozen=True)
class TreeShowSettings:
    file: Path = argument("File of a tree.")
    data: Path | None = option(None, "Folder prepared by `corollout data captions`, for words and frequencies.")
    around: str | None = option(None, "Draw the tree around this word.", metavar="<word>")
    words: int = option(16, "Approximate number of words to draw around it.", least=1)
