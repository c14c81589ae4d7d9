"""``corollout lab``: gradient estimators side by side at the weights of a run."""

from rich.text import Text

from corollout.cli.progress import show_events
from corollout.cli.tables import plain_table
from corollout.cli.terminal import Terminal
from corollout.errors import Interrupted
from corollout.lab.on_run import lab_of_run
from corollout.lab.report import LabResult, lab_tables, write_lab
from corollout.lab.settings import LabSettings
from corollout.lab.terminal import narrow, ratio_chart
from corollout.launch import is_first


def lab(settings: LabSettings) -> None:
    """Measure gradient estimators at fixed weights: variance, bias, cosine, cost, and variance × cost."""
    try:
        with show_events() as on_event:
            result = lab_of_run(settings, on_event)
    except KeyboardInterrupt:
        kept = f"measurements are kept in {settings.folder}, and the same command continues"
        raise Interrupted(f"Stopped; {kept}.") from None
    if is_first():
        print_lab(result)


def print_lab(result: LabResult) -> None:
    """Write the report of labs, and print their tables."""
    page = write_lab(result)
    console = Terminal()
    for point in result.points:
        heading = result.name if point.name == result.name else f"{result.name}, {point.name}"
        console.rule(Text(heading, "bold"), align="left")
        for table in map(narrow, lab_tables(point.lab)):
            console.print(plain_table(table.title, table.header, table.rows))
        console.print(ratio_chart(point.lab))
        console.print(point.lab.advice)
        console.print()
    console.print(f"Report: {page}", soft_wrap=True)
