"""The lab in the terminal: variance × tokens as a chart, and tables that leave room for numbers."""

import math
import re
from dataclasses import replace

from rich.table import Table as RichTable
from rich.text import Text

from corollout.lab.lab import Lab
from corollout.reports.report import Table

_WIDTH = 44  # characters of the chart


def narrow(table: Table) -> Table:
    """The table with the options of estimators on lines of their own."""
    return replace(table, rows=[[re.sub(r"([:,])", r"\1\n  ", row[0]), *row[1:]] for row in table.rows])


def ratio_chart(lab: Lab) -> RichTable:
    """Variance × tokens over that of the base on a logarithmic axis: a dot for the value, a line for its interval."""
    table = RichTable(title=f"Variance × tokens over that of {lab.base}", box=None, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    known = [(row, ratio) for row in lab.rows if (ratio := row.ratio["tokens"]) is not None and ratio.value > 0]
    ends = [1.0, *(end for _, ratio in known for end in (ratio.low or ratio.value, ratio.high))]
    least, most = math.log(min(ends)), math.log(max(ends))

    def column(value: float) -> int:
        share = (math.log(value) - least) / ((most - least) or 1.0)
        return round(min(max(share, 0.0), 1.0) * (_WIDTH - 1))

    for row, ratio in sorted(known, key=lambda pair: pair[1].value):
        line = [" "] * _WIDTH
        line[column(1.0)] = "│"
        first, last = column(ratio.low or ratio.value), column(ratio.high)
        line[first : last + 1] = "─" * (last + 1 - first)
        line[column(ratio.value)] = "●"
        style = "green" if ratio.high < 1 else "red" if ratio.low > 1 else ""
        value = f"{ratio.value:.2g}{'' if row.is_unbiased else ' †'}"
        table.add_row(row.estimator, Text("".join(line), style), Text(value))
    left, right = f"{math.exp(least):.2g}", f"{math.exp(most):.2g}"
    labels = list(left.ljust(_WIDTH - len(right)) + right)
    if len(left) < column(1.0) < _WIDTH - len(right):
        labels[column(1.0)] = "1"
    table.add_row("", Text("".join(labels), "dim"), "")
    return table
