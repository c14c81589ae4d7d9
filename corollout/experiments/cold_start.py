"""Cold start: an untrained policy, thousands of actions, and a reward that says how close each token is to the target.

Where all actions are about equally likely, full ARSM wants a rollout for nearly every one of them at every step. Every
method gets the same seconds of CPU time and the same learning rates to choose from; a method whose first update takes
longer than that makes none. Every run is saved when it is done, and a stopped experiment continues.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corollout.config import from_table
from corollout.errors import InputError, PolicyError
from corollout.events import Callback, Event, Progress, ignore
from corollout.experiments.experiment import run_resumable
from corollout.experiments.likeness import LikenessTask, likeness_task
from corollout.experiments.settings import ColdStartSettings
from corollout.files import read_json, write_json
from corollout.folders import FolderLock
from corollout.noise import Noise
from corollout.reports.curves import Axis, Curves, MethodCurves, Panel, evaluation_band
from corollout.reports.manifest import manifest
from corollout.reports.report import Facts, Paragraph, Report, Section, Table
from corollout.reports.tables import NOTHING, count_text, number
from corollout.sweeps.jobs import Job, run_jobs
from corollout.training.finetuning import Trainer
from corollout.training.optimizers import make_adam

METHODS = {
    "ARSM": "arsm",
    "ARSM-256": "arsm:budget=256",
    "ARSM-draws": "arsm:draws=4,budget=256",
    "PAIRS": "pairs",
    "REINFORCE": "reinforce",
    "RLOO": "rloo-8",
    "RLOO-fit": "rloo-8:baseline=fitted",
    "SET-fit": "set-8:baseline=fitted",
}
FILE = "runs.json"
_EVALUATION = 1 << 20  # training uses the seed's noise with small labels
_FIGURES: dict[Axis, str] = {"seconds": "figure", "tokens": "figure-tokens"}


@dataclass(frozen=True)
class Scale:
    """Sizes, budgets, learning rates and seeds."""

    scale: str
    vocabularies: tuple[int, ...]
    contexts: int
    length: int
    dimensions: int  # of the tokens' vectors
    hidden: int
    seconds: float  # of CPU time, for each run
    evaluations: int  # along a run, about
    samples: int  # sequences of each context in an evaluation
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def task(self, vocab: int, seed: int) -> LikenessTask:
        return likeness_task(vocab, self.contexts, self.length, self.dimensions, self.hidden, seed)

    def settings(self) -> dict[str, Any]:
        """As JSON has them, with the methods and their estimators."""
        return json.loads(json.dumps({**asdict(self), "methods": METHODS}))


SCALES = {
    "tiny": Scale("tiny", (50,), 4, 4, 4, 8, 0.05, 3, 4, (0.03,), (0, 1)),
    "small": Scale("small", (1_000, 10_000), 8, 8, 8, 32, 20.0, 12, 16, (0.003, 0.01, 0.03, 0.1)),
}


def first_name(vocab: int, method: str) -> str:
    """The name of the first update of a method, among the results."""
    return f"V = {vocab:,}, {method}, first update"


def run_name(vocab: int, method: str, rate: float, seed: int) -> str:
    return f"V = {vocab:,}, {method}, rate {rate:g}, seed {seed}"


@dataclass
class Runs:
    """All results so far, by name."""

    scale: Scale
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    def names(self, vocab: int, method: str, seed: int) -> list[str]:
        """Everything that the job of a vocabulary, a method and a seed has to do."""
        first = [first_name(vocab, method)] if seed == self.scale.seeds[0] else []
        return first + [run_name(vocab, method, rate, seed) for rate in self.scale.rates]

    def jobs(self, out: Path) -> list[Job]:
        """Seed after seed, so that the results so far cover every method."""
        scale, jobs = self.scale, []
        for seed, vocab, method in product(scale.seeds, scale.vocabularies, METHODS):
            name = f"V = {vocab:,}, {method}"
            # The first seed's job measures whether the method can afford an update.
            after = () if seed == scale.seeds[0] else (f"{name}, seed {scale.seeds[0]}",)
            arguments = {"out": str(out), "vocab": vocab, "method": method, "seed": seed}
            if set(self.names(vocab, method, seed)) - self.done.keys():
                work = "corollout.experiments.cold_start:run_method"
                jobs.append(Job(f"{name}, seed {seed}", work, arguments, after=after))
        return jobs

    @property
    def missing(self) -> int:
        total = len(self.scale.vocabularies) * len(METHODS) * (1 + len(self.scale.rates) * len(self.scale.seeds))
        return total - len(self.done)

    def write(self, out: Path) -> None:
        write_json(out / FILE, {"settings": self.scale.settings(), "done": self.done}, indent=None)


def open_runs(out: Path, scale: str | None = None, seeds: tuple[int, ...] = ()) -> Runs:
    """The results in a folder, with whose settings the given ones must agree; for a new folder, none."""
    known, done = _read(out / FILE)
    name = scale or known.get("scale", "small")
    if name not in SCALES:
        raise InputError(f"the cold start has no scale {name!r}: choose one of {', '.join(SCALES)}")
    chosen = replace(SCALES[name], seeds=seeds or tuple(known.get("seeds", SCALES[name].seeds)))
    if differing := [key for key, value in chosen.settings().items() if known and known.get(key) != value]:
        raise InputError(
            f"{out} was started with other settings ({', '.join(differing)}): leave them out to continue it, or choose "
            f"another folder with --out"
        )
    return Runs(chosen, done)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    if not path.exists():
        return {}, {}
    stored = read_json(path, "remove it to start again")
    try:
        return dict(stored["settings"]), dict(stored["done"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} has no results of the cold start ({error}): remove it to start again") from error


def run_missing(runs: Runs, out: Path, workers: int, on_event: Callback = ignore) -> None:
    """Run everything that is missing; each result is saved at once."""

    def collect(event: Event) -> None:
        if event.kind == "result":
            runs.done[event.record["name"]] = event.record["value"]
            runs.write(out)
        else:
            on_event(event)

    with FolderLock(out) as lock:
        if not (out / FILE).exists():
            lock.require_empty()
        runs.done |= open_runs(out, runs.scale.scale, runs.scale.seeds).done  # what another process did meanwhile
        runs.write(out)  # its settings are those of the jobs
        run_jobs(runs.jobs(out), workers, collect)


def run_method(out: str, vocab: int, method: str, seed: int, on_event: Callback = ignore) -> None:
    """The job of a vocabulary, a method and a seed: what is missing of its first update, and a run for each rate."""
    torch.set_num_threads(1)
    settings, done = _read(Path(out) / FILE)
    scale = from_table(Scale, {name: value for name, value in settings.items() if name != "methods"}, FILE)
    names = Runs(scale).names(vocab, method, seed)
    progress = Progress(on_event, method, len(names), sum(name in done for name in names))
    _trainer(scale.task(10, 0), method, scale.rates[0], 0).step()  # what is compiled on first use is, before we measure

    def report(name: str, value: dict[str, Any], note: str) -> None:
        on_event(Event("result", {"name": name, "value": value}))
        progress.advance(note=note)

    first = first_name(vocab, method)
    if first not in done:
        metrics = _trainer(scale.task(vocab, scale.seeds[0]), method, scale.rates[0], scale.seeds[0]).step()
        spent, rollouts = metrics.seconds, metrics.rollouts_per_step
        done[first] = {"seconds": spent, "tokens": metrics.tokens, "rollouts": rollouts}
        report(first, done[first], f"first update {spent:.3g} seconds, {rollouts:,.0f} rollouts per step")
    seconds = scale.seconds if done[first]["seconds"] <= scale.seconds else 0.0
    for rate in scale.rates:
        if (name := run_name(vocab, method, rate, seed)) not in done:
            value = train(scale, vocab, method, rate, seed, seconds)
            rewards = value["curve"]["reward"]
            report(name, value, value["stopped"] or f"rate {rate:g}: reward {rewards[0]:.3f} to {rewards[-1]:.3f}")


def train(scale: Scale, vocab: int, method: str, rate: float, seed: int, seconds: float) -> dict[str, Any]:
    """A run from random weights: reward, seconds, tokens and updates along it, and its first and last rollouts."""
    task = scale.task(vocab, seed)
    trainer = _trainer(task, method, rate, seed)
    noise = Noise(seed).fold(_EVALUATION)
    curve: dict[str, list[float]] = {name: [] for name in ("seconds", "tokens", "updates", "reward")}

    def evaluate() -> None:
        for name in ("seconds", "tokens", "updates"):
            curve[name].append(getattr(trainer, name))
        curve["reward"].append(task.mean_reward(scale.samples, noise))

    evaluate()
    rollouts: list[float] = []
    every, stopped = scale.seconds / scale.evaluations, ""
    try:
        for metrics in trainer.run(seconds=seconds):
            rollouts.append(metrics.rollouts_per_step)
            if trainer.seconds >= curve["seconds"][-1] + every or trainer.seconds >= seconds:
                evaluate()
    except PolicyError as error:  # a learning rate that is too high: the run ends with what it has
        stopped = str(error)
    tenth = max(1, len(rollouts) // 10)
    ends = [sum(some) / tenth for some in (rollouts[:tenth], rollouts[-tenth:])] if rollouts else []
    return {"curve": curve, "rollouts": ends, "stopped": stopped}


def _trainer(task: LikenessTask, method: str, rate: float, seed: int) -> Trainer:
    optimizer, size = make_adam(task.policy.parameters(), rate), len(task.data)
    return Trainer(
        task.engine,
        task.data,
        task.reward,
        METHODS[method],
        optimizer,
        batch_size=size,
        seed=seed,
        clock="cpu",
        on_event=ignore,
    )


@dataclass(frozen=True)
class MethodResult:
    """A method with one vocabulary: its reward with every learning rate, and its runs with the best."""

    vocab: int
    label: str
    rewards: dict[float, dict[int, float]]  # at the end of the budget, by rate and by seed
    rate: float
    runs: list[dict[str, Any]]
    first_update: dict[str, Any]

    @property
    def key(self) -> str:
        return f"V = {self.vocab:,}"

    def mean(self, name: str) -> float:
        """Mean over seeds of the tokens or updates at the end."""
        return float(np.mean([run["curve"][name][-1] for run in self.runs]))

    def rollouts(self) -> str:
        """Rollouts per step in the first and in the last tenth of the updates."""
        if not self.runs[0]["rollouts"]:
            return NOTHING
        first, last = (f"{np.mean([run['rollouts'][end] for run in self.runs]):.1f}" for end in (0, 1))
        return first if first == last else f"{first}→{last}"

    def numbers(self) -> dict[str, Any]:
        return {
            "vocab": self.vocab,
            "method": self.label,
            "estimator": METHODS[self.label],
            "rate": self.rate,
            "rewards": {f"{rate:g}": own for rate, own in self.rewards.items()},
            "updates": self.mean("updates"),
            "tokens": self.mean("tokens"),
            "first_update": self.first_update,
        }


def reward_at(run: dict[str, Any], position: float | int, axis: Axis = "seconds") -> float:
    """A run's reward after some seconds, tokens or updates, interpolated between evaluations; or that of its end."""
    return float(np.interp(position, run["curve"][axis], run["curve"]["reward"]))


