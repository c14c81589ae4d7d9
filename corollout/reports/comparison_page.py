"""A comparison of runs as a folder: a page, the figure, the table, and all numbers."""

import json
from collections.abc import Sequence
from pathlib import Path

from corollout.errors import InputError
from corollout.reports import html, pages
from corollout.reports.comparison import Comparison
from corollout.reports.curves import Axis, Curves, Group, read_curves
from corollout.reports.manifest import manifest
from corollout.reports.tables import percent, percent_range
from corollout.training.runs import Run

RESULTS = "results.json"
_KIND = "comparison"  # what results.json says it is


def check_folder(folder: Path) -> None:
    """Refuse to write into a folder that holds anything but an earlier comparison."""
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return
    except OSError as error:
        raise InputError(f"cannot use {folder}: {error.strerror or error}; choose another folder with --out") from error
    try:
        if json.loads((folder / RESULTS).read_text("utf-8")).get("kind") == _KIND:
            return
    except (OSError, ValueError, AttributeError):
        pass
    raise InputError(f"{folder} is not empty and holds no earlier comparison: choose another folder with --out")


def write_comparison(comparison: Comparison, groups: Sequence[Group], folder: Path, x: Axis) -> None:
    """Write everything about a comparison, figures against ``x``."""
    check_folder(folder)
    pages.make_folder(folder)
    facts = manifest()
    tables = comparison.tables()
    curves = drawn_curves(comparison, groups, x)
    if curves:
        pages.write_figures(folder, curves, x)
    heading = f"# {_title(comparison)}\n\n{_lead(comparison)}\n\n"
    pages.save(folder / "table.md", heading + "\n".join(table.markdown() for table in tables))
    pages.save(folder / RESULTS, {"kind": _KIND, **comparison.table(), "manifest": facts})
    sections = [(tables[0].title, pages.table_part(tables[0]))]
    if curves:
        words = html.paragraph("Mean over seeds, with the range from the lowest to the highest.")
        several = any(len(group.runs) > 1 for group in groups)
        sections.append((f"Training, against {x}", pages.curves_part(curves, x) + (words if several else "")))
    sections += [(table.title, pages.table_part(table)) for table in tables[1:]]
    configs = {group.label: pages.flat_settings(Run.open(group.runs[0]).config) for group in groups}
    sections += [
        ("Settings", pages.settings_part(configs)),
        ("Runs", html.table(["method", "seed", "directory"], _runs(comparison))),
        ("How this was made", html.facts(facts)),
    ]
    pages.save(folder / "report.html", pages.page(_title(comparison), _lead(comparison), sections))


def drawn_curves(comparison: Comparison, groups: Sequence[Group], x: Axis) -> list[Curves]:
    """The curves of fine-tuned methods; those of maximum likelihood, whose axis is another one, only if alone."""
    kinds = {method.label: method.kind for method in comparison.methods}
    wanted = "finetune" if "finetune" in kinds.values() else "pretrain"
    recorded = [group for group in groups if all(Run.open(run).records() for run in group.runs)]
    return [read_curves(group, x) for group in recorded if kinds[group.label] == wanted]


def _runs(comparison: Comparison) -> list[list[str]]:
    return [
        [method.label, str(seed), run]
        for method in comparison.methods
        for seed, run in zip(method.seeds, method.runs, strict=True)
    ]


def _title(comparison: Comparison) -> str:
    labels = [method.label for method in comparison.methods]
    if len(labels) > 4:
        return f"Comparison of {len(labels)} methods"
    return f"{', '.join(labels[:-1])} and {labels[-1]}" if len(labels) > 1 else labels[0]


def _lead(comparison: Comparison) -> str:
    split = "test" if all("test" in method.scores for method in comparison.methods) else "val"
    best = max(comparison.methods, key=lambda method: method.scores[split].mean)
    score = best.scores[split]
    interval = "" if score.interval is None else f" (95 % interval {percent_range(score.interval)})"
    measure = comparison.metric
    most = " has the highest" if len(comparison.methods) > 1 else " has a"
    count = "the" if score.count is None else f"{score.count:,}"
    runs = sum(len(method.runs) for method in comparison.methods)
    return (
        f"{runs} run{'' if runs == 1 else 's'}. On {count} {'test' if split == 'test' else 'validation'} "
        f"{measure.examples} {best.label}{most} {measure.name}, {percent(score.mean)}{measure.unit}{interval}."
    )
