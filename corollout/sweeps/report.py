"""The report of a table of methods: what was measured, beside what the paper says, if it has the same table."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.reports import html, pages
from corollout.reports.comparison import Comparison, Method, compare, count_words
from corollout.reports.curves import Axis, Curves, Group, read_curves
from corollout.reports.manifest import manifest
from corollout.reports.tables import NOTHING, TextTable, number, percent, without_empty_columns
from corollout.sweeps.analysis import read_analysis
from corollout.sweeps.sweep import MLE, RESULT, Sweep, rate_scores
from corollout.sweeps.variance_analysis import VARIANCE
from corollout.training.runs import Run

FIGURES: dict[Axis, str] = {"seconds": "figure", "tokens": "figure-tokens", "updates": "figure-updates"}


@dataclass(frozen=True)
class Collected:
    """What is done of a sweep."""

    comparison: Comparison
    groups: list[Group]  # fine-tuned methods only
    rates: dict[str, dict[float, float | None]]  # validation score of each learning rate, with the first seed
    analyses: dict[str, dict[str, dict[str, Any]]]  # what was measured after the runs, by analysis and by method
    missing: int  # runs of the table that are not done

    @property
    def methods(self) -> list[Method]:
        return self.comparison.methods

    @property
    def probes(self) -> dict[str, dict[str, Any]]:
        return self.analyses[VARIANCE.name]


@dataclass(frozen=True)
class Section:
    """A part of the page: figures as HTML, and a table of their numbers, which stands in the text file, too."""

    title: str
    figures: str
    table: TextTable | None = None

    @property
    def body(self) -> str:
        return self.figures + ("" if self.table is None else pages.table_part(self.table))


@dataclass(frozen=True)
class Words:
    """What a report says of its own experiment."""

    title: str
    lead: Callable[[Sweep], str]
    tables: Callable[[Sweep, Collected], list[TextTable]]  # of its own, after the main one
    # The paper's numbers, by method and by heading, if it has the same table.
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    paper_note: str = ""
    axes: tuple[Axis, ...] = ("seconds", "tokens")  # of the training curves
    # Figures of its own; their files are written into the folder.
    sections: Callable[[Sweep, Collected, Path], list[Section]] = lambda sweep, found, folder: []

    def paper_columns(self) -> list[str]:
        return list(dict.fromkeys(name for own in self.paper.values() for name in own))


def write_table(sweep: Sweep, folder: Path, words: Words) -> Collected:
    """Write tables, figures and a page about everything that is done of the sweep, and return it."""
    found = collect(sweep)
    pages.make_folder(folder)
    facts = manifest(scale=sweep.scale, seeds=list(sweep.seeds))
    halves = [_Half.of(sweep, found, start, words.axes) for start in sweep.models]
    halves = [half for half in halves if half.labels]
    for half in halves:
        table = {x: [one.table() for one in own] for x, own in half.curves.items()}
        pages.save(folder / f"curves{half.suffix}.json", table, indent=None)
    redraw(folder)
    own = words.sections(sweep, found, folder)
    results, background = result_tables(sweep, found, words), background_tables(sweep, found)
    tables = [*results, *(section.table for section in own if section.table is not None), *background]
    lead = _lead(sweep, found, words)
    heading = f"# {sweep.experiment.title}, scale {sweep.scale}\n\n{lead}\n\n"
    pages.save(folder / "table.md", heading + "\n".join(table.markdown() for table in tables))
    pages.save(folder / "table.json", _table_json(sweep, found, words, tables))
    pages.save(folder / "manifest.json", facts | {"settings": sweep.table()})
    title = f"{words.title}, scale {sweep.scale}"
    sections = [(table.title, pages.table_part(table)) for table in results]
    for half in halves:
        sections += _curves_sections(half, several=len(halves) > 1)
    sections += [(section.title, section.body) for section in own]
    sections += [(table.title, pages.table_part(table)) for table in background]
    sections += _last_sections(sweep, found, facts)
    pages.save(folder / "report.html", pages.page(title, lead, sections))
    return found


@dataclass(frozen=True)
class _Half:
    """The methods that start from one model: they are drawn together."""

    start: str
    labels: list[str]
    curves: dict[Axis, list[Curves]]
    suffix: str  # of its files

    @classmethod
    def of(cls, sweep: Sweep, found: Collected, start: str, axes: tuple[Axis, ...]) -> "_Half":
        groups = [group for group in found.groups if sweep.start(group.label) == start]
        curves: dict[Axis, list[Curves]] = {x: [read_curves(group, x) for group in groups] for x in axes}
        return cls(start, [group.label for group in groups], curves, "" if start == MLE else f"-{start}")


def redraw(folder: Path) -> None:
    """Draw the figures from the curves that lie in the folder; the runs are not needed for it."""
    for file in folder.glob("curves*.json"):
        table = json.loads(file.read_text("utf-8"))
        for x, name in FIGURES.items():
            if table.get(x):
                suffix = file.stem.removeprefix("curves")
                pages.write_figures(folder, [Curves.from_table(one) for one in table[x]], x, name + suffix)


def collect(sweep: Sweep) -> Collected:
    """Read all runs of a sweep that are done; each method's learning rate is chosen among those that are."""
    made = {model: [run for seed in sweep.seeds if _done(run := sweep.mle(seed, model))] for model in sweep.models}
    parents: dict[Path, Path] = {}
    rates = {method: rate_scores(sweep, method) for method in sweep.methods}
    done = sum(map(len, made.values()))
    tuned: list[Group] = []
    for method, scores in rates.items():
        known = {rate: score for rate, score in scores.items() if score is not None}
        done += len(known)
        if not known:
            continue
        best = max(known, key=lambda rate: known[rate])
        seeds = [seed for seed in sweep.seeds if _done(sweep.run(seed, method, best))]
        done += len(seeds) - 1
        tuned.append(Group(method, [sweep.run(seed, method, best) for seed in seeds]))
        parents |= {sweep.run(seed, method, best): sweep.mle(seed, sweep.start(method)) for seed in seeds}
    tuned = [group for group in tuned if group.runs]
    groups: list[Group] = []
    for model, runs in made.items():  # each model, then what was made of it
        groups += [Group(model, runs)] if runs else []
        groups += [group for group in tuned if sweep.start(group.label) == model]
    if not groups:
        raise InputError(f"there is nothing to report: no run in {sweep.out} is finished")
    analyses = {analysis.name: read_analysis(sweep, analysis) for analysis in sweep.experiment.analyses}
    return Collected(compare(groups, parents), tuned, rates, analyses, sweep.runs - done)


