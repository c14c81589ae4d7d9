"""``corollout compare``: runs side by side, on the terminal and as a report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from corollout.cli.tables import plain_table
from corollout.errors import InputError
from corollout.reports.comparison import compare as compare_groups
from corollout.reports.comparison import group_runs
from corollout.reports.comparison_page import check_folder, write_comparison
from corollout.reports.curves import AXES


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for report, figure, table and numbers.")] = Path("comparison"),
    by: Annotated[str, typer.Option(metavar="<seconds|tokens|updates>", help="What curves go against.")] = "seconds",
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="<text,…>",
            help="A name for each run; runs of one name are seeds of one method. [default: by estimator]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare runs: Generalization with intervals, gain over the start, cost, and scores at equal cost.

    Runs that differ only in their seed and their start are seeds of one method.
    """
    if by not in AXES:
        raise InputError(f"--by must be one of {', '.join(AXES)}, not {by!r}")
    check_folder(out)
    groups = group_runs(runs, None if labels is None else [label.strip() for label in labels.split(",")])
    comparison = compare_groups(groups)
    write_comparison(comparison, groups, out, by)
    console = Console()
    for table in comparison.tables():
        console.print(plain_table(table.title, table.header, table.rows))
        for note in table.notes:
            console.print(note, style="dim", highlight=False, markup=False)
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)
