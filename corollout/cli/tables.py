"""Tables for the terminal, in one style."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from corollout.tasks.task import Evaluation, Metric


def plain_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """First column left-aligned, the others right-aligned; headings of two words take two lines, to fit 80 columns.

    In a narrow terminal, entries of the first column wrap.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(header):
        justify, overflow = ("right", "ellipsis") if number else ("left", "fold")
        table.add_column(heading.replace(" ", "\n", 1), justify=justify, no_wrap=number > 0, overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table


def evaluation_table(result: Evaluation, title: str, metric: Metric) -> Table:
    header = ["metric", "value", "95\N{NO-BREAK SPACE}% interval"]
    return plain_table(f"{title}: {len(result.scores):,} {metric.examples}", header, result.rows())
