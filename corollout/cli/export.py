"""``corollout export``: a model as a folder that runs without PyTorch."""

import shlex

from corollout.cli.settings import ExportSettings
from corollout.cli.tables import plain_table
from corollout.cli.terminal import Terminal
from corollout.export import RUNTIME, export_run


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
