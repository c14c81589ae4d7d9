"""``python -m benchmarks.language_models prepare|pretrain|choose-rates|train|report``, in this order; or ``words``."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.language_models.compare import Comparison, choose_rates, train
from benchmarks.language_models.e2e import read_e2e
from benchmarks.language_models.matcher_accuracy import foreign_share, matcher_accuracy
from benchmarks.language_models.pretraining import PretrainingSettings, pretrain
from benchmarks.language_models.report import NAMES, write_report, write_words_report
from benchmarks.language_models.runs import evaluations, run_in_process
from benchmarks.language_models.settings import LEARNING_RATES, METHODS, SEEDS, RunSettings
from benchmarks.language_models.slots import SlotMatcher
from corollout.errors import CorolloutError, InputError
from corollout.files import write_json
from corollout.folders import make_folder

Data = Annotated[Path, typer.Option(help="The folder with trainset.csv (or trainset.csv.gz) and devset.csv.")]
Out = Annotated[Path, typer.Option(help="Where weights and runs go; the same command continues there.")]
Methods = Annotated[list[str] | None, typer.Option("--method", help=f"Any of {', '.join(METHODS)}; all by default.")]
Rates = Annotated[list[float] | None, typer.Option("--rate", help="Learning rates to choose from.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Seeds of the long runs; the first chooses rates.")]
Seconds = Annotated[float, typer.Option(help="Of training of a long run.")]
RateSeconds = Annotated[float, typer.Option(help="Of training of a short run that chooses a learning rate.")]
WallClock = Annotated[bool, typer.Option("--wall-clock", help="Measure wall-clock seconds instead of CPU time.")]
DATA, OUT = Path("e2e"), Path("runs/language-models")

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
console = Console(highlight=False)


def data_files(data: Path) -> tuple[Path, Path]:
    train = next((file for name in ("trainset.csv", "trainset.csv.gz") if (file := data / name).exists()), None)
    dev = data / "devset.csv"
    if train is None or not dev.exists():
        raise InputError(f"{data} needs the files trainset.csv (or trainset.csv.gz) and devset.csv of the E2E data")
    return train, dev


def comparison(
    data: Path,
    out: Path,
    methods: list[str] | None,
    rates: list[float] | None,
    seeds: list[int] | None,
    seconds: float,
    rate_seconds: float,
    wall_clock: bool,
) -> Comparison:
    unknown = [method for method in methods or () if method not in METHODS]
    if unknown:
        raise InputError(f"unknown methods {', '.join(unknown)}: choose from {', '.join(METHODS)}")
    train_file, dev_file = data_files(data)
    model = out / "causal" / "model"
    clock = "wall" if wall_clock else "cpu"
    base = RunSettings("", 0.0, 0, seconds, model, train_file, dev_file, clock=clock)
    return Comparison(
        out,
        base,
        methods or tuple(METHODS),
        rates or LEARNING_RATES,
        seeds if seeds is not None else SEEDS,
        seconds,
        rate_seconds,
    )


@app.command("prepare")
def prepare_command(data: Data = DATA, out: Out = OUT) -> None:
    """Read the data and measure the slot matcher on human references."""
    train_file, dev_file = data_files(data)
    examples = {"training": read_e2e(train_file), "development": read_e2e(dev_file)}
    matcher = SlotMatcher(one for part in examples.values() for one in part)
    accuracy: dict[str, Any] = {}
    for name, part in examples.items():
        accuracy[name] = {"slots": matcher_accuracy(part, matcher), "foreign": foreign_share(part, matcher)}
        table = Table("slot", "slots", "found", "wrong", title=f"{name}: {len(part):,} meaning representations")
        for slot, row in accuracy[name]["slots"].items():
            table.add_row(slot, f"{row['slots']:,}", f"{row['recall']:.1%}", f"{row['wrong']:.2%}")
        console.print(table, f"values of other meaning representations found: {accuracy[name]['foreign']:.2%}")
    make_folder(out, "choose another folder with --out")
    write_json(out / "matcher.json", accuracy)


@app.command("pretrain")
def pretrain_command(data: Data = DATA, out: Out = OUT) -> None:
    """Teach the tokenizer and both models by maximum likelihood."""
    torch.set_num_threads(1)
    for kind in NAMES:
        folder = pretrain(*data_files(data), out / kind, PretrainingSettings(kind=kind), console.print)
        console.print(f"{NAMES[kind]}: {folder}")


@app.command("choose-rates")
def choose_rates_command(
    data: Data = DATA,
    out: Out = OUT,
    methods: Methods = None,
    rates: Rates = None,
    seeds: Seeds = None,
    rate_seconds: RateSeconds = 240.0,
    wall_clock: WallClock = False,
) -> None:
    """Choose each method's learning rate by short runs with the first seed."""
    chosen = choose_rates(comparison(data, out, methods, rates, seeds, 0.0, rate_seconds, wall_clock), console.print)
    console.print(", ".join(f"{method} {rate:g}" for method, rate in chosen.items()))


@app.command("train")
def train_command(
    data: Data = DATA,
    out: Out = OUT,
    methods: Methods = None,
    seeds: Seeds = None,
    seconds: Seconds = 1_200.0,
    wall_clock: WallClock = False,
) -> None:
    """Make all long runs that are not finished."""
    settings = comparison(data, out, methods, None, seeds, seconds, 0.0, wall_clock)
    for kind in NAMES:
        train(settings, kind, console.print)


@app.command("report")
def report_command(
    data: Data = DATA,
    out: Out = OUT,
    methods: Methods = None,
    seeds: Seeds = None,
    seconds: Seconds = 1_200.0,
    wall_clock: WallClock = False,
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("results/language-models"),
) -> None:
    """Write tables, figures and all numbers of the finished runs."""
    page = write_report(comparison(data, out, methods, None, seeds, seconds, 0.0, wall_clock), folder)
    console.print(f"Written to {page.parent}.")


@app.command("words")
def words_command(
    model: Annotated[Path, typer.Option(help="The folder of a chat model, such as SmolLM2-135M-Instruct.")],
    out: Out = OUT,
    methods: Methods = None,
    rate: Annotated[float, typer.Option(help="The learning rate of all methods.")] = 1e-5,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    seconds: Seconds = 3_600.0,
    wall_clock: WallClock = False,
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("results/language-models-words"),
) -> None:
    """Fine-tune a chat model to write exactly so many words, by each method for the same seconds; write the report."""
    runs = [
        RunSettings(
            method, rate, seed, seconds, model, problem="words", clock="wall" if wall_clock else "cpu", prompts=4,
            max_completion_length=32, dev_examples=64,
        )
        for method in methods or ("TRL RLOO", "RLOO", "ARSM")
    ]  # fmt: skip
    for settings in runs:
        last = evaluations(run_in_process(settings, out / "words-runs"))[-1]
        console.print(f"{settings.method}: sampled {last['sampled']['reward']:.4f} after {last['updates']} updates")
    console.print(f"Written to {write_words_report(runs, folder, out / 'words-runs').parent}.")


if __name__ == "__main__":
    try:
        app()
    except CorolloutError as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise SystemExit(1) from error
