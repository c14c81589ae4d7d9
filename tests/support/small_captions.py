"""A captioning run that takes a few seconds: files of images in a colour each, and captions that name it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from corollout.tasks.captioning.gathering import Gathering
from corollout.tasks.captioning.preparation import PreparationSettings, prepare
from corollout.tasks.captioning.settings import ModelSettings
from corollout.training import start as jobs
from corollout.training.settings import MachineSettings, PretrainSettings
from tests.support.caption_files import table
from tests.support.image_files import MeanColours

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 40), "blue": (40, 60, 220), "white": (250, 250, 250)}
COUNTS = {"train": 12, "val": 4, "test": 3}
# Some words are so rare that no model learns them.
RARE = ("zebra", "quay", "lathe", "gnome", "oboe")
_made: list[Path] = []


class SmallColours(MeanColours):
    """Mean colours between 0 and 1."""

    name = "small-colours"

    def __call__(self, images: Tensor) -> Tensor:
        return super().__call__(images) / 255


def small_run(factory: pytest.TempPathFactory) -> Path:
    """The directory of the run, the same for all tests of a session; the data set's pictures are in its ``photos``."""
    if not _made:
        folder = factory.mktemp("small_captions")
        _prepare(folder)
        settings = PretrainSettings(learning_rate=2e-2, batch_size=15, epochs=20, evaluate_every=20)
        model = ModelSettings(embedding=16, hidden=32, dropout=0.0)
        jobs.new_pretraining(folder / "run", "captions", folder / "data", model, settings, MachineSettings())
        jobs.resume(folder / "run")
        _made.append(folder / "run")
    return _made[0]


def _prepare(folder: Path) -> None:
    (folder / "photos").mkdir()
    gathering = Gathering()
    places = [(split, number) for split, count in COUNTS.items() for number in range(count)]
    paths = []
    for place, (split, number) in enumerate(places):
        ground, drop = (list(COLOURS)[i % 4] for i in (place, place // 4 + place + 1))
        path = folder / "photos" / f"{split}-{number}.png"
        pixels = np.full((12, 18, 3), COLOURS[ground], np.uint8)
        pixels[6:, 9:] = COLOURS[drop]
        Image.fromarray(pixels).save(path)
        image = gathering.image(path.name, split)
        for text in (
            f"a {drop} drop on {ground} ground",
            f"{ground} ground with a {drop} drop in the corner",
            f"there is a {drop} {RARE[place % 5]} on {ground}",
        ):
            gathering.caption(image, text)
        paths.append(path)
    network = SmallColours()
    rows = np.stack([network.features(path).numpy() for path in paths])
    prepare(
        gathering.captions(),
        table([path.name for path in paths], rows),
        folder / "data",
        PreparationSettings(more_than=3),
        photos=folder / "photos",
        facts={"network": SmallColours.name},
    )
