"""``corollout compare``: runs side by side, in the terminal and as a report."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from corollout.cli.tables import plain_table
from corollout.config import argument, option
from corollout.reports.comparison import KIND, comparison_report, group_runs
from corollout.reports.curves import Axis
from corollout.reports.report import check_report_folder, is_report, open_report


@dataclass(frozen=True)
class Comparing:
    """The settings of ``compare``."""

    runs: tuple[Path, ...] = argument("Run directories; or one folder with a report, which is shown again.")
    out: Path | None = option(None, "Folder for the report. [default: comparison, or that of the report]")
    by: Axis = option("seconds", "Axis of the training curves.")
    labels: tuple[str, ...] = option(
        (), "A name for each run; runs with the same name are seeds of one method. [default: by estimator]"
    )


def compare(settings: Comparing) -> None:
    """Compare runs: the task's metric with intervals, gain over the start, cost, and scores at equal cost.

    Runs that differ only in their seed and their start are seeds of one method. Given the folder of a report instead,
    its tables are printed and its page is written again.
    """
    if len(settings.runs) == 1 and is_report(settings.runs[0]):
        report, out = open_report(settings.runs[0]), settings.out or settings.runs[0]
        check_report_folder(out, report.kind)
        page = report.write_page(out)
    else:
        out = settings.out or Path("comparison")
        check_report_folder(out, KIND)
        report = comparison_report(group_runs(settings.runs, settings.labels or None), out, settings.by)
        page = report.write(out)
    console = Console(highlight=False)
    for table in report.tables:
        console.print(plain_table(table.title, table.header, table.rows))
        for note in table.notes:
            console.print(note, style="dim", markup=False)
    console.print(f"Report: {page}", soft_wrap=True)
