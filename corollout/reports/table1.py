"""The report of the paper's first table: what was measured, beside what the paper says."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corollout.errors import InputError
from corollout.experiments.probes import read_probes
from corollout.experiments.table1 import METHODS, MLE, RESULT, Plan, rate_scores
from corollout.reports import html, pages
from corollout.reports.comparison import Comparison, Method, compare, count_words
from corollout.reports.curves import Axis, Curves, Group, read_curves
from corollout.reports.manifest import manifest
from corollout.reports.text import NOTHING, TextTable, number, percent, without_empty_columns
from corollout.training.runs import Run

# Validation and test, greedy decoding without a grammar, in per cent.
PAPER = {
    "MLE": (13.6, 12.76),
    "SC": (12.51, 12.12),
    "MC-0": (12.64, 12.56),
    "MC-2": (13.56, 12.76),
    "RL_beam": (14.76, 14.92),
    "ARSM": (17.07, 16.28),
}
PAPER_NOTE = (
    "The paper's numbers, in per cent, are of other tasks, with programs of up to 45 tokens in worlds of up to 16 by "
    "16, and of a model of 12 million weights. They are here for orientation: the order of methods may agree, no "
    "number has to."
)
AXES: tuple[Axis, ...] = ("seconds", "tokens")
FIGURES = {"seconds": "figure", "tokens": "figure-tokens"}
_DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Collected:
    """What is done of a plan."""

    comparison: Comparison
    groups: list[Group]  # fine-tuned methods only
    rates: dict[str, dict[float, float | None]]  # validation Generalization of each learning rate, with the first seed
    probes: dict[str, dict[str, Any]]
    missing: int  # runs of the table that are not done

    @property
    def methods(self) -> list[Method]:
        return self.comparison.methods


def write_table1(plan: Plan, folder: Path) -> Collected:
    """Write tables, figures and a page about everything that is done of the plan, and return it."""
    found = collect(plan)
    pages.make_folder(folder)
    facts = manifest(scale=plan.scale, seeds=list(plan.seeds))
    tables = all_tables(plan, found)
    curves: dict[Axis, list[Curves]] = {x: [read_curves(group, x) for group in found.groups] for x in AXES}
    pages.save(folder / "curves.json", {x: [one.table() for one in own] for x, own in curves.items()}, indent=None)
    redraw(folder)
    heading = f"# Karel, scale {plan.scale}\n\n{_lead(plan, found)}\n\n"
    pages.save(folder / "table.md", heading + "\n".join(table.markdown() for table in tables))
    pages.save(folder / "table.json", _table_json(plan, found))
    pages.save(folder / "manifest.json", facts | {"settings": plan.table()})
    pages.save(folder / "report.html", _page(plan, found, tables, curves, facts))
    return found


def redraw(folder: Path) -> None:
    """Draw the figures from the curves that lie in the folder; the runs are not needed for it."""
    table = json.loads((folder / "curves.json").read_text("utf-8"))
    for x in AXES:
        if table[x]:
            pages.write_figures(folder, [Curves.from_table(one) for one in table[x]], x, FIGURES[x])


def collect(plan: Plan) -> Collected:
    """Read all runs of a plan that are done; each method's learning rate is chosen among those that are."""
    wanted = len(plan.seeds) * (1 + len(plan.methods)) + (len(plan.rates) - 1) * len(plan.methods)
    groups = [Group(MLE, [plan.mle(seed) for seed in plan.seeds if _done(plan.mle(seed))])]
    parents: dict[Path, Path] = {}
    rates = {method: rate_scores(plan, method) for method in plan.methods}
    done = len(groups[0].runs)
    for method, scores in rates.items():
        known = {rate: score for rate, score in scores.items() if score is not None}
        done += len(known)
        if not known:
            continue
        best = max(known, key=lambda rate: known[rate])
        seeds = [seed for seed in plan.seeds if _done(plan.run(seed, method, best))]
        done += len(seeds) - 1
        groups.append(Group(method, [plan.run(seed, method, best) for seed in seeds]))
        parents |= {plan.run(seed, method, best): plan.mle(seed) for seed in seeds}
    groups = [group for group in groups if group.runs]
    if not groups:
        raise InputError(f"there is nothing to report: no run in {plan.out} is finished")
    tuned = [group for group in groups if group.label != MLE]
    return Collected(compare(groups, parents), tuned, rates, read_probes(plan), wanted - done)


def _done(directory: Path) -> bool:
    return (directory / RESULT).exists()


def all_tables(plan: Plan, found: Collected) -> list[TextTable]:
    """The table itself, then what stands behind it."""
    result, cost = found.comparison.tables()
    tables = [_with_paper(result), _rates_table(plan, found), _beam_table(found), cost, _variance_table(plan, found)]
    return [table for table in map(without_empty_columns, tables) if table.rows and len(table.header) > 1]


