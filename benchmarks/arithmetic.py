"""How much arithmetic an update needs, from the sizes of its network and counts of what it generates and scores."""

from dataclasses import dataclass
from typing import Any

from corollout.tasks.karel.language import TOKENS
from corollout.tasks.karel.model import CHANNELS


@dataclass(frozen=True)
class Network:
    """Multiply-adds of a network's products; everything else is small beside them."""

    first: int  # of a context: layers that read the data, which needs no gradient
    encoder: int  # of a context: what follows
    word: int  # of a token as an input, whatever precedes it
    step: int  # of a prefix: the recurrence
    read_out: int  # of a prefix


def karel_network(model: dict[str, Any], pairs: int) -> Network:
    """``KarelPolicy``: its model's settings, and how many pairs of worlds are shown."""
    cells, channels, gates = (model["largest_world"] + 2) ** 2, model["channels"], 4 * model["hidden"]
    blocks = model["blocks"] * 3 * cells * 9 * (2 * channels) ** 2
    layers = (2 * model["layers"] - 1) * model["hidden"] * gates  # each but the first has a layer below
    return Network(
        first=pairs * 2 * cells * 9 * CHANNELS * channels,
        encoder=pairs * (blocks + cells * 2 * channels * model["pair_width"] + model["pair_width"] * gates),
        word=model["embedding"] * gates,
        step=pairs * layers,
        read_out=model["hidden"] * len(TOKENS),
    )


def caption_network(model: dict[str, Any]) -> Network:
    """``CaptionPolicy``; the image's step begins from zeros, so that its recurrence needs nothing."""
    gates = 5 * model["hidden"]
    return Network(
        first=model["width"] * model["embedding"],
        encoder=model["embedding"] * gates,
        word=model["embedding"] * gates,
        step=model["hidden"] * gates,
        read_out=model["hidden"] * model["vocab"],
    )


def needed_flops(network: Network, counts: dict[str, Any], prefixes: str = "different") -> int:
    """Floating-point operations that an update cannot do without, two for each multiply-add.

    ``counts`` are those of ``speed_worker.count_update``. Contexts are encoded once. Each different prefix of a context
    is fed and read out once, branches included, and each different token is projected once: what was computed while
    sequences were generated need not be computed again while main trajectories are scored. With ``prefixes="all"``,
    prefixes count as often as they occur. The backward pass of a product is two products, for its inputs and for its
    weights, and none for prefixes whose gradient is zero; the inputs of the first layer are data.
    """
    generated, scored = counts["generated"], counts["scored"]
    contexts = counts["contexts"] * (2 * network.first + 3 * network.encoder)
    computed = generated if generated[prefixes] else scored
    forward, backward = (
        part["words"] * network.word + part[prefixes] * (network.step + network.read_out) for part in (computed, scored)
    )
    return 2 * (contexts + forward + 2 * backward)
