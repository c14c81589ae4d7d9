"""``corollout reproduce EXPERIMENT``: a command for every experiment."""

from corollout.cli.command import LazyGroup
from corollout.config import Command
from corollout.experiments.registry import EXPERIMENTS, find_entry


def experiment_command(name: str) -> Command:
    entry = find_entry(name)
    return Command("corollout.cli.experiments:run_experiment", entry.settings, entry.help, (entry.experiment,))


reproduce = LazyGroup(
    name="reproduce",
    help="Reproduce an experiment, from the data to the report.",
    targets=lambda: {name: experiment_command(name) for name in EXPERIMENTS},
)
