"""``corollout pretrain TASK``: a command for any task, inside or outside the package."""

from typing import Any

from corollout.cli.command import LazyGroup, Target
from corollout.cli.settings import pretrain_settings
from corollout.config import Command
from corollout.tasks.spec import find_task, task_names


def pretrain_command(task: str) -> Command:
    """The command for a task, which is named as ``find_task`` wants it."""
    spec = find_task(task)
    help = (
        f"Train a model for {spec.name} by maximum likelihood, until its score on the validation data stops improving."
    )
    return Command("corollout.cli.training:pretrain", pretrain_settings(spec), help, (task,), several=True)


class Tasks(LazyGroup):
    """A command for every task; its help names the known ones, others are named by their import path."""

    def find(self, name: str) -> Target | None:
        return pretrain_command(name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Nothing: the help has the names."""


pretrain = Tasks(
    name="pretrain",
    help="Train a model by maximum likelihood.\n\n"
    f"TASK is one of {', '.join(task_names())}, or the import path of your own task: my_package.my_module (which "
    "defines TASK) or my_package.my_module:NAME. `corollout pretrain TASK --help` lists its options.",
    subcommand_metavar="TASK [OPTIONS]",
    targets=lambda: {name: pretrain_command(name) for name in task_names()},
)
