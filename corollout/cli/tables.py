"""Tables for the terminal, in one style."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from corollout.tasks.karel.metrics import Evaluation, Share


def plain_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """First column to the left, the others to the right; a heading of two words takes two lines, to fit 80 columns.

    Where the terminal is narrow, entries of the first column take several lines.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(header):
        table.add_column(heading.replace(" ", "\n", 1), justify="right" if number else "left", no_wrap=number > 0)
    for row in rows:
        table.add_row(*row)
    return table


def percent(share: Share) -> tuple[str, str]:
    """A share and its interval."""
    low, high = share.interval
    return f"{100 * share.value:.2f} %", f"{100 * low:.2f} – {100 * high:.2f}"


def evaluation_table(result: Evaluation, title: str) -> Table:
    names = {"Generalization": "generalization", "semantic": "semantic", "exact": "exact", "syntax": "syntax"}
    rows = [[name, *percent(getattr(result, field))] for name, field in names.items()]
    rows += [[f"Generalization, top {k} of beam", *percent(share)] for k, share in enumerate(result.top, 1)]
    return plain_table(
        f"{title}: {result.generalization.count:,} tasks", ["measure", "share", "95\N{NO-BREAK SPACE}% interval"], rows
    )
