"""The report of the comparison: tables of final rewards and of the cost to reach TRL's, and the figure of curves."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.language_models.compare import Comparison
from benchmarks.language_models.pretraining import Kind
from benchmarks.language_models.runs import run_file
from benchmarks.language_models.settings import METHODS, RunSettings
from benchmarks.language_models.summary import COSTS, MethodSummary, bar_of_trl
from corollout.errors import InputError
from corollout.files import read_json, write_file
from corollout.reports.curves import plot_band
from corollout.reports.figures import figure_style, png
from corollout.reports.manifest import manifest
from corollout.reports.report import Facts, Paragraph, Report, Section, Table
from corollout.reports.tables import NOTHING, count_text

TRL = tuple(name for name, method in METHODS.items() if method.library == "trl")
NAMES: dict[Kind, str] = {"causal": "Causal transformer", "seq2seq": "T5-shaped encoder-decoder"}
AXES = {
    "seconds": ("seconds of training", 1.0),
    "tokens": ("thousand completion tokens", 1e3),
    "reward_calls": ("thousand reward calls", 1e3),
}
E2E_PARTS = {"cider": "CIDEr-D (0 to 10), greedy", "coverage": "slot F1, greedy"}
WORDS_PARTS = {"exact": "exact, greedy"}
WORDS_LEAD = (
    "Sentences with an exact number of words, by a chat model of 135 million weights: TRL's trainer and ours from the "
    "same weights, with the same prompts, optimizer and seconds of training. Rewards are means over prompts whose "
    "topics do not occur in training."
)
LEAD = (
    "E2E data-to-text: the same weights after maximum likelihood, fine-tuned by TRL's trainers and by ours on the same "
    "reward, half CIDEr-D against all references and half F1 of the slots, for the same seconds of training. Rewards "
    "are means over a fixed part of the development set, ± half of a 95 % interval over seeds."
)


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write table.md, report.json, the figures and a page from all finished runs; return the page."""
    summaries: dict[Kind, dict[str, MethodSummary]] = {kind: read_summaries(comparison, kind) for kind in NAMES}
    if not any(summaries.values()):
        raise InputError(f"{comparison.out} has no finished runs: run the step train first")
    sections = [section(title, summaries[kind], E2E_PARTS) for kind, title in NAMES.items() if summaries[kind]]
    sections.append(settings_of(comparison))
    report = Report(
        "language-models",
        "Language models: ours beside TRL",
        LEAD,
        sections,
        manifest(command="python -m benchmarks.language_models report", settings=asdict(comparison.base)),
        {kind: {name: one.numbers() for name, one in methods.items()} for kind, methods in summaries.items()},
    )
    page = report.write(folder)
    for kind, methods in summaries.items():
        if methods:
            write_file(folder / f"{kind}.png", png(curves(methods, "sampled")))
            write_file(folder / f"{kind}-greedy.png", png(curves(methods, "greedy")))
    return page


def read_summaries(comparison: Comparison, kind: Kind) -> dict[str, MethodSummary]:
    """Of each method, the runs that are finished."""
    files: dict[str, list[Path]] = {}
    for settings in comparison.runs(kind):
        file = run_file(comparison.folder(kind), settings)
        if file.exists():
            files.setdefault(settings.method, []).append(file)
    return {method: MethodSummary.read(method, of_seeds) for method, of_seeds in files.items()}


def write_words_report(runs: Sequence[RunSettings], folder: Path, runs_folder: Path) -> Path:
    """The same for the runs with exact word counts."""
    files = {settings.method: run_file(runs_folder, settings) for settings in runs}
    methods = {method: MethodSummary.read(method, [file]) for method, file in files.items() if file.exists()}
    if not methods:
        raise InputError(f"{runs_folder} has no finished runs")
    base = runs[0]
    shared = {"model": base.model.name, "learning rate": base.learning_rate, **shared_settings(base)}
    report = Report(
        "language-models-words",
        "SmolLM2-135M-Instruct: ours beside TRL",
        WORDS_LEAD,
        [section("Exact word counts", methods, WORDS_PARTS), Section("Settings", [Facts(shared)])],
        manifest(command="python -m benchmarks.language_models words", settings=asdict(base)),
        {name: one.numbers() for name, one in methods.items()},
    )
    page = report.write(folder)
    write_file(folder / "curves.png", png(curves(methods, "sampled")))
    return page


