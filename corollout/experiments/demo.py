"""The demo: Karel from nothing to a report in a few minutes, with four estimators at equal seconds of CPU time."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from corollout.errors import Interrupted
from corollout.events import Callback, ignore
from corollout.experiments.settings import DemoSettings
from corollout.experiments.table1 import TABLE1
from corollout.folders import make_folder
from corollout.inspection.credit import Inspection, inspect_example
from corollout.inspection.page import inspection_css, inspection_sections
from corollout.noise import Noise
from corollout.reports.comparison import MethodSummary
from corollout.reports.report import Html, Report, Section
from corollout.sweeps.report import SweepResults, collect_results, sweep_report
from corollout.sweeps.sweep import Sweep, read_result, run_sweep
from corollout.training.run_weights import open_run
from corollout.types import Sampler

METHODS = {"SC": "sc", "RLOO": "rloo-8", "ARSM": "arsm", "SET-2": "set-2:baseline=fitted"}
INTRODUCTION = (
    "Karel programs from examples: tasks are generated, a model learns from reference programs, and four estimators "
    "fine-tune it from the same weights, on a reward that is 1 for a program that is right on all examples and 0 for "
    "any other."
)
_SPEC = replace(
    TABLE1.spec,
    name="demo",
    methods=METHODS,
    scales={"tiny": {"rates": [5e-4], "seeds": [0], "beam": 5, "probes": 20}},
)
_TEXTS = replace(TABLE1.texts, title="Four estimators on Karel", paper={}, paper_note="", variance_notes=())


def demo_sweep(settings: DemoSettings, folder: Path) -> Sweep:
    """The sweep of the demo: one seed and one learning rate."""
    seeds = {"seeds": [settings.seed], "data_seed": settings.seed}
    sweep = Sweep.of_scale(_SPEC, "tiny", folder, probes=settings.estimates, **seeds)
    pretrain = replace(sweep.pretrain, epochs=settings.epochs or sweep.pretrain.epochs)
    if settings.tokens is not None:
        return replace(sweep, pretrain=pretrain, finetune=replace(sweep.finetune, budget=float(settings.tokens)))
    every = settings.seconds / 5
    tuning = replace(sweep.finetune, unit="seconds", clock="cpu", budget=settings.seconds, evaluate_every=every)
    return replace(sweep, pretrain=pretrain, finetune=tuning)


def run_demo(settings: DemoSettings, on_event: Callback = ignore) -> tuple[Report, Path]:
    """Run the demo in a new folder; return its report, and the path of the page."""
    folder = settings.out / datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    make_folder(folder, "choose another with --out")
    sweep = demo_sweep(settings, folder)
    try:
        run_sweep(sweep, settings.jobs, on_event)
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(f"Stopped; finished runs are in {folder}, and the next demo starts anew.") from None
    report = demo_report(sweep)
    return report, report.write(folder / "report")


def demo_report(sweep: Sweep) -> Report:
    """The report of the sweep, with the winner and a solved task in front."""
    results = collect_results(sweep)
    report = sweep_report(sweep, _TEXTS)
    lead = f"{results.comparison.winner()} {report.lead}"
    return replace(report, lead=lead, sections=[*_solved_task(results), *report.sections])


def _solved_task(results: SweepResults) -> list[Section]:
    """A test task that the winner solves: its worlds and its program, and one update on it where training started."""
    sweep, seed = results.sweep, results.sweep.grid.seeds[0]
    tuned, start = [method for method in results.methods if method.label in METHODS], sweep.mle(seed)
    winner = max(tuned, key=lambda method: method.scores["test"].mean)
    task, engine = open_run(Path(winner.runs[0]))
    split = task.split("test")
    index, how = _choose(winner, start, split.data.lengths)
    view = task.view("test", split, index)
    batch = split.columns.batch([index], task.device)
    program = engine.decode(batch.context, batch.examples, Sampler("greedy"), Noise(seed)).trajectories.lists()[0]
    shown = f"{view.html()}<p>Program of {winner.label}, fine-tuned: {view.tokens_html(program)}</p>"
    sections = [Section(f"A task of the test, {how}", [Html(shown, view.css)], page_only=True)]
    inspection = _inspect(start, index, seed)
    for title, content in inspection_sections(inspection):
        blocks = [Html(content, inspection_css(inspection))]
        sections.append(Section(f"One update by ARSM before fine-tuning: {title.lower()}", blocks, page_only=True))
    return sections


def _choose(winner: MethodSummary, start: Path, lengths: np.ndarray) -> tuple[int, str]:
    """The longest test task that only fine-tuning has solved; else any that is solved; else any."""
    after, before = (read_result(Path(run), "test", "solved", str) for run in (winner.runs[0], start))
    order = np.argsort(-lengths, kind="stable").tolist()
    for wanted, how in ((("1", "0"), "solved by fine-tuning"), (("1", "1"), "solved")):
        for index in order:
            if (after[index], before[index]) == wanted:
                return index, how
    return 0, "not solved"


def _inspect(start: Path, index: int, seed: int) -> Inspection:
    """An estimate with a gradient other than zero, if one of a few has it."""
    task, engine = open_run(start)
    inspections = (inspect_example(task, engine, "test", index, "arsm", seed=seed + i) for i in range(20))
    first = next(inspections)
    return first if first.norm > 0 else next((one for one in inspections if one.norm > 0), first)