def _with_paper(result: TextTable) -> TextTable:
    def paper(label: str) -> list[str]:
        return [f"{value:.2f}" for value in PAPER[label]] if label in PAPER else [NOTHING, NOTHING]

    return TextTable(
        "Generalization",
        [*result.header, "paper: validation", "paper: test"],
        [[*row, *paper(row[0])] for row in result.rows],
        [*result.notes, PAPER_NOTE],
    )


def _rates_table(plan: Plan, found: Collected) -> TextTable:
    chosen = {method.label: method.rate for method in found.methods}
    rows = [
        [method, *(percent(score) for score in scores.values()), chosen.get(method, NOTHING)]
        for method, scores in found.rates.items()
    ]
    note = (
        f"Validation Generalization in per cent of the best weights with each learning rate, seed {plan.seeds[0]}. The "
        f"best rate of each method is used for all seeds."
    )
    return TextTable("Learning rates", ["method", *(f"{rate:g}" for rate in plan.rates), "chosen"], rows, [note])


def _beam_table(found: Collected) -> TextTable:
    tops = {method.label: method.scores["test"].top for method in found.methods if "test" in method.scores}
    longest = max((len(top) for top in tops.values()), default=0)
    depths = [k for k in _DEPTHS if k <= longest]
    rows = [
        [label, *(percent(top[k - 1]) if k <= len(top) else NOTHING for k in depths)] for label, top in tops.items()
    ]
    note = (
        f"Share of test tasks in per cent for which one of the first k programs of a beam of {longest} is right on all "
        f"examples, mean over seeds."
    )
    return TextTable("Beam search, test", ["method", *(f"top {k}" for k in depths)], rows, [note])


def _variance_table(plan: Plan, found: Collected) -> TextTable:
    rows = []
    for method in found.methods:
        if method.label == MLE:
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
    note = (
        "First and last rollouts: completed branches, greedy baselines included, for each token of the main "
        "trajectories, in the first and in the last tenth of the updates. Running variance: exponential average along "
        f"training, of the gradient for {plan.finetune.batch_size} tasks, mean over updates."
    )
    if found.probes:
        note += (
            f" Variance at start: trace of the covariance of {plan.probes} independent estimates at the weights of "
            f"maximum likelihood, seed {plan.seeds[0]}, for the same tasks, ± its standard error. Times the tokens "
            f"that an estimate generates, it is less for the unbiased method that is better at equal cost. RL_beam "
            f"does not sample: its gradient has no variance at given weights, but is biased."
        )
    return TextTable("Rollouts and variance of the gradient", header, rows, [note])


def _table_json(plan: Plan, found: Collected) -> dict[str, Any]:
    comparison = found.comparison.table()
    for method in comparison["methods"]:
        method["runs"] = [str(Path(run).relative_to(plan.out)) for run in method["runs"]]
    return {
        "scale": plan.scale,
        "missing_runs": found.missing,
        "comparison": comparison,
        "rates": {method: {f"{r:g}": score for r, score in own.items()} for method, own in found.rates.items()},
        "probes": found.probes,
        "paper": {method: dict(zip(("val", "test"), shares, strict=True)) for method, shares in PAPER.items()},
    }


def _lead(plan: Plan, found: Collected) -> str:
    data, tuning = plan.data, plan.finetune
    clock = " of processor time" if tuning.unit == "seconds" and tuning.clock == "cpu" else ""
    part = f" Not all of it is done: {found.missing} runs are missing." if found.missing else ""
    return (
        f"A model learns from {data.train:,} tasks with programs of {data.shortest} to {data.longest} tokens, by "
        f"maximum likelihood; from its weights each method then fine-tunes for {tuning.budget:,.0f} {tuning.unit}"
        f"{clock}, on a reward that is 1 for a program that is right on all examples of its task, else 0. Seeds: "
        f"{len(plan.seeds)}.{part}"
    )


def _page(
    plan: Plan, found: Collected, tables: list[TextTable], curves: dict[Axis, list[Curves]], facts: dict[str, Any]
) -> str:
    sections = [(tables[0].title, pages.table_part(tables[0]))]
    if found.groups:
        band = html.paragraph("Mean over seeds, with the range from the lowest to the highest.")
        sections += [
            ("Training, against time", pages.curves_part(curves["seconds"], "seconds") + band),
            ("Training, against tokens", pages.curves_part(curves["tokens"], "tokens") + band),
        ]
    sections += [(table.title, pages.table_part(table)) for table in tables[1:]]
    own = {method.label: Run.open(Path(method.runs[0])).config for method in found.methods}
    flat = {label: pages.flat_settings(config, pages.OF_A_SEED | {"folder"}) for label, config in own.items()}
    names = ", ".join(f"{method}: {METHODS[method]}" for method in plan.methods)
    sections += [
        ("Settings", html.paragraph(f"Estimators: {names}.") + pages.settings_part(flat)),
        ("How this was made", html.facts(facts)),
    ]
    return pages.page(f"Fine-tuning a Karel synthesiser, scale {plan.scale}", _lead(plan, found), sections)
