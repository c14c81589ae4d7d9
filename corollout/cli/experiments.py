"""Run an experiment from nothing to a report, and print it."""

from pathlib import Path
from typing import Any

from corollout.cli.progress import show_events
from corollout.cli.tables import plain_table
from corollout.cli.terminal import Terminal
from corollout.config import import_object
from corollout.experiments.experiment import Experiment
from corollout.reports.report import Report


def run_experiment(settings: Any, path: str) -> None:
    """Run the experiment at an import path."""
    experiment: Experiment = import_object(path)
    total = None if settings.report_only else experiment.weight(settings)
    with show_events(title=experiment.name, total=total, metric=experiment.metric) as on_event:
        report = experiment.run(settings, on_event)
    print_report(report, settings.out / "report" / "report.html", 1)


def print_report(report: Report, page: Path, most: int | None = None) -> None:
    """Print the lead and the tables of a report, or the first ones, and the path of its page."""
    console = Terminal()
    console.print(report.lead)
    for table in report.tables[:most]:
        console.print(plain_table(table.title, table.header, table.rows))
    console.print(f"Report: {page}", soft_wrap=True)
