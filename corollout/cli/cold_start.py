"""``corollout reproduce coldstart``: estimators on a policy that knows nothing yet, with thousands of actions."""

from typing import Annotated, Any

import typer
from rich.console import Console

from corollout.cli.progress import progress_bars
from corollout.cli.reproduce import JOBS, OUT, REPORT_ONLY, SEEDS, numbers
from corollout.cli.tables import plain_table
from corollout.errors import Interrupted
from corollout.experiments.cold_start import Part, carry_out, open_results
from corollout.experiments.cold_start_report import write_cold_start


def coldstart(
    out: OUT,
    scale: Annotated[
        str | None, typer.Option(help="Sizes and seconds: tiny or small. [default: small]", show_default=False)
    ] = None,
    seeds: SEEDS = None,
    jobs: JOBS = 2,
    report_only: REPORT_ONLY = False,
) -> None:
    """Learn from random weights with thousands of actions, where a full ARSM update may take longer than all training.

    Every method has the same seconds of processor time, and the same learning rates to choose from.
    """
    results = open_results(out, scale, numbers(seeds))
    console = Console(highlight=False)
    if not report_only and results.missing:
        total = len(results.missing)
        with progress_bars(Console(stderr=True, highlight=False)) as bars:
            bars.speed_estimate_period = 600
            bar = bars.add_task("cold start", total=total, note="")

            def on_part(part: Part, found: dict[str, Any]) -> None:
                bars.update(bar, advance=1, note=part.name)
                bars.console.print(f"{part.name}: {_words(found)}", markup=False)

            try:
                carry_out(results, out, jobs, on_part)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"Stopped; all that was done is saved. Go on with: corollout reproduce coldstart --out {out}"
                ) from None
    for table in write_cold_start(results, out / "report"):
        console.print(plain_table(table.title, table.header, table.rows))
    console.print(f"Report: {out / 'report' / 'report.html'}", soft_wrap=True)


def _words(found: dict[str, Any]) -> str:
    """What came out of a part, in a few words."""
    if "curve" not in found:
        return f"{found['seconds']:.3g} seconds, {found['rollouts']:,.0f} rollouts a step"
    curve = found["curve"]
    words = f"reward {curve['reward'][0]:.3f} to {curve['reward'][-1]:.3f} in {curve['updates'][-1]:,} updates"
    return f"{words}; {found['stopped']}" if found["stopped"] else words
