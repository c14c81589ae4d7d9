"""``corollout data neighbours``: how far captions come without a model of language."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from corollout.cli.tables import evaluation_table
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.metrics import CIDER, Evaluation, Scorer
from corollout.tasks.captioning.neighbours import consensus


def neighbours(
    folder: Annotated[Path, typer.Argument(help="Data set that `corollout data captions` has prepared.")],
    split: Annotated[str, typer.Option(help="Images to caption: val or test.")] = "test",
    k: Annotated[int, typer.Option("-k", min=1, help="How many training images have a say.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Caption images by the consensus of their nearest training images: what a captioner has to be better than."""
    data = CaptionData.open(folder)
    images = data.split(split)
    captions = consensus(data.split("train"), images, k)
    scores, values = Scorer(images.references).all(captions)
    result = Evaluation(scores, values, captions, {})
    if as_json:
        typer.echo(json.dumps(result.numbers()))
        return
    Console().print(evaluation_table(result, f"{split}, consensus of {k} neighbours", CIDER))
