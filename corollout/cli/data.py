"""``corollout data``: make and check data sets."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from corollout.errors import InputError
from corollout.reports.manifest import manifest
from corollout.tasks.captioning.commands import Scale, captions, check_captions
from corollout.tasks.captioning.features_command import features
from corollout.tasks.captioning.neighbours_command import neighbours
from corollout.tasks.karel.dataset import SPLITS, KarelData
from corollout.tasks.karel.generator import generate
from corollout.tasks.karel.machine import Programs, judge
from corollout.tasks.karel.records import Form, Records, needed_side, read_records
from corollout.tasks.karel.settings import scale as scale_settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make and check data sets.")


class Forms(StrEnum):
    tensor = "tensor"
    json = "json"
    both = "both"


@app.command()
def karel(
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl, val.jsonl and test.jsonl; new or empty.")],
    scale: Annotated[Scale, typer.Option(help="How much of everything; the options below change single numbers.")] = (
        Scale.small
    ),
    train: Annotated[int | None, typer.Option(min=0, help="Tasks for training.")] = None,
    val: Annotated[int | None, typer.Option(min=0, help="Tasks for validation.")] = None,
    test: Annotated[int | None, typer.Option(min=0, help="Tasks for the test.")] = None,
    shortest: Annotated[int | None, typer.Option(help="Fewest tokens of a program.")] = None,
    longest: Annotated[int | None, typer.Option(help="Most tokens of a program.")] = None,
    largest: Annotated[int | None, typer.Option(help="Most rows and columns of a world.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; the result does not depend on them.")] = None,
    forms: Annotated[Forms, typer.Option(help="Worlds as sparse tensors, as JSON, or both.")] = Forms.tensor,
) -> None:
    """Generate Karel tasks in the public JSON-lines format."""
    given = {"train": train, "val": val, "test": test, "shortest": shortest, "longest": longest, "largest": largest}
    sizes = scale_settings(scale)["data"] | {name: number for name, number in given.items() if number is not None}
    counts = {split: sizes[split] for split in SPLITS}
    _make_empty(out)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.completed:,.0f}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        total = sum(counts.values())
        making = progress.add_task("tasks", total=total)
        writing = progress.add_task("records", total=total)
        limits = {name: sizes[name] for name in ("shortest", "longest", "largest")}
        data = generate(
            counts, seed=seed, workers=workers, on_progress=lambda done: progress.advance(making, done), **limits
        )
        for split, tasks in data.items():
            form: Form = forms.value
            tasks.write(out / f"{split}.jsonl", form, on_progress=lambda done: progress.advance(writing, done))
    facts = manifest(seed=seed, scale=scale.value, forms=forms.value, **sizes)
    (out / "manifest.json").write_text(json.dumps(facts, indent=2) + "\n")
    for split, tasks in data.items():
        console.print(f"{out / split}.jsonl: {_summary(tasks)}", highlight=False, soft_wrap=True)


@app.command()
def check(
    files: Annotated[
        list[Path], typer.Argument(help="Files of Karel tasks, in the public JSON-lines format; folders of captions.")
    ],
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count bad lines instead of stopping at one.")] = False,
) -> None:
    """Read files of Karel tasks and run every program on its worlds; verify prepared folders of captions."""
    console = Console(highlight=False, soft_wrap=True)
    failures = 0
    for path in files:
        if path.is_dir():
            check_captions(path, console)
            continue
        read = read_records(path, skip_bad)
        everything = np.arange(len(read.lengths))
        right = judge(Programs(read.tokens, read.lengths), everything, read.inputs, read.outputs).right
        console.print(f"{path}: {_summary(read)}", markup=False)
        if read.bad:
            console.print(f"  bad lines: {len(read.bad)}, the first: {read.bad[0]}", markup=False)
        console.print(f"  reproduced: {right.sum():,} of {right.size:,} examples", markup=False)
        failures += int((~right).sum())
    if failures:
        raise InputError(f"{failures} examples are not what their programs do")


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty: name a new folder with --out")
    except OSError as error:
        raise InputError(f"cannot use the folder {folder}: {error.strerror}; choose another with --out") from error


def _summary(tasks: KarelData | Records) -> str:
    lengths = tasks.lengths
    return (
        f"{len(lengths):,} programs of {lengths.min()} to {lengths.max()} tokens, mean {lengths.mean():.1f}, "
        f"{tasks.inputs.hero.shape[1]} examples each, worlds of up to {needed_side(tasks.inputs) - 2} rows or columns"
    )


for command in (captions, features, neighbours):
    app.command()(command)