def section(title: str, methods: Mapping[str, MethodSummary], parts: Mapping[str, str]) -> Section:
    tables = [final_table(methods, parts)]
    if (bar := bar_of_trl(methods, TRL, "sampled")) is not None:
        tables.append(speed_table(methods, bar))
    return Section(title, tables)


def final_table(methods: Mapping[str, MethodSummary], parts: Mapping[str, str]) -> Table:
    """``parts`` are entries of greedy evaluations with their headings."""
    header = ["method", "sampled reward", "greedy reward", *parts.values(), "updates", "tokens"]
    first = next(iter(methods.values()))
    start = {decoding: first.rewards(decoding)[0].mean for decoding in ("sampled", "greedy")}
    opening = [first.rewards("greedy", entry)[0].mean for entry in parts]
    texts = [f"{value:.3f}" for value in (start["sampled"], start["greedy"], *opening)]
    rows = [["at the start", *texts, NOTHING, NOTHING]]
    for name, one in methods.items():
        rewards = [one.final(decoding).text() for decoding in ("sampled", "greedy")]
        others = [one.final("greedy", entry).text() for entry in parts]
        updates = float(np.mean([run[-1]["updates"] for run in one.runs]))
        rows.append([name, *rewards, *others, f"{updates:,.0f}", count_text(one.costs("tokens")[-1])])
    seeds = max(len(one.runs) for one in methods.values())
    return Table("After all seconds", header, rows, [f"Seeds: {seeds}."])


def speed_table(methods: Mapping[str, MethodSummary], bar: float) -> Table:
    """What each method needs to reach the higher one of TRL's final rewards, and which share of the seconds."""
    reached = {name: [one.cost_to_reach(bar, "sampled", cost) for cost in COSTS] for name, one in methods.items()}
    full = max(methods[name].costs("seconds")[-1] for name in TRL if name in methods)
    rows = []
    for name, (seconds, tokens, calls) in reached.items():
        if seconds is None or tokens is None or calls is None:
            rows.append([name, *[NOTHING] * 4])
        else:
            rows.append([name, f"{seconds:,.0f}", f"{seconds / full:.2f}", count_text(tokens), count_text(calls)])
    return Table(
        "To reach TRL's final reward",
        ["method", "seconds", "of TRL's seconds", "tokens", "reward calls"],
        rows,
        [f"The bar is a sampled reward of {bar:.3f}; mean curves over seeds, interpolated between evaluations."],
    )


def settings_of(comparison: Comparison) -> Section:
    rates = read_json(comparison.rates_file)
    rows = [
        [
            method,
            *(f"{rewards[rate]:.4f}" + (" *" if float(rate) == rates["chosen"][method] else "") for rate in rewards),
        ]
        for method, rewards in rates["rewards"].items()
    ]
    header = ["method", *next(iter(rates["rewards"].values()))]
    table = Table(
        "Learning rates", header, rows, ["Sampled reward after a short run with the first seed; * is chosen."]
    )
    shared = shared_settings(comparison.base)
    note = Paragraph(
        "All methods share these settings; AdamW without weight decay, a constant learning rate, no KL term."
    )
    return Section("Settings", [table, note, Facts({**shared, "seconds": comparison.seconds})])


def shared_settings(base: RunSettings) -> dict[str, Any]:
    """What all runs of a report have in common."""
    hidden = ("method", "learning_rate", "seed", "model", "train", "dev")
    return {name: value for name, value in asdict(base).items() if name not in hidden}


def curves(methods: Mapping[str, MethodSummary], decoding: str) -> Figure:
    """Reward on the development set against seconds, tokens and reward calls, with intervals."""
    with figure_style():
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        panels: Sequence[Any] = figure.subplots(1, len(AXES), sharey=True)
        for panel, cost in zip(panels, COSTS, strict=True):
            label, divisor = AXES[cost]
            for index, (name, one) in enumerate(methods.items()):
                rewards = one.rewards(decoding)
                means = np.array([reward.mean for reward in rewards])
                widths = np.array([reward.half_width or 0.0 for reward in rewards])
                x = np.array(one.costs(cost)) / divisor
                plot_band(panel, index, name, np.stack([x, means, means - widths, means + widths]), 1)
            panel.set(xlabel=label, xlim=(0, None))
        panels[0].set_ylabel(f"reward, {decoding}")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(methods))
    return figure