def method_results(runs: Runs) -> list[MethodResult]:
    """The results so far; a method's learning rate is the one with the highest mean reward over its seeds."""
    scale, results = runs.scale, []
    for vocab, label in product(scale.vocabularies, METHODS):
        own: dict[float, list[dict[str, Any]]] = {}
        rewards: dict[float, dict[int, float]] = {}
        for rate, seed in product(scale.rates, scale.seeds):
            if (run := runs.done.get(run_name(vocab, label, rate, seed))) is not None:
                own.setdefault(rate, []).append(run)
                rewards.setdefault(rate, {})[seed] = reward_at(run, scale.seconds)
        if own:
            best = max(rewards, key=lambda rate: np.mean(list(rewards[rate].values())))
            first = runs.done[first_name(vocab, label)]
            results.append(MethodResult(vocab, label, rewards, best, own[best], first))
    return results


def cold_start_report(runs: Runs) -> Report:
    """The report of everything that is done."""
    scale, results = runs.scale, method_results(runs)
    if not results:
        raise InputError("there is nothing to report: no run of the cold start is finished")
    keys = list(dict.fromkeys(one.key for one in results))
    tables = [_table(scale, [one for one in results if one.key == key]) for key in keys]
    panels = [Panel(key, "evaluation", f"Mean reward, {key}") for key in keys]
    settings = {name: value for name, value in scale.settings().items() if name != "methods"}
    estimators = ", ".join(f"{label}: {estimator}" for label, estimator in METHODS.items())
    sections = [
        *(Section(table.title, [table]) for table in tables),
        *(
            Section(f"Reward against {x}", [Curves(name, x, panels, _curves(scale, results, x))])
            for x, name in _FIGURES.items()
        ),
        *([Section("Learning rates", [_rates_table(scale, results)])] if len(scale.rates) > 1 else []),
        Section("Settings", [Paragraph(f"Estimators: {estimators}."), Facts(settings)], page_only=True),
    ]
    part = f" Not complete: {runs.missing} results are missing." if runs.missing else ""
    lead = (
        f"From random weights, {scale.contexts} contexts with {scale.length} tokens each; the reward of a token is its "
        f"similarity to the target's. Every run has {scale.seconds:g} seconds of CPU time. Seeds: {len(scale.seeds)}."
        f"{part}"
    )
    made = manifest(scale=scale.scale, seeds=list(scale.seeds), settings=scale.settings())
    methods = [one.numbers() for one in results]
    numbers = {"scale": scale.scale, "missing_results": runs.missing, "methods": methods}
    return Report("coldstart", f"Cold start, scale {scale.scale}", lead, sections, made, numbers)