def _done(directory: Path) -> bool:
    return (directory / RESULT).exists()


def result_tables(sweep: Sweep, found: Collected, words: Words) -> list[TextTable]:
    """The table itself, and those that tell more of the same results."""
    return _filled([_with_paper(found.comparison.tables()[0], words), *words.tables(sweep, found)])


def background_tables(sweep: Sweep, found: Collected) -> list[TextTable]:
    """What stands behind the results."""
    return _filled([_rates_table(sweep, found), found.comparison.tables()[1], _variance_table(sweep, found)])


def _filled(tables: list[TextTable]) -> list[TextTable]:
    return [table for table in map(without_empty_columns, tables) if table.rows and len(table.header) > 1]


def _with_paper(result: TextTable, words: Words) -> TextTable:
    columns = words.paper_columns()
    if not columns:
        return result

    def paper(label: str) -> list[str]:
        known = words.paper.get(label, {})
        return [f"{known[name]:g}" if name in known else NOTHING for name in columns]

    return TextTable(
        result.title,
        [*result.header, *(f"paper: {name}" for name in columns)],
        [[*row, *paper(row[0])] for row in result.rows],
        [*result.notes, words.paper_note],
    )


def _rates_table(sweep: Sweep, found: Collected) -> TextTable:
    if len(sweep.rates) == 1:
        return TextTable("Learning rates", ["method"], [])
    chosen = {method.label: method.rate for method in found.methods}
    rows = [
        [method, *(percent(score) for score in scores.values()), chosen.get(method, NOTHING)]
        for method, scores in found.rates.items()
    ]
    note = (
        f"{found.comparison.metric.name} on the validation data, times 100, of the best weights with each learning "
        f"rate, seed {sweep.seeds[0]}. The best rate of each method is used for all seeds."
    )
    return TextTable("Learning rates", ["method", *(f"{rate:g}" for rate in sweep.rates), "chosen"], rows, [note])


