"""Estimators of the paper next to later ones: how they learn, at equal seconds and at equal tokens.

Data, models and training are those of the two tables, at every scale.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from corollout.estimators import make_estimator
from corollout.experiments import table1, table2
from corollout.experiments.experiment import SweepExperiment
from corollout.files import check_entries
from corollout.reports.comparison import INTERVAL, gain_cells
from corollout.reports.report import Table
from corollout.reports.run_results import MeanDifference, RunResult, paired_difference, read_run
from corollout.reports.tables import number, times
from corollout.sweeps.analysis import VARIANCE
from corollout.sweeps.report import ReportTexts, SweepResults
from corollout.sweeps.sweep import MLE, Model, Sweep
from corollout.training.runs import Run

RLOO = "RLOO"  # the method that the others are compared with


def choosing_methods(sweep: Sweep) -> list[str]:
    """Methods that choose their estimator during training."""
    return [m for m in sweep.grid.methods if make_estimator(sweep.estimator(m)).chooses_estimators]


def mean_over_seeds(values: Sequence[float]) -> MeanDifference:
    """The mean of one value per seed, with Student's 95 % interval if there are several."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return MeanDifference(mean, None)
    half = float(stdtrit(len(values) - 1, 0.975)) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return MeanDifference(mean, (mean - half, mean + half))


def gain_until(runs: Sequence[RunResult], axis: str, limit: float) -> MeanDifference | None:
    """How much the best validation score up to a limit exceeds that before the first update."""
    gains = []
    for run in runs:
        best = run.best_until(axis, limit)
        if best is None or run.evaluations[0]["update"] > 0:
            return None
        gains.append(best - run.evaluations[0][run.metric.key])
    return mean_over_seeds(gains)


def _equal_cost_table(results: SweepResults) -> Table:
    limits, metric = results.comparison.limits, results.comparison.metric
    runs: dict[str, dict[int, RunResult]] = {}
    for method in results.methods:
        if method.label not in results.sweep.grid.models:
            read = [read_run(Path(run)) for run in method.runs]
            runs[method.label] = {run.settings["seed"]: run for run in read}
    rows = []
    for label, own in runs.items():
        gains = [gain_until(list(own.values()), axis, limits[axis]) for axis in ("seconds", "tokens")]
        gains.append(_test_difference(own, runs.get(RLOO, {})))
        rows.append([label, *chain.from_iterable(gain_cells(gain, metric) for gain in gains)])
    reached = " or ".join(f"{limits[axis]:,.0f} {axis}" for axis in limits)
    note = (
        f"Gain: the best validation {metric.name} up to {reached}, which all runs have reached, minus that of the start"
        f"{times(metric)}; mean over seeds, with Student's 95 % interval over them. Test, minus {RLOO}: difference of "
        f"the best weights to those of {RLOO} with the same seed, on the same {metric.examples}, averaged over seeds "
        f"before the interval is taken over {metric.examples}."
    )
    header = ["method", "gain at\u00a0equal\u00a0seconds", INTERVAL, "gain at\u00a0equal\u00a0tokens", INTERVAL]
    return Table("At equal cost", [*header, f"test, minus\u00a0{RLOO}", INTERVAL], rows, [note])


def _test_difference(own: dict[int, RunResult], base: dict[int, RunResult]) -> MeanDifference | None:
    """For the seeds that both have; None for the base itself."""
    pairs = [
        (base[seed].splits["test"], run.splits["test"])
        for seed, run in own.items()
        if seed in base and run is not base[seed] and all("test" in one.splits for one in (run, base[seed]))
    ]
    return paired_difference(pairs) if pairs else None


def _choices_table(results: SweepResults) -> Table:
    rows = []
    for group in results.groups:
        if group.label not in choosing_methods(results.sweep):
            continue
        for run in map(Run.open, group.runs):
            for record in run.records("choice"):
                check_entries(record, run.directory / "metrics.jsonl", seen=list, update=int, picked=str)
                products = sorted(seen["variance"] * seen["seconds"] for seen in record["seen"])
                next_best = products[0] / products[1] if len(products) > 1 and products[1] > 0 else None
                seed = str(run.section("finetune").get("seed", 0))
                rows.append([group.label, seed, number(record["update"]), record["picked"], number(next_best)])
    note = (
        "Which estimator was chosen after how many updates, and its variance × seconds as a fraction of that of the "
        "next best, from a few estimates of each. These estimates count as seconds and as tokens of the training."
    )
    header = ["method", "seed", "after update", "estimator", "of the next best"]
    return Table("Chosen estimators", header, rows, [note])


# A method that chooses during training has no variance before it has chosen.
_VARIANCE = replace(VARIANCE, methods=lambda sweep: [m for m in sweep.grid.methods if m not in choosing_methods(sweep)])
_PAPER = {"REINFORCE": "reinforce", "SC": "sc", RLOO: "rloo-8"}
_LATER = {
    "REINFORCE-fit": "reinforce:baseline=fitted",
    "RLOO-fit": "rloo-8:baseline=fitted",
    "SET-2": "set-2:baseline=fitted",
    "SET-8": "set-8:baseline=fitted",
    "AUTO": "auto",
}

KAREL_CURVES = SweepExperiment(
    replace(
        table1.TABLE1.spec,
        name="curves-karel",
        methods={**_PAPER, "ARSM": "arsm", **_LATER},
        scales={
            "tiny": {"rates": [5e-4], "seeds": [0, 1], "beam": 0, "probes": 20},
            "small": {"rates": [3e-4, 1e-3], "seeds": [0, 1, 2], "beam": 0, "probes": 40},
            "paper": {"rates": [5e-5, 2e-4], "seeds": [0, 1, 2], "beam": 0, "probes": 40},
        },
        analyses=(_VARIANCE,),
        at_scale={},
    ),
    ReportTexts("Estimators on Karel, at equal cost", table1.lead, (_equal_cost_table, _choices_table)),
)

CAPTION_CURVES = SweepExperiment(
    replace(
        table2.TABLE2.spec,
        name="curves-captions",
        methods={**_PAPER, "ARS-20": "ars-20", **_LATER},
        scales={
            "tiny": {"rates": [1e-3], "seeds": [0, 1], "beam": 0, "probes": 10},
            "small": {"rates": [5e-5], "seeds": [0, 1, 2], "beam": 0, "probes": 20},
            "paper": {"rates": [5e-5], "seeds": [0, 1, 2], "beam": 0, "probes": 40},
        },
        analyses=(_VARIANCE,),
        # Of ten images in an update, methods with a single sentence for each would learn from fewer than the others.
        at_scale={
            "paper": {
                "REINFORCE": "reinforce:samples=5",
                "SC": "sc:samples=5",
                "ARS-20": "ars-20:samples=5",
                "REINFORCE-fit": "reinforce:baseline=fitted,samples=5",
            }
        },
        models=(Model(MLE, "mle"),),
        starts={},
    ),
    ReportTexts("Estimators on captions, at equal cost", table2.lead, (_equal_cost_table, _choices_table)),
)