def _table(scale: Scale, results: Sequence[MethodResult]) -> Table:
    rows = []
    ends = [run["curve"]["tokens"][-1] for one in results for run in one.runs]
    shared = min((end for end in ends if end > 0), default=0)  # tokens that every run with updates has reached
    for one in results:
        final = list(one.rewards[one.rate].values())
        spread = f" ± {np.std(final, ddof=1):.3f}" if len(final) > 1 else ""
        early = np.mean([reward_at(run, shared, "tokens") for run in one.runs])
        rate, equal = (f"{one.rate:g}", f"{early:.3f}") if one.mean("updates") else (NOTHING, NOTHING)
        cells = [one.label, rate, f"{np.mean(final):.3f}{spread}", equal, number(one.mean("updates"))]
        rows.append([*cells, count_text(one.mean("tokens")), one.rollouts(), number(one.first_update["seconds"])])
    start = np.mean([run["curve"]["reward"][0] for one in results for run in one.runs])
    note = (
        f"Reward: mean of {scale.samples} sequences for each context after {scale.seconds:g} seconds, with the best "
        f"learning rate of {', '.join(f'{rate:g}' for rate in scale.rates)}; mean over seeds, ± their standard "
        f"deviation. At the start it is {start:.3f}. Equal tokens: the reward of the same runs after {shared:,} "
        "tokens, which all of them have reached. Rollouts for each token of the main trajectories, in the first and in "
        "the last tenth of the updates. First seconds: those of the first update. A method whose first update takes "
        "longer than the budget makes no update."
    )
    counts = ["updates", "tokens", "rollouts", "first seconds"]
    return Table(results[0].key, ["method", "rate", "reward", "equal tokens", *counts], rows, [note])


