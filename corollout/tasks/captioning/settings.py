"""What can be set about captioning; the three scales are files beside this one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corollout.config import option
from corollout.tasks.scales import read_scale


@dataclass(frozen=True)
class ModelSettings:
    """The network; the defaults are the paper's."""

    embedding: int = option(512, "Width of a word's embedding, and of the image's.", least=1)
    hidden: int = option(512, "Width of the LSTM.", least=1)
    dropout: float = option(0.5, "Share of the LSTM's output that is dropped in pre-training.", least=0, most=1)
    input_dropout: float = option(0.0, "Share of the LSTM's input that is dropped in pre-training.", least=0, most=1)
    head: str = option(
        "softmax", "How words are chosen: by a softmax, or by a walk down a tree.", choices=("softmax", "tree")
    )


def scale(name: str) -> dict[str, Any]:
    """The settings of a scale."""
    return read_scale(Path(__file__).parent / "scales", name)
