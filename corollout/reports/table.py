"""The report of a table of methods: what was measured, beside what the paper says, if it has the same table."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.experiments.probes import VARIANCE
from corollout.experiments.studies import read_study
from corollout.experiments.table import MLE, RESULT, Plan, rate_scores
from corollout.reports import html, pages
from corollout.reports.comparison import Comparison, Method, compare, count_words
from corollout.reports.curves import Axis, Curves, Group, read_curves
from corollout.reports.manifest import manifest
from corollout.reports.text import NOTHING, TextTable, number, percent, without_empty_columns
from corollout.training.runs import Run

FIGURES: dict[Axis, str] = {"seconds": "figure", "tokens": "figure-tokens", "updates": "figure-updates"}


@dataclass(frozen=True)
class Collected:
    """What is done of a plan."""

    comparison: Comparison
    groups: list[Group]  # fine-tuned methods only
    rates: dict[str, dict[float, float | None]]  # validation score of each learning rate, with the first seed
    studies: dict[str, dict[str, dict[str, Any]]]  # what was measured after the runs, by study and by method
    missing: int  # runs of the table that are not done

    @property
    def methods(self) -> list[Method]:
        return self.comparison.methods

    @property
    def probes(self) -> dict[str, dict[str, Any]]:
        return self.studies[VARIANCE.name]


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
    lead: Callable[[Plan], str]
    tables: Callable[[Plan, Collected], list[TextTable]]  # of its own, after the main one
    # The paper's numbers, by method and by heading, if it has the same table.
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    paper_note: str = ""
    axes: tuple[Axis, ...] = ("seconds", "tokens")  # of the training curves
    # Figures of its own; their files are written into the folder.
    sections: Callable[[Plan, Collected, Path], list[Section]] = lambda plan, found, folder: []

    def paper_columns(self) -> list[str]:
        return list(dict.fromkeys(name for own in self.paper.values() for name in own))


def write_table(plan: Plan, folder: Path, words: Words) -> Collected:
    """Write tables, figures and a page about everything that is done of the plan, and return it."""
    found = collect(plan)
    pages.make_folder(folder)
    facts = manifest(scale=plan.scale, seeds=list(plan.seeds))
    halves = [_Half.of(plan, found, start, words.axes) for start in plan.models]
    halves = [half for half in halves if half.labels]
    for half in halves:
        table = {x: [one.table() for one in own] for x, own in half.curves.items()}
        pages.save(folder / f"curves{half.suffix}.json", table, indent=None)
    redraw(folder)
    own = words.sections(plan, found, folder)
    results, background = result_tables(plan, found, words), background_tables(plan, found)
    tables = [*results, *(section.table for section in own if section.table is not None), *background]
    lead = _lead(plan, found, words)
    heading = f"# {plan.experiment.title}, scale {plan.scale}\n\n{lead}\n\n"
    pages.save(folder / "table.md", heading + "\n".join(table.markdown() for table in tables))
    pages.save(folder / "table.json", _table_json(plan, found, words, tables))
    pages.save(folder / "manifest.json", facts | {"settings": plan.table()})
    title = f"{words.title}, scale {plan.scale}"
    sections = [(table.title, pages.table_part(table)) for table in results]
    for half in halves:
        sections += _curves_sections(half, several=len(halves) > 1)
    sections += [(section.title, section.body) for section in own]
    sections += [(table.title, pages.table_part(table)) for table in background]
    sections += _last_sections(plan, found, facts)
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
    def of(cls, plan: Plan, found: Collected, start: str, axes: tuple[Axis, ...]) -> "_Half":
        groups = [group for group in found.groups if plan.start(group.label) == start]
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


def collect(plan: Plan) -> Collected:
    """Read all runs of a plan that are done; each method's learning rate is chosen among those that are."""
    made = {model: [run for seed in plan.seeds if _done(run := plan.mle(seed, model))] for model in plan.models}
    parents: dict[Path, Path] = {}
    rates = {method: rate_scores(plan, method) for method in plan.methods}
    done = sum(map(len, made.values()))
    tuned: list[Group] = []
    for method, scores in rates.items():
        known = {rate: score for rate, score in scores.items() if score is not None}
        done += len(known)
        if not known:
            continue
        best = max(known, key=lambda rate: known[rate])
        seeds = [seed for seed in plan.seeds if _done(plan.run(seed, method, best))]
        done += len(seeds) - 1
        tuned.append(Group(method, [plan.run(seed, method, best) for seed in seeds]))
        parents |= {plan.run(seed, method, best): plan.mle(seed, plan.start(method)) for seed in seeds}
    tuned = [group for group in tuned if group.runs]
    groups: list[Group] = []
    for model, runs in made.items():  # each model, then what was made of it
        groups += [Group(model, runs)] if runs else []
        groups += [group for group in tuned if plan.start(group.label) == model]
    if not groups:
        raise InputError(f"there is nothing to report: no run in {plan.out} is finished")
    studies = {study.name: read_study(plan, study) for study in plan.experiment.studies}
    return Collected(compare(groups, parents), tuned, rates, studies, plan.runs - done)


