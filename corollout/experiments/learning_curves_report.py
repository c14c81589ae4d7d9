"""What the reports of learning curves say: gains at equal cost, and what was chosen on the way."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from corollout.experiments.learning_curves import RLOO, choosing_methods
from corollout.experiments.table1_report import TABLE1_WORDS
from corollout.experiments.table2_report import TABLE2_WORDS
from corollout.reports.comparison import INTERVAL, Method, gain_cells
from corollout.reports.run_results import Difference, RunOutcome, paired_difference, read_run
from corollout.reports.tables import TextTable, number
from corollout.sweeps.report import Collected, Words
from corollout.sweeps.sweep import Sweep
from corollout.training.runs import Run

_AXES = ("seconds", "tokens")


def mean_over_seeds(values: Sequence[float]) -> Difference:
    """A mean of one value for each seed, with Student's 95 % interval if there are several."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Difference(mean, None)
    half = float(stdtrit(len(values) - 1, 0.975)) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Difference(mean, (mean - half, mean + half))


def gain_until(runs: Sequence[RunOutcome], axis: str, limit: float) -> Difference | None:
    """How far the best validation score up to a limit is above that before the first update."""
    gains = []
    for run in runs:
        best = run.best_until(axis, limit)
        if best is None or run.evaluations[0]["update"] > 0:
            return None
        gains.append(best - run.evaluations[0][run.metric.key])
    return mean_over_seeds(gains)


def _equal_cost_table(sweep: Sweep, found: Collected) -> TextTable:
    limits, measure = found.comparison.limits, found.comparison.metric
    methods = {method.label: method for method in found.methods if method.label not in sweep.models}
    runs = {label: {run.settings["seed"]: run for run in _runs(method)} for label, method in methods.items()}
    rows = []
    for label, own in runs.items():
        gains = [gain_until(list(own.values()), axis, limits[axis]) for axis in _AXES]
        jobs = chain.from_iterable(map(gain_cells, [*gains, _difference(own, runs.get(RLOO, {}))]))
        rows.append([label, *jobs])
    reached = " or ".join(f"{limits[axis]:,.0f} {axis}" for axis in limits)
    note = (
        f"Gain: the best {measure.name} on the validation data up to {reached}, which all runs have reached, less that "
        f"of the start, times 100; mean over seeds, with Student's 95 % interval over them. Test, less {RLOO}: "
        f"difference of the best weights to those of {RLOO} with the same seed, on the same {measure.examples}, "
        f"averaged over seeds before the interval is taken over {measure.examples}."
    )
    header = ["method", "gain at\u00a0equal\u00a0seconds", INTERVAL, "gain at\u00a0equal\u00a0tokens", INTERVAL]
    return TextTable("At equal cost", [*header, f"test, less\u00a0{RLOO}", INTERVAL], rows, [note])


def _runs(method: Method) -> list[RunOutcome]:
    return [read_run(Path(run)) for run in method.runs]


def _difference(own: dict[int, RunOutcome], base: dict[int, RunOutcome]) -> Difference | None:
    """On the test, for the seeds that both have; nothing for the base itself."""
    pairs = [
        (base[seed].splits["test"], run.splits["test"])
        for seed, run in own.items()
        if seed in base and run is not base[seed] and all("test" in one.splits for one in (run, base[seed]))
    ]
    return paired_difference(pairs) if pairs else None


def _choices_table(sweep: Sweep, found: Collected) -> TextTable:
    rows = []
    for group in found.groups:
        if group.label not in choosing_methods(sweep):
            continue
        for run in map(Run.open, group.runs):
            for record in run.records("choice"):
                products = sorted(seen["variance"] * seen["seconds"] for seen in record["seen"])
                next_best = products[0] / products[1] if len(products) > 1 and products[1] > 0 else None
                seed = str(run.config["finetune"]["seed"])
                rows.append([group.label, seed, number(record["update"]), record["picked"], number(next_best)])
    note = (
        "Which estimator was taken after how many updates, and its variance × seconds in parts of that of the next "
        "best, as seen from a few estimates of each. These estimates count as seconds and as tokens of the training."
    )
    return TextTable(
        "Chosen estimators", ["method", "seed", "after update", "estimator", "of the next best"], rows, [note]
    )


def _tables(sweep: Sweep, found: Collected) -> list[TextTable]:
    return [_equal_cost_table(sweep, found), _choices_table(sweep, found)]


KAREL_CURVES_WORDS = Words("Estimators on Karel, at equal cost", TABLE1_WORDS.lead, _tables)
CAPTION_CURVES_WORDS = Words("Estimators on captions, at equal cost", TABLE2_WORDS.lead, _tables)
