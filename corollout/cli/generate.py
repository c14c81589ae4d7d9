"""``corollout generate``: what the model of a run writes for examples."""

import json

import typer
from rich.padding import Padding

from corollout.cli.terminal import Terminal
from corollout.inspection.generate import generate_sequences, sampler_of
from corollout.inspection.settings import GenerateSettings


def generate(settings: GenerateSettings) -> None:
    """Generate sequences for examples: greedily, by beam search, or by sampling."""
    console = Terminal()
    for generated in generate_sequences(settings):
        if settings.json:
            for record in generated.records():
                typer.echo(json.dumps(record))
            continue
        console.rule(generated.view.heading(), align="left")
        console.print(Padding(generated.view.show_outputs(generated.outputs, sampler_of(settings)), (1, 2, 1, 2)))
