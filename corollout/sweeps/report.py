"""The report of a sweep: what was measured, next to the paper's numbers if it has the same table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.reports.comparison import Comparison, MethodSummary, compare
from corollout.reports.curves import Axis, training_curves
from corollout.reports.manifest import manifest
from corollout.reports.report import Report, Section, Table, settings_section
from corollout.reports.run_results import MethodRuns
from corollout.reports.tables import NOTHING, count_text, number, score_text, times
from corollout.sweeps.analysis import VARIANCE
from corollout.sweeps.sweep import MLE, Sweep, is_done, rate_scores, read_analysis, read_data_files
from corollout.tasks.task import DataFile
from corollout.training.runs import Run

_FIGURES: dict[Axis, str] = {"seconds": "figure", "tokens": "figure-tokens", "updates": "figure-updates"}


@dataclass(frozen=True)
class SweepResults:
    """All finished runs and analyses of a sweep."""

    sweep: Sweep
    comparison: Comparison
    groups: list[MethodRuns]  # fine-tuned methods only
    rates: dict[str, dict[float, float | None]]  # validation score of each learning rate, with the first seed
    analyses: dict[str, dict[str, dict[str, Any]]]  # by name and by method
    missing: int  # runs that are not done
    data_files: list[DataFile]

    @property
    def methods(self) -> list[MethodSummary]:
        return self.comparison.methods

    @property
    def probes(self) -> dict[str, dict[str, Any]]:
        return self.analyses.get(VARIANCE.name, {})


@dataclass(frozen=True)
class ReportTexts:
    """What a report says about its experiment."""

    title: str
    lead: Callable[[SweepResults], str]  # the task and its data; the budget and the seeds are added to it
    tables: Sequence[Callable[[SweepResults], Table]] = ()  # after the main table
    sections: Callable[[SweepResults], Sequence[Section]] = lambda results: ()  # after the curves
    # The paper's numbers by method and heading, if it has the same table.
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    paper_note: str = ""
    variance_notes: Sequence[str] = ()
    axes: Sequence[Axis] = ("seconds", "tokens")  # of the training curves


def sweep_report(sweep: Sweep, texts: ReportTexts) -> Report:
    """The report of everything in the sweep that is done."""
    results = collect_results(sweep)
    scores, cost = results.comparison.score_table(), results.comparison.cost_table()
    names = ", ".join(f"{method}: {sweep.estimator(method)}" for method in sweep.grid.methods)
    configs = {method.label: Run.open(Path(method.runs[0])).config for method in results.methods}
    sections = [
        *_sections([_with_paper(scores, texts), *(table(results) for table in texts.tables)]),
        *_curve_sections(results, texts.axes),
        *texts.sections(results),
        *_sections([_rates_table(results), cost, _variance_table(results, texts.variance_notes)]),
        *_sections([_data_table(results)]),
        settings_section(configs, f"Estimators: {names}."),
    ]
    numbers = {
        "scale": sweep.scale,
        "missing_runs": results.missing,
        "comparison": results.comparison.numbers(sweep.out),
        "rates": {method: {f"{r:g}": score for r, score in own.items()} for method, own in results.rates.items()},
        "probes": results.probes,
        "paper": texts.paper,
    }
    files = [asdict(one) for one in results.data_files]
    made = manifest(
        sweep.out, scale=sweep.scale, seeds=list(sweep.grid.seeds), data_files=files, settings=sweep.table()
    )
    title, lead = f"{texts.title}, scale {sweep.scale}", _lead(results, texts)
    return Report(sweep.spec.name, title, lead, sections, made, numbers)


def collect_results(sweep: Sweep) -> SweepResults:
    """Read all finished runs of a sweep; each method's learning rate is the best of those that are done."""
    grid = sweep.grid
    trained = {model: [run for seed in grid.seeds if is_done(run := sweep.mle(seed, model))] for model in grid.models}
    rates = {method: rate_scores(sweep, method) for method in grid.methods}
    done = sum(map(len, trained.values()))
    parents: dict[Path, Path] = {}
    tuned: list[MethodRuns] = []
    for method, scores in rates.items():
        known = {rate: score for rate, score in scores.items() if score is not None}
        if not known:
            continue
        best = max(known, key=lambda rate: known[rate])
        runs = {seed: run for seed in grid.seeds if is_done(run := sweep.run(seed, method, best))}
        done += len(known) + len(runs) - 1
        tuned.append(MethodRuns(method, list(runs.values())))
        parents |= {run: sweep.mle(seed, sweep.spec.start(method)) for seed, run in runs.items()}
    groups: list[MethodRuns] = []
    for model, runs in trained.items():  # each model, then the methods that start from it
        groups += [MethodRuns(model, runs)] if runs else []
        groups += [group for group in tuned if sweep.spec.start(group.label) == model]
    if not groups:
        raise InputError(f"there is nothing to report: no run in {sweep.out} is finished")
    analyses = {analysis.name: read_analysis(sweep, analysis) for analysis in sweep.spec.analyses}
    files = read_data_files(sweep)
    return SweepResults(sweep, compare(groups, parents), tuned, rates, analyses, sweep.runs - done, files)