def _done(directory: Path) -> bool:
    return (directory / RESULT).exists()


def result_tables(plan: Plan, found: Collected, words: Words) -> list[TextTable]:
    """The table itself, and those that tell more of the same results."""
    return _filled([_with_paper(found.comparison.tables()[0], words), *words.tables(plan, found)])


def background_tables(plan: Plan, found: Collected) -> list[TextTable]:
    """What stands behind the results."""
    return _filled([_rates_table(plan, found), found.comparison.tables()[1], _variance_table(plan, found)])


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


def _rates_table(plan: Plan, found: Collected) -> TextTable:
    if len(plan.rates) == 1:
        return TextTable("Learning rates", ["method"], [])
    chosen = {method.label: method.rate for method in found.methods}
    rows = [
        [method, *(percent(score) for score in scores.values()), chosen.get(method, NOTHING)]
        for method, scores in found.rates.items()
    ]
    note = (
        f"{found.comparison.measure.name} on the validation data, times 100, of the best weights with each learning "
        f"rate, seed {plan.seeds[0]}. The best rate of each method is used for all seeds."
    )
    return TextTable("Learning rates", ["method", *(f"{rate:g}" for rate in plan.rates), "chosen"], rows, [note])


def _variance_table(plan: Plan, found: Collected) -> TextTable:
    rows = []
    for method in found.methods:
        if method.label in plan.models:
            continue
        probe = found.probes.get(method.label)
        cells = [method.label, number(method.first_rollouts), number(method.last_rollouts), number(method.variance)]
        if probe is None:
            cells += [NOTHING] * 3
        else:
            cells += [
                f"{number(probe['variance'])} ± {number(probe['variance_error'])}",
                count_words(probe["tokens"]),
                number(probe["variance"] * probe["tokens"]),
            ]
        rows.append(cells)
    header = [
        "method",
        "first rollouts",
        "last rollouts",
        "running variance",
        "variance at\u00a0start",
        "tokens an\u00a0estimate",
        "variance ×\u00a0tokens",
    ]
    examples = found.comparison.measure.examples
    note = (
        "First and last rollouts: completed branches, greedy baselines included, for each token of the main "
        "trajectories, in the first and in the last tenth of the updates. Running variance: exponential average along "
        f"training, of the gradient for {plan.finetune.batch_size} {examples}, mean over updates."
    )
    if found.probes:
        note += (
            f" Variance at start: trace of the covariance of {plan.probes} independent estimates at the weights "
            f"that the method starts from, seed {plan.seeds[0]}, for the same {examples}, ± its standard "
            f"error. Times the tokens that an estimate generates, it is less for the unbiased method that is better at "
            f"equal cost."
        )
    if "RL_beam" in plan.methods:
        note += " RL_beam does not sample: its gradient has no variance at given weights, but is biased."
    return TextTable("Rollouts and variance of the gradient", header, rows, [note])


def _table_json(plan: Plan, found: Collected, words: Words, tables: list[TextTable]) -> dict[str, Any]:
    comparison = found.comparison.table()
    for method in comparison["methods"]:
        method["runs"] = [str(Path(run).relative_to(plan.out)) for run in method["runs"]]
    return {
        "scale": plan.scale,
        "missing_runs": found.missing,
        "comparison": comparison,
        "rates": {method: {f"{r:g}": score for r, score in own.items()} for method, own in found.rates.items()},
        "probes": found.probes,
        "paper": {method: dict(own) for method, own in words.paper.items()},
        "tables": [asdict(table) for table in tables],
    }


def _lead(plan: Plan, found: Collected, words: Words) -> str:
    tuning = plan.finetune
    clock = " of processor time" if tuning.unit == "seconds" and tuning.clock == "cpu" else ""
    part = f" Not all of it is done: {found.missing} runs are missing." if found.missing else ""
    return (
        f"{words.lead(plan)} by maximum likelihood; from its weights each method then fine-tunes for "
        f"{tuning.budget:,.0f} {tuning.unit}{clock}. Seeds: {len(plan.seeds)}.{part}"
    )


def _curves_sections(half: _Half, several: bool) -> list[tuple[str, str]]:
    band = html.paragraph("Mean over seeds, with the range from the lowest to the highest.")
    names = {"seconds": "time", "tokens": "tokens", "updates": "updates"}
    start = f" from {half.start}" if several else ""
    return [
        (f"Training{start}, against {names[x]}", pages.curves_part(own, x) + band) for x, own in half.curves.items()
    ]


def _last_sections(plan: Plan, found: Collected, facts: dict[str, Any]) -> list[tuple[str, str]]:
    configs = {method.label: Run.open(Path(method.runs[0])).config for method in found.methods}
    flat = {label: pages.flat_settings(config, pages.OF_A_SEED | {"folder"}) for label, config in configs.items()}
    names = ", ".join(f"{method}: {plan.estimator(method)}" for method in plan.methods)
    return [
        ("Settings", html.paragraph(f"Estimators: {names}.") + pages.settings_part(flat)),
        ("How this was made", html.facts(facts)),
    ]