def _variance_table(sweep: Sweep, found: Collected) -> TextTable:
    rows = []
    for method in found.methods:
        if method.label in sweep.models:
            continue
        probe = found.probes.get(method.label)
        jobs = [method.label, number(method.first_rollouts), number(method.last_rollouts), number(method.variance)]
        if probe is None:
            jobs += [NOTHING] * 3
        else:
            jobs += [
                f"{number(probe['variance'])} ± {number(probe['variance_error'])}",
                count_words(probe["tokens"]),
                number(probe["variance"] * probe["tokens"]),
            ]
        rows.append(jobs)
    header = [
        "method",
        "first rollouts",
        "last rollouts",
        "running variance",
        "variance at\u00a0start",
        "tokens an\u00a0estimate",
        "variance ×\u00a0tokens",
    ]
    examples = found.comparison.metric.examples
    note = (
        "First and last rollouts: completed branches, greedy baselines included, for each token of the main "
        "trajectories, in the first and in the last tenth of the updates. Running variance: exponential average along "
        f"training, of the gradient for {sweep.finetune.batch_size} {examples}, mean over updates."
    )
    if found.probes:
        note += (
            f" Variance at start: trace of the covariance of {sweep.probes} independent estimates at the weights "
            f"that the method starts from, seed {sweep.seeds[0]}, for the same {examples}, ± its standard "
            f"error. Times the tokens that an estimate generates, it is less for the unbiased method that is better at "
            f"equal cost."
        )
    if "RL_beam" in sweep.methods:
        note += " RL_beam does not sample: its gradient has no variance at given weights, but is biased."
    return TextTable("Rollouts and variance of the gradient", header, rows, [note])


def _table_json(sweep: Sweep, found: Collected, words: Words, tables: list[TextTable]) -> dict[str, Any]:
    comparison = found.comparison.table()
    for method in comparison["methods"]:
        method["runs"] = [str(Path(run).relative_to(sweep.out)) for run in method["runs"]]
    return {
        "scale": sweep.scale,
        "missing_runs": found.missing,
        "comparison": comparison,
        "rates": {method: {f"{r:g}": score for r, score in own.items()} for method, own in found.rates.items()},
        "probes": found.probes,
        "paper": {method: dict(own) for method, own in words.paper.items()},
        "tables": [asdict(table) for table in tables],
    }


def _lead(sweep: Sweep, found: Collected, words: Words) -> str:
    tuning = sweep.finetune
    clock = " of processor time" if tuning.unit == "seconds" and tuning.clock == "cpu" else ""
    part = f" Not all of it is done: {found.missing} runs are missing." if found.missing else ""
    return (
        f"{words.lead(sweep)} by maximum likelihood; from its weights each method then fine-tunes for "
        f"{tuning.budget:,.0f} {tuning.unit}{clock}. Seeds: {len(sweep.seeds)}.{part}"
    )


def _curves_sections(half: _Half, several: bool) -> list[tuple[str, str]]:
    band = html.paragraph("Mean over seeds, with the range from the lowest to the highest.")
    names = {"seconds": "time", "tokens": "tokens", "updates": "updates"}
    start = f" from {half.start}" if several else ""
    return [
        (f"Training{start}, against {names[x]}", pages.curves_part(own, x) + band) for x, own in half.curves.items()
    ]


def _last_sections(sweep: Sweep, found: Collected, facts: dict[str, Any]) -> list[tuple[str, str]]:
    configs = {method.label: Run.open(Path(method.runs[0])).config for method in found.methods}
    flat = {label: pages.flat_settings(config, pages.OF_A_SEED | {"folder"}) for label, config in configs.items()}
    names = ", ".join(f"{method}: {sweep.estimator(method)}" for method in sweep.methods)
    return [
        ("Settings", html.paragraph(f"Estimators: {names}.") + pages.settings_part(flat)),
        ("How this was made", html.facts(facts)),
    ]
