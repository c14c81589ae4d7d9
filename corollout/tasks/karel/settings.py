"""The settings of Karel; scales/*.toml hold those of each scale."""

from dataclasses import dataclass

from corollout.config import option


@dataclass(frozen=True)
class DataSettings:
    """Generated tasks."""

    train: int = option(10_000, "Tasks for training.", least=0)
    val: int = option(2_500, "Tasks for validation.", least=0)
    test: int = option(2_500, "Tasks for the test.", least=0)
    shortest: int = option(5, "Fewest tokens of a program.", least=4)
    longest: int = option(45, "Most tokens of a program.", least=4)
    largest: int = option(16, "Most rows and columns of a world.", least=2)
    data_seed: int = option(0, "Seed of the tasks.")


@dataclass(frozen=True)
class ModelSettings:
    """The network; the defaults are the paper's."""

    largest_world: int = option(16, "Most rows and columns of a world that the encoder reads.", least=2)
    channels: int = option(32, "Channels of the convolution of each world.", least=1, most=10_000)
    blocks: int = option(2, "Residual blocks of three convolutions.", least=0, most=1_000)
    pair_width: int = option(512, "Width of the embedding of a pair of worlds.", least=1, most=100_000)
    embedding: int = option(256, "Width of the embedding of a token.", least=1, most=100_000)
    hidden: int = option(256, "Width of the LSTM.", least=1, most=100_000)
    layers: int = option(2, "Layers of the LSTM.", least=1, most=1_000)
    max_length: int = option(48, "Maximal length of a program in tokens, end token included.", least=1, most=100_000)
    grammar: bool = option(False, "Mask tokens that the grammar does not allow.")
