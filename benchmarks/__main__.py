"""``python -m benchmarks [NAME …] [--out DIR] [--quick]``: exit code 1 if a target is missed."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    arsm_planning,
    arsm_scaling,
    caption_data,
    caption_update,
    cider,
    distributed,
    growth,
    harness,
    karel_machine,
    karel_update,
    language_model,
    memory,
    overhead,
    prefix_sharing,
    pseudo_actions,
    runtime,
    scaling_model,
    speed,
    synchronisations,
    tree_head,
)
from corollout.errors import InputError

MODULES = {
    "pseudo_actions": pseudo_actions,
    "arsm_scaling": arsm_scaling,
    "arsm_planning": arsm_planning,
    "prefix_sharing": prefix_sharing,
    "karel_machine": karel_machine,
    "karel_update": karel_update,
    "cider": cider,
    "caption_update": caption_update,
    "caption_data": caption_data,
    "tree_head": tree_head,
    "runtime": runtime,
    "speed": speed,
    "overhead": overhead,
    "distributed": distributed,
    "growth": growth,
    "memory": memory,
    "synchronisations": synchronisations,
    "language_model": language_model,
    "scaling_model": scaling_model,
}
Name = StrEnum("Name", list(MODULES))

app = typer.Typer(add_completion=False)


@app.command()
def main(
    names: Annotated[list[Name] | None, typer.Argument(help="Which benchmarks; all of them if none is named.")] = None,
    out: Annotated[Path, typer.Option(help="Where the JSON files go.")] = Path("results/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: correctness only, no target is judged.")] = False,
) -> None:
    """Measure corollout against honest opponents, side by side."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:  # now, not when the measurements are done
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.print(f"error: cannot make the folder {out}: {error.strerror}; choose another with --out", markup=False)
        raise typer.Exit(1) from error
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        console.print(f"Other programs keep {load:.1f} of {cores} cores busy: timings will be noisy.", highlight=False)
    missed: list[str] = []
    for name in [str(name) for name in names or Name]:
        load_before = os.getloadavg()
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as progress:
            try:
                result = MODULES[name].run(quick, progress)
            except InputError as error:  # such as an opponent that is not installed; the others can be measured
                missed.append(f"{name}: {error}")
                continue
        path = harness.write(result, out, load_before)
        if draw_figure := getattr(MODULES[name], "draw_figure", None):
            draw_figure(result, out)
        harness.show(result, console)
        console.print(f"Written to {path}.\n", highlight=False)
        missed += [
            f"{name}: {target['statement']} (measured {target['measured']:.3g})"
            for target in result["targets"]
            if target["passed"] is False
        ]
    if missed:
        console.print(f"Missed: {'; '.join(missed)}.", style="red", highlight=False, markup=False)
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
