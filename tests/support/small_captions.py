"""A captioning run that takes a few seconds: images of two colours, and captions that name them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from corollout.tasks.captioning.captions import Collector
from corollout.tasks.captioning.preparation import prepare
from corollout.tasks.captioning.settings import ModelSettings, PreparationSettings
from corollout.training.settings import MachineSettings, PretrainSettings
from corollout.training.start import create_pretraining, resume_run
from tests.support.caption_files import table
from tests.support.image_files import MeanColours

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 40), "blue": (40, 60, 220), "white": (250, 250, 250)}
COUNTS = {"train": 12, "val": 4, "test": 3}
# These words are too rare to be learned.
RARE = ("zebra", "quay", "lathe", "gnome", "oboe")
_made: list[Path] = []


class SmallColours(MeanColours):
    """Mean colours between 0 and 1."""

    name = "small-colours"

    def __call__(self, images: Tensor) -> Tensor:
        return super().__call__(images) / 255


def small_run(factory: pytest.TempPathFactory) -> Path:
    """The directory of the run, made once per session; data and photos are beside it."""
    if not _made:
        folder = factory.mktemp("small_captions")
        _prepare(folder)
        settings = PretrainSettings(learning_rate=2e-2, batch_size=15, epochs=20, evaluate_every=20)
        model = ModelSettings(embedding=16, hidden=32, dropout=0.0)
        create_pretraining(folder / "run", "captions", folder / "data", model, settings, MachineSettings())
        resume_run(folder / "run")
        _made.append(folder / "run")
    return _made[0]


def _prepare(folder: Path) -> None:
    (folder / "photos").mkdir()
    collector = Collector()
    images = [(split, number) for split, count in COUNTS.items() for number in range(count)]
    paths = []
    for index, (split, number) in enumerate(images):
        ground, drop = (list(COLOURS)[i % 4] for i in (index, index // 4 + index + 1))
        path = folder / "photos" / f"{split}-{number}.png"
        pixels = np.full((12, 18, 3), COLOURS[ground], np.uint8)
        pixels[6:, 9:] = COLOURS[drop]
        Image.fromarray(pixels).save(path)
        image = collector.add_image(path.name, split)
        for text in (
            f"a {drop} drop on {ground} ground",
            f"{ground} ground with a {drop} drop in the corner",
            f"there is a {drop} {RARE[index % 5]} on {ground}",
        ):
            collector.add_caption(image, text)
        paths.append(path)
    network = SmallColours()
    rows = np.stack([network.features(path).numpy() for path in paths])
    prepare(
        collector.captions(),
        table([path.name for path in paths], rows),
        folder / "data",
        PreparationSettings(more_than=3),
        photos=folder / "photos",
        facts={"network": SmallColours.name},
    )
