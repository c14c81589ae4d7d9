"""``corollout inspect``: one gradient estimate, taken apart."""

import json

import typer
from rich.console import Console
from rich.padding import Padding

from corollout.files import write_file
from corollout.inspection.credit import InspectSettings, inspect_run
from corollout.inspection.page import inspection_page
from corollout.inspection.terminal import inspection_heading, show_inspection
from corollout.reports.manifest import manifest


def inspect(settings: InspectSettings) -> None:
    """Take apart a gradient estimate: what is sampled, where branches leave, and what their rewards do."""
    inspection = inspect_run(settings)
    if settings.html is not None:
        write_file(settings.html, inspection_page(inspection, manifest(seed=settings.seed)))
    if settings.json:
        typer.echo(json.dumps(inspection.to_json()))
        return
    console = Console(highlight=False)
    console.rule(inspection_heading(inspection), align="left")
    console.print(Padding(show_inspection(inspection, settings.branches), (1, 2, 1, 2)))
    if settings.html is not None:
        console.print(f"Page: {settings.html}", soft_wrap=True)
