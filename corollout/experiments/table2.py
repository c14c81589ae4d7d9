"""The paper's second table: captions of images."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corollout.config import option
from corollout.experiments.probes import VARIANCE
from corollout.experiments.rollouts_study import ROLLOUTS
from corollout.experiments.table import Experiment
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.scenes import make_scenes


@dataclass(frozen=True)
class DataSettings:
    """A prepared data set, or scenes to be generated."""

    folder: str = option("", "Folder of a prepared data set; without it, scenes are generated.")
    train: int = option(2_000, "Generated images to train on.", least=1)
    val: int = option(300, "Generated images for validation.", least=1)
    test: int = option(300, "Generated images for the test.", least=1)
    data_seed: int = option(0, "Seed of the generated images.")


def make_data(folder: Path, settings: DataSettings, on_progress: Callable[[int, int], None]) -> None:
    """Check the data set, or generate it if none was named and it is not there yet."""
    if settings.folder or folder.exists():
        data = CaptionData.open(folder)
        for split in ("train", "val", "test"):
            data.split(split)
        return
    counts = {"train": settings.train, "val": settings.val, "test": settings.test}
    make_scenes(folder, counts, seed=settings.data_seed, on_progress=on_progress)


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
    },
    DataSettings,
    lambda settings, place: Path(settings.folder) if settings.folder else place,
    make_data,
    (VARIANCE, ROLLOUTS),
)
