"""``corollout inspect``: one gradient estimate, taken apart."""

import json

import typer
from rich.padding import Padding

from corollout.cli.terminal import Terminal
from corollout.files import require_new_file, write_file
from corollout.inspection.credit import inspect_run
from corollout.inspection.page import inspection_page
from corollout.inspection.settings import InspectSettings
from corollout.inspection.terminal import inspection_heading, show_inspection
from corollout.reports.manifest import manifest


def inspect(settings: InspectSettings) -> None:
    """Take apart a gradient estimate: what is sampled, where branches leave, and what their rewards do."""
    if settings.html is not None:
        require_new_file(settings.html, "--html")
    inspection = inspect_run(settings)
    if settings.html is not None:
        write_file(settings.html, inspection_page(inspection, manifest(seed=settings.seed)), new=True)
    if settings.json:
        typer.echo(json.dumps(inspection.to_json()))
        return
    console = Terminal()
    console.rule(inspection_heading(inspection), align="left")
    console.print(Padding(show_inspection(inspection, settings.branches), (1, 2, 1, 2)))
    if settings.html is not None:
        console.print(f"Page: {settings.html}", soft_wrap=True)
