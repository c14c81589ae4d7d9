"""``corollout reproduce``: the paper's experiments from nothing to a report."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from corollout.cli.progress import Board, progress_bars
from corollout.cli.tables import plain_table
from corollout.config import from_table, read_toml, to_table, toml_text
from corollout.errors import CorolloutError, InputError, Interrupted
from corollout.experiments.learning_curves import CAPTION_CURVES, KAREL_CURVES
from corollout.experiments.learning_curves_report import CAPTION_CURVES_WORDS, KAREL_CURVES_WORDS
from corollout.experiments.table1 import TABLE1
from corollout.experiments.table1_report import TABLE1_WORDS
from corollout.experiments.table2 import TABLE2, check_data
from corollout.experiments.table2_report import TABLE2_WORDS
from corollout.sweeps import sweep as table
from corollout.sweeps.analysis import read_analysis, run_analysis
from corollout.sweeps.report import write_table
from corollout.sweeps.sweep import Experiment, Sweep
from corollout.training.checkpoints import replace_file
from corollout.training.settings import MachineSettings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Do the paper's experiments again.")

PLAN = "sweep.toml"
# What parts weigh in the estimate of the time that is left: a run counts 1.
_DATA, _STUDY = 0.3, 0.1


@app.callback()
def _group() -> None:
    """Do the paper's experiments again."""


WORDS = {
    TABLE1.name: TABLE1_WORDS,
    TABLE2.name: TABLE2_WORDS,
    KAREL_CURVES.name: KAREL_CURVES_WORDS,
    CAPTION_CURVES.name: CAPTION_CURVES_WORDS,
}

OUT = Annotated[Path, typer.Option(help="Folder for data, runs and report; name it again to go on.")]
DATA = Annotated[
    Path | None,
    typer.Option(
        help="Folder that `corollout data captions` has prepared. [default: generated scenes]", show_default=False
    ),
]
SCALE = Annotated[
    str | None, typer.Option(help="Sizes and budgets: tiny, small or paper. [default: small]", show_default=False)
]
SEEDS = Annotated[
    str | None, typer.Option(metavar="<int,…>", help="Seeds. [default: depends on scale]", show_default=False)
]
METHODS = Annotated[
    str | None, typer.Option(metavar="<name,…>", help="Methods, as in ARSM,RLOO. [default: all]", show_default=False)
]
JOBS = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
THREADS = Annotated[int | None, typer.Option(min=1, help="Threads of each run. [default: 1]", show_default=False)]
DEVICE = Annotated[str | None, typer.Option(help="Where to compute: cpu, cuda, …. [default: cpu]", show_default=False)]
REPORT_ONLY = Annotated[bool, typer.Option("--report-only", help="Only report what is done so far.")]


@app.command("table1")
def table1(
    out: OUT,
    scale: SCALE = None,
    seeds: SEEDS = None,
    methods: METHODS = None,
    jobs: JOBS = 2,
    threads: THREADS = None,
    device: DEVICE = None,
    report_only: REPORT_ONLY = False,
) -> None:
    """Table 1: Karel by maximum likelihood, then fine-tuned by every method, with the best of some learning rates."""
    _reproduce(TABLE1, out, scale, seeds, methods, {}, jobs, {"threads": threads, "device": device}, report_only)


@app.command("table2")
def table2(
    out: OUT,
    data: DATA = None,
    vectors: Annotated[
        Path | None,
        typer.Option(help="File of word vectors, as GloVe's; without it there is no tree_WV.", show_default=False),
    ] = None,
    scale: SCALE = None,
    seeds: SEEDS = None,
    methods: METHODS = None,
    jobs: JOBS = 2,
    threads: THREADS = None,
    device: DEVICE = None,
    report_only: REPORT_ONLY = False,
) -> None:
    """Table 2: captions of images by maximum likelihood, then fine-tuned on CIDEr-D by every method.

    The upper half has a softmax over all words; the lower half walks down a binary tree of them.
    """
    own = _caption_settings(data, vectors)
    _reproduce(TABLE2, out, scale, seeds, methods, own, jobs, {"threads": threads, "device": device}, report_only)


@app.command(KAREL_CURVES.name)
def curves_karel(
    out: OUT,
    scale: SCALE = None,
    seeds: SEEDS = None,
    methods: METHODS = None,
    jobs: JOBS = 2,
    threads: THREADS = None,
    device: DEVICE = None,
    report_only: REPORT_ONLY = False,
) -> None:
    """Karel: estimators of the paper and later ones, at equal seconds and at equal tokens."""
    machine = {"threads": threads, "device": device}
    _reproduce(KAREL_CURVES, out, scale, seeds, methods, {}, jobs, machine, report_only)


@app.command(CAPTION_CURVES.name)
def curves_captions(
    out: OUT,
    data: DATA = None,
    scale: SCALE = None,
    seeds: SEEDS = None,
    methods: METHODS = None,
    jobs: JOBS = 2,
    threads: THREADS = None,
    device: DEVICE = None,
    report_only: REPORT_ONLY = False,
) -> None:
    """Captions: estimators of the paper and later ones, at equal seconds and at equal tokens."""
    machine = {"threads": threads, "device": device}
    _reproduce(CAPTION_CURVES, out, scale, seeds, methods, _caption_settings(data), jobs, machine, report_only)


