"""``corollout lab``: gradient estimators side by side at the weights of a run, and which of them is worth its cost."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from corollout.cli.progress import progress_bars
from corollout.cli.tables import plain_table
from corollout.cli.training import RUN
from corollout.errors import InputError, Interrupted
from corollout.lab import Interval, Lab, Row
from corollout.lab.on_run import DEFAULT, LabSettings, lab_of_run
from corollout.lab.report import check_folder, lab_tables, name_of, write_lab

_WIDTH = 44  # characters of the drawing
_DEFAULTS = LabSettings()


def lab(
    run: RUN,
    estimators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name,…>",
            help="Estimators, the first being the base, as in rloo-8,set-8,arsm:budget=64; "
            "`default` stands for the usual list; may be repeated.  [default: a list that suits the run's head]",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<weights>",
            help="Where to measure: best, last, start, a checkpoint as in step-00001000, a safetensors file, or "
            "another run; may be repeated.  [default: best]",
            show_default=False,
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Training examples, the first ones.  [default: the run's batch size, or 32]", show_default=False
        ),
    ] = None,
    estimates: Annotated[int, typer.Option(min=8, help="Estimates of each estimator.")] = _DEFAULTS.estimates,
    reference: Annotated[
        str, typer.Option(help="Estimator whose mean is taken for the true gradient.")
    ] = _DEFAULTS.reference,
    reference_estimates: Annotated[
        int, typer.Option(min=8, help="Estimates of the reference.")
    ] = _DEFAULTS.reference_estimates,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of timing.")] = _DEFAULTS.rounds,
    batches: Annotated[
        int, typer.Option(min=0, help="Other batches, to see how gradients vary between contexts; 0 for none.")
    ] = _DEFAULTS.batches,
    reward: Annotated[
        str | None, typer.Option(help="Which of the task's rewards.  [default: the run's]", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all sampling.")] = _DEFAULTS.seed,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for measurements and report; name it again to go on.  [default: lab in the run's directory]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to compute: cpu, cuda, ….  [default: the run's]", show_default=False)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on the CPU.  [default: the run's]", show_default=False)
    ] = None,
) -> None:
    """Metric gradient estimators at fixed weights: variance, bias, cosine, cost, and variance × cost."""
    settings = LabSettings(
        estimators=tuple(listed(estimators or [DEFAULT])),
        at=tuple(at or _DEFAULTS.at),
        examples=examples,
        estimates=estimates,
        reference=reference,
        reference_estimates=reference_estimates,
        rounds=rounds,
        batches=batches,
        reward=reward,
        seed=seed,
    )
    folder = run / "lab" if out is None else out
    check_folder(folder)
    machine = {name: value for name, value in {"device": device, "threads": threads}.items() if value is not None}
    try:
        with progress_bars(Console(stderr=True)) as bars:
            found = lab_of_run(run, settings, folder, machine, _Board(bars, len(settings.at) > 1))
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped; what was measured is in {folder}, and the same command goes on.") from None
    page = write_lab(found, folder)
    console = Console(highlight=False)
    for point in found.points:
        console.rule(Text(f"{run.resolve().name}, {name_of(point)}", "bold"), align="left")
        for table in lab_tables(point.lab):
            console.print(plain_table(table.title, table.header, [[_broken(row[0]), *row[1:]] for row in table.rows]))
        console.print(drawing(point.lab))
        console.print(point.lab.advice, markup=False)
        console.print()
    console.print(f"Report: {page}", soft_wrap=True)


def _broken(name: str) -> str:
    """A name with its options on lines of their own, to leave room for numbers."""
    return re.sub(r"([:,])", r"\1\n  ", name)


def listed(texts: Sequence[str]) -> list[str]:
    """Names that are separated by commas or spaces; a comma may also stand between options of one estimator."""
    names: list[str] = []
    for part in filter(None, re.split(r"[,\s]+", ",".join(texts))):
        # A part that sets an option and names no estimator belongs to the name before.
        if "=" in part and ":" not in part and names:
            names[-1] += f",{part}"
        else:
            names.append(part)
    if not names or len(set(names)) < len(names):
        raise InputError(f"--estimators needs different names, not {', '.join(names) or 'none'}")
    return names


class _Board:
    """A bar for each part under way; parts that are done are counted."""

    def __init__(self, bars: Progress, several: bool):
        self._bars, self._several = bars, several
        self._rows: dict[str, TaskID] = {}

    def __call__(self, point: str, part: str, done: int, total: int) -> None:
        name = f"{point}: {part}" if self._several else part
        if name not in self._rows:
            for finished in self._rows.values():
                self._bars.update(finished, visible=False)
            self._rows[name] = self._bars.add_task(name, total=total, note="")
        self._bars.update(self._rows[name], completed=done, note=f"{done} of {total} estimates")


def drawing(lab: Lab) -> Table:
    """Variance × tokens over the base's on a logarithmic axis: a dot for the value, a line for its interval."""
    table = Table(title=f"Variance × tokens over that of {lab.base}", box=None, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    known = [(row, ratio) for row in lab.rows if (ratio := row.relative["tokens"]) is not None and ratio.value > 0]
    scale = _Scale([1.0, *(end for _, ratio in known for end in (ratio.low or ratio.value, ratio.high))])
    for row, ratio in sorted(known, key=lambda pair: pair[1].value):
        table.add_row(row.estimator, scale.line(ratio), _value(row, ratio))
    table.add_row("", scale.ends(), "")
    return table


def _value(row: Row, ratio: Interval) -> Text:
    return Text(f"{ratio.value:.2g}{'' if row.sound else ' †'}")


class _Scale:
    """Places on a line of characters, by logarithms."""

    def __init__(self, values: Sequence[float]):
        self._low, self._high = math.log(min(values)), math.log(max(values))

    def _place(self, value: float) -> int:
        share = (math.log(value) - self._low) / ((self._high - self._low) or 1.0)
        return round(min(max(share, 0.0), 1.0) * (_WIDTH - 1))

    def line(self, ratio: Interval) -> Text:
        characters = [" "] * _WIDTH
        characters[self._place(1.0)] = "│"
        for place in range(self._place(ratio.low or ratio.value), self._place(ratio.high) + 1):
            characters[place] = "─"
        characters[self._place(ratio.value)] = "●"
        style = "green" if ratio.high < 1 else "red" if ratio.low > 1 else ""
        return Text("".join(characters), style)

    def ends(self) -> Text:
        left, middle, right = f"{math.exp(self._low):.2g}", "1", f"{math.exp(self._high):.2g}"
        characters = list(left.ljust(_WIDTH - len(right)) + right)
        place = self._place(1.0)
        if len(left) < place < _WIDTH - len(right):
            characters[place] = middle
        return Text("".join(characters), "dim")
