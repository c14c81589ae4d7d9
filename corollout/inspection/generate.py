"""Sequences that a run's model generates for examples, with how good they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from corollout.config import argument, option, switch
from corollout.data import Columns
from corollout.errors import InputError
from corollout.rollouts.decoding import decode_scored
from corollout.tasks.views import ExampleView
from corollout.training.run_weights import WEIGHTS_HELP, open_run
from corollout.types import Decoded, Sampler


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
    json: bool = switch("Print a JSON object for each sequence, one per line.")

    @property
    def sampler(self) -> Sampler:
        if self.beam and self.sample:
            raise InputError("--beam and --sample exclude each other: choose one")
        if self.sample:
            return Sampler("sample", self.sample)
        return Sampler("beam", self.beam) if self.beam else Sampler("greedy")


class Generated(NamedTuple):
    """An example, and the sequences generated for it."""

    view: ExampleView
    outputs: list[Decoded]

    def records(self) -> Iterator[dict[str, Any]]:
        """A JSON object for each sequence."""
        for rank, record in enumerate(self.view.output_records(self.outputs)):
            yield {**self.view.identity(), "rank": rank, **record}


def generate_sequences(settings: GenerateSettings) -> list[Generated]:
    """Decode sequences for examples of a split, or for image files."""
    sampler = settings.sampler
    if settings.image and settings.index:
        raise InputError("--image and --index exclude each other: choose one")
    if settings.network is not None and not settings.image:
        raise InputError("--network is for image files: name them with --image")
    task, engine = open_run(settings.run, settings.weights)
    if settings.image:
        columns, views = task.views_of_files(settings.image, settings.network)
    else:
        split = task.split(settings.split)
        indices = list(dict.fromkeys(settings.index)) or range(min(settings.count, len(split)))
        views = [task.view(settings.split, split, index) for index in indices]
        batch = split.columns.batch(indices)
        columns = Columns(ids=batch.examples, **batch.columns)
    outputs = decode_scored(engine, columns, sampler, seed=settings.seed, device=task.device)
    return [Generated(view, decoded) for view, decoded in zip(views, outputs, strict=True)]
