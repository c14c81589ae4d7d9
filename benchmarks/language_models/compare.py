"""The whole comparison: learning rates by short runs on one seed, then long runs with three seeds for each method.

Every step leaves files in the output folder and is skipped where they exist, so the same command continues.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.language_models.pretraining import Kind
from benchmarks.language_models.runs import evaluations, run_in_process
from benchmarks.language_models.settings import LEARNING_RATES, METHODS, SEEDS, RunSettings
from corollout.errors import InputError
from corollout.files import read_json, write_json

Log = Callable[[str], object]


@dataclass(frozen=True)
class Comparison:
    """What is compared, and in which folder."""

    out: Path
    base: RunSettings  # its method, learning rate, seed and seconds are replaced
    methods: Sequence[str] = tuple(METHODS)
    rates: Sequence[float] = LEARNING_RATES
    seeds: Sequence[int] = SEEDS
    seconds: float = 1_200.0
    rate_seconds: float = 240.0

    @property
    def rates_file(self) -> Path:
        return self.out / "rates.json"

    def known_rates(self) -> dict[str, Any]:
        """What was chosen so far, and the rewards by which it was."""
        return read_json(self.rates_file) if self.rates_file.exists() else {"chosen": {}, "rewards": {}}

    def folder(self, kind: Kind) -> Path:
        return self.out / f"{kind}-runs"

    def chosen_rates(self) -> dict[str, float]:
        if not self.rates_file.exists():
            raise InputError(f"{self.rates_file} does not exist: run the step choose-rates first")
        return read_json(self.rates_file)["chosen"]

    def runs(self, kind: Kind) -> list[RunSettings]:
        """All long runs: for the causal model three seeds of each method, for T5 the first seed of ours.

        TRL has no trainer for encoder-decoders. The learning rates of the causal model serve both.
        """
        rates = self.chosen_rates()
        missing = [method for method in self.methods if method not in rates]
        if missing:
            raise InputError(f"no learning rate was chosen for {', '.join(missing)}: run choose-rates with it")
        methods = [method for method in self.methods if kind == "causal" or METHODS[method].library == "ours"]
        seeds = self.seeds if kind == "causal" else self.seeds[:1]
        return [
            replace(
                self.base,
                method=method,
                learning_rate=rates[method],
                seed=seed,
                seconds=self.seconds,
                model=self.out / kind / "model",
            )
            for seed in seeds
            for method in methods
        ]


def choose_rates(comparison: Comparison, log: Log) -> dict[str, float]:
    """Each method's best learning rate, by the reward of samples at the end of a short run with the first seed."""
    known = comparison.known_rates()
    for method in comparison.methods:
        if method in known["chosen"]:
            continue
        rewards: dict[str, float] = {}
        for rate in comparison.rates:
            settings = replace(
                comparison.base,
                method=method,
                learning_rate=rate,
                seed=comparison.seeds[0],
                seconds=comparison.rate_seconds,
                evaluations=1,
                model=comparison.out / "causal" / "model",
            )
            last = evaluations(run_in_process(settings, comparison.out / "rate-runs"))[-1]
            rewards[f"{rate:g}"] = last["sampled"]["reward"]
            log(f"{method}, learning rate {rate:g}: {last['sampled']['reward']:.4f} after {last['updates']} updates")
        best = max(comparison.rates, key=lambda rate: rewards[f"{rate:g}"])
        known = comparison.known_rates()  # others may have written meanwhile
        known = {
            "chosen": {**known["chosen"], method: best},
            "rewards": {**known["rewards"], method: rewards},
        }
        write_json(comparison.rates_file, known)
    return known["chosen"]


def train(comparison: Comparison, kind: Kind, log: Log) -> None:
    """All long runs of a kind of model that are not finished."""
    for settings in comparison.runs(kind):
        last = evaluations(run_in_process(settings, comparison.folder(kind)))[-1]
        log(
            f"{kind}, {settings.method}, seed {settings.seed}: greedy {last['greedy']['reward']:.4f}, sampled "
            f"{last['sampled']['reward']:.4f} after {last['updates']} updates, {last['seconds']:.0f} s"
        )
