"""What can be set about Karel; the three scales are files beside this one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corollout.config import option
from corollout.tasks.scales import read_scale


@dataclass(frozen=True)
class DataSettings:
    """Generated tasks."""

    train: int = option(10_000, "Tasks to train on.", least=1)
    val: int = option(2_500, "Tasks for validation.", least=1)
    test: int = option(2_500, "Tasks for the test.", least=1)
    shortest: int = option(5, "Fewest tokens of a program.", least=4)
    longest: int = option(45, "Most tokens of a program.", least=4)
    largest: int = option(16, "Most rows and columns of a world.", least=2)
    data_seed: int = option(0, "Seed of the tasks.")


@dataclass(frozen=True)
class ModelSettings:
    """The network; the defaults are the paper's."""

    largest_world: int = option(16, "Most rows and columns of a world that the encoder reads.", least=2)
    channels: int = option(32, "Channels of the convolution of each world.", least=1)
    blocks: int = option(2, "Residual blocks of three convolutions.", least=0)
    pair_width: int = option(512, "Numbers that describe a pair of worlds.", least=1)
    embedding: int = option(256, "Width of a token's embedding.", least=1)
    hidden: int = option(256, "Width of the LSTM.", least=1)
    layers: int = option(2, "Layers of the LSTM.", least=1)
    max_length: int = option(48, "Tokens after which a program is cut off, end token included.", least=1)
    grammar: bool = option(False, "Let the policy choose only among tokens that the grammar allows.")


def scale(name: str) -> dict[str, Any]:
    """The settings of a scale."""
    return read_scale(Path(__file__).parent / "scales", name)
