"""The whole command line: the commands of this package, and those of all tasks."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import corollout
from corollout.cli.command import LazyGroup, Target
from corollout.cli.terminal import print_error
from corollout.config import Command, import_object
from corollout.errors import InputError
from corollout.hf.settings import EXTRA
from corollout.tasks.spec import find_task, task_names

# A command of this package is one entry. Those of tasks are in their specs.
COMMANDS: dict[str, Target] = {
    "demo": Command("corollout.cli.demo:demo", "corollout.experiments.settings:DemoSettings"),
    "pretrain": "corollout.cli.pretrain:pretrain",
    "finetune": Command("corollout.cli.training:finetune", "corollout.cli.settings:Finetuning", several=True),
    "evaluate": Command("corollout.cli.evaluate:evaluate", "corollout.cli.settings:Evaluating", several=True),
    "compare": Command("corollout.cli.compare:compare", "corollout.cli.settings:Comparing"),
    "generate": Command("corollout.cli.generate:generate", "corollout.inspection.settings:GenerateSettings"),
    "export": Command("corollout.cli.export:export", "corollout.cli.settings:ExportSettings"),
    "inspect": Command("corollout.cli.inspect:inspect", "corollout.inspection.settings:InspectSettings"),
    "lab": Command("corollout.cli.lab:lab", "corollout.lab.settings:LabSettings", several=True),
    "lm train": Command("corollout.cli.lm:train", "corollout.hf.settings:Training", extra=EXTRA, several=True),
    "lm generate": Command("corollout.cli.lm:generate", "corollout.hf.settings:GenerateSettings", extra=EXTRA),
    "lm inspect": Command("corollout.cli.lm:inspect", "corollout.hf.settings:InspectSettings", extra=EXTRA),
    "lm lab": Command("corollout.cli.lm:lab", "corollout.lab.settings:LanguageModelLabSettings", extra=EXTRA),
    "data check": Command("corollout.cli.check:check", "corollout.cli.settings:CheckSettings"),
    "reproduce": "corollout.cli.reproduce:reproduce",
}


def all_commands() -> dict[str, Target]:
    """Commands of this package and of all known tasks, by full name: "data check"."""
    commands: dict[str, Target] = {}
    for name in task_names():
        try:
            named = find_task(name).commands
            commands |= import_object(named, "COMMANDS") if named and isinstance(named, str) else named or {}
        except InputError as error:  # a broken task of another package must not take all commands with it
            print_error(f"warning: the commands of the task {name} are missing: {error}")
    return {**COMMANDS, **{name: target for name, target in commands.items() if name not in COMMANDS}}


def grouped(commands: Mapping[str, Target]) -> dict[str, Target]:
    """Commands by the first word of their names; those with a second word are in groups."""
    groups: dict[str, dict[str, Target]] = {}
    for name, target in commands.items():
        first, _, rest = name.partition(" ")
        groups.setdefault(first, {})[rest] = target
    return {name: group[""] if "" in group else _group(name, group) for name, group in groups.items()}


def _group(name: str, group: Mapping[str, Target]) -> LazyGroup:
    commands = dict(sorted(group.items()))
    return LazyGroup(name=name, help=f"Subcommands: {', '.join(commands)}.", targets=lambda: commands)


class Root(LazyGroup):
    """The whole command line."""

    def __init__(self, **attributes: Any):
        super().__init__(targets=lambda: grouped(all_commands()), **attributes)

    def find(self, name: str) -> Target | None:
        return COMMANDS.get(name) or super().find(name)  # tasks are only imported if they are needed


cli = typer.Typer(
    cls=Root, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"corollout {corollout.__version__}")
        raise typer.Exit
    return wanted


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Fine-tune sequence generators on rewards that are not differentiable."""
