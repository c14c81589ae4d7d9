"""The settings of ``corollout generate`` and ``corollout inspect``."""

from dataclasses import dataclass
from pathlib import Path

from corollout.config import argument, option, switch
from corollout.training.settings import DATA_HELP, DEVICE_HELP, WEIGHTS_HELP


@dataclass(frozen=True)
class GenerateSettings:
    """For which examples sequences are generated, and how."""

    run: Path = argument("Run directory.")
    split: str = option("val", "Split of the examples: train, val or test.")
    index: tuple[int, ...] = option(
        (),
        "Indices of examples in the split, from 0, instead of the first ones.",
        flags=("--index", "--number", "--task"),
    )
    count: int = option(3, "Number of examples, from the first on.", least=1)
    image: tuple[Path, ...] = option((), "Image files to caption, instead of examples of a split. May be repeated.")
    network: str | None = option(
        None, "Network for --image, as in `data features`. [default: the one that made the data's features, if known]"
    )
    beam: int = option(0, "Beam size; shows all sequences of the beam.", least=0)
    sample: int = option(0, "Number of sampled sequences per example.", least=0)
    seed: int = option(0, "Seed of the samples.")
    weights: str = option("best", WEIGHTS_HELP)
    data: Path | None = option(None, DATA_HELP)
    device: str | None = option(None, DEVICE_HELP)
    json: bool = switch("Print a JSON object for each sequence, one per line.")


@dataclass(frozen=True)
class InspectSettings:
    """Which estimate is inspected, and how it is shown."""

    run: Path = argument("Run directory.")
    split: str = option("val", "Split of the example: train, val or test.")
    index: int = option(0, "Index of the example in the split, from 0.", flags=("--index", "--number", "--task"))
    estimator: str | None = option(None, "Estimator, such as arsm, mc-2 or rloo-8. [default: the run's, or arsm]")
    seed: int = option(0, "Seed of all sampling.")
    weights: str = option("best", WEIGHTS_HELP)
    data: Path | None = option(None, DATA_HELP)
    device: str | None = option(None, DEVICE_HELP)
    branches: int = option(
        8, "Branches of a step to print, the most important ones; 0 for all.", least=0, flags=("--branches", "--most")
    )
    json: bool = switch("Print everything as a JSON object.")
    html: Path | None = option(None, "Write a page with everything to this file.", metavar="<file>")
