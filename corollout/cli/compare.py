"""``corollout compare``: runs side by side, in the terminal and as a report."""

from itertools import chain, count
from pathlib import Path

from corollout.cli.settings import Comparing
from corollout.cli.tables import plain_table
from corollout.cli.terminal import Terminal
from corollout.folders import is_empty, new_folder, require_empty
from corollout.reports.comparison import comparison_report, group_runs
from corollout.reports.report import PAGE, is_report, open_report


def compare(settings: Comparing) -> None:
    """Compare runs: the task's metric with intervals, gain over the start, cost, and scores at equal cost.

    Runs that differ only in their seed and their start are seeds of one method. Given the folder of a report instead,
    its tables are printed and its page is written again.
    """
    is_made = len(settings.runs) == 1 and is_report(settings.runs[0])
    if is_made:
        report, out = open_report(settings.runs[0]), settings.out or settings.runs[0]
    else:
        out = settings.out or _unused(Path("comparison"))
        require_empty(out)
        report = comparison_report(group_runs(settings.runs, settings.labels or None), out, settings.by)
    if is_made and settings.out is None:
        report.add_page(out)
    else:
        with new_folder(out, PAGE) as folder:
            report.write(folder)
    console = Terminal()
    for table in report.tables:
        console.print(plain_table(table.title, table.header, table.rows))
        for note in table.notes:
            console.print(note, style="dim")
    console.print(f"Report: {out / PAGE}", soft_wrap=True)


def _unused(folder: Path) -> Path:
    """The folder, or if it is not empty FOLDER-2, FOLDER-3, …."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(each for each in chain([folder], numbered) if is_empty(each))
