"""``corollout demo``: Karel from nothing to a report, in a few minutes."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from corollout.cli.reproduce import carry_out, report
from corollout.errors import InputError, Interrupted
from corollout.experiments.table1 import TABLE1
from corollout.sweeps.sweep import Sweep
from corollout.training.settings import MachineSettings

METHODS = ("SC", "RLOO", "ARSM")
LEAD = (
    "Karel programs from examples: tasks are generated, a model learns from reference programs, and three estimators "
    "fine-tune it from the same weights, on a reward that is 1 for a program that is right on all examples and 0 for "
    "anything else."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; each run makes a folder of its own in it.")] = Path(
        "demo"
    ),
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that each method may generate.", show_default="1000000")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Most epochs of maximum likelihood.", show_default="16")
    ] = None,
    estimates: Annotated[
        int | None, typer.Option(min=3, help="Estimates for each method's variance.", show_default="20")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
) -> None:
    """Generate Karel tasks, pre-train a small model, fine-tune it by ARSM, RLOO and self-critic, and compare."""
    folder = _new_folder(out)
    sweep = Sweep.of_scale(TABLE1, "tiny", folder, (seed,), METHODS)
    sweep = replace(
        sweep,
        data=replace(sweep.data, data_seed=seed),
        pretrain=replace(sweep.pretrain, epochs=epochs or sweep.pretrain.epochs),
        finetune=replace(sweep.finetune, budget=float(tokens or sweep.finetune.budget)),
        rates=(sweep.finetune.learning_rate,),
        probes=estimates or sweep.probes,
    )
    Console().print(LEAD, highlight=False)
    try:
        carry_out(sweep, MachineSettings(), jobs)
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(f"Stopped; the runs that were made are in {folder}, and the next demo begins anew.") from None
    report(sweep, folder / "report")


def _new_folder(out: Path) -> Path:
    folder = out / datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; choose another with --out") from error
    return folder