def _caption_settings(data: Path | None, vectors: Path | None = None) -> dict[str, Any]:
    """What was given of the data's settings, as a sweep keeps it. All of it is there: only then a sweep is written."""
    if data is not None:
        check_data(data)
    if vectors is not None and not vectors.is_file():
        raise InputError(f"there is no file of word vectors {vectors}: leave --vectors out, or name another")
    return {name: str(path.resolve()) for name, path in (("folder", data), ("vectors", vectors)) if path is not None}


def _reproduce(
    experiment: Experiment,
    out: Path,
    scale: str | None,
    seeds: str | None,
    methods: str | None,
    data: dict[str, Any],
    jobs: int,
    machine: dict[str, Any],
    report_only: bool,
) -> None:
    if report_only and not out.is_dir():
        raise InputError(f"there is nothing to report: {out} does not exist")
    given = {name: value for name, value in machine.items() if value is not None}
    sweep, where = open_sweep(experiment, out, scale, numbers(seeds), _words(methods), data, given)
    if not report_only:
        again = f"corollout reproduce {experiment.name} --out {out}" + (f" --jobs {jobs}" if jobs != 2 else "")
        try:
            carry_out(sweep, where, jobs)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(f"Stopped; all that was done is saved. Go on with: {again}") from None
        except InputError:
            raise
        except CorolloutError as error:
            raise CorolloutError(f"{error}. All that was done is saved; go on with: {again}") from error
    report(sweep, out / "report")


def report(sweep: Sweep, folder: Path) -> None:
    """Write the report of what is done of a sweep, and print its main tables."""
    found = write_table(sweep, folder, WORDS[sweep.experiment.name])
    console = Console()
    for part in found.comparison.tables():
        console.print(plain_table(part.title, part.header, part.rows))
    console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def open_sweep(
    experiment: Experiment,
    out: Path,
    scale: str | None,
    seeds: tuple[int, ...] | None,
    methods: tuple[str, ...] | None,
    data: Mapping[str, Any],
    machine: Mapping[str, Any],
) -> tuple[Sweep, MachineSettings]:
    """The sweep of a folder; what is given must agree with it. A new folder gets one of what is given and defaults."""
    path = out / PLAN
    if not path.exists():
        sweep = Sweep.of_scale(experiment, scale or "small", out, seeds, methods, data)
        settings = MachineSettings(**machine)
        text = toml_text({"scale": sweep.scale, **sweep.table(), "machine": to_table(settings)})
        try:
            out.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise InputError(
                f"cannot use the folder {out}: {error.strerror or error}; choose another with --out"
            ) from error
        return sweep, settings
    stored = read_toml(path)
    try:
        sweep = Sweep.from_table(experiment, stored["scale"], out, stored)
        known = {"scale": sweep.scale, "seeds": sweep.seeds, "methods": sweep.methods}
        known |= {**stored["data"], **stored["machine"]}
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is no sweep of this experiment: {type(error).__name__} {error}") from error
    given = {"scale": scale, "seeds": seeds, "methods": methods, **data, **machine}
    differing = [
        f"{name} {_said(known[name])} instead of {_said(value)}"
        for name, value in given.items()
        if value is not None and value != known[name]
    ]
    if differing:
        raise InputError(
            f"{out} was begun with {', '.join(differing)}: leave these settings out to go on with it, or choose "
            f"another folder with --out"
        )
    return sweep, from_table(MachineSettings, stored["machine"], str(path))


def _said(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def numbers(text: str | None) -> tuple[int, ...] | None:
    """Seeds as somebody types them."""
    words = _words(text)
    try:
        return None if words is None else tuple(int(word) for word in words)
    except ValueError:
        raise InputError(f"--seeds takes whole numbers, as in 0,1,2, not {text!r}") from None


def _words(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words or len(set(words)) < len(words):
        raise InputError(f"{text!r} is no list of different entries, separated by commas")
    return words


def carry_out(sweep: Sweep, machine: MachineSettings, jobs: int) -> None:
    """Do what is missing of a sweep, showing how it goes on."""
    torch.set_num_threads(machine.threads)
    console = Console(stderr=True, highlight=False)
    runs = sweep.runs
    analyses = sweep.experiment.analyses
    studied = sum(len(analysis.methods(sweep)) for analysis in analyses)
    with progress_bars(console) as bars:
        bars.speed_estimate_period = 600
        board = Board(bars, parts=1 + runs + studied, weight=_DATA + runs + _STUDY * studied)
        _make_data(sweep, board)
        # What is done for the first seed does not wait for the others' pre-training.
        stages = [
            lambda: table.pretrain_jobs(sweep, machine) + table.rate_jobs(sweep, machine),
            lambda: table.seed_jobs(sweep, machine),
        ]
        for stage in stages:
            jobs = stage()
            board.skip({job.name: 1.0 for job in jobs if job.done})
            table.run_jobs(jobs, jobs, sweep.beam, board.on_job)
        for analysis in analyses:
            board.skip(
                dict.fromkeys((f"{analysis.name}, {method}" for method in read_analysis(sweep, analysis)), _STUDY)
            )
            run_analysis(sweep, analysis, partial(_tell_study, board, analysis.name))


def _tell_study(board: Board, analysis: str, method: str, share: float) -> None:
    board.tell(f"{analysis}, {method}", share, "", _STUDY)


def _make_data(sweep: Sweep, board: Board) -> None:
    total = 0

    def advance(done: int, of: int) -> None:
        nonlocal total
        total = of
        board.tell("data", min(done / of, 0.999), f"{done:,} of {of:,} parts", _DATA)

    sweep.experiment.make_data(sweep.folder, sweep.data, advance)
    board.tell("data", 1.0, "made" if total else "there already", _DATA)