def _data_table(results: SweepResults) -> Table:
    rows = [[one.split, one.file, f"{one.examples:,}", one.digest] for one in results.data_files]
    note = "The digest is BLAKE2b with 20 bytes, as `b2sum --length=160` prints it, when the experiment began."
    return Table("Data", ["split", "file", results.comparison.metric.examples, "digest"], rows, [note])


def _sections(tables: Sequence[Table]) -> list[Section]:
    """A section for each table that has values."""
    trimmed = [table.without_empty_columns() for table in tables]
    return [Section(table.title, [table]) for table in trimmed if table.rows and len(table.header) > 1]


def _with_paper(result: Table, texts: ReportTexts) -> Table:
    if not texts.paper:
        return result
    columns = list(dict.fromkeys(name for own in texts.paper.values() for name in own))
    rows = []
    for row in result.rows:
        known = texts.paper.get(row[0], {})
        rows.append([*row, *(f"{known[name]:g}" if name in known else NOTHING for name in columns)])
    header = [*result.header, *(f"paper: {name}" for name in columns)]
    return Table(result.title, header, rows, [*result.notes, texts.paper_note])


def _rates_table(results: SweepResults) -> Table:
    rates, metric = results.sweep.grid.rates, results.comparison.metric
    if len(rates) == 1:
        return Table("Learning rates", ["method"], [])
    chosen = {method.label: method.rate for method in results.methods}
    rows = [
        [method, *(score_text(score, metric) for score in scores.values()), chosen.get(method, NOTHING)]
        for method, scores in results.rates.items()
    ]
    note = (
        f"Validation {metric.name}{times(metric)}, of the best weights with each learning rate, seed "
        f"{results.sweep.grid.seeds[0]}. The best rate of each method is used for all seeds."
    )
    return Table("Learning rates", ["method", *(f"{rate:g}" for rate in rates), "chosen"], rows, [note])


def _variance_table(results: SweepResults, extra_notes: Sequence[str]) -> Table:
    sweep, rows = results.sweep, []
    for method in results.methods:
        if method.label in sweep.grid.models:
            continue
        cells = [method.label, number(method.first_rollouts), number(method.last_rollouts), number(method.variance)]
        if probe := results.probes.get(method.label):
            variance, error, tokens = probe["variance"], probe["variance_error"], probe["tokens"]
            cells += [f"{number(variance)} ± {number(error)}", count_text(tokens), number(variance * tokens)]
        rows.append(cells + [NOTHING] * (7 - len(cells)))
    header = ["method", "first rollouts", "last rollouts", "running variance", "variance at\u00a0start"]
    header += ["tokens per\u00a0estimate", "variance ×\u00a0tokens"]
    examples = results.comparison.metric.examples
    note = (
        "First and last rollouts: completed branches, greedy baselines included, for each token of the main "
        "trajectories, in the first and in the last tenth of the updates. Running variance: exponential average along "
        f"training, of the gradient for {sweep.finetune.batch_size} {examples}, mean over updates."
    )
    if results.probes:
        note += (
            f" Variance at start: trace of the covariance of {sweep.grid.probes} independent estimates at the weights "
            f"that the method starts from, seed {sweep.grid.seeds[0]}, for the same {examples}, ± its standard error. "
            "Of unbiased methods, the one with the smaller variance × tokens per estimate is better at equal cost."
        )
    return Table("Rollouts and variance of the gradient", header, rows, [note, *extra_notes])


def _lead(results: SweepResults, texts: ReportTexts) -> str:
    tuning = results.sweep.finetune
    clock = " of CPU time" if tuning.unit == "seconds" and tuning.clock == "cpu" else ""
    part = f" Not complete: {results.missing} runs are missing." if results.missing else ""
    return (
        f"{texts.lead(results)} by maximum likelihood; from its weights each method then fine-tunes for "
        f"{tuning.budget:,.0f} {tuning.unit}{clock}. Seeds: {len(results.sweep.grid.seeds)}.{part}"
    )


def _curve_sections(results: SweepResults, axes: Sequence[Axis]) -> list[Section]:
    """The methods that start from one model are drawn together."""
    sections = []
    starts: dict[str, list[MethodRuns]] = {}
    for group in results.groups:
        starts.setdefault(results.sweep.spec.start(group.label), []).append(group)
    for model in (model for model in results.sweep.grid.models if model in starts):
        suffix, start = "" if model == MLE else f"-{model}", f" from {model}" if len(starts) > 1 else ""
        for x in axes:
            title = f"Training{start}, against {'time' if x == 'seconds' else x}"
            sections.append(Section(title, [training_curves(starts[model], x, _FIGURES[x] + suffix)]))
    return sections
