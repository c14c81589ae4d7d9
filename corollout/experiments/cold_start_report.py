"""The report of the cold start: what each method has learned in its seconds, and what its first update took."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corollout.errors import InputError
from corollout.experiments.cold_start import METHODS, ColdStart, First, Found, Results, Trial
from corollout.reports import html, pages
from corollout.reports.comparison import count_words
from corollout.reports.curves import Axis, Band, Curves, Panel, draw_curves, evaluation_band
from corollout.reports.manifest import manifest
from corollout.reports.tables import NOTHING, TextTable, number

_FIGURES: dict[Axis, str] = {"seconds": "figure", "tokens": "figure-tokens"}


@dataclass(frozen=True)
class Outcome:
    """A method with one number of tokens: its reward with every learning rate, and its runs with the best of them."""

    vocab: int
    label: str
    rewards: dict[float, dict[int, float]]  # when the seconds are used, by rate and by seed
    rate: float
    runs: list[Found]
    first_update: Found

    @property
    def final(self) -> list[float]:
        return list(self.rewards[self.rate].values())

    def mean(self, name: str) -> float:
        """Of the seeds' last tokens or updates."""
        return float(np.mean([run["curve"][name][-1] for run in self.runs]))

    def rollouts(self, end: int) -> float | None:
        """Rollouts per step in the first (0) or in the last (1) tenth of the updates."""
        return float(np.mean([run["rollouts"][end] for run in self.runs])) if self.runs[0]["rollouts"] else None


def reward_at(run: Found, place: float | int, axis: Axis = "seconds") -> float:
    """A run's reward after some seconds, tokens or updates, between the evaluations before and after; the last one's
    if none is after."""
    return float(np.interp(place, run["curve"][axis], run["curve"]["reward"]))


def outcomes(results: Results) -> list[Outcome]:
    """Of what is done; a method's rate is that with the highest mean over its seeds."""
    plan, found = results.plan, []
    for vocab in plan.vocabularies:
        for label in METHODS:
            runs = {
                rate: {seed: run for seed in plan.seeds if (run := results.of(Trial(vocab, label, rate, seed)))}
                for rate in plan.rates
            }
            rewards = {
                rate: {seed: reward_at(run, plan.seconds) for seed, run in own.items()}
                for rate, own in runs.items()
                if own
            }
            if not rewards:
                continue
            best = max(rewards, key=lambda rate: np.mean(list(rewards[rate].values())))
            first = results.done[First(vocab, label).name]
            found.append(Outcome(vocab, label, rewards, best, list(runs[best].values()), first))
    return found


def write_cold_start(results: Results, folder: Path) -> list[TextTable]:
    """Write tables, figures and a page of everything that is done; return the tables of results."""
    plan, found = results.plan, outcomes(results)
    if not found:
        raise InputError("there is nothing to report: no run of the cold start is finished")
    pages.make_folder(folder)
    vocabularies = dict.fromkeys(one.vocab for one in found)
    tables = [_table(plan, [one for one in found if one.vocab == vocab], vocab) for vocab in vocabularies]
    background = [_rates_table(plan, found)] if len(plan.rates) > 1 else []
    title, lead = f"Cold start, scale {plan.scale}", _lead(results)
    text = "\n".join(table.markdown() for table in [*tables, *background])
    pages.save(folder / "table.md", f"# {title}\n\n{lead}\n\n{text}")
    pages.save(folder / "table.json", _json(results, found, [*tables, *background]))
    facts = manifest(scale=plan.scale, seeds=list(plan.seeds))
    pages.save(folder / "manifest.json", facts | {"settings": plan.settings()})
    sections = [
        *((table.title, pages.table_part(table)) for table in tables),
        *_figures(plan, found, folder),
        *((table.title, pages.table_part(table)) for table in background),
        ("Settings", _settings(plan)),
        ("How this was made", html.facts(facts)),
    ]
    pages.save(folder / "report.html", pages.page(title, lead, sections))
    return tables


def _figures(plan: ColdStart, found: Sequence[Outcome], folder: Path) -> list[tuple[str, str]]:
    """The figures as files, and as sections of the page."""
    panels = [Panel(key, "evaluation", f"Mean reward, {key}") for key in dict.fromkeys(map(_key, found))]
    band = html.paragraph("Mean over seeds, with the range from the lowest to the highest.")
    sections = []
    for x, name in _FIGURES.items():
        curves = _curves(plan, found, x)
        pages.save_figure(folder, name, draw_curves(curves, x, panels))
        sections.append((f"Reward against {x}", pages.curves_part(curves, x, panels) + band))
    return sections


def _settings(plan: ColdStart) -> str:
    estimators = ", ".join(f"{label}: {estimator}" for label, estimator in METHODS.items())
    others = {name: value for name, value in plan.settings().items() if name != "methods"}
    return html.paragraph(f"Estimators: {estimators}.") + html.facts(others)


