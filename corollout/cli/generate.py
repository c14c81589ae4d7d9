"""``corollout generate``: what a model writes for examples of its task, and how good it is."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding

from corollout.cli.training import RUN
from corollout.errors import InputError
from corollout.rollouts.decoding import decode_scored
from corollout.tasks.captioning.generated import ImageFiles, SplitImages
from corollout.tasks.captioning.task import CaptionTask
from corollout.tasks.generated import Examples
from corollout.tasks.karel.generated import KarelTasks
from corollout.tasks.task import Task
from corollout.tasks.views import check_number
from corollout.training import start as jobs
from corollout.types import Sampler

SPLIT = Annotated[str, typer.Option(help="Where the examples are: train, val or test.")]
WEIGHTS = Annotated[str, typer.Option(help="Which weights: best, last, or a file.")]


_OF_SPLIT: dict[str, Callable[[Any, str, list[int]], Examples]] = {"karel": KarelTasks, "captions": SplitImages}


def generate(
    run: RUN,
    split: SPLIT = "val",
    number: Annotated[
        list[str] | None,
        typer.Option(
            "--number",
            "--task",
            metavar="<int,…>",
            help="Numbers of tasks or images, from 0, instead of the first ones.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many tasks or images, from the first on.")] = 3,
    image: Annotated[
        list[Path] | None,
        typer.Option(metavar="<file>", help="Image files to caption, instead of a split's images.", show_default=False),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="Network for --image, as in `data features`. [default: what the features are known to come from]",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=0, help="Show the sequences of a beam of this size.")] = 0,
    sample: Annotated[int, typer.Option(min=0, help="Show this many sampled sequences.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    weights: WEIGHTS = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line, one for each sequence.")] = False,
) -> None:
    """Write programs for tasks, or captions for images: greedily, or by a beam, or by sampling."""
    if beam and sample:
        raise InputError("--beam and --sample are two ways of decoding: choose one")
    if image and number:
        raise InputError("--image and --number are two ways to name images: choose one")
    if network is not None and not image:
        raise InputError("--network is for image files: name them by --image")
    sampler = Sampler("beam", beam) if beam else Sampler("sample", sample) if sample else Sampler("greedy")
    numbers = None if number is None else _numbers(number)
    task, engine = jobs.open_run(run, weights)
    examples = _files(task, image, network) if image else _of_split(task, split, numbers, count)
    found = decode_scored(engine, examples.columns, sampler, seed=seed, device=task.device)
    console = Console(highlight=False)
    for place, sequences in enumerate(found):
        if as_json:
            for rank, record in enumerate(examples.records(place, sequences)):
                typer.echo(json.dumps({**examples.identity(place), "rank": rank, **record}))
            continue
        console.rule(examples.heading(place), align="left")
        console.print(Padding(examples.show(place, sequences, sampler), (1, 2, 1, 2)))


def _numbers(given: Sequence[str]) -> list[int]:
    words = [word.strip() for entry in given for word in entry.split(",")]
    try:
        return list(dict.fromkeys(int(word) for word in words))
    except ValueError:
        raise InputError(f"--number takes whole numbers, as in 4 or 4,7, not {','.join(given)!r}") from None


def _of_split(task: Task, split: str, numbers: list[int] | None, count: int) -> Examples:
    found = task.split(split)
    chosen = list(range(min(count, len(found)))) if numbers is None else numbers
    for number in chosen:
        check_number(task, found, split, number)
    return _OF_SPLIT[task.name](found, split, chosen)


def _files(task: Task, paths: Sequence[Path], network: str | None) -> Examples:
    if not isinstance(task, CaptionTask):
        raise InputError(f"--image is for models that write captions: this one was trained for {task.name}")
    return ImageFiles(task, paths, network)
