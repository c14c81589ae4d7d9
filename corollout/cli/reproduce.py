"""``corollout reproduce``: run an experiment from nothing to a report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from corollout.cli.main import LazyGroup
from corollout.cli.progress import show_events
from corollout.cli.tables import plain_table
from corollout.cli.terminal import Terminal
from corollout.experiments.registry import EXPERIMENTS, Experiment, find_experiment
from corollout.reports.report import Report


def experiment_command(experiment: Experiment) -> Callable[[Any], None]:
    """The command of an experiment, as a function of its settings."""

    def run(settings: Any) -> None:
        total = None if settings.report_only else experiment.weight(settings)
        with show_events(title=experiment.name, total=total, metric=experiment.metric) as on_event:
            report = experiment.run(settings, on_event)
        print_report(report, settings.out / "report" / "report.html", 1)

    run.__name__, run.__doc__ = experiment.name, experiment.help
    run.__annotations__ = {"settings": experiment.settings}
    return run


def print_report(report: Report, page: Path, most: int | None = None) -> None:
    """Print the lead and the tables of a report, or the first ones, and the path of its page."""
    console = Terminal()
    console.print(report.lead)
    for table in report.tables[:most]:
        console.print(plain_table(table.title, table.header, table.rows))
    console.print(f"Report: {page}", soft_wrap=True)


reproduce = LazyGroup(
    name="reproduce",
    help="Reproduce an experiment, from the data to the report.",
    targets=lambda: {name: experiment_command(find_experiment(name)) for name in EXPERIMENTS},
)
