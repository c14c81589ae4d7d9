"""How much of an update is bookkeeping? ``Trainer.step`` against the estimate, its gradient and the optimizer alone.

Bookkeeping is whatever a step does besides: batches, the gradient's norm and clipping, its running variance, checks
that numbers are finite, metrics. Both contestants make the same updates, in turn, with one thread and one optimizer,
whose learning rate is so small that the policy stays as it is. The share is the median over rounds of what a step takes
longer, relative to the step, with the interval of order statistics that contains the true median in 95 % of all cases.
A round differs from the next by many times the target, so there are many rounds.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress
from scipy.stats import binom

from benchmarks import speed_problems
from benchmarks.harness import Contestant, Result, Target, Timing, milliseconds, time_alternately
from benchmarks.speed_problems import CAPTIONS, KAREL
from benchmarks.speed_worker import SEED, Problem, inputs_of_update, make_optimizer, prepare_process
from corollout import Trainer, estimate, make_estimator
from corollout.events import ignore

METHOD = "reinforce"
STEP, ALONE = "step", "estimate, backward and optimizer alone"
MOST_BOOKKEEPING = 0.02
CONFIDENCE = 0.95


class Sizes(NamedTuple):
    problems: speed_problems.Sizes
    repetitions: dict[str, int]


def full_sizes() -> Sizes:
    return Sizes(speed_problems.full_sizes(), {KAREL: 600, CAPTIONS: 150})


QUICK = Sizes(speed_problems.QUICK, {KAREL: 3, CAPTIONS: 3})


def contestants(problem: Problem, updates: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The trainer's step, and the same update without bookkeeping."""
    optimizer = make_optimizer(problem.engine.policy)
    trainer = Trainer(
        problem.engine,
        problem.data,
        problem.reward,
        METHOD,
        optimizer,
        batch_size=problem.batch_size,
        seed=SEED,
        on_event=ignore,
    )
    estimator = make_estimator(METHOD)
    inputs = iter([inputs_of_update(problem, number) for number in range(updates)])  # made before the clock runs

    def alone() -> None:
        batch, noise = next(inputs)
        made = estimate(problem.engine, batch, problem.reward, estimator, noise)
        optimizer.zero_grad(set_to_none=True)
        made.backward()
        optimizer.step()

    return trainer.step, alone


class Share(NamedTuple):
    """Of a step, what is not in the update alone: the median over rounds, and its interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, step: Timing, alone: Timing) -> "Share":
        shares = sorted((s - a) / s for s, a in zip(step.seconds, alone.seconds, strict=True))
        # So many rounds at most lie below the true median, and as many above it, by chance.
        outside = int(binom.ppf((1 - CONFIDENCE) / 2, len(shares), 0.5))
        low = max(0, outside - 1)
        return cls(statistics.median(shares), shares[low], shares[-1 - low])

    def text(self) -> str:
        return f"{self.median:.1%} ({self.low:.1%}…{self.high:.1%})"


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else full_sizes()
    timings: dict[str, list[Timing]] = {}
    prepare_process()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        speed_problems.write_problems(folder, sizes.problems, folder if quick else None)
        for name, repetitions in sizes.repetitions.items():
            step, alone = contestants(Problem(folder / name), repetitions + 1)
            turns = [Contestant(STEP, 1, step), Contestant(ALONE, 1, alone)]
            timings[name] = time_alternately(turns, repetitions, progress, f"overhead, {name}")
    shares = {name: Share.of(*both) for name, both in timings.items()}
    return {
        "benchmark": "overhead",
        "quick": quick,
        "settings": {"estimator": METHOD, "threads": 1, "dtype": "float32", "repetitions": sizes.repetitions},
        "seeds": {"data, weights and noise": SEED},
        "timings": [{"problem": name, **timing.record()} for name, both in timings.items() for timing in both],
        "measurements": {"share_of_bookkeeping": {name: one._asdict() for name, one in shares.items()}},
        "targets": [
            Target(
                f"bookkeeping takes at most {MOST_BOOKKEEPING:.0%} of an update ({name}, {METHOD})",
                one.median,
                MOST_BOOKKEEPING,
                at_least=False,
                judged=not quick,
            ).record()
            for name, one in shares.items()
        ],
        "table": [
            {
                "problem": name,
                f"{STEP}, ms": milliseconds(step),
                f"{ALONE}, ms": milliseconds(alone),
                "bookkeeping, median and 95 % interval": shares[name].text(),
            }
            for name, (step, alone) in timings.items()
        ],
    }
