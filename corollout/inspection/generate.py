"""Sequences that a run's model generates for examples, with how good they are."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from corollout.data import Columns
from corollout.errors import InputError
from corollout.inspection.settings import GenerateSettings
from corollout.rollouts.decoding import decode_scored
from corollout.tasks.views import ExampleView
from corollout.training.run_weights import open_run
from corollout.types import Decoded, Sampler


class Generated(NamedTuple):
    """An example, and the sequences generated for it."""

    view: ExampleView
    outputs: list[Decoded]

    def records(self) -> Iterator[dict[str, Any]]:
        """A JSON object for each sequence."""
        for rank, record in enumerate(self.view.output_records(self.outputs)):
            yield {**self.view.identity(), "rank": rank, **record}


def sampler_of(settings: GenerateSettings) -> Sampler:
    if settings.beam and settings.sample:
        raise InputError("--beam and --sample exclude each other: choose one")
    if settings.sample:
        return Sampler("sample", settings.sample)
    return Sampler("beam", settings.beam) if settings.beam else Sampler("greedy")


def generate_sequences(settings: GenerateSettings) -> list[Generated]:
    """Decode sequences for examples of a split, or for image files."""
    sampler = sampler_of(settings)
    if settings.image and settings.index:
        raise InputError("--image and --index exclude each other: choose one")
    if settings.network is not None and not settings.image:
        raise InputError("--network is for image files: name them with --image")
    task, engine = open_run(settings.run, settings.weights, settings.device, settings.data)
    if settings.image:
        columns, views = task.views_of_files(settings.image, settings.network)
    else:
        split = task.named_split(settings.split)
        indices = list(dict.fromkeys(settings.index)) or range(min(settings.count, len(split)))
        views = [task.view(settings.split, split, index) for index in indices]
        batch = split.columns.batch(indices)
        columns = Columns(ids=batch.examples, **batch.columns)
    outputs = decode_scored(engine, columns, sampler, seed=settings.seed, device=task.device)
    return [Generated(view, decoded) for view, decoded in zip(views, outputs, strict=True)]
