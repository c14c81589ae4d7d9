"""The settings of Karel and of its commands; scales/*.toml hold those of each scale."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corollout.config import argument, option, required, switch
from corollout.tasks.spec import SCALES

Form = Literal["tensor", "json", "both"]


@dataclass(frozen=True)
class DataSettings:
    """Generated tasks."""

    train: int = option(10_000, "Tasks for training.", least=0)
    val: int = option(2_500, "Tasks for validation.", least=0)
    test: int = option(2_500, "Tasks for the test.", least=0)
    shortest: int = option(5, "Minimum number of tokens in a program.", least=4)
    longest: int = option(45, "Maximum number of tokens in a program.", least=4)
    largest: int = option(16, "Maximum number of rows and of columns of a world.", least=2)
    data_seed: int = option(0, "Seed of the tasks.")


@dataclass(frozen=True)
class ModelSettings:
    """The network; the defaults are the paper's."""

    largest_world: int = option(16, "Maximum number of rows and of columns of a world that the encoder reads.", least=2)
    channels: int = option(32, "Channels of the convolution of each world.", least=1, most=10_000)
    blocks: int = option(2, "Residual blocks of three convolutions.", least=0, most=1_000)
    pair_width: int = option(512, "Width of the embedding of a pair of worlds.", least=1, most=100_000)
    embedding: int = option(256, "Width of the embedding of a token.", least=1, most=100_000)
    hidden: int = option(256, "Width of the LSTM.", least=1, most=100_000)
    layers: int = option(2, "Layers of the LSTM.", least=1, most=1_000)
    max_length: int = option(48, "Maximum length of a program in tokens, with the end token.", least=1, most=100_000)
    grammar: bool = option(False, "Mask tokens that the grammar does not allow.")


@dataclass(frozen=True)
class GenerateSettings:
    """What to generate; the scale sets what is not given."""

    out: Path = required("Folder for train.jsonl, val.jsonl and test.jsonl; new or empty.")
    scale: str = option("small", "Size of the data; the options below change single numbers.", choices=SCALES)
    train: int | None = option(None, "Tasks for training. [default: from the scale]", least=0)
    val: int | None = option(None, "Tasks for validation. [default: from the scale]", least=0)
    test: int | None = option(None, "Tasks for the test. [default: from the scale]", least=0)
    shortest: int | None = option(None, "Minimum number of tokens in a program. [default: from the scale]")
    longest: int | None = option(None, "Maximum number of tokens in a program. [default: from the scale]")
    largest: int | None = option(None, "Maximum number of rows and of columns of a world. [default: from the scale]")
    seed: int = option(0, "Seed of all tasks.")
    workers: int | None = option(None, "Number of threads, which does not change the result. [default: all]", least=1)
    forms: Form = option("tensor", "Write worlds as sparse tensors, as JSON, or both.")


@dataclass(frozen=True)
class RunSettings:
    """A program and a world."""

    program: str = argument('The program, "DEF run m( … m)", or @FILE to read it from a file.')
    world: str = required("JSON file of the world, in the public inpgrid_json format; - for standard input.")
    json: bool = switch("Print the result as JSON.")
