"""``corollout export``: a model as a folder that runs without PyTorch."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from corollout.cli.tables import plain_table
from corollout.cli.terminal import Terminal
from corollout.config import argument, option, required
from corollout.export import RUNTIME, export_run
from corollout.training.run_weights import WEIGHTS_HELP


@dataclass(frozen=True)
class ExportSettings:
    """The settings of ``export``."""

    run: Path = argument("Directory of a run.")
    out: Path = required("Folder to write; new or empty.")
    weights: str = option("best", WEIGHTS_HELP)


def export(settings: ExportSettings) -> None:
    """Write a run's model to a folder with its weights, its vocabulary and a runtime that needs only NumPy."""
    written = export_run(settings.run, settings.out, settings.weights)
    model, update = written.model, written.model["source"]["update"]
    after = "" if update is None else f", after update {update:,}"
    source = f"{settings.out}: {model['kind']} of {settings.run} ({settings.weights} weights{after})"
    sizes = ", ".join(f"{name} {size:,}" for name, size in model["sizes"].items())
    console = Terminal(soft_wrap=True)
    console.print(f"{source}\n  {sizes}")
    console.print(plain_table("", ["file", "bytes"], [[name, f"{size:,}"] for name, size in written.sizes.items()]))
    console.print(f"How to use it: python {shlex.quote(str(settings.out / RUNTIME))} --help")