def _key(outcome: Outcome) -> str:
    return f"V = {outcome.vocab:,}"


def _lead(results: Results) -> str:
    plan = results.plan
    part = f" Not all of it is done: {len(results.missing)} parts are missing." if results.missing else ""
    return (
        f"From random weights, {plan.contexts} contexts, {plan.length} tokens for each, the reward of a token being "
        f"how near it is to the one that is wanted. Every run has {plan.seconds:g} seconds of processor time. Seeds: "
        f"{len(plan.seeds)}.{part}"
    )


def _table(plan: ColdStart, found: Sequence[Outcome], vocab: int) -> TextTable:
    rows = []
    ends = [run["curve"]["tokens"][-1] for one in found for run in one.runs]
    shared = min((end for end in ends if end > 0), default=0)  # tokens that every run has, of those that make any
    for one in found:
        spread = f" ± {np.std(one.final, ddof=1):.3f}" if len(one.final) > 1 else ""
        early = np.mean([reward_at(run, shared, "tokens") for run in one.runs])
        rows.append(
            [
                one.label,
                f"{one.rate:g}" if one.mean("updates") else NOTHING,
                f"{np.mean(one.final):.3f}{spread}",
                f"{early:.3f}" if one.mean("updates") else NOTHING,
                number(one.mean("updates")),
                count_words(one.mean("tokens")),
                _rollouts(one),
                number(one.first_update["seconds"]),
            ]
        )
    start = np.mean([run["curve"]["reward"][0] for one in found for run in one.runs])
    note = (
        f"Reward: mean of {plan.samples} sequences for each context after {plan.seconds:g} seconds, with the best "
        f"learning rate of {', '.join(f'{rate:g}' for rate in plan.rates)}; mean over seeds, ± their standard "
        f"deviation. At the start it is {start:.3f}. Equal tokens: the reward of the same runs after {shared:,} "
        "tokens, the fewest that any of them has. Rollouts for each token of the main trajectories, in the first and "
        "in the last tenth of the updates. First seconds: those of the first update. A method whose first update takes "
        "longer than a run has seconds makes none."
    )
    counts = ["updates", "tokens", "rollouts", "first seconds"]
    return TextTable(f"V = {vocab:,}", ["method", "rate", "reward", "equal tokens", *counts], rows, [note])


def _rollouts(one: Outcome) -> str:
    first, last = (NOTHING if (some := one.rollouts(end)) is None else f"{some:.1f}" for end in (0, 1))
    return first if first == last else f"{first}→{last}"


def _rates_table(plan: ColdStart, found: Sequence[Outcome]) -> TextTable:
    rows = [
        [
            one.label,
            f"{one.vocab:,}",
            *(
                f"{np.mean(list(own.values())):.3f}" if (own := one.rewards.get(rate)) else NOTHING
                for rate in plan.rates
            ),
        ]
        for one in found
        if one.mean("updates")
    ]
    note = f"Reward after {plan.seconds:g} seconds with each learning rate, mean over seeds."
    return TextTable("Learning rates", ["method", "V", *(f"{rate:g}" for rate in plan.rates)], rows, [note])


def _curves(plan: ColdStart, found: Sequence[Outcome], x: Axis) -> list[Curves]:
    return [
        Curves(label, {_key(one): _band(plan, one, x) for one in found if one.label == label}, {}, "")
        for label in dict.fromkeys(one.label for one in found)
    ]


def _band(plan: ColdStart, outcome: Outcome, x: Axis) -> Band:
    series = []
    for run in outcome.runs:
        places, values = run["curve"][x], run["curve"]["reward"]
        if x == "seconds" and len(places) == 1:  # no update was made: all the time it was where it had started
            places, values = [0.0, plan.seconds], values * 2
        series.append((np.array(places, dtype=float), np.array(values)))
    return evaluation_band(series)


def _json(results: Results, found: Sequence[Outcome], tables: Sequence[TextTable]) -> dict[str, Any]:
    methods = [
        {
            "vocab": one.vocab,
            "method": one.label,
            "estimator": METHODS[one.label],
            "rate": one.rate,
            "rewards": {f"{rate:g}": own for rate, own in one.rewards.items()},
            "updates": one.mean("updates"),
            "tokens": one.mean("tokens"),
            "rollouts": [one.rollouts(0), one.rollouts(1)],
            "first_update": one.first_update,
            "curves": [run["curve"] for run in one.runs],
        }
        for one in found
    ]
    return {
        "scale": results.plan.scale,
        "missing_parts": len(results.missing),
        "methods": methods,
        "tables": [asdict(table) for table in tables],
    }