def _rates_table(scale: Scale, results: Sequence[MethodResult]) -> Table:
    rows = []
    for one in results:
        if one.mean("updates"):
            means = {rate: f"{np.mean(list(own.values())):.3f}" for rate, own in one.rewards.items()}
            rows.append([one.label, f"{one.vocab:,}", *(means.get(rate, NOTHING) for rate in scale.rates)])
    note = f"Reward after {scale.seconds:g} seconds with each learning rate, mean over seeds."
    return Table("Learning rates", ["method", "V", *(f"{rate:g}" for rate in scale.rates)], rows, [note])


def _curves(scale: Scale, results: Sequence[MethodResult], x: Axis) -> list[MethodCurves]:
    curves = {one.label: MethodCurves(one.label, {}, {}) for one in results}
    for one in results:
        series = []
        for run in one.runs:
            positions, values = run["curve"][x], run["curve"]["reward"]
            if x == "seconds" and len(positions) == 1:  # without an update, the reward stays what it was
                positions, values = [0.0, scale.seconds], values * 2
            series.append((np.array(positions, dtype=float), np.array(values)))
        curves[one.label].bands[one.key] = evaluation_band(series)
    return list(curves.values())


class ColdStart:
    """The experiment."""

    name, metric = "coldstart", None

    def weight(self, settings: ColdStartSettings) -> float:
        return float(len(open_runs(settings.out, settings.scale, settings.seeds).jobs(settings.out)))

    def run(self, settings: ColdStartSettings, on_event: Callback = ignore) -> Report:
        runs = open_runs(settings.out, settings.scale, settings.seeds)
        if not settings.report_only:
            run_resumable(lambda: run_missing(runs, settings.out, settings.jobs, on_event), self.name, settings.out)
        report = cold_start_report(runs)
        report.write(settings.out / "report")
        return report


COLD_START = ColdStart()
