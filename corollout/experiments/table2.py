"""The paper's second table: captions of images."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corollout.config import option
from corollout.sweeps.rollout_analysis import ROLLOUTS
from corollout.sweeps.sweep import MLE, Experiment, Model, Sweep
from corollout.sweeps.variance_analysis import PAIRS, VARIANCE
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.scenes import make_scenes
from corollout.tasks.captioning.trees import TreeSettings, build_tree
from corollout.trees import save_tree


@dataclass(frozen=True)
class DataSettings:
    """A prepared data set, or scenes to be generated."""

    folder: str = option("", "Folder of a prepared data set; without it, scenes are generated.")
    train: int = option(2_000, "Generated images to train on.", least=1)
    val: int = option(300, "Generated images for validation.", least=1)
    test: int = option(300, "Generated images for the test.", least=1)
    data_seed: int = option(0, "Seed of the generated images.")
    vectors: str = option("", "File of word vectors for tree_WV; without it, that model is left out.")


def check_data(folder: Path) -> None:
    """Open every part of a prepared data set."""
    data = CaptionData.open(folder)
    for split in ("train", "val", "test"):
        data.split(split)


def make_data(folder: Path, settings: DataSettings, on_progress: Callable[[int, int], None]) -> None:
    """Check the data set, or generate it if none was named and it is not there yet."""
    if settings.folder or folder.exists():
        check_data(folder)
        return
    counts = {"train": settings.train, "val": settings.val, "test": settings.test}
    make_scenes(folder, counts, seed=settings.data_seed, on_progress=on_progress)


def _distilled(sweep: Sweep, seed: int, file: Path) -> None:
    """tree_DIS: the embeddings of the softmax model of the same seed, clustered."""
    _build(sweep, TreeSettings(f"run:{sweep.mle(seed)}"), file)


def _permuted(sweep: Sweep, seed: int, file: Path) -> None:
    """tree_RD: tree_DIS with its leaves permuted."""
    shape = file.with_name(f"{file.stem}-shape.tree")
    _distilled(sweep, seed, shape)
    _build(sweep, TreeSettings("random", of=shape, seed=seed), file)


def _from_vectors(sweep: Sweep, seed: int, file: Path) -> None:
    """tree_WV: word vectors that somebody else has learnt, clustered."""
    _build(sweep, TreeSettings(f"vectors:{sweep.data.vectors}"), file)


def _build(sweep: Sweep, settings: TreeSettings, file: Path) -> None:
    data = CaptionData.open(sweep.folder)
    tree, builder = build_tree(data, settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_tree(file, tree, builder, data.vocabulary.known)


DIS = "tree_DIS"

TABLE2 = Experiment(
    "table2",
    "captions",
    "Captions",
    {
        "REINFORCE": "reinforce",
        "SC": "sc",
        "RLOO": "rloo-5",
        "ARS-1": "ars-1",
        "ARS-5": "ars-5",
        "ARS-10": "ars-10",
        "ARS-20": "ars-20",
        "ARSM": "arsm:budget=2000",
        "BT-RF": "reinforce",
        "BT-SC": "sc",
        "BT-RLOO": "rloo-5",
        "BT-ARSM": "bt-arsm",
        "BT-DisARM": "bt-disarm",
    },
    DataSettings,
    lambda settings, place: Path(settings.folder) if settings.folder else place,
    make_data,
    (VARIANCE, PAIRS, ROLLOUTS),
    (
        Model(MLE, "mle"),
        Model("tree_RD", "tree-rd", _permuted, after=MLE),
        Model("tree_WV", "tree-wv", _from_vectors, possible=lambda data: bool(data.vectors)),
        Model(DIS, "tree-dis", _distilled, after=MLE),
    ),
    dict.fromkeys(("BT-RF", "BT-SC", "BT-RLOO", "BT-ARSM", "BT-DisARM"), DIS),
)
