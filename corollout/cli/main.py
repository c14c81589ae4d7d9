"""The command line: ``corollout COMMAND``."""

import sys
from typing import Annotated

import typer
from rich.console import Console

import corollout
from corollout.cli.cold_start import coldstart
from corollout.cli.compare import compare
from corollout.cli.data import app as data
from corollout.cli.demo import demo
from corollout.cli.export import export
from corollout.cli.generate import generate
from corollout.cli.inspect import inspect
from corollout.cli.lab import lab
from corollout.cli.reproduce import app as reproduce
from corollout.cli.training import evaluate, finetune, pretrain
from corollout.errors import CorolloutError, Interrupted
from corollout.tasks.captioning.score_command import score
from corollout.tasks.captioning.tree_command import app as tree
from corollout.tasks.karel.commands import app as karel

cli = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli.command()(demo)
cli.add_typer(pretrain, name="pretrain")
cli.command()(finetune)
cli.command()(evaluate)
cli.command()(compare)
cli.command()(generate)
cli.command()(export)
cli.command()(inspect)
cli.command()(lab)
cli.command()(score)
cli.add_typer(karel, name="karel")
cli.add_typer(data, name="data")
cli.add_typer(tree, name="tree")
reproduce.command()(coldstart)
cli.add_typer(reproduce, name="reproduce")


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"corollout {corollout.__version__}")
        raise typer.Exit
    return wanted


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Fine-tune sequence generators on rewards that cannot be differentiated."""


def app() -> None:
    """Run the command line; an error is one sentence and a non-zero exit."""
    try:
        cli()
    except Interrupted as error:
        Console(stderr=True, highlight=False).print(str(error), markup=False, soft_wrap=True)
        sys.exit(130)
    except CorolloutError as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(1)
