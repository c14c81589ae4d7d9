"""``corollout export``: a captioner as a folder that needs nothing but NumPy."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from corollout.cli.generate import WEIGHTS
from corollout.cli.tables import plain_table
from corollout.cli.training import RUN
from corollout.export import RUNTIME, export_run


def export(
    run: RUN,
    out: Annotated[
        Path, typer.Option(help="Folder to write; one that holds an earlier export is replaced.", show_default=False)
    ],
    weights: WEIGHTS = "best",
) -> None:
    """Write a captioner to a folder: weights, vocabulary, tree, and a runtime that needs only NumPy."""
    written = export_run(run, out, weights)
    model, source = written.model, written.model["source"]
    sizes = model["sizes"]
    head = "softmax" if model["depth"] is None else f"tree, {model['depth']} deep"
    update = "" if source["update"] is None else f", after update {source['update']:,}"
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{out}: captioner of {run} ({weights} weights{update})", markup=False)
    console.print(
        f"  {sizes['vocabulary']:,} words ({head}), captions of up to {model['longest']}, LSTM of {sizes['hidden']:,}, "
        f"{sizes['features']:,} features an image"
    )
    console.print(plain_table("", ["file", "bytes"], [[name, f"{size:,}"] for name, size in written.sizes.items()]))
    console.print(f"To use it: python {shlex.quote(str(out / RUNTIME))} --features FILE.npy", markup=False)
